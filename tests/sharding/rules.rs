//! Meshes, specs and logical axis rules, from their text to their text.

use insta::assert_snapshot;
use meshloom::sharding::{Axes, Mesh, MeshAxis, Rule, RuleSets, Rules, Spec};

/// Resolves `names:sizes` ("vocab:256 embed:64", `_` for no name) on a mesh and returns the spec, or the error, and the
/// warnings. `rules` is "preset", or lines of "name axis axis".
fn check(mesh: &str, rules: &str, strict: bool, tensor: &str) -> String {
    let sizes = mesh.split(',').filter_map(|axis| axis.split_once('=')).map(|(_, size)| size.parse::<usize>().unwrap());
    let mesh = Mesh::parse(mesh, sizes.product()).unwrap();
    let rules = match rules {
        "preset" => Rules::preset("decoder", strict),
        _ => Rules::new(rules.lines().enumerate().map(rule).collect(), strict),
    };
    let dims = || tensor.split_whitespace().map(|dim| dim.split_once(':').unwrap());
    let names: Vec<Option<&str>> = dims().map(|(name, _)| (name != "_").then_some(name)).collect();
    let dims: Vec<usize> = dims().map(|(_, size)| size.parse().unwrap()).collect();
    let mut warnings = Vec::new();
    let mut text = match rules.and_then(|rules| rules.resolve(&mesh, "w", &names, &dims, &mut warnings)) {
        Ok(spec) => spec.display(&mesh).to_string(),
        Err(error) => format!("error: {error}"),
    };
    for warning in warnings {
        text += &format!("\nwarning: {warning}");
    }
    text
}

fn rule((index, line): (usize, &str)) -> Rule {
    let mut words = line.split_whitespace().map(str::to_owned);
    Rule {
        name: words.next().unwrap(),
        axes: words.collect(),
        origin: format!("rules.list[{index}]"),
        published: false,
    }
}

fn mesh_text(text: &str, devices: usize) -> String {
    match Mesh::parse(text, devices) {
        Ok(mesh) => format!("{mesh} on {}", mesh.device_count()),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn meshes() {
    assert_snapshot!(mesh_text("data=2,fsdp=4", 8), @"data=2,fsdp=4 on 8");
    assert_snapshot!(mesh_text(" data = 2 , fsdp = -1 ", 8), @"data=2,fsdp=4 on 8");
    assert_snapshot!(mesh_text("", 1), @" on 1");
    assert_snapshot!(mesh_text("data=1,fsdp=1", 1), @"data=1,fsdp=1 on 1");
    assert_snapshot!(mesh_text("data=2,fsdp=3", 8), @r#"error: mesh "data=2,fsdp=3" has 6 devices, but there are 8; change a size, or give one axis -1 to fill up"#);
    assert_snapshot!(mesh_text("data=3,fsdp=-1", 8), @r#"error: mesh "data=3,fsdp=-1": axis "fsdp" of size -1 cannot fill up, because the other axes take 3 devices and 8 is not a multiple of that"#);
    assert_snapshot!(mesh_text("data=-1,fsdp=-1", 8), @r#"error: mesh "data=-1,fsdp=-1": "data" and "fsdp" both have size -1; only one axis can fill up the devices"#);
    assert_snapshot!(mesh_text("data=2,data=4", 8), @r#"error: mesh "data=2,data=4": axis "data" occurs twice; axis names must be unique"#);
    assert_snapshot!(mesh_text("data=0", 8), @r#"error: mesh "data=0": "data=0" is not an axis; write name=size with a size of at least 1, or -1 to fill up, as in "data=2,fsdp=4""#);
    assert_snapshot!(mesh_text("data=two", 8), @r#"error: mesh "data=two": "data=two" is not an axis; write name=size with a size of at least 1, or -1 to fill up, as in "data=2,fsdp=4""#);
    assert_snapshot!(mesh_text("data=2,", 2), @r#"error: mesh "data=2,": "" is not an axis; write name=size with a size of at least 1, or -1 to fill up, as in "data=2,fsdp=4""#);
    assert_snapshot!(mesh_text("a=4294967296,b=4294967296", 8), @r#"error: mesh "a=4294967296,b=4294967296" is too large: at most 16 axes, and a device count that fits in 32 bits"#);
    assert_snapshot!(Mesh::parse("data=2,fsdp=4", 8).unwrap().require_axis("fdsp").unwrap_err(), @r#"the mesh "data=2,fsdp=4" has no axis "fdsp" (did you mean "fsdp"?)"#);
}

#[test]
fn devices_are_row_major() {
    let mesh = Mesh::parse("data=2,fsdp=4", 8).unwrap();
    let (data, fsdp) = (mesh.axis("data").unwrap(), mesh.axis("fsdp").unwrap());
    let places: Vec<_> = (0..8).map(|device| (mesh.axis_index(device, data), mesh.axis_index(device, fsdp))).collect();
    assert_eq!(places, [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]);
}

#[test]
fn specs() {
    let mesh = Mesh::parse("data=2,fsdp=2,tensor=2", 8).unwrap();
    let axis = |name| mesh.axis(name).unwrap();
    let spec = Spec::from_names(&mesh, &[&["fsdp"], &["tensor", "data"], &[]]).unwrap();
    assert_snapshot!(spec.display(&mesh), @"[fsdp, (tensor,data), _]");
    assert_eq!(spec.local_dims(&mesh, &[8, 12, 3]).unwrap().as_slice(), [4, 3, 3]);
    assert_snapshot!(spec.local_dims(&mesh, &[8, 6, 3]).unwrap_err(), @"dimension 1 of size 6 cannot be split by [fsdp, (tensor,data), _] into 4 equal parts");
    assert_snapshot!(spec.local_dims(&mesh, &[8, 6]).unwrap_err(), @"spec [fsdp, (tensor,data), _] has 3 dimensions, but the value has 2");
    assert_snapshot!(Spec::from_names(&mesh, &[&["fsdp"], &["fsdp"]]).unwrap_err(), @r#"spec [fsdp, fsdp] uses mesh axis "fsdp" twice; an axis can split one dimension, or be unreduced, once"#);

    let unreduced = Spec::replicated(1).with_unreduced([axis("tensor"), axis("data")]);
    assert_eq!(unreduced, Spec::replicated(1).with_unreduced([axis("data"), axis("tensor")]));
    assert!(!unreduced.is_replicated());
    assert_snapshot!(unreduced.display(&mesh), @"[_]{unreduced: data,tensor}");
    let twice = unreduced.with_dim(0, [axis("data")]);
    assert_snapshot!(twice.check(&mesh).unwrap_err(), @r#"spec [data]{unreduced: data,tensor} uses mesh axis "data" twice; an axis can split one dimension, or be unreduced, once"#);
    let foreign = Spec::new([Axes::from_elem(MeshAxis::new(7).unwrap(), 1)]);
    assert_snapshot!(foreign.check(&mesh).unwrap_err(), @r#"spec [?] refers to mesh axis number 7, but the mesh "data=2,fsdp=2,tensor=2" has 3"#);
}

/// Every element lies in the boxes of as many devices as there are copies.
#[test]
fn boxes_cover_the_value() {
    let mesh = Mesh::parse("data=2,fsdp=2,tensor=2", 8).unwrap();
    for (spec, copies) in [
        (Spec::replicated(2), 8),
        (Spec::from_names(&mesh, &[&["fsdp"], &[]]).unwrap(), 4),
        (Spec::from_names(&mesh, &[&["tensor", "data"], &[]]).unwrap(), 2),
        (Spec::from_names(&mesh, &[&["tensor"], &["data", "fsdp"]]).unwrap(), 1),
    ] {
        let boxes = spec.boxes(&mesh, &[4, 8]).unwrap();
        assert_eq!(boxes.len(), 8);
        for (row, column) in (0..4).flat_map(|row| (0..8).map(move |column| (row, column))) {
            let holders = boxes.iter().filter(|ranges| ranges[0].contains(&row) && ranges[1].contains(&column)).count();
            assert_eq!(holders, copies, "{} at {row},{column}", spec.display(&mesh));
        }
    }
    // The first axis of a dimension is the major one: device 1 is tensor 1, so it starts in the second half.
    let spec = Spec::from_names(&mesh, &[&["tensor", "data"], &[]]).unwrap();
    let starts: Vec<usize> = spec.boxes(&mesh, &[4, 1]).unwrap().iter().map(|ranges| ranges[0].start).collect();
    assert_eq!(starts, [0, 2, 0, 2, 1, 3, 1, 3]);
}

#[test]
fn decoder_preset() {
    let check = |mesh, tensor| check(mesh, "preset", true, tensor);
    assert_snapshot!(check("data=2,fsdp=4", "vocab:256 embed:256"), @"[_, fsdp]");
    assert_snapshot!(check("data=2,fsdp=4", "activation_batch:16 activation_length:256 activation_embed:256"), @"[(data,fsdp), _, _]");
    assert_snapshot!(check("data=8", "activation_batch:16 activation_length:256"), @"[data, _]");
    assert_snapshot!(check("data=8", "embed:256 mlp:768"), @"[_, _]");
    assert_snapshot!(check("fsdp=2,tensor=4", "layers:4 embed:256 heads:8 kv:32"), @"[_, fsdp, tensor, _]");
    assert_snapshot!(check("fsdp=2,tensor=4", "activation_batch:16 activation_length:256 activation_mlp:768"), @"[fsdp, _, tensor]");
    assert_snapshot!(check("data=1,fsdp=1", "embed:256 mlp:768"), @"[_, _]");
    assert_snapshot!(check("tensor=8", "embed:256 kv_heads:4 kv:32"), @r#"error: tensor "w": dimension 1 ("kv_heads") of size 4 cannot be split 8 ways by rule kv_heads -> tensor (preset decoder) on the mesh "tensor=8"; give these axes a size that divides it and the other devices to another axis, or have every device hold all key and value heads, by the rules ["kv_heads", []] and ["activation_kv_heads", []] before this one; or use `Rules::with_strict(false)` to leave the dimension unsplit"#);
    assert_snapshot!(check("stage=8", "norm:256 _:3"), @"[_, _]");
    assert_snapshot!(Rules::preset("decodr", true).unwrap_err(), @r#"there is no rule preset "decodr" (did you mean "decoder"?); known presets: decoder, decoder-all-reduce"#);
}

/// The peer's semantics, in both modes where it has no complaint of ours.
#[test]
fn peer_semantics() {
    let check = |mesh, rules, tensor| check(mesh, rules, true, tensor);
    // Over the rules in order, not over the dims: `b` takes x although `a` is the first dim.
    assert_snapshot!(check("x=2,y=2", "b x\na x\na y", "a:4 b:4"), @"[y, x]");
    // All of a tuple or nothing: (x,y) is partly taken, the later rule of the same name applies.
    assert_snapshot!(check("x=2,y=2", "b x\na x y\na y", "a:4 b:4"), @"[y, x]");
    // A name mapped to nothing ends the search for it.
    assert_snapshot!(check("x=2,y=2", "a\na x", "a:4"), @"[_]");
    // ... also as a stated fallback, which is not a clash.
    assert_snapshot!(check("x=2,y=2", "b x\na x\na", "a:4 b:4"), @"[_, x]");
    // The first applicable rule wins; an assigned dim is not assigned again.
    assert_snapshot!(check("x=2,y=2", "a x\na y", "a:4"), @"[x]");
    // The order of a tuple is major to minor on the dim, whatever the order in the mesh.
    assert_snapshot!(check("x=2,y=2", "a y x", "a:4"), @"[(y,x)]");
    // Axes of size 1 are dropped, but count as used: `b` goes on to its second rule.
    assert_snapshot!(check("x=1,y=2,z=2", "a x y\nb x z\nb z", "a:4 b:4"), @"[y, z]");
    assert_snapshot!(check("x=1,y=2,z=2", "a x y\nb x", "a:4 b:4"), @"[y, _]");
    // Names that no rule has, and dims without a name, stay unsharded; two of the latter are not duplicates.
    assert_snapshot!(check("x=2", "a x", "_:3 other:5 _:3 a:2"), @"[_, _, _, x]");
    // A scalar.
    assert_snapshot!(check("x=2", "a x", ""), @"[]");
}

#[test]
fn strict_errors_and_lenient_warnings() {
    let strict = |mesh, rules, tensor| check(mesh, rules, true, tensor);
    let lenient = |mesh, rules, tensor| check(mesh, rules, false, tensor);

    assert_snapshot!(strict("x=2,y=4", "a x y", "a:12"), @r#"error: tensor "w": dimension 0 ("a") of size 12 cannot be split 8 ways by rule a -> (x,y) (rules.list[0]) on the mesh "x=2,y=4"; change the size, the mesh or the rule, or allow it to be padded (`Rules::with_uneven(true)`); or use `Rules::with_strict(false)` to split it over x alone"#);
    assert_snapshot!(lenient("x=2,y=4", "a x y", "a:12"), @r#"
    [x]
    warning: tensor "w": dimension 0 ("a") of size 12 cannot be split 8 ways by rule a -> (x,y) (rules.list[0]) on the mesh "x=2,y=4"; change the size, the mesh or the rule, or allow it to be padded (`Rules::with_uneven(true)`); the rules are not strict, so meshloom will split it over x alone
    "#);
    assert_snapshot!(lenient("x=2,y=4", "a y x", "a:6"), @r#"
    [x]
    warning: tensor "w": dimension 0 ("a") of size 6 cannot be split 8 ways by rule a -> (y,x) (rules.list[0]) on the mesh "x=2,y=4"; change the size, the mesh or the rule, or allow it to be padded (`Rules::with_uneven(true)`); the rules are not strict, so meshloom will split it over x alone
    "#);
    assert_snapshot!(lenient("x=2,y=4", "a y", "a:6"), @r#"
    [_]
    warning: tensor "w": dimension 0 ("a") of size 6 cannot be split 4 ways by rule a -> y (rules.list[0]) on the mesh "x=2,y=4"; change the size, the mesh or the rule, or allow it to be padded (`Rules::with_uneven(true)`); the rules are not strict, so meshloom will leave the dimension unsplit
    "#);

    assert_snapshot!(strict("x=2,y=4", "a x\nb x", "a:4 b:4"), @r#"error: tensor "w": dimension 1 ("b") stays unsplit, because rule b -> x (rules.list[1]) wants mesh axis "x", which dimension 0 already has by rule a -> x (rules.list[0]); add a rule for "b" with other axes, or with none; or use `Rules::with_strict(false)` to leave the dimension unsplit"#);
    assert_snapshot!(lenient("x=2,y=4", "a x\nb x", "a:4 b:4"), @r#"
    [x, _]
    warning: tensor "w": dimension 1 ("b") stays unsplit, because rule b -> x (rules.list[1]) wants mesh axis "x", which dimension 0 already has by rule a -> x (rules.list[0]); add a rule for "b" with other axes, or with none; the rules are not strict, so meshloom will leave the dimension unsplit
    "#);
    // The skipped rule would have lost an axis of size 4 as well.
    assert_snapshot!(strict("x=1,y=4", "a x\nb x y", "a:4 b:4"), @r#"error: tensor "w": dimension 1 ("b") stays unsplit, because rule b -> (x,y) (rules.list[1]) wants mesh axis "x", which dimension 0 already has by rule a -> x (rules.list[0]); add a rule for "b" with other axes, or with none; or use `Rules::with_strict(false)` to leave the dimension unsplit"#);

    assert_snapshot!(strict("fsdp=2", "a fdsp", "a:4"), @r#"error: rule a -> fdsp (rules.list[0]) names mesh axis "fdsp", which the mesh "fsdp=2" does not have (did you mean "fsdp"?); or use `Rules::with_strict(false)` to ignore "fdsp""#);
    assert_snapshot!(lenient("fsdp=2", "a fdsp fsdp", "a:4"), @r#"
    [fsdp]
    warning: rule a -> (fdsp,fsdp) (rules.list[0]) names mesh axis "fdsp", which the mesh "fsdp=2" does not have (did you mean "fsdp"?); the rules are not strict, so meshloom will ignore "fdsp"
    "#);

    // Errors in either mode.
    assert_snapshot!(lenient("x=2", "a x", "a:4 a:4"), @r#"error: tensor "w" has logical axis "a" on dimensions 0 and 1; a name may occur once in a tensor"#);
    assert_snapshot!(lenient("x=2", "a x x", "a:4"), @r#"error: rule a -> (x,x) (rules.list[0]) names mesh axis "x" twice; an axis can split a dimension once"#);
}

/// Rules of presets and files are written for names that want one axis: the consequence is reported, but is not an
/// error.
#[test]
fn clashes_of_published_rules() {
    let mesh = Mesh::parse("x=2,y=2", 4).unwrap();
    let resolve = |published: [bool; 2], rules: &str| {
        let rules = rules.lines().enumerate().map(|line| {
            let rule = rule(line);
            Rule { published: published[usize::from(rule.name == "b")], ..rule }
        });
        let rules = Rules::new(rules.collect(), true).unwrap();
        let mut warnings = Vec::new();
        let spec = rules.resolve(&mesh, "w", &[Some("a"), Some("b")], &[4, 4], &mut warnings);
        let spec = spec.map_or_else(|error| format!("error: {error}"), |spec| spec.display(&mesh).to_string());
        warnings.iter().fold(spec, |text, warning| text + &format!("\nwarning: {warning}"))
    };
    assert_snapshot!(resolve([true, true], "a x\nb x"), @r#"
    [x, _]
    warning: tensor "w": dimension 1 ("b") stays unsplit, because rule b -> x (rules.list[1]) wants mesh axis "x", which dimension 0 already has by rule a -> x (rules.list[0]); add a rule for "b" with other axes, or with none; published rules may clash, so meshloom will leave the dimension unsplit
    "#);
    // The next rule of the name applies, as the report says.
    assert_snapshot!(resolve([true, true], "a x\nb x y\nb y"), @"[x, y]");
    // Either side is the user's own.
    assert!(resolve([true, false], "a x\nb x").starts_with("error: "));
    assert!(resolve([false, true], "a x\nb x").starts_with("error: "));
    // Other problems of published rules are errors.
    assert!(resolve([true, true], "a x y\nb z").starts_with("error: "));
}

#[test]
fn whole_mesh_checks() {
    let mesh = Mesh::parse("data=2,fsdp=2,tensor=1", 4).unwrap();
    let rules = |text: &str, strict| Rules::new(text.lines().enumerate().map(rule).collect(), strict).unwrap();
    assert_snapshot!(rules("a data\nb stage", true).check_mesh(&mesh).unwrap_err(), @r#"rule b -> stage (rules.list[1]) names mesh axis "stage", which the mesh "data=2,fsdp=2,tensor=1" does not have; or use `Rules::with_strict(false)` to ignore "stage""#);
    let warnings = RuleSets::uniform(rules("a data\nb stage", false)).check_mesh(&mesh).unwrap();
    assert_eq!(warnings.len(), 1);
    assert_snapshot!(warnings[0], @r#"rule b -> stage (rules.list[1]) names mesh axis "stage", which the mesh "data=2,fsdp=2,tensor=1" does not have; the rules are not strict, so meshloom will ignore "stage""#);
    assert!(Rules::preset("decoder", true).unwrap().check_mesh(&mesh).unwrap().is_empty());

    let specs = [Spec::from_names(&mesh, &[&["fsdp"]]).unwrap(), Spec::replicated(2)];
    let preset = Rules::preset("decoder", true).unwrap();
    assert_snapshot!(preset.check_axis_use(&mesh, &specs).unwrap_err(), @r#"mesh axis "data" of size 2 splits no parameter and no activation, so its devices repeat each other's work; name it in a rule or drop it from the mesh "data=2,fsdp=2,tensor=1"; or use `Rules::with_strict(false)` to let them"#);
    let both = [specs[0].clone().with_unreduced(mesh.axis("data"))];
    assert!(preset.check_axis_use(&mesh, &both).unwrap().is_empty());
}

#[test]
fn names_must_fit_the_tensor() {
    let mesh = Mesh::parse("x=2", 2).unwrap();
    let rules = Rules::preset("decoder", true).unwrap();
    assert_snapshot!(rules.resolve(&mesh, "w", &[Some("embed")], &[2, 3], &mut Vec::new()).unwrap_err(), @r#"tensor "w" has 2 dimensions but 1 logical axis name; give one name, or none, per dimension"#);
}
