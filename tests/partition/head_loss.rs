//! The loss of a head in chunks: its values and gradients are those of all logits at once, on one device and on many,
//! and the program has no logits of all tokens.

use std::sync::Arc;

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::DType::{self, BF16, F32, S32};
use meshloom::ir::{Graph, Literal};
use meshloom::partition::CollectiveKind;
use meshloom::trace::{Function, Tensor, TensorSpec, einsum_with, value_and_grad};
use meshloom_nn::{HeadLoss, head_loss};

use support::cases::cases;
use support::eight_devices::relative_error;
use support::experts::{partitioned, rules};
use support::interpret::interpret;
use support::random::Random;
use support::spmd::run_local;
use support::{count, walk};

const BATCH: usize = 8;
const EMBED: usize = 16;
const VOCAB: usize = 48;

/// A loss and its gradients in the activations and the matrix.
#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: DType,
    length: usize,
    tied: bool,
    z_loss: f64,
    /// Parts of a sequence; none for all logits at once, without a rule of our own for gradients.
    chunks: Option<usize>,
}

const CASE: Case = Case { dtype: F32, length: 48, tied: false, z_loss: 0.0, chunks: None };

impl Case {
    fn in_chunks(self, chunks: usize) -> Case {
        Case { chunks: Some(chunks), ..self }
    }

    fn of_tokens(self, (x, matrix): (Tensor, Tensor), targets: Tensor, weights: Tensor) -> Tensor {
        let Case { tied, z_loss, .. } = self;
        if let Some(chunks) = self.chunks {
            return head_loss(&HeadLoss { tied, z_loss, chunks, logit_cap: None }, x, matrix, targets, weights);
        }
        let formula = if tied { "bte,ve->btv" } else { "bte,ev->btv" };
        let logits = einsum_with(formula, &[x, matrix.convert(x.dtype())], F32);
        let log_total = logits.logsumexp(-1);
        let target = (targets.one_hot(VOCAB, F32) * logits).sum(-1);
        ((log_total - target + log_total.square() * z_loss) * weights).sum(..)
    }

    fn graph(self) -> Arc<Graph> {
        let tokens =
            |dtype| TensorSpec::new(dtype, [BATCH, self.length]).with_axes(&["activation_batch", "activation_length"]);
        let x = TensorSpec::new(self.dtype, [BATCH, self.length, EMBED]);
        let x = x.with_axes(&["activation_batch", "activation_norm_length", "activation_embed"]);
        let matrix = match self.tied {
            true => TensorSpec::new(F32, [VOCAB, EMBED]).with_axes(&["vocab", "embed"]),
            false => TensorSpec::new(F32, [EMBED, VOCAB]).with_axes(&["embed", "vocab"]),
        };
        let specs = ((x, matrix), tokens(S32), tokens(F32));
        let function = Function::trace("loss", specs, |(factors, targets, weights)| {
            // Not alone: so the cotangent of the loss is not 1.
            value_and_grad(factors, |factors| self.of_tokens(factors, targets, weights) * 0.3)
        });
        function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
    }

    /// Activations, matrix, targets, and weights, some of them zero.
    fn inputs(self) -> Vec<Literal> {
        let mut random = Random(5);
        let mut floats = |ty: &meshloom::ir::TensorType, scale: f64| {
            let numbers: Vec<f64> = (0..ty.element_count()).map(|_| scale * (2.0 * random.unit() - 1.0)).collect();
            Literal::from_fn(ty.clone(), |index| numbers[index])
        };
        let graph = self.graph();
        let types: Vec<_> = graph.input_types().collect();
        let weight = |index: usize| [1.0, 0.0, 0.5][index % 3];
        vec![
            floats(types[0], 2.0),
            floats(types[1], 1.0),
            Literal::from_fn(types[2].clone(), |index| (index * 31 % VOCAB) as f64),
            Literal::from_fn(types[3].clone(), weight),
        ]
    }
}

fn numbers(literals: &[Literal]) -> Vec<Vec<f64>> {
    literals.iter().map(Literal::to_f64_vec).collect()
}

/// The largest error of loss and gradients.
fn error(found: &[Vec<f64>], expected: &[Vec<f64>]) -> f64 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(found, expected)| relative_error(found, expected)).fold(0.0, f64::max)
}

#[test]
fn values_and_gradients() {
    for (tied, z_loss) in [(false, 0.0), (true, 0.0), (false, 0.01), (true, 0.01)] {
        let case = Case { tied, z_loss, ..CASE };
        let inputs = case.inputs();
        let expected = numbers(&interpret(&case.graph(), &inputs));
        for chunks in [1, 2, 3, 48] {
            let found = numbers(&interpret(&case.in_chunks(chunks).graph(), &inputs));
            let error = error(&found, &expected);
            assert!(error <= 1e-5, "{tied} {z_loss} {chunks}: {error:.1e}");
        }
    }
}

/// A length may be odd, or prime: then its divisors are what it can be cut into.
#[test]
fn odd_lengths() {
    for (length, chunks) in [(15, 5), (15, 3), (7, 7), (1, 1)] {
        let case = Case { length, ..CASE };
        let expected = numbers(&interpret(&case.graph(), &case.inputs()));
        let found = numbers(&interpret(&case.in_chunks(chunks).graph(), &case.inputs()));
        assert!(error(&found, &expected) <= 1e-5, "{length} in {chunks}");
    }
}

/// With activations of 8 bits of precision, gradients are rounded to them: by half of 2^-8 each, once where they are
/// made and once as they are multiplied by a cotangent that is not 1; and the gradient of the logits before.
#[test]
fn half_precision() {
    let case = Case { dtype: BF16, z_loss: 0.01, ..CASE };
    let expected = numbers(&support::run(&case.graph(), &case.inputs()));
    for chunks in [2, 6] {
        let found = numbers(&support::run(&case.in_chunks(chunks).graph(), &case.inputs()));
        assert!(relative_error(&found[0], &expected[0]) <= 1e-6, "{found:?}");
        let error = error(&found, &expected);
        assert!(error <= 4e-3, "{chunks}: {error:.1e}");
    }
}

const MESHES: [&str; 10] = [
    "data=8",
    "fsdp=8",
    "tensor=8",
    "context=8",
    "data=2,tensor=4",
    "fsdp=2,context=4",
    "context=2,tensor=4",
    "data=2,fsdp=2,tensor=2",
    "data=2,context=2,tensor=2",
    "fsdp=2,context=2,tensor=2",
];

#[test]
fn over_meshes() {
    for tied in [false, true] {
        let case = Case { tied, z_loss: 0.01, ..CASE };
        let inputs = case.inputs();
        let expected = numbers(&interpret(&case.graph(), &inputs));
        for mesh in cases("partition head loss on meshes", 5, MESHES) {
            for chunks in [2, 3] {
                let lowered = partitioned(&case.in_chunks(chunks).graph(), mesh, &rules(&[]));
                let local = lowered.partitioned().expect("a local graph");
                let found = run_local(&local.graph, &local.mesh, &inputs).unwrap_or_else(|error| panic!("{error}"));
                let error = error(&numbers(&found), &expected);
                assert!(error <= 1e-5, "{mesh}, {chunks} chunks, tied: {tied}: {error:.1e}");
            }
        }
    }
}

/// The most elements that a value of a program has whose last dimension is this size.
fn most_elements(graph: &Graph, vocab: usize) -> usize {
    let mut most = 0;
    walk(graph, &mut |graph, node| {
        let types = node.results().map(|result| graph.ty(result));
        let of_tokens = types.filter(|ty| ty.dims.len() > 2 && ty.dims.last() == Some(&vocab));
        most = of_tokens.map(meshloom::ir::TensorType::element_count).fold(most, usize::max);
    });
    most
}

#[test]
fn no_logits_of_all_tokens() {
    let tokens = BATCH * CASE.length;
    let on_one = |case: Case| lower(&case.graph(), &LowerOptions::default()).expect("it lowers").graph().clone();
    assert_eq!(most_elements(&on_one(CASE), VOCAB), tokens * VOCAB);
    assert_eq!(most_elements(&on_one(CASE.in_chunks(4)), VOCAB), tokens / 4 * VOCAB);
    let on_eight = |case: Case| {
        let lowered = partitioned(&case.graph(), "data=2,context=2,tensor=2", &rules(&[]));
        most_elements(&lowered.partitioned().expect("a local graph").graph, VOCAB / 2)
    };
    assert_eq!(on_eight(CASE), tokens / 4 * VOCAB / 2);
    assert_eq!(on_eight(CASE.in_chunks(4)), tokens / 16 * VOCAB / 2);
}

/// A gradient takes three products, as all logits at once do: none is made again.
#[test]
fn products() {
    let case = CASE.in_chunks(4);
    let lowered = lower(&case.graph(), &LowerOptions::default()).expect("it lowers");
    assert_eq!(count(lowered.graph(), "dot"), 3, "{}", lowered.graph());
}

/// In the loop, what each token needs of other parts of the vocabulary; outside, the matrix and the gradients.
#[test]
fn collectives() {
    const CHUNKS: u64 = 4;
    let mesh = "data=2,fsdp=2,tensor=2";
    let lowered = partitioned(&CASE.in_chunks(CHUNKS as usize).graph(), mesh, &rules(&[]));
    let ledger = lowered.collectives();
    let inside = ledger.inside_loops();
    assert_eq!(inside.count().unwrap(), 3, "{ledger}");
    assert_eq!(inside.kind(CollectiveKind::AllReduce).over_exactly(&["tensor"]).count().unwrap(), 3, "{ledger}");
    let tokens = (BATCH / 4 * CASE.length) as u64;
    assert_eq!(inside.bytes().unwrap(), 3 * 4 * tokens, "{ledger}");
    let outside = ledger.outside_loops();
    let gathers = outside.kind(CollectiveKind::AllGather);
    assert_eq!(gathers.over_exactly(&["fsdp"]).count().unwrap(), 1, "{ledger}");
    assert_eq!(gathers.over_exactly(&["tensor"]).count().unwrap(), 1, "{ledger}");
    assert_eq!(gathers.count().unwrap(), 2, "{ledger}");
}

#[track_caller]
fn refused(case: Case, message: &str) {
    let tokens = |dtype| TensorSpec::new(dtype, [BATCH, case.length]);
    let specs = (
        TensorSpec::new(F32, [BATCH, case.length, EMBED]),
        TensorSpec::new(F32, [EMBED, VOCAB]),
        tokens(S32),
        tokens(F32),
    );
    let traced =
        Function::trace("loss", specs, |(x, matrix, targets, weights)| case.of_tokens((x, matrix), targets, weights));
    let error = traced.expect_err("it is refused").to_string();
    assert!(error.contains(message), "{error}");
}

#[test]
fn misfits_are_refused() {
    refused(CASE.in_chunks(5), "a length that 5 chunks divide");
    refused(CASE.in_chunks(0), "a length that 0 chunks divide");
    refused(Case { tied: true, ..CASE }.in_chunks(2), "`[vocab, 16]`");
}
