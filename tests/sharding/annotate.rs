//! The sharding pass and its annotations: which specs inputs, outputs and named values get, in loops too; and that XLA
//! puts each element on the device that the spec says.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;

use insta::assert_snapshot;
use meshloom::compile::{LowerOptions, Lowered, LoweredProgram, PartitionMode, Sharded, lower};
use meshloom::emit::{Annotation, EmitOptions, ProgramForm, emit, op_sharding};
use meshloom::ir::{DType, Graph, GraphBuilder, Literal, PortInfo, TensorType};
use meshloom::ops::{Op, RematPolicy};
use meshloom::sharding::{Mesh, Role, Rule, RuleSets, Rules, ShardingTable, Spec, annotate};
use meshloom::trace::{
    Function, MapTree, ScanOptions, Specs, Tensor, TensorSpec, Tree, checkpoint, grad, scan, scan_with, scope,
};
use support::eight_devices::compile;

/// Rules from lines of "name axis axis".
fn rules(text: &str, strict: bool) -> Rules {
    let rule = |(index, line): (usize, &str)| {
        let mut words = line.split_whitespace().map(str::to_owned);
        Rule {
            name: words.next().expect("a name"),
            axes: words.collect(),
            origin: format!("rules.list[{index}]"),
            published: false,
        }
    };
    Rules::new(text.lines().enumerate().map(rule).collect(), strict).expect("rules")
}

fn mesh(text: &str) -> Mesh {
    let sizes = text.split(',').filter_map(|axis| axis.split_once('=')).map(|(_, size)| size.parse::<usize>());
    Mesh::parse(text, sizes.map(|size| size.expect("a size")).product()).expect("a mesh")
}

/// Traces a function, annotates it, and returns the specs of its ports and its named values, or the error.
fn check<I, O>(
    mesh: &Mesh,
    rules: &RuleSets,
    aliases: &[(usize, usize)],
    inputs: I,
    f: impl FnOnce(I::Mapped) -> O,
) -> String
where
    I: Tree<Leaf = TensorSpec> + MapTree<Tensor> + Clone,
    O: Tree<Leaf = Tensor> + MapTree<TensorSpec>,
    O::Mapped: MapTree<Tensor>,
{
    let function = Function::trace("f", Specs(inputs), f).expect("it traces");
    let annotated = match annotate(function.graph(), mesh, rules, aliases) {
        Ok(annotated) => annotated,
        Err(error) => return format!("error: {error}"),
    };
    meshloom::ir::verify(&annotated.graph).expect("a valid graph");
    let mut text = String::new();
    let graph = &annotated.graph;
    let spec = |info: &PortInfo| info.spec.as_ref().map_or("none".to_owned(), |spec| spec.display(mesh).to_string());
    for info in graph.input_info() {
        writeln!(text, "input {} {}", info.path, spec(info)).expect("text");
    }
    write_reshards(&mut text, mesh, graph, "");
    for (index, info) in graph.output_info().iter().enumerate() {
        writeln!(text, "output {index} {}", spec(info)).expect("text");
    }
    for diagnostic in annotated.diagnostics {
        writeln!(text, "warning: {diagnostic}").expect("text");
    }
    text
}

fn write_reshards(text: &mut String, mesh: &Mesh, graph: &Graph, indent: &str) {
    for node in graph.nodes() {
        match node.op() {
            Op::WithAxes(axes) => writeln!(text, "{indent}left: {axes:?}").expect("text"),
            Op::Reshard(reshard) => {
                let ty = graph.ty(node.result());
                writeln!(text, "{indent}reshard {ty} {}", reshard.spec.display(mesh)).expect("text");
            }
            _ => {}
        }
        for body in node.op().regions() {
            writeln!(text, "{indent}in {}:", node.op().name()).expect("text");
            write_reshards(text, mesh, body, &format!("{indent}  "));
        }
    }
}

fn spec(dims: impl AsRef<[usize]>, axes: &[&str]) -> TensorSpec {
    TensorSpec::new(DType::F32, dims).with_axes(axes)
}

#[test]
fn inputs_get_the_specs_of_their_roles() {
    let mesh = mesh("data=2,fsdp=4");
    let sets = RuleSets {
        params: rules("embed fsdp", true),
        compute: rules("embed data", true),
        optimizer: rules("embed data fsdp", true),
    };
    let param = |role| TensorSpec { role, ..spec([16, 3], &["embed", ""]) };
    let inputs = (
        param(Role::Params),
        param(Role::Compute),
        param(Role::Optimizer),
        TensorSpec::new(DType::F32, [16, 3]),
        TensorSpec::new(DType::S32, []),
    );
    // Outputs: like the input whose buffer they take, else left to the partitioner.
    let text = check(&mesh, &sets, &[(0, 2), (2, 0)], inputs, |(a, b, c, d, step)| (c + d, a + b, a * 2.0, step));
    assert_snapshot!(text, @r"
    input 0 [fsdp, _]
    input 1 [data, _]
    input 2 [(data,fsdp), _]
    input 3 [_, _]
    input 4 []
    output 0 [(data,fsdp), _]
    output 1 none
    output 2 [fsdp, _]
    output 3 none
    ");
}

#[test]
fn names_become_reshards_in_every_region() {
    let mesh = mesh("data=2,fsdp=4");
    let sets = RuleSets::uniform(Rules::preset("decoder", true).expect("the preset"));
    let axes = ["activation_batch", "activation_embed"];
    let inputs = || (spec([8, 16], &axes), spec([3, 16, 16], &["layers", "embed", ""]));
    let layer = |x: Tensor, w: Tensor| {
        checkpoint(RematPolicy::Full, (x, w), |(x, w)| {
            x.matmul(w).with_axes(["activation_batch", "activation_embed"]).tanh()
        })
    };
    let text = check(&mesh, &sets, &[], inputs(), |(x, w)| scan(x, w, |x, w| (layer(x, w), ())).0);
    assert_snapshot!(text, @r"
    input 0 [(data,fsdp), _]
    input 1 [_, fsdp, _]
    in scan:
      in checkpoint:
        reshard f32[8,16] [(data,fsdp), _]
    output 0 none
    ");
    // The cotangent of a named value is sharded like it.
    let text = check(&mesh, &sets, &[], inputs(), |(x, w)| {
        grad(w, |w| {
            scan(x, w, |x, w| (x.matmul(w).with_axes(["activation_batch", "activation_embed"]).tanh(), ())).0.sum(..)
        })
    });
    assert_snapshot!(text, @r"
    input 0 [(data,fsdp), _]
    input 1 [_, fsdp, _]
    in scan:
      reshard f32[8,16] [(data,fsdp), _]
    in scan:
      reshard f32[8,16] [(data,fsdp), _]
    output 0 none
    ");
}

#[test]
fn errors_name_tensor_dim_rule_and_line() {
    let mesh = mesh("data=2,fsdp=4");
    let [strict, lenient] = [true, false].map(|strict| RuleSets::uniform(rules("batch data fsdp\nembed fsdp", strict)));
    let inputs = || spec([8, 16], &["batch", ""]);
    let options = ScanOptions { length: Some(2), ..ScanOptions::default() };
    let line = line!() + 1;
    let rows = |x: Tensor| x.slice(0, ..6).with_axes(["batch", ""]);
    let in_loop = |x: Tensor| scope("layers", || scan_with(options, x, (), |x, ()| (x, scope("mlp", || rows(x)))).1);
    let check_line = |sets| {
        let text = check(&mesh, sets, &[], inputs(), in_loop);
        let place = format!("tests/sharding/annotate.rs:{line}");
        assert!(text.contains(&place), "{text}");
        text.replace(&place, "FILE:LINE")
    };
    assert_snapshot!(check_line(&strict), @r#"error: tensor "the value named in scope `layers/mlp` at FILE:LINE": dimension 0 ("batch") of size 6 cannot be split 8 ways by rule batch -> (data,fsdp) (rules.list[0]) on the mesh "data=2,fsdp=4"; change the size, the mesh or the rule, or allow it to be padded (`Rules::with_uneven(true)`); or use `Rules::with_strict(false)` to split it over data alone"#);
    assert_snapshot!(check_line(&lenient), @r#"
    input  [(data,fsdp), _]
    in scan:
      reshard f32[6,16] [data, _]
    output 0 none
    warning: no tensor of this program has the logical axis of rule embed -> fsdp (rules.list[1])
    warning: tensor "the value named in scope `layers/mlp` at FILE:LINE": dimension 0 ("batch") of size 6 cannot be split 8 ways by rule batch -> (data,fsdp) (rules.list[0]) on the mesh "data=2,fsdp=4"; change the size, the mesh or the rule, or allow it to be padded (`Rules::with_uneven(true)`); the rules are not strict, so meshloom will split it over data alone
    "#);

    // An input, by its path.
    let inputs = (spec([6, 16], &["batch", ""]), spec([8, 16], &["batch", "embed"]));
    assert_snapshot!(check(&mesh, &strict, &[], inputs.clone(), |(x, y)| (x, y)), @r#"error: tensor "0": dimension 0 ("batch") of size 6 cannot be split 8 ways by rule batch -> (data,fsdp) (rules.list[0]) on the mesh "data=2,fsdp=4"; change the size, the mesh or the rule, or allow it to be padded (`Rules::with_uneven(true)`); or use `Rules::with_strict(false)` to split it over data alone"#);
    assert_snapshot!(check(&mesh, &lenient, &[], inputs, |(x, y)| (x, y)), @r#"
    input 0 [data, _]
    input 1 [(data,fsdp), _]
    output 0 none
    output 1 none
    warning: tensor "0": dimension 0 ("batch") of size 6 cannot be split 8 ways by rule batch -> (data,fsdp) (rules.list[0]) on the mesh "data=2,fsdp=4"; change the size, the mesh or the rule, or allow it to be padded (`Rules::with_uneven(true)`); the rules are not strict, so meshloom will split it over data alone
    warning: tensor "1": dimension 1 ("embed") stays unsplit, because rule embed -> fsdp (rules.list[1]) wants mesh axis "fsdp", which dimension 0 already has by rule batch -> (data,fsdp) (rules.list[0]); add a rule for "embed" with other axes, or with none; the rules are not strict, so meshloom will leave the dimension unsplit
    "#);
    // A mesh axis that nothing uses.
    let inputs = spec([8, 16], &["embed", ""]);
    assert_snapshot!(check(&mesh, &strict, &[], inputs, |x| x), @r#"error: mesh axis "data" of size 2 splits no parameter and no activation, so its devices repeat each other's work; name it in a rule or drop it from the mesh "data=2,fsdp=4"; or use `Rules::with_strict(false)` to let them"#);
}

/// A function that is called twice is still one function, and one computation, when it is annotated.
#[test]
fn called_functions_stay_one() {
    let mesh = mesh("data=2,fsdp=4");
    let sets = RuleSets::uniform(Rules::preset("decoder", true).expect("the preset"));
    let input = || spec([8, 16], &["activation_batch", "activation_embed"]);
    let double =
        Function::trace("double", input(), |x| x.with_axes(["activation_batch", ""]) * 2.0).expect("it traces");
    let function = Function::trace("f", input(), |x| double.call(double.call(x))).expect("it traces");
    let computations = |sharding| {
        let options = LowerOptions { sharding, partition: PartitionMode::GSPMD, ..LowerOptions::default() };
        let lowered = lower(function.graph(), &options).expect("it lowers");
        let bodies = lowered.graph().nodes().flat_map(|node| node.op().regions().map(Arc::as_ptr).collect::<Vec<_>>());
        assert_eq!(bodies.collect::<HashSet<_>>().len(), 1);
        lowered.module.decode().expect("a module").computations.len()
    };
    assert_eq!((computations(None), computations(Some((&mesh, &sets)))), (2, 2));
}

/// The devices of each tile, as XLA expands the V2 form: the devices counted in the order of `iota_reshape_dims`,
/// transposed.
fn tile_devices(sharding: &meshloom::hlo::proto::OpSharding) -> Vec<i64> {
    let sizes = &sharding.iota_reshape_dims;
    let order: Vec<usize> = sharding.iota_transpose_perm.iter().map(|&axis| axis as usize).collect();
    let strides: Vec<i64> = (0..sizes.len()).map(|axis| sizes[axis + 1..].iter().product()).collect();
    let count: i64 = sizes.iter().product();
    let device = |position: i64| {
        let (mut rest, mut device) = (position, 0);
        for &axis in order.iter().rev() {
            device += rest % sizes[axis] * strides[axis];
            rest /= sizes[axis];
        }
        device
    };
    (0..count).map(device).collect()
}

/// Runs a program that only moves values: for each spec, one value from replicated to the spec and one back. Checks
/// that every device holds its box.
fn check_placements(mesh: &Mesh, specs: &[Spec]) {
    let literal = |spec: &Spec| {
        let ty = TensorType::new(DType::S32, &[8usize, 8, 8][..spec.rank()]);
        let elements: Vec<i32> = (0..ty.element_count() as i32).collect();
        Literal::from_slice(&ty.dims, &elements).expect("as many elements")
    };
    let port = |spec: &Spec| PortInfo { spec: Some(spec.clone()), ..PortInfo::default() };
    let whole = |spec: &Spec| Spec::replicated(spec.rank());
    let mut builder = GraphBuilder::new("place");
    let (mut values, mut ports, mut literals) = (Vec::new(), Vec::new(), Vec::new());
    for spec in specs {
        let literal = literal(spec);
        for (from, to) in [(whole(spec), spec.clone()), (spec.clone(), whole(spec))] {
            values.push(builder.input(literal.ty().clone(), port(&from)));
            ports.push(port(&to));
            literals.push(literal.clone());
        }
    }
    let graph = builder.finish(values, ports);
    let module = emit(&graph, EmitOptions { mesh: Some(mesh), ..EmitOptions::default() }).expect("a module");
    let table = ShardingTable {
        mesh: mesh.clone(),
        rules: RuleSets::uniform(Rules::from_pairs(&[]).expect("no rules")),
        rows: Vec::new(),
    };
    let sharded = Sharded { graph, unpadded: None, mesh: mesh.clone(), table, diagnostics: Vec::new() };
    let program = LoweredProgram::Annotated { sharded: Box::new(sharded), annotation: Annotation::Tiles };
    let (form, none) = (ProgramForm::Manual, Vec::new());
    let lowered =
        Lowered { program, module, form, processes: 1, aliases: none, timings: Vec::new(), kernels: Vec::new() };
    let program = compile(&lowered).expect("the plugin takes it");
    let arguments = program.put(0, &literals).expect("the inputs fit");
    let outputs = program.run(&arguments.iter().collect::<Vec<_>>()).expect("it runs");
    for (spec, outputs) in specs.iter().zip(outputs.chunks(2)) {
        let literal = literal(spec);
        let boxes = spec.boxes(mesh, &literal.ty().dims).expect("it divides");
        for (device, ranges) in boxes.iter().enumerate() {
            let mut expected = Vec::new();
            for (index, element) in literal.to_vec::<i32>().expect("s32").into_iter().enumerate() {
                let (mut rest, mut inside) = (index, true);
                for (range, &size) in ranges.iter().zip(&literal.ty().dims).rev() {
                    inside &= range.contains(&(rest % size));
                    rest /= size;
                }
                expected.extend(inside.then_some(element));
            }
            let place = || format!("{} on {mesh}, device {device}", spec.display(mesh));
            let held = outputs[0].shard(device).expect("a shard");
            assert_eq!(held.to_vec::<i32>().expect("s32"), expected, "{}", place());
            assert_eq!(outputs[1].shard(device).expect("a shard"), literal, "{}", place());
        }
    }
}

#[test]
fn op_shardings() {
    let two = "a=2,b=4";
    let three = "a=2,b=2,c=2";
    // Mesh, spec, tile dimensions (the last one of replicas, if marked), and the devices of the tiles in row-major
    // order.
    type Case<'a> = (&'a str, &'a [&'a [&'a str]], &'a [i64], bool, [i64; 8]);
    let cases: &[Case<'_>] = &[
        (two, &[&["a"], &[]], &[2, 1, 4], true, [0, 1, 2, 3, 4, 5, 6, 7]),
        (two, &[&["b"], &[]], &[4, 1, 2], true, [0, 4, 1, 5, 2, 6, 3, 7]),
        (two, &[&[], &["a"]], &[1, 2, 4], true, [0, 1, 2, 3, 4, 5, 6, 7]),
        (two, &[&["a"], &["b"]], &[2, 4], false, [0, 1, 2, 3, 4, 5, 6, 7]),
        (two, &[&["b"], &["a"]], &[4, 2], false, [0, 4, 1, 5, 2, 6, 3, 7]),
        (two, &[&["a", "b"]], &[8], false, [0, 1, 2, 3, 4, 5, 6, 7]),
        (two, &[&["b", "a"]], &[8], false, [0, 4, 1, 5, 2, 6, 3, 7]),
        (two, &[&[], &["b", "a"], &[]], &[1, 8, 1], false, [0, 4, 1, 5, 2, 6, 3, 7]),
        (three, &[&["b"]], &[2, 4], true, [0, 1, 4, 5, 2, 3, 6, 7]),
        (three, &[&["c"], &[]], &[2, 1, 4], true, [0, 2, 4, 6, 1, 3, 5, 7]),
        (three, &[&["a", "c"], &[]], &[4, 1, 2], true, [0, 2, 1, 3, 4, 6, 5, 7]),
        (three, &[&["c", "a"], &[]], &[4, 1, 2], true, [0, 2, 4, 6, 1, 3, 5, 7]),
        (three, &[&["c", "a"], &["b"]], &[4, 2], false, [0, 2, 4, 6, 1, 3, 5, 7]),
        (three, &[&["b"], &["c", "a"]], &[2, 4], false, [0, 4, 1, 5, 2, 6, 3, 7]),
        (three, &[&["c"], &["b"], &["a"]], &[2, 2, 2], false, [0, 4, 2, 6, 1, 5, 3, 7]),
        (three, &[&["a"], &[], &["b"]], &[2, 1, 2, 2], true, [0, 1, 2, 3, 4, 5, 6, 7]),
        (three, &[&["b", "c", "a"]], &[8], false, [0, 4, 1, 5, 2, 6, 3, 7]),
    ];
    let (two, three) = (mesh(two), mesh(three));
    let (mut on_two, mut on_three) = (Vec::new(), vec![Spec::replicated(2)]);
    for (mesh_text, names, tiles, has_replicas, devices) in cases {
        let (mesh, specs) = match mesh(mesh_text).axis_count() {
            2 => (&two, &mut on_two),
            _ => (&three, &mut on_three),
        };
        let spec = Spec::from_names(mesh, names).expect("a spec");
        let sharding = op_sharding(mesh, &spec);
        let what = format!("{} on {mesh}", spec.display(mesh));
        assert_eq!(sharding.tile_assignment_dimensions, *tiles, "{what}");
        assert_eq!(sharding.replicate_on_last_tile_dim, *has_replicas, "{what}");
        assert_eq!(tile_devices(&sharding), devices, "{what}");
        specs.push(spec);
    }
    let whole = op_sharding(&three, &Spec::replicated(2));
    assert_eq!(whole.r#type(), meshloom::hlo::proto::op_sharding::Type::Replicated);
    check_placements(&two, &on_two);
    check_placements(&three, &on_three);
}
