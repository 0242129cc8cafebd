//! Grouped products, against plain loops on the host: as loops over blocks of rows, by kernels, and by XLA's
//! instruction.

use std::sync::Arc;

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::emit::ProgramForm;
use meshloom::hlo::PlatformKind;
use meshloom::ir::DType::{BF16, F16, F32, S32};
use meshloom::ir::{DType, Graph, Literal};
use meshloom::kernels::{ExpertsKernel, Kernels};
use meshloom::ops::Op;
use meshloom::sharding::Mesh;
use meshloom::trace::{Function, Tensor, TensorSpec, ragged_dot, value_and_grad, vmap};
use meshloom_nn::{MoeConfig, moe};

use super::masked::all_masked;
use super::meshes::{config, loss_and_gradients, random_mesh};
use super::{local_numbers, numbers};
use support::cases::cases;
use support::experts::*;
use support::interpret::interpret;
use support::random::Random;

/// Sizes of a grouped product whose rows are in parts.
#[derive(Clone, Copy, Debug)]
struct Product {
    batch: usize,
    parts: usize,
    rows: usize,
    inner: usize,
    columns: usize,
    groups: usize,
}

impl Product {
    /// The product and its gradients, which are a product by rows and one that is contracted over them.
    fn graph(self, dtype: DType) -> Arc<Graph> {
        let Product { batch, parts, rows, inner, columns, groups } = self;
        let specs = (
            TensorSpec::new(dtype, [batch, parts, rows, inner]),
            TensorSpec::new(dtype, [batch, groups, inner, columns]),
            TensorSpec::new(S32, [batch, parts, groups]),
            TensorSpec::new(dtype, [batch, parts, rows, columns]),
        );
        let product = |rows: Tensor, matrices: Tensor, sizes: Tensor| {
            vmap((rows, matrices, sizes), |(rows, matrices, sizes)| {
                vmap((rows, sizes), |(rows, sizes)| ragged_dot(rows, matrices, sizes))
            })
        };
        let function = Function::trace("product", specs, |(rows, matrices, sizes, probe)| {
            let gradients = value_and_grad((rows, matrices), |(rows, matrices)| {
                (product(rows, matrices, sizes) * probe).convert(F32).sum(..)
            });
            (product(rows, matrices, sizes), gradients.1)
        });
        function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
    }

    /// Computes the product and its gradients by plain loops. Groups take rows as long as there are any.
    fn expected(self, inputs: &[Literal]) -> Vec<Vec<f64>> {
        let Product { batch, parts, rows, inner, columns, groups } = self;
        let [x, matrices, sizes, probe] = [0, 1, 2, 3].map(|index| inputs[index].to_f64_vec());
        let mut product = vec![0.0; probe.len()];
        let (mut of_x, mut of_matrices) = (vec![0.0; x.len()], vec![0.0; matrices.len()]);
        for part in 0..batch * parts {
            let own = &sizes[part * groups..][..groups];
            let group_of_row = own.iter().enumerate().flat_map(|(group, &size)| vec![group; size as usize]);
            for (row, group) in group_of_row.take(rows).enumerate() {
                for k in 0..inner {
                    let at = (part * rows + row) * inner + k;
                    for column in 0..columns {
                        let to = (part * rows + row) * columns + column;
                        let of = ((part / parts * groups + group) * inner + k) * columns + column;
                        product[to] += x[at] * matrices[of];
                        of_x[at] += probe[to] * matrices[of];
                        of_matrices[of] += probe[to] * x[at];
                    }
                }
            }
        }
        vec![product, of_x, of_matrices]
    }

    fn inputs(self, sizes: &[i32], dtype: DType, seed: u64) -> Vec<Literal> {
        let mut random = Random(seed);
        let types: Vec<_> = self.graph(dtype).input_types().cloned().collect();
        let mut literal = |index: usize| {
            let numbers: Vec<f64> = (0..types[index].element_count()).map(|_| 2.0 * random.unit() - 1.0).collect();
            Literal::from_fn(types[index].clone(), |index| numbers[index])
        };
        let all: Vec<i32> = sizes.iter().copied().cycle().take(self.batch * self.parts * self.groups).collect();
        let sizes = Literal::from_slice(&types[2].dims, &all).expect("sizes");
        vec![literal(0), literal(1), sizes, literal(3)]
    }
}

/// A loop over blocks of so many rows, which start at multiples of that number or where groups start.
fn loops(rows: usize, platform: PlatformKind) -> Kernels {
    Kernels { rows: Some(rows), ..Kernels::portable(platform) }
}

/// Grouped products in the form that holds everything at once.
const PLAIN: Kernels = Kernels { experts: ExpertsKernel::Plain, ..Kernels::portable(PlatformKind::Cpu) };

fn lowered(graph: &Graph, kernels: Kernels) -> Lowered {
    lower(graph, &LowerOptions { kernels, ..LowerOptions::default() }).unwrap_or_else(|error| panic!("{error}"))
}

fn run_with(graph: &Graph, kernels: Kernels, inputs: &[Literal]) -> Vec<Vec<f64>> {
    run(&lowered(graph, kernels), inputs)
}

/// Checks groups of these sizes, by interpreted loops over blocks. XLA takes a share of these programs and of the plain
/// form; each is compiled once for all sizes.
fn check(product: Product, all_sizes: &[&[i32]], block: usize, by_xla: usize) {
    let graph = product.graph(F32);
    let programs = [PlatformKind::Cpu, PlatformKind::Tpu].map(|platform| lowered(&graph, loops(block, platform)));
    let plain = lowered(&graph, PLAIN);
    let by_xla = cases("partition grouped products by XLA", by_xla, programs.iter().chain([&plain]));
    for &sizes in all_sizes {
        let what = format!("{product:?}, groups of {sizes:?}, blocks of {block}");
        let inputs = product.inputs(sizes, F32, 3);
        let expected = product.expected(&inputs);
        for program in &programs {
            check_equal(&what, &numbers(&interpret(program.emitted(), &inputs)), &expected, 1e-5);
        }
        for program in &by_xla {
            check_equal(&what, &run(program, &inputs), &expected, 1e-5);
        }
    }
}

const ONE: Product = Product { batch: 1, parts: 1, rows: 24, inner: 5, columns: 3, groups: 4 };

#[test]
fn groups_of_any_size() {
    let cases: [&[i32]; 9] = [
        &[6, 6, 6, 6],
        &[3, 9, 1, 11],
        &[0, 10, 0, 14],
        &[24, 0, 0, 0],
        &[0, 0, 0, 24],
        &[0, 0, 0, 0],
        // Rows of no group.
        &[5, 0, 7, 2],
        &[0, 0, 1, 0],
        // A group that would reach beyond the last row.
        &[10, 9, 20, 3],
    ];
    for (block, by_xla) in [(4, 3), (1, 0), (8, 0), (24, 0)] {
        check(ONE, &cases, block, by_xla);
    }
}

/// Rows that are not a multiple of the block: none is counted twice.
#[test]
fn rows_that_blocks_do_not_divide() {
    for (rows, block) in [(23, 4), (23, 7), (23, 23), (23, 100), (1, 4), (9, 8)] {
        let all = rows as i32;
        let sizes: [&[i32]; 3] = [&[all, 0, 0, 0], &[0, all / 2, 0, all - all / 2], &[1, 0, 3, 4]];
        check(Product { rows, ..ONE }, &sizes, block, usize::from(block == 7));
    }
}

/// Matrices for each entry of a batch, and parts that share them: each has groups of its own.
#[test]
fn batches_and_parts() {
    let mut random = Random(11);
    for (batch, parts) in [(1, 3), (3, 1), (2, 3)] {
        for groups in [1, 5] {
            let product = Product { batch, parts, groups, rows: 17, ..ONE };
            let sizes: Vec<i32> = (0..batch * parts * groups).map(|_| random.below(17 / groups + 2) as i32).collect();
            check(product, &[&sizes], 4, usize::from(parts > 1 && batch > 1 && groups > 1));
        }
    }
}

/// Sums are made in `f32` and rounded once, where the plain form's are made by one dot.
#[test]
fn narrow_numbers() {
    let product = Product { batch: 2, parts: 2, rows: 96, inner: 16, columns: 8, groups: 3 };
    let (graph, inputs) = (product.graph(BF16), product.inputs(&[40, 7, 49, 0, 96, 0], BF16, 3));
    let expected = run_with(&graph, PLAIN, &inputs);
    for platform in [PlatformKind::Cpu, PlatformKind::Tpu] {
        let what = format!("blocks of 8 for {platform:?}");
        check_equal(&what, &run_with(&graph, loops(8, platform), &inputs), &expected, 4e-3);
    }
}

/// Grouped products by kernels for TPU.
const MOSAIC: Kernels = Kernels { experts: ExpertsKernel::Mosaic, ..Kernels::portable(PlatformKind::Tpu) };

/// Kernels for TPU, with all ops around them: their text is interpreted.
fn by_kernels(graph: &Graph, inputs: &[Literal]) -> Vec<Vec<f64>> {
    let lowered = lowered(graph, MOSAIC);
    assert!(lowered.kernels.iter().all(|used| used.implementation == "mosaic"), "{:?}", lowered.kernels);
    let count = lowered.kernels.iter().filter(|used| used.op == "ragged-dot").count();
    assert!(count >= 3, "a product and two gradients: {count}");
    numbers(&interpret(lowered.emitted(), inputs))
}

#[test]
fn by_mosaic_kernels() {
    let several = Product { rows: 300, inner: 16, columns: 8, ..ONE };
    let cases: [(Product, &[i32]); 14] = [
        (ONE, &[3, 9, 1, 11]),
        (ONE, &[0, 0, 0, 0]),
        (Product { rows: 1, ..ONE }, &[0, 1, 0, 0]),
        // Several blocks of rows; empty groups; all rows of one.
        (several, &[100, 0, 28, 172]),
        (several, &[0, 300, 0, 0]),
        (several, &[0, 0, 0, 300]),
        // Rows of no group, also whole blocks of them; a group that would reach beyond the last row.
        (several, &[0, 1, 0, 2]),
        (several, &[0, 0, 0, 0]),
        (several, &[5, 128, 0, 0]),
        (several, &[128, 128, 999, 7]),
        (Product { groups: 1, ..several }, &[130]),
        // Several blocks of everything.
        (Product { rows: 256, inner: 384, columns: 512, groups: 2, ..ONE }, &[200, 40]),
        // Matrices for each entry of a batch, and parts that share them.
        (Product { batch: 2, parts: 3, rows: 70, groups: 2, ..ONE }, &[30, 20, 70, 0, 0, 0, 0, 70, 1, 2, 69, 9]),
        (Product { parts: 4, rows: 128, groups: 3, ..ONE }, &[0, 0, 128, 0, 9, 0, 0, 0, 0, 50, 50, 28]),
    ];
    for (product, sizes) in cases {
        let (graph, inputs) = (product.graph(F32), product.inputs(sizes, F32, 3));
        let expected = product.expected(&inputs);
        check_equal(&format!("{product:?}, groups of {sizes:?}"), &by_kernels(&graph, &inputs), &expected, 1e-5);
    }
    let product = Product { rows: 160, inner: 32, columns: 16, ..ONE };
    let (graph, inputs) = (product.graph(BF16), product.inputs(&[40, 7, 49, 0], BF16, 3));
    let expected = run_with(&graph, PLAIN, &inputs);
    check_equal("bf16", &by_kernels(&graph, &inputs), &expected, 4e-3);
}

/// Grouped products by XLA's instruction.
const RAGGED_DOT: Kernels = Kernels { experts: ExpertsKernel::RaggedDot, ..Kernels::portable(PlatformKind::Tpu) };

/// Interprets the emitted program, and computes the `ragged-dot` in it by its documentation, since no CPU plugin runs
/// it.
fn by_documentation(graph: &Graph, inputs: &[Literal]) -> Vec<Vec<f64>> {
    let options = LowerOptions { kernels: RAGGED_DOT, ..LowerOptions::default() };
    let lowered = lower(graph, &options).unwrap_or_else(|error| panic!("{error}"));
    assert!(lowered.kernels.iter().all(|used| used.implementation == "ragged-dot"), "{:?}", lowered.kernels);
    numbers(&interpret(lowered.emitted(), inputs))
}

#[test]
fn by_the_instruction() {
    let mut random = Random(31);
    let several = Product { rows: 300, inner: 16, columns: 8, ..ONE };
    let mut cases: Vec<(Product, Vec<i32>)> = vec![
        (ONE, vec![3, 9, 1, 11]),
        (ONE, vec![0, 0, 0, 0]),
        (several, vec![100, 0, 28, 172]),
        // All rows of one group; rows of none; a group that would reach beyond the last row.
        (several, vec![0, 300, 0, 0]),
        (several, vec![0, 1, 0, 2]),
        (several, vec![128, 128, 999, 7]),
        (Product { groups: 1, ..several }, vec![130]),
        (Product { rows: 256, ..ONE }, vec![100, 100, 0, 56]),
        // Matrices for each entry of a batch, and parts that share them.
        (Product { batch: 2, parts: 3, rows: 70, groups: 2, ..ONE }, vec![30, 20, 70, 0, 0, 0, 0, 70, 1, 2, 69, 9]),
    ];
    for _ in 0..6 {
        let (batch, parts, groups) = (1 + random.below(2), 1 + random.below(3), 1 + random.below(5));
        let product = Product { batch, parts, rows: 1 + random.below(60), inner: 3, columns: 4, groups };
        let most = 2 * product.rows / groups + 1;
        cases.push((product, (0..batch * parts * groups).map(|_| random.below(most) as i32).collect()));
    }
    for (product, sizes) in cases {
        let (graph, inputs) = (product.graph(F32), product.inputs(&sizes, F32, 3));
        let expected = product.expected(&inputs);
        check_equal(&format!("{product:?}, groups of {sizes:?}"), &by_documentation(&graph, &inputs), &expected, 1e-5);
    }
    let product = Product { batch: 1, parts: 2, rows: 96, inner: 16, columns: 8, groups: 3 };
    let (graph, inputs) = (product.graph(BF16), product.inputs(&[40, 7, 49, 0, 90, 0], BF16, 3));
    let expected = run_with(&graph, PLAIN, &inputs);
    check_equal("bf16", &by_documentation(&graph, &inputs), &expected, 4e-3);
}

/// Computes every expert for every token, and masks the results.
fn masked(config: &MoeConfig, inputs: &[Literal]) -> Vec<Vec<f64>> {
    numbers(&interpret(&with_gradients(config, ROWS, all_masked), inputs))
}

/// A block of experts over a mesh: the program is in the local form, with the instruction's numbers of dimensions, and
/// gives what one device does.
#[test]
fn experts_by_the_instruction() {
    let config = MoeConfig { batch_parts: 4, expert_groups: 2, ..experts(8, 3) };
    let graph = with_gradients(&config, ROWS, meshloom_nn::moe);
    let inputs = random_inputs(&graph, 5);
    let expected = masked(&config, &inputs);
    let (mesh, rules) = (Mesh::parse("data=2,fsdp=2,expert=2", 8).expect("a mesh"), rules(&[]));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), kernels: RAGGED_DOT, ..LowerOptions::default() };
    let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(lowered.form, ProgramForm::Local);
    let devices: Vec<_> = support::devices::tpus([2, 2, 1], 2, 1);
    assert!(lowered.options_on(&devices).expect("options").use_shardy_partitioner);
    let module = lowered.module.decode().expect("a module");
    let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
    assert!(instructions().all(|instruction| instruction.sharding.is_none()));
    let products: Vec<_> = instructions().filter(|instruction| instruction.opcode == "ragged-dot").collect();
    assert!(products.len() >= 9, "three products, each with two gradients: {}", products.len());
    for product in products {
        let numbers = product.ragged_dot_dimension_numbers.as_deref().expect("their dimensions");
        let dot = numbers.dot_dimension_numbers.as_ref().expect("their dimensions");
        let contracting = (&dot.lhs_contracting_dimensions[..], &dot.rhs_contracting_dimensions[..]);
        let expected: (&[i64], &[i64], &[i64]) = match product.shape.as_ref().expect("a shape").dimensions.len() {
            3 => (&[0], &[0], &[]),
            _ if contracting.1 == [2] => (&[1], &[2], &[0]),
            _ => (&[1], &[1], &[0]),
        };
        assert_eq!((contracting.0, contracting.1, &numbers.rhs_group_dimensions[..]), expected);
        assert_eq!(numbers.lhs_ragged_dimensions, [0]);
    }
    check_equal("experts", &local_numbers(&lowered, &inputs), &expected, 1e-5);
}

/// The instruction is a kernel on TPU alone; types that it does not take are multiplied in loops.
#[test]
fn where_the_instruction_is_not_taken() {
    let product = Product { rows: 2048, ..ONE };
    for platform in [PlatformKind::Cpu, PlatformKind::Cuda] {
        let kernels = Kernels { platform, ..RAGGED_DOT };
        let refused = lower(&product.graph(F32), &LowerOptions { kernels, ..LowerOptions::default() });
        let error = refused.expect_err("a platform without the kernel").to_string();
        let expected = format!("kernels.experts = \"ragged-dot\": the program is for {platform}");
        assert!(error.contains(&expected) && error.contains("choose kernels.experts = \"auto\""), "{error}");
    }
    let options = LowerOptions { kernels: RAGGED_DOT, ..LowerOptions::default() };
    let lowered = lower(&product.graph(F16), &options).unwrap_or_else(|error| panic!("{error}"));
    assert!(lowered.kernels.iter().all(|used| used.implementation == "blockwise"), "{:?}", lowered.kernels);
}

/// Types that the kernels do not have, and matrices that they would have to copy, are multiplied in loops.
#[test]
fn what_mosaic_kernels_do_not_compute() {
    let wide = Product { rows: 2048, inner: 513, columns: 8, ..ONE };
    for (product, dtype) in [(wide, BF16), (Product { rows: 2048, ..ONE }, F16)] {
        let options = LowerOptions { kernels: MOSAIC, ..LowerOptions::default() };
        let lowered = lower(&product.graph(dtype), &options).unwrap_or_else(|error| panic!("{error}"));
        assert!(lowered.kernels.iter().all(|used| used.implementation == "blockwise"), "{:?}", lowered.kernels);
    }
}

/// A block of experts by kernels, in one group of experts and in several, over all tokens and parts of them.
#[test]
fn experts_by_mosaic_kernels() {
    let plain = experts(8, 3);
    let inputs = random_inputs(&with_gradients(&plain, ROWS, moe), 5);
    let expected = masked(&plain, &inputs);
    for (batch_parts, sequence_parts, expert_groups) in [(1, 1, 1), (2, 1, 2)] {
        let config = MoeConfig { batch_parts, sequence_parts, expert_groups, ..plain.clone() };
        let lowered = lowered(&with_gradients(&config, ROWS, moe), MOSAIC);
        assert!(lowered.kernels.iter().all(|used| used.implementation == "mosaic"), "{:?}", lowered.kernels);
        let found = numbers(&interpret(lowered.emitted(), &inputs));
        check_equal(&format!("{config:?}"), &found, &expected, 1e-5);
    }
}

/// Where blocks are chosen: large products are looped over.
#[test]
fn default_blocks() {
    let product = Product { batch: 1, parts: 1, rows: 1000, inner: 64, columns: 32, groups: 8 };
    let sizes = [100, 0, 300, 40, 60, 200, 133, 7];
    let (graph, inputs) = (product.graph(F32), product.inputs(&sizes, F32, 4));
    let expected = product.expected(&inputs);
    for platform in [PlatformKind::Cpu, PlatformKind::Cuda, PlatformKind::Tpu] {
        let lowered = lowered(&graph, Kernels::portable(platform));
        assert!(lowered.program.emitted().nodes().any(|node| matches!(node.op(), Op::While(_))), "{platform:?}");
        let found = numbers(&interpret(lowered.emitted(), &inputs));
        check_equal(&format!("{platform:?}"), &found, &expected, 1e-5);
        for lowered in cases("partition grouped products by XLA", 0, [&lowered]) {
            check_equal(&format!("{platform:?}"), &run(lowered, &inputs), &expected, 1e-5);
        }
    }
}

/// A block of experts gives the same by loops, however its tokens are cut.
#[test]
fn experts_in_loops() {
    let plain = experts(8, 3);
    let inputs = random_inputs(&with_gradients(&plain, ROWS, moe), 5);
    let expected = masked(&plain, &inputs);
    for (batch_parts, sequence_parts, expert_groups) in [(1, 1, 1), (4, 1, 2), (1, 3, 8), (2, 2, 4), (8, 12, 1)] {
        let config = MoeConfig { batch_parts, sequence_parts, expert_groups, ..plain.clone() };
        let lowered = lowered(&with_gradients(&config, ROWS, moe), loops(4, PlatformKind::Cpu));
        let found = numbers(&interpret(lowered.emitted(), &inputs));
        check_equal(&format!("{config:?}"), &found, &expected, 1e-5);
        for lowered in cases("partition grouped products by XLA", 0, [&lowered]) {
            check_equal(&format!("{config:?}"), &run(lowered, &inputs), &expected, 1e-5);
        }
    }
}

/// Decoders on random meshes, by loops over blocks of four rows.
#[test]
fn loops_on_all_meshes() {
    let mut random = Random(23);
    let models: [&[&str]; 2] =
        [&["model.family=mixtral", "model.batch_split=true", "remat.policy=full"], &["model.family=deepseek"]];
    for (model, platform) in models.into_iter().zip([PlatformKind::Cpu, PlatformKind::Tpu]) {
        let name = random_mesh(&mut random);
        let config = config(&name, model);
        let (graph, inputs) = loss_and_gradients(&config);
        let expected = numbers(&interpret(lowered(&graph, loops(8, PlatformKind::Cpu)).emitted(), &inputs));
        let (mesh, rules) = (Mesh::parse(&name, 8).expect("a mesh"), config.rule_sets().expect("rules"));
        let kernels = loops(4, platform);
        let options = LowerOptions {
            sharding: Some((&mesh, &rules)),
            deny_replication: true,
            kernels,
            ..LowerOptions::default()
        };
        let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        check_equal(&name, &local_numbers(&lowered, &inputs), &expected, 1e-5);
        for form in cases("partition grouped products by XLA", 0, [ProgramForm::Manual, ProgramForm::Local]) {
            let options = LowerOptions { form, ..options.clone() };
            let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
            check_equal(&format!("{name}, {form:?}"), &run(&lowered, &inputs), &expected, 1e-5);
        }
    }
}
