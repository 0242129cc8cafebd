//! Kernels of one's own: split over devices, differentiated, computed by what they say for a platform; what they say
//! wrong; and what stands in the module.

use std::sync::{Arc, LazyLock};

use meshloom::analysis::{CostOptions, Devices, cost, memory};
use meshloom::batching::{BatchAxis, vmap};
use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::text::{TextOptions, print};
use meshloom::ir::DType::{BF16, F32, S32};
use meshloom::ir::{Graph, GraphTextOptions, Literal, TensorType};
use meshloom::kernels::{Blocks, Kernels};
use meshloom::ops::{CustomCall, FactorRuleProblem, KernelCost, KernelNameError, KernelRef, RematPolicy, RuleText};
use meshloom::partition::CollectiveKind;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom::trace::{
    Function, Kernel, KernelBody, ResultDType, Tensor, TensorSpec, checkpoint, scan, value_and_grad,
};
use meshloom_nn::causal_attention;
use support::anchored::{run_by_tier, run_compiled};
use support::eight_devices::relative_error;

const EPSILON: f64 = 0.1;

fn column(s: Tensor, x: Tensor) -> Tensor {
    s.expand(-1).broadcast_to(x.dims())
}

/// Rows scaled by one over their root mean square, times a vector. On CPUs by a sum of products, where rows have an
/// even length; on TPUs by a kernel that works on its first operand in place.
static NORM: LazyLock<KernelRef> = LazyLock::new(|| {
    let kernel = Kernel::new("test_norm", "...td,d->...td | whole d", |operands| {
        let (x, w) = (operands[0], operands[1]);
        vec![x * column((x.square().mean(-1) + EPSILON).rsqrt(), x) * w.broadcast_to(x.dims())]
    });
    let kernel = kernel.expect("a rule").with_gradient(|operands, _, cotangents| {
        let (x, w, ct) = (operands[0], operands[1], cotangents[0]);
        let s = (x.square().mean(-1) + EPSILON).rsqrt();
        let direct = ct * w.broadcast_to(x.dims());
        let slope = (direct * x).sum(-1) * s * s * s * (-1.0 / x.dim(-1) as f64);
        let rows: Vec<usize> = (0..x.rank() - 1).collect();
        let w_ct = rows.iter().rev().fold(ct * x * column(s, x), |sum, &axis| sum.sum(axis as i32));
        vec![Some(direct * column(s, x) + x * column(slope, x)), Some(w_ct)]
    });
    let on_cpu = |types: &[TensorType]| {
        let width = *types[0].dims.last()?;
        width.is_multiple_of(2).then(|| {
            KernelBody::traced(move |operands| {
                let (x, w) = (operands[0], operands[1]);
                let squares = x.slice(-1, ..width / 2).square() + x.slice(-1, width / 2..).square();
                let s = (squares.sum(-1) * (1.0 / width as f64) + EPSILON).rsqrt();
                vec![x * column(s, x) * w.broadcast_to(x.dims())]
            })
        })
    };
    let on_tpu = |types: &[TensorType]| {
        let elements = types[0].element_count() as u64;
        let call = CustomCall {
            config: r#"{"custom_call_config": {"body":"","serialization_format":1}}"#.to_owned(),
            aliases: Box::new([(0, 0)]),
            cost: Some(KernelCost { operations: 5 * elements, transcendentals: 7, bytes: 8 * elements, scratch: 4096 }),
            ..CustomCall::new("tpu_custom_call", [types[0].clone()])
        };
        Some(KernelBody::Call(call))
    };
    let kernel = kernel.with_implementation("halves", &[PlatformKind::Cpu], on_cpu);
    kernel.with_implementation("in_place", &[PlatformKind::Tpu], on_tpu).register().expect("a name of its own")
});

/// Products of rows with a vector: a device with a part of them has a part of each sum. It calls another kernel in its
/// definition, and the gradient is that of the definition.
static DOTS: LazyLock<KernelRef> = LazyLock::new(|| {
    let scaled = Kernel::new("test_scaled", "...td,d->...td", |operands| {
        vec![operands[0] * operands[1].broadcast_to(operands[0].dims())]
    });
    let scaled = scaled.expect("a rule").register().expect("a name of its own");
    let kernel = Kernel::new("test_dots", "...td,d->...t | sum d", move |operands| {
        vec![scaled.call(&[operands[0], operands[1]])[0].sum(-1)]
    });
    kernel.expect("a rule").register().expect("a name of its own")
});

/// The loss of both kernels in a loop of two layers, and its gradient in all inputs.
fn program(length: usize, embed: usize) -> Arc<Graph> {
    let specs = (
        TensorSpec::new(F32, [4, length, embed]).with_axes(&["batch", "length", "embed"]),
        TensorSpec::new(F32, [2, embed]).with_axes(&["", "embed"]),
        TensorSpec::new(F32, [embed]).with_axes(&["embed"]),
    );
    let function = Function::trace("kernels", specs, |inputs| {
        value_and_grad(inputs, |(x, layers, w): (Tensor, Tensor, Tensor)| {
            let layer = |x: Tensor, w: Tensor| {
                (checkpoint(RematPolicy::Full, (x, w), |(x, w)| NORM.call(&[x, w])[0].tanh()), ())
            };
            let (x, ()) = scan(x, layers, layer);
            DOTS.call(&[x, w])[0].square().sum(..)
        })
    });
    function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
}

fn results(graph: &Graph, options: &LowerOptions<'_>) -> (Lowered, Vec<Vec<f64>>) {
    let lowered = lower(graph, options).unwrap_or_else(|error| panic!("{error}"));
    let values = run_by_tier("compiler kernels", &lowered, &inputs(graph)).iter().map(Literal::to_f64_vec).collect();
    (lowered, values)
}

fn inputs(graph: &Graph) -> Vec<Literal> {
    let wave = |position: usize, index: usize| ((index * (7 + position) % 97) as f64 / 48.5 - 1.0) * 1.7;
    let types = graph.input_types().cloned().enumerate();
    types.map(|(at, ty)| Literal::from_fn(ty, |index| wave(at, index))).collect()
}

fn used(lowered: &Lowered) -> Vec<(&str, &str)> {
    let mut used: Vec<(&str, &str)> =
        lowered.kernels.iter().map(|used| (used.op.as_str(), used.implementation.as_str())).collect();
    used.sort_unstable();
    used.dedup();
    used
}

#[track_caller]
fn check(found: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = relative_error(found, expected);
        assert!(error <= 1e-5, "{what}: result {index} differs by {error:e}");
    }
}

/// The same function written with plain ops, differentiated by the compiler.
fn plain(length: usize, embed: usize) -> Vec<Vec<f64>> {
    let specs =
        (TensorSpec::new(F32, [4, length, embed]), TensorSpec::new(F32, [2, embed]), TensorSpec::new(F32, [embed]));
    let function = Function::trace("plain", specs, |inputs| {
        value_and_grad(inputs, |(mut x, layers, w): (Tensor, Tensor, Tensor)| {
            for layer in 0..2 {
                let w = layers.slice(0, layer..layer + 1).reshape([embed]);
                let s = (x.square().mean(-1) + EPSILON).rsqrt();
                x = (x * column(s, x) * w.broadcast_to(x.dims())).tanh();
            }
            (x * w.broadcast_to(x.dims())).sum(-1).square().sum(..)
        })
    });
    results(function.unwrap_or_else(|error| panic!("{error}")).graph(), &LowerOptions::default()).1
}

/// Kernels equal plain ops on one device, by the implementation and by the definition, and then on meshes. Rows stay
/// split over batch and length. `whole` dimensions are gathered, `sum` ones give partial sums: where `embed` is split,
/// rows and vector are gathered in the layer and when it is computed again. The all-reduces add up the sums of the last
/// kernel, two sums of each row in the gradient, which is plain ops, then the loss and the gradients of the vectors.
#[test]
fn kernels_are_equal_to_plain_ops() {
    let (length, embed) = (6, 8);
    let (graph, expected) = (program(length, embed), plain(length, embed));
    let (lowered, found) = results(&graph, &LowerOptions::default());
    check(&found, &expected, "one device");
    let compiled = run_compiled(&lowered, &inputs(&graph));
    check(&compiled.iter().map(Literal::to_f64_vec).collect::<Vec<_>>(), &expected, "one device, by XLA");
    let forward = [("test_dots", "plain"), ("test_norm", "halves"), ("test_scaled", "plain")];
    assert_eq!(used(&lowered), forward);
    let (lowered, found) = results(&graph, &LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() });
    check(&found, &expected, "definitions");
    assert_eq!(used(&lowered)[1], ("test_norm", "plain"));
    // Rows of an odd length: the implementation does not take them.
    let (lowered, found) = results(&program(3, 5), &LowerOptions::default());
    check(&found, &plain(3, 5), "an odd length");
    assert_eq!(used(&lowered)[1], ("test_norm", "plain"));

    let rules = [("batch", &["data"][..]), ("length", &["context"]), ("embed", &["tensor"])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules).expect("rules"));
    for (axes, moved) in [
        ([("data", 4), ("context", 2), ("tensor", 1)], [0, 2]),
        ([("data", 2), ("context", 1), ("tensor", 4)], [4, 5]),
        ([("data", 1), ("context", 2), ("tensor", 4)], [4, 5]),
    ] {
        let mesh = Mesh::new(axes).expect("a mesh");
        let options =
            LowerOptions { sharding: Some((&mesh, &rules)), deny_replication: true, ..LowerOptions::default() };
        let (lowered, found) = results(&graph, &options);
        check(&found, &expected, &format!("{axes:?}"));
        assert_eq!(used(&lowered), forward, "{axes:?}");
        let ledger = lowered.collectives();
        let of = |kind: CollectiveKind| ledger.kind(kind).count().expect("a ledger");
        assert_eq!([of(CollectiveKind::AllGather), of(CollectiveKind::AllReduce)], moved, "{axes:?}: {ledger}");
    }
}

/// The text of a graph names the kernel, and reads back in a process that has it.
#[test]
fn graphs_with_kernels_read_back() {
    let graph = program(6, 8);
    let text = graph.to_text(GraphTextOptions::default());
    assert!(text.contains("kernel-call") && text.contains("\"test_norm\""), "{text}");
    assert!(Graph::from_text(&text).unwrap_or_else(|error| panic!("{error}")) == *graph);
    let error = Graph::from_text(&text.replace("\"test_dots\"", "\"test_dot\"")).map(drop).expect_err("no kernel");
    let expected = "no kernel `test_dot` is registered in this process (did you mean \"test_dots\"?); register";
    assert!(error.to_string().contains(expected), "{error}");
}

/// For a TPU the kernel is a custom call of local shapes, which states alias and cost; analyses of the module count it.
#[test]
fn a_custom_call_stands_in_its_place() {
    let specs =
        (TensorSpec::new(F32, [4, 6, 8]).with_axes(&["batch", "", ""]), TensorSpec::new(F32, [8]).with_axes(&[""]));
    let function = Function::trace("norm", specs, |(x, w)| NORM.call(&[x.exp(), w])[0].exp()).expect("it traces");
    let mesh = Mesh::new([("data", 2)]).expect("a mesh");
    let rules = RuleSets::uniform(Rules::from_pairs(&[("batch", &["data"][..])]).expect("rules"));
    let kernels = Kernels::portable(PlatformKind::Tpu);
    let options =
        LowerOptions { sharding: Some((&mesh, &rules)), kernels, omit_metadata: true, ..LowerOptions::default() };
    let lowered = lower(function.graph(), &options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(used(&lowered), [("test_norm", "in_place")]);
    assert_eq!(lowered.kernels[0].operands[0].to_string(), "f32[2,6,8]");
    let module = lowered.module.decode().expect("a module");
    let text = print(&module, &TextOptions::canonical());
    let line = text.lines().find(|line| line.contains("custom-call(") && line.contains("tpu_custom_call"));
    let line = line.unwrap_or_else(|| panic!("no call in {text}"));
    for part in [
        "= f32[2,6,8] custom-call(",
        "output_to_operand_aliasing={{}: (0, {})}",
        r#"kernel_bytes="768",kernel_operations="480",kernel_scratch_bytes="4096",kernel_transcendentals="7""#,
        r#""cost_estimate":{"flops":480,"transcendentals":7,"bytes_accessed":768},"body":"","serialization_format":1}"#,
    ] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    let total = cost(&module, &CostOptions::devices(Devices::partitioned(2))).total;
    // Both exponentials of 96 elements are beside it.
    assert_eq!((total.flops, total.transcendentals, total.unknown), (480, 7 + 2 * 96, false));
    let with = memory(&module).expect("its memory").temporaries;
    let mut without = module.clone();
    for instruction in without.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        instruction.frontend_attributes = None;
    }
    assert_eq!(with, memory(&without).expect("its memory").temporaries + 4096);
}

/// Layouts other than row-major stand in the constraints of operands and in the shape of the result.
#[test]
fn layouts_stand_in_the_module() {
    let call = |results: Vec<TensorType>, result_layouts: Vec<Box<[usize]>>| CustomCall {
        operand_layouts: Box::new([Box::new([0, 1]), Box::new([0])]),
        result_layouts: result_layouts.into(),
        ..CustomCall::new("mine", results)
    };
    let (matrix, vector) = (TensorType::new(F32, &[2, 3]), TensorType::new(F32, &[3]));
    let specs = (TensorSpec::new(F32, [2, 3]), TensorSpec::new(F32, [3]));
    let lowered = Function::trace("layouts", specs, |(x, w)| {
        let one = call(vec![matrix.clone()], vec![Box::new([0, 1])]);
        let two = call(vec![matrix.clone(), vector.clone()], vec![Box::new([0, 1]), Box::new([0])]);
        let custom_call = meshloom::trace::custom_call;
        (custom_call(one, &[x, w])[0], custom_call(two, &[x, w]))
    });
    let options = LowerOptions { omit_metadata: true, ..LowerOptions::default() };
    let lowered = lower(lowered.expect("it traces").graph(), &options).unwrap_or_else(|error| panic!("{error}"));
    let text = print(&lowered.module.decode().expect("a module"), &TextOptions::canonical());
    let constraints = "custom_call_target=\"mine\", operand_layout_constraints={f32[2,3]{0,1}, f32[3]{0}}";
    assert_eq!(text.matches(constraints).count(), 2, "{text}");
    assert!(text.contains("= f32[2,3]{0,1} custom-call("), "{text}");
    assert!(text.contains("= (f32[2,3]{0,1}, f32[3]) custom-call("), "{text}");
}

/// Each in one word or letter; the error says which.
#[test]
fn rules_that_mean_nothing_are_refused() {
    let problem = |text: &str| text.parse::<RuleText>().map(drop).expect_err(text).problem;
    let term = |term: &str| term.to_owned();
    for (text, expected) in [
        ("td,d", FactorRuleProblem::Arrow),
        ("td->d->t", FactorRuleProblem::Arrow),
        ("t?->t", FactorRuleProblem::Dimension { found: '?', term: term("t?") }),
        ("tt->t", FactorRuleProblem::Repeated { letter: 't', term: term("tt") }),
        ("t->tu", FactorRuleProblem::Unsized('u')),
        ("...t->t", FactorRuleProblem::Leading),
        ("t->...t", FactorRuleProblem::Leading),
        ("td->t", FactorRuleProblem::Unsaid { letter: 'd', in_some: false }),
        ("td->t,d | sum d", FactorRuleProblem::Unsaid { letter: 't', in_some: true }),
        ("td->t | add d", FactorRuleProblem::Word { word: term("add"), suggestion: String::new() }),
        ("td->t |", FactorRuleProblem::Word { word: String::new(), suggestion: String::new() }),
        ("td->t | sum", FactorRuleProblem::Letters { word: term("sum"), found: String::new() }),
        ("td->t | sum dt", FactorRuleProblem::Letters { word: term("sum"), found: term("dt") }),
        ("td->t | sum d, whole e", FactorRuleProblem::Unknown('e')),
        ("td->t | sum d, whole d", FactorRuleProblem::Twice('d')),
        ("td->td | sum d", FactorRuleProblem::Contradiction { word: "sum", letter: 'd', in_all: true }),
        ("td->t | split d", FactorRuleProblem::Contradiction { word: "split", letter: 'd', in_all: false }),
    ] {
        assert_eq!(problem(text), expected, "{text}");
    }
    let error = "td->t".parse::<RuleText>().map(drop).expect_err("no word").to_string();
    let expected = "factor rule `td->t`: `d` is in no result; say behind `|` whether it is `split`, `whole`, or what \
                    partial results are combined by: `sum`, `prod`, `max` or `min`";
    assert_eq!(error, expected);
}

fn refused(kernel: &KernelRef, differentiate: bool) -> String {
    let spec = TensorSpec::new(F32, [2, 4]);
    let function = Function::trace("refused", spec, |x| {
        let loss = |x: Tensor| kernel.call(&[x])[0].convert(F32).sum(..);
        if differentiate { value_and_grad(x, loss).0 } else { loss(x) }
    });
    let error = function.map(drop).expect_err("the kernel is wrong").to_string();
    assert!(error.contains("tests/compiler/kernels.rs:"), "{error} names no line");
    error
}

/// The rule of a kernel is checked where the kernel is called, and errors name the kernel.
#[test]
fn wrong_kernels_are_refused() {
    let kernel = |name: &str, rule: &str| Kernel::new(name, rule, |operands| vec![operands[0]]).expect("a rule");
    let registered = |kernel: Kernel| kernel.register().expect("a name of its own");
    let of = |kernel: Kernel, differentiate: bool, expected: &str| {
        let found = refused(&registered(kernel), differentiate);
        assert!(found.contains(expected), "{found}\nhas no\n{expected}");
    };
    let wrong = "the definition of kernel `test_wrong`: it gives f32[2,4], but the factor rule `td->t | sum d` says \
         f32[2]";
    of(kernel("test_wrong", "td->t | sum d"), false, wrong);
    let two = kernel("test_two", "td->td").with_result_dtypes([ResultDType::OfOperand(0), ResultDType::Is(BF16)]);
    of(two, false, "the results of kernel `test_two`: 2 element types stated for 1 result");
    let missing = kernel("test_missing", "td->td").with_result_dtypes([ResultDType::OfOperand(3)]);
    of(missing, false, "one is of the type of operand 3, which there is not");
    let itself = Kernel::new("test_itself", "td->td", |operands| {
        KernelRef::named("test_itself").expect("it is registered").call(operands)
    });
    of(itself.expect("a rule"), false, "the definition of kernel `test_itself`: it needs itself");
    let none = kernel("test_none", "td->td").with_gradient(|_, _, _| Vec::new());
    of(none, true, "the gradient of kernel `test_none`: it gives 0 cotangents, but the kernel has 1 operand");
    let other = kernel("test_other", "td->td").with_gradient(|operands, _, _| vec![Some(operands[0].convert(S32))]);
    of(other, true, "the cotangent of operand 0 is s32[2,4], but the operand is f32[2,4]");

    assert_eq!(kernel("test_two", "td->td").register(), Err(KernelNameError::Taken("test_two".to_owned())));
    assert_eq!(kernel("", "td->td").register(), Err(KernelNameError::Empty));
    // An implementation is made when the program is lowered.
    let implemented = kernel("test_implemented", "td->td").with_implementation("none", &[PlatformKind::Cpu], |_| {
        Some(KernelBody::traced(|operands| vec![operands[0].sum(-1)]))
    });
    let implemented = registered(implemented);
    let function =
        Function::trace("f", TensorSpec::new(F32, [2, 4]), |x| implemented.call(&[x])[0]).expect("it traces");
    let error = lower(function.graph(), &LowerOptions::default()).map(drop).expect_err("it is wrong").to_string();
    let expected =
        "the implementation of kernel `test_implemented`: it gives f32[2], but the factor rule `td->td` says f32[2,4]";
    assert!(error.contains(expected), "{error}");
}

/// A batch is one more leading dimension of operands that have such; others cannot differ between examples.
#[test]
fn batches_go_to_leading_dimensions() {
    let specs = (TensorSpec::new(F32, [6, 8]), TensorSpec::new(F32, [8]));
    let function = Function::trace("norm", specs, |(x, w)| NORM.call(&[x, w])[0]).expect("it traces");
    let (graph, batched) = vmap(function.graph(), &[true, false], BatchAxis::new(3)).expect("it has a batch");
    assert_eq!(
        (graph.output_types().next().expect("a result").to_string().as_str(), &*batched),
        ("f32[3,6,8]", &[true][..])
    );
    assert_eq!(graph.nodes().count(), 1);
    let error = vmap(function.graph(), &[true, true], BatchAxis::new(3)).map(drop).expect_err("weights differ");
    let expected = "operand 1 differs between examples, but has no leading dimensions (`...`) in the factor rule";
    assert!(error.to_string().contains(expected), "{error}");
}

/// Kernels that an implementation calls have implementations too, each counted as often as it stands in the program.
/// Operands that do not suit it go to the kernel once more, which is then its definition.
#[test]
fn implementations_may_call_kernels() {
    let mix = |operands: &[Tensor]| vec![causal_attention(operands[0], operands[0], operands[0])];
    let kernel = Kernel::new("test_mixed", "bthd->bthd | whole t, whole d", mix).expect("a rule");
    let kernel = kernel.with_implementation("doubled", &[PlatformKind::Cpu], move |_| {
        Some(KernelBody::traced(move |operands| {
            let own = KernelRef::named("test_mixed").expect("it is registered").call(operands)[0];
            vec![(mix(operands)[0] + own) * 0.5]
        }))
    });
    let kernel = kernel.register().expect("a name of its own");
    let spec = TensorSpec::new(F32, [1, 64, 2, 4]);
    let function = Function::trace("f", spec, |x| kernel.call(&kernel.call(&[x]))[0]).expect("it traces");
    let kernels = Kernels { blocks: Some(Blocks { queries: 16, keys: 16 }), ..Kernels::default() };
    let (lowered, found) = results(function.graph(), &LowerOptions { kernels, ..LowerOptions::default() });
    let uses: Vec<_> =
        lowered.kernels.iter().map(|used| (used.op.as_str(), used.implementation.as_str(), used.count)).collect();
    assert!(uses.contains(&("test_mixed", "doubled", 2)), "{uses:?}");
    assert!(uses.contains(&("attention", "blockwise", 4)), "{uses:?}");
    let (_, expected) =
        results(function.graph(), &LowerOptions { kernels: Kernels::plain(), ..LowerOptions::default() });
    check(&found, &expected, "an implementation that calls kernels");
}

/// The padding of a dimension that the mesh does not divide is left out of the sums of a kernel.
#[test]
fn sums_over_uneven_dimensions() {
    let sums = |operands: &[Tensor]| vec![operands[0].exp().sum(-1)];
    let kernel = Kernel::new("test_exponentials", "td->t | sum d", sums).expect("a rule");
    let kernel = kernel.register().expect("a name of its own");
    let spec = TensorSpec::new(F32, [4, 6]).with_axes(&["rows", "columns"]);
    let function = Function::trace("f", spec, |x| kernel.call(&[x])[0]).expect("it traces");
    let (_, expected) = results(function.graph(), &LowerOptions::default());
    let mesh = Mesh::new([("data", 2), ("tensor", 4)]).expect("a mesh");
    let rules = Rules::from_pairs(&[("rows", &["data"][..]), ("columns", &["tensor"])]).expect("rules");
    let rules = RuleSets::uniform(rules.with_uneven(true));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
    let lowered = lower(function.graph(), &options).unwrap_or_else(|error| panic!("{error}"));
    let found = run_compiled(&lowered, &inputs(function.graph()));
    check(&found.iter().map(Literal::to_f64_vec).collect::<Vec<_>>(), &expected, "6 columns over 4 devices");
}
