use meshloom::analysis::trace_sharding;
use meshloom::hlo::parse::parse;
use meshloom::sharding::Mesh;

#[test]
fn names_are_found_by_their_parts() {
    let text = "HloModule m\nENTRY main {\n  p__w1__.1 = f32[4] parameter(0)\n  w.1 = f32[4] parameter(1)\n  \
                ROOT both = f32[4] add(p__w1__.1, w.1)\n}\n";
    let module = parse(text).ok().and_then(|parsed| parsed.hlo_module).unwrap_or_default();
    let found = |query: &str| -> Vec<String> {
        let found = trace_sharding(&module, None, query, 9).unwrap_or_default();
        found.into_iter().map(|it| it.steps[0].name.clone()).collect()
    };
    assert_eq!(found("w.1"), ["w.1"]);
    // A word comes before a part.
    assert_eq!(found("w"), ["w.1"]);
    assert_eq!(found("w1"), ["p__w1__.1"]);
    assert!(found("").is_empty() && found("%").is_empty() && found("x").is_empty());
}

/// A compiled program states shardings at the parameters of its entry; values lie in fusions and in the carry of a
/// loop.
#[test]
fn shardings_are_found_around_computations() {
    let text = "HloModule m, is_scheduled=true, num_partitions=8
fused {
  a = f32[2,4] parameter(0)
  ROOT deep = f32[2,4] negate(a)
}
body {
  carry = (f32[2,4], f32[4,4]) parameter(0)
  x = f32[2,4] get-tuple-element(carry), index=0
  w = f32[4,4] get-tuple-element(carry), index=1
  inner = f32[2,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  doubled = f32[4,4] negate(w)
  ROOT next = (f32[2,4], f32[4,4]) tuple(inner, doubled)
}
condition {
  carry = (f32[2,4], f32[4,4]) parameter(0)
  ROOT c = pred[] constant(false)
}
ENTRY main {
  p = f32[2,4] parameter(0), sharding={devices=[8,1]<=[8]}
  q = f32[4,4] parameter(1), sharding={replicated}
  f = f32[2,4] fusion(p), kind=kLoop, calls=fused
  init = (f32[2,4], f32[4,4]) tuple(f, q)
  ROOT loop = (f32[2,4], f32[4,4]) while(init), condition=condition, body=body
}
";
    let module = parse(text).unwrap_or_else(|error| panic!("{error}")).hlo_module.unwrap_or_default();
    let mesh = Mesh::parse("data=2,fsdp=4", 8).expect("a mesh");
    let way = |name: &str| {
        let found = trace_sharding(&module, Some(&mesh), name, 1).expect("a value").remove(0);
        let last = found.steps.last().expect("a step");
        let axes = last.axes.iter().flatten().map(|axes| axes.iter().map(ToString::to_string).collect::<Vec<_>>());
        (found.steps.iter().map(|step| step.name.clone()).collect::<Vec<_>>(), axes.collect::<Vec<_>>())
    };
    let split = vec![vec!["data".to_owned(), "fsdp".to_owned()], Vec::new()];
    assert_eq!(way("deep"), (vec!["deep".to_owned(), "p".to_owned()], split));
    // The other element of the carry, which is whole everywhere, is as near and is not taken for it.
    assert_eq!(way("doubled").0, ["doubled", "q"]);
}
