//! Backward halves cut in two: what inputs need now, and what weights need later.

use std::sync::Arc;

use meshloom::autodiff::{Halves, HeldRead, KeptBytes, SplitBackward};
use meshloom::ir::DType::{self, BF16, F32, S32};
use meshloom::ir::{Graph, Literal, TensorType, verify};
use meshloom::ops::{Op, RematPolicy};
use meshloom::trace::{Function, MapTree, Specs, Tensor, TensorSpec, Tree, checkpoint, cond, scan, zeros};
use meshloom_nn::{
    Angles, Architecture, DecoderConfig, DecoderLayer, GroupedConfig, LayerConfig, RowInputs, Stack, TokenPlaces,
    rms_norm,
};
use support::derivatives::{names, optimize};
use support::interpret::{interpret, literal, same_bits};
use support::random::Random;
use support::*;

/// A function that is differentiated by its first inputs: activations, then weights.
struct Program {
    graph: Graph,
    /// The number of inputs that are activations.
    activations: usize,
    /// The number of active inputs: the activations and the weights.
    active: usize,
}

impl Program {
    fn trace<S, R>(inputs: S, (activations, weights): (usize, usize), f: impl FnOnce(S::Mapped) -> R) -> Program
    where
        S: Tree<Leaf = TensorSpec> + MapTree<Tensor> + Clone,
        R: Tree<Leaf = Tensor> + MapTree<TensorSpec>,
        R::Mapped: Tree<Leaf = TensorSpec> + MapTree<Tensor>,
    {
        let function: Function<S, R::Mapped> =
            Function::trace("program", Specs(inputs), f).unwrap_or_else(|error| panic!("{error}"));
        Program { graph: optimize(function.graph()), activations, active: activations + weights }
    }

    fn halves(&self) -> Halves {
        let active: Vec<bool> = (0..self.graph.inputs().len()).map(|input| input < self.active).collect();
        Halves::of(&self.graph, &active).unwrap_or_else(|error| panic!("{error}"))
    }

    fn is_weight(&self) -> impl Fn(usize) -> bool + use<> {
        let weights = self.activations..self.active;
        move |input| weights.contains(&input)
    }

    fn split(&self) -> SplitBackward {
        self.halves().split(self.is_weight()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Splits, and compares the cotangents with those of the whole backward half.
    fn check(&self) -> SplitBackward {
        let (halves, split) = (self.halves(), self.split());
        check_split(&self.graph, &halves, &split, &numbers_for(&self.graph, 1))
            .unwrap_or_else(|error| panic!("{error}"));
        split
    }
}

/// Numbers for the inputs of a graph: around zero, and whole ones below 4 for integers.
fn numbers_for(graph: &Graph, seed: u64) -> Vec<Literal> {
    let mut random = Random(seed);
    let mut of_type = |ty: &TensorType| match ty.dtype.is_float() {
        true => literal(ty, &mut (0..ty.element_count()).map(|_| random.unit() - 0.5)),
        false => literal(ty, &mut (0..ty.element_count()).map(|_| random.below(2) as f64)),
    };
    graph.input_types().map(&mut of_type).collect()
}

/// Both halves of the cut give the bits of the whole backward half.
pub fn check_split(graph: &Graph, halves: &Halves, split: &SplitBackward, inputs: &[Literal]) -> Result<(), String> {
    let found = interpret(halves.forward(), inputs);
    let (outputs, residuals) = found.split_at(graph.outputs().len());
    let mut random = Random(77);
    let cotangent = |literal: &Literal| {
        let ty = literal.ty();
        support::interpret::literal(ty, &mut (0..ty.element_count()).map(|_| random.unit() - 0.4))
    };
    let cotangents: Vec<Literal> = outputs.iter().map(cotangent).collect();
    let (inputs, residuals, cotangents): (Vec<_>, Vec<_>, Vec<_>) =
        (inputs.iter().collect(), residuals.iter().collect(), cotangents.iter().collect());
    let arguments = halves.arguments(&inputs, &residuals, &cotangents);
    let owned = |literals: &[&Literal]| literals.iter().map(|&literal| literal.clone()).collect::<Vec<_>>();
    let all = || format!("{}\nsplit into\n{}\n{}", halves.backward(), split.inputs_half(), split.weights_half());

    for half in [split.inputs_half(), split.weights_half()] {
        verify(half).map_err(|error| format!("{error}\n{}", all()))?;
    }
    let expected = interpret(halves.backward(), &owned(&arguments));
    let results = interpret(split.inputs_half(), &owned(&arguments));
    let late = split.arguments(&arguments, &results.iter().collect::<Vec<_>>());
    let late_arguments = owned(&late);
    let late = interpret(split.weights_half(), &late_arguments);
    if late.len() != split.weights().len() {
        return Err(format!("{} cotangents of weights\n{}", late.len(), all()));
    }
    let found = split.inputs().iter().zip(&results).chain(split.weights().iter().zip(&late));
    let mut count = 0;
    for (&input, found) in found {
        let at = halves.active().iter().position(|&active| active == input).ok_or("an input that is not active")?;
        if !same_bits(found, &expected[at]) {
            return Err(format!("input {input}: {found:?}, expected {:?}\n{}", expected[at], all()));
        }
        count += 1;
    }
    if count == expected.len() { Ok(()) } else { Err(format!("{count} cotangents of {}", expected.len())) }
}

fn policies() -> [(&'static str, RematPolicy); 3] {
    let kept = names(&["mlp_hidden", "attention_mixed", "attention_log_total"]);
    [("none", RematPolicy::None), ("full", RematPolicy::Full), ("save", RematPolicy::Save(kept))]
}

/// Products in the backward half, and in both of its halves.
fn dots(program: &Program, split: &SplitBackward) -> (usize, usize, usize) {
    let halves = program.halves();
    (count(halves.backward(), "dot"), count(split.inputs_half(), "dot"), count(split.weights_half(), "dot"))
}

const EMBED: usize = 8;
const HIDDEN: usize = 12;

meshloom::tree! {
    /// A norm's scale and two matrices with a bias.
    struct Block<T> {
        scale: T,
        up: T,
        bias: T,
        down: T,
    }
}

fn block_specs(leading: &[usize]) -> Block<TensorSpec> {
    let spec = |dims: &[usize]| TensorSpec::new(F32, [leading, dims].concat());
    Block { scale: spec(&[EMBED]), up: spec(&[EMBED, HIDDEN]), bias: spec(&[HIDDEN]), down: spec(&[HIDDEN, EMBED]) }
}

fn block(x: Tensor, params: &Block<Tensor>) -> Tensor {
    let product = rms_norm(x, params.scale, 1e-5).matmul(params.up);
    let hidden = (product + params.bias.broadcast_like(product, -1)).tanh().named("mlp_hidden");
    x + hidden.matmul(params.down)
}

fn remat_block(policy: &RematPolicy, x: Tensor, params: Block<Tensor>) -> Tensor {
    checkpoint(policy.clone(), (x, params), |(x, params)| block(x, &params))
}

fn rows() -> TensorSpec {
    TensorSpec::new(F32, [6, EMBED])
}

fn two_blocks(policy: &RematPolicy) -> Program {
    Program::trace((rows(), block_specs(&[]), block_specs(&[])), (1, 8), |(x, first, second)| {
        remat_block(policy, remat_block(policy, x, first), second)
    })
}

fn scanned_blocks(policy: &RematPolicy) -> Program {
    Program::trace((rows(), block_specs(&[3])), (1, 4), |(x, params)| {
        scan(x, params, |x, params| (remat_block(policy, x, params), ())).0
    })
}

fn nested_blocks(policy: &RematPolicy) -> Program {
    Program::trace((rows(), block_specs(&[2, 3])), (1, 4), |(x, params)| {
        scan(x, params, |x, cycle| (scan(x, cycle, |x, params| (remat_block(policy, x, params), ())).0, ())).0
    })
}

#[test]
fn blocks() {
    for (name, policy) in policies() {
        let program = two_blocks(&policy);
        let split = program.check();
        let again = match name {
            "none" => 0,
            "full" => 2,
            _ => 0,
        };
        assert_eq!(dots(&program, &split), (8 + again, 4 + again, 4), "{name}");
    }
}

/// One product of each linear layer is in the body of each of the two loops.
#[test]
fn blocks_in_loops() {
    for program in [scanned_blocks as fn(&RematPolicy) -> Program, nested_blocks] {
        for (name, policy) in policies() {
            let program = program(&policy);
            let split = program.check();
            let again = usize::from(name == "full");
            assert_eq!(dots(&program, &split), (4 + again, 2 + again, 2), "{name}");
            // No iteration of the later loop waits for another.
            support::walk(split.weights_half(), &mut |_, node| {
                if let Op::Scan(scan) = node.op() {
                    assert_eq!(scan.carry_count, 0, "{name}");
                }
            });
            assert_eq!(scans(split.weights_half()).len(), 1, "{name}");
        }
    }
}

/// The decoder of a Llama with few and small layers.
fn llama(embed: usize, compute_dtype: DType) -> DecoderConfig {
    let layer = LayerConfig::llama(GroupedConfig::llama(4, 1, embed / 4, 1e4), embed * 7 / 2, 1e-5);
    let architecture = Architecture::llama(embed, 32, Stack::uniform(layer, 1), 1e-5);
    DecoderConfig { compute_dtype, scan_layers: false, ..DecoderConfig::new(architecture) }
}

/// One layer, or several in a loop.
fn llama_layers(config: &DecoderConfig, length: usize, layers: Option<usize>, policy: &RematPolicy) -> Program {
    let params: DecoderLayer<_> = config.parameters().layers.0.remove(0).layers.remove(0);
    let leading: Vec<usize> = layers.into_iter().collect();
    let weights = params.map(|_, param| TensorSpec::new(F32, [&leading[..], &param.spec.ty.dims].concat()));
    let count = weights.leaves().len();
    let rows = || TensorSpec::new(S32, [1, length]);
    let x = TensorSpec::new(config.compute_dtype, [1, length, config.architecture.embed]);
    let kind = &config.architecture.stack.cycle;
    Program::trace((x, weights, rows(), rows()), (1, count), |(x, weights, positions, segments)| {
        let layer = |x: Tensor, weights: DecoderLayer<Tensor>| {
            checkpoint(policy.clone(), (x, weights, [positions, segments]), |(x, weights, [positions, segments])| {
                let angles = Angles::new(positions, kind);
                let rows = RowInputs { angles: &angles, tokens: TokenPlaces::of_rows(segments) };
                config.layer(&kind[0], x, &weights, rows, None).0
            })
        };
        match layers {
            None => layer(x, weights),
            Some(_) => scan(x, weights, |x, weights| (layer(x, weights), ())).0,
        }
    })
}

#[test]
fn llama_layer() {
    for (name, policy) in policies() {
        for layers in [None, Some(3)] {
            let program = llama_layers(&llama(8, F32), 4, layers, &policy);
            let split = program.check();
            // The seven linear layers; all but the last are computed again, or those before what is kept.
            let again = match name {
                "none" => 0,
                "full" => 6,
                _ => 6,
            };
            assert_eq!(dots(&program, &split), (14 + again, 7 + again, 7), "{name} {layers:?}");
        }
    }
}

/// The operands of the linear maps and the gradients of their results wait for the weights' half: 6.5 and 10.5 times
/// the width of the model for each token. The gradients of the norms' scales, which are ready, wait too. The bytes are
/// the same whatever is computed again, in loops and outside.
#[test]
fn bytes_of_a_llama_layer() {
    let (embed, length) = (32, 64);
    let width = 2 * embed * length;
    for layers in [None, Some(3)] {
        for (name, policy) in policies() {
            let program = llama_layers(&llama(embed, BF16), length, layers, &policy);
            let count = layers.unwrap_or(1);
            let bytes = |is_weight: &dyn Fn(usize) -> bool| {
                let KeptBytes { between, arguments } = program.halves().split(is_weight).expect("halves").kept_bytes();
                (between + arguments) / count
            };
            let scales = 2 * embed * F32.byte_count();
            assert_eq!(bytes(&program.is_weight()), 17 * width + scales, "{name} {layers:?}");
            // The last matrix alone needs its operand and the gradient of its result: 3.5 and 1.
            let info = program.graph.input_info();
            assert_eq!(bytes(&|input| info[input].path.ends_with("down")), 9 * width / 2, "{name} {layers:?}");
            // The operand that three matrices share is kept once, whichever of them are weights.
            assert_eq!(bytes(&|input| info[input].path.ends_with("wq")), 2 * width, "{name} {layers:?}");
            assert_eq!(bytes(&|_| false), 0, "{name} {layers:?}");
        }
    }
}

/// Narrow inputs are kept as they are, though the product is of wide ones. A checkpoint's barrier is in both halves: in
/// front of what each of them computes again.
#[test]
fn barriers_and_wide_products() {
    for (barriers, policy) in [(0, RematPolicy::None), (1, RematPolicy::Full)] {
        let program =
            Program::trace((TensorSpec::new(BF16, [6, 8]), TensorSpec::new(F32, [8, 4])), (1, 1), |(x, w)| {
                checkpoint(policy.clone(), (x, w), |(x, w)| (x.convert(F32) * 2.0).matmul(w).sin())
            });
        let split = program.check();
        assert_eq!(split.kept_bytes(), KeptBytes { between: 6 * 4 * 4, arguments: 6 * 8 * 2 });
        for half in [split.inputs_half(), split.weights_half()] {
            assert_eq!(count(half, "opt-barrier"), barriers, "{half}");
        }
        assert_eq!(count(split.weights_half(), "convert"), 1, "{}", split.weights_half());
    }
}

/// Weights that all iterations share have their sums carried by the later loop.
#[test]
fn shared_weights() {
    for (_, policy) in policies() {
        let program = Program::trace((rows(), block_specs(&[])), (1, 4), |(x, params)| {
            scan(x, zeros(F32, [3]), |x, _| (remat_block(&policy, x, Block { ..params }), ())).0
        });
        let split = program.check();
        assert_eq!(dots(&program, &split).2, 2);
    }
}

/// A called function is cut like a loop's body; branches are left whole.
#[test]
fn calls_and_branches() {
    let function =
        Function::trace("block", (rows(), block_specs(&[])), |(x, params)| block(x, &params)).expect("trace");
    let program = Program::trace((rows(), block_specs(&[])), (1, 4), |(x, params)| {
        let leaves = params.leaves();
        let again = || Block { scale: leaves[0], up: leaves[1], bias: leaves[2], down: leaves[3] };
        function.call((function.call((x, again())), again()))
    });
    let split = program.check();
    // Both calls are counted. They share a function in each half.
    assert_eq!(dots(&program, &split), (8, 4, 4));
    for half in [split.inputs_half(), split.weights_half()] {
        let mut called: Vec<_> = half.nodes().filter_map(|node| node.op().regions().next()).map(Arc::as_ptr).collect();
        called.dedup();
        assert_eq!(called.len(), 1, "{half}");
    }

    let program = Program::trace((rows(), block_specs(&[])), (1, 4), |(x, params)| {
        cond(x.sum(..).less(0.0), (x, params), |(x, params)| block(x, &params), |(x, _)| x.sin())
    });
    let split = program.check();
    assert_eq!(split.weights_half().node_count(), 0);
    assert!(split.reads().iter().all(|read| matches!(read, HeldRead::Between(_))));
}
