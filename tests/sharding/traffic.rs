//! Tests of the traffic of a decoder's train step under each preset: the number, kind, axes and bytes of its
//! collectives are those of the formulas, and there are no others.

use std::collections::BTreeMap;

use meshloom::compile::{LowerOptions, Lowered, lower};
use meshloom::ir::Phase;
use meshloom::partition::{Amount, CollectiveKind, Ledger};
use meshloom::sharding::Mesh;
use meshloom::trace::{Function, MapTree, Tensor, TensorSpec, Tree, scan, value_and_grad};
use meshloom_nn::Batch;
use meshloom_train::config::RunConfig;
use meshloom_train::run::aliases;

const LAYERS: u64 = 4;
const EMBED: u64 = 64;
const HEADS: u64 = 8;
const HEAD_DIM: u64 = 16;
const MLP: u64 = 96;
// Large enough for a lookup's rows to be less than the table.
const VOCAB: u64 = 2048;
const LENGTH: u64 = 64;
const BATCH: u64 = 16;
/// The number of chunks of the loss: as many as layers, so that every loop runs as often.
const CHUNKS: u64 = LAYERS;

/// Elements of each matrix of a layer.
const WEIGHTS: [u64; 7] = {
    let (attention, mlp) = (EMBED * HEADS * HEAD_DIM, EMBED * MLP);
    [attention, attention, attention, attention, mlp, mlp, mlp]
};

fn config(mesh: &str, overrides: &[&str]) -> RunConfig {
    let sizes = [
        ("model.layers", LAYERS),
        ("model.embed", EMBED),
        ("model.heads", HEADS),
        ("model.kv_heads", HEADS),
        ("model.head_dim", HEAD_DIM),
        ("model.mlp", MLP),
        ("model.vocab", VOCAB),
        ("model.seq", LENGTH),
        ("train.batch", BATCH),
    ];
    let mut own: Vec<String> = sizes.iter().map(|(key, size)| format!("{key}={size}")).collect();
    own.push(format!("mesh.axes=\"{mesh}\""));
    support::configs::config(&[&own.iter().map(String::as_str).collect::<Vec<_>>(), overrides])
}

fn lowered(mesh: &str, overrides: &[&str], without: &[&str]) -> Lowered {
    let config = config(mesh, overrides);
    let (mesh, rules) = (config.mesh().expect("a mesh"), config.rule_sets().expect("rules"));
    let step = config.train_step().unwrap().trace().expect("it traces");
    let options = LowerOptions {
        sharding: Some((&mesh, &rules)),
        aliases: aliases(&step),
        deny_replication: true,
        without,
        ..LowerOptions::default()
    };
    lower(step.graph(), &options).expect("it lowers")
}

/// The properties that collectives share, and their number, executions and operand bytes.
type Summary = BTreeMap<(CollectiveKind, String, Phase, bool), (usize, u64, u64)>;

fn summary(ledger: &Ledger) -> Summary {
    let mut summary = Summary::new();
    for entry in ledger.iter().expect("no filter, no error") {
        let Amount::Exactly(executions) = entry.executions else {
            panic!("{entry:?}: nothing here is of unknown length")
        };
        let key = (entry.kind, entry.axes.join(","), entry.phase, entry.loop_depth > 0);
        let sums = summary.entry(key).or_default();
        *sums = (sums.0 + 1, sums.1 + executions, sums.2 + executions * entry.bytes);
    }
    summary
}

/// The sizes of a mesh's axes.
struct Sizes {
    data: u64,
    fsdp: u64,
    tensor: u64,
    context: u64,
}

impl Sizes {
    fn of(mesh: &str) -> Sizes {
        let mesh = Mesh::parse(mesh, 8).expect("a mesh of eight devices");
        let size = |name: &str| mesh.axis(name).map_or(1, |axis| mesh.size(axis)) as u64;
        Sizes { data: size("data"), fsdp: size("fsdp"), tensor: size("tensor"), context: size("context") }
    }

    fn names(&self, axes: &[(&str, u64)]) -> String {
        axes.iter().filter(|(_, size)| *size > 1).map(|(name, _)| *name).collect::<Vec<_>>().join(",")
    }

    /// The axes that split the tokens of a batch.
    fn tokens(&self) -> String {
        self.names(&[("data", self.data), ("fsdp", self.fsdp), ("context", self.context)])
    }

    /// The collectives of a step, layers scanned and nothing recomputed; with the stream between blocks split along the
    /// sequence, or whole; with the loss in chunks, or at once.
    fn expected(&self, sequence_parallel: bool, in_chunks: bool) -> Summary {
        use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
        use Phase::{Backward, Forward};
        let Sizes { data, fsdp, tensor, context } = *self;
        let mut summary = Summary::new();
        let mut add = |kind, axes: &str, phase, in_loop: bool, count: usize, bytes: u64| {
            if axes.is_empty() {
                return;
            }
            let times = if in_loop { LAYERS } else { 1 };
            let sums = summary.entry((kind, axes.to_owned(), phase, in_loop)).or_default();
            *sums = (sums.0 + count, sums.1 + count as u64 * times, sums.2 + bytes * times);
        };
        let (layer, table) = (4 * WEIGHTS.iter().sum::<u64>(), 4 * VOCAB * EMBED);
        let ends = 2 * table;
        // A loss in chunks makes the gradients of its operands with its value.
        let of_loss = if in_chunks { Forward } else { Backward };
        if fsdp > 1 {
            // Each weight is gathered forwards and, in the loop, once more backwards; its gradient is scattered.
            let shards = fsdp * tensor;
            add(AllGather, "fsdp", Forward, true, WEIGHTS.len(), layer / shards);
            add(AllGather, "fsdp", Backward, true, WEIGHTS.len(), layer / shards);
            add(ReduceScatter, "fsdp", Backward, true, WEIGHTS.len(), layer / tensor);
            add(AllGather, "fsdp", Forward, false, 2, ends / shards);
            add(ReduceScatter, "fsdp", Backward, false, 1, table / tensor);
            add(ReduceScatter, "fsdp", of_loss, false, 1, table / tensor);
        }
        // Gradients are added up after the loop, over the axes along which the weights are whole.
        let whole = self.names(&[("data", data), ("context", context)]);
        add(AllReduce, &whole, Backward, false, WEIGHTS.len() + 1, (LAYERS * layer + table) / (fsdp * tensor));
        // A sum that is scattered first is added up with the sums that come after it.
        add(AllReduce, &whole, if fsdp > 1 { Backward } else { of_loss }, false, 1, table / (fsdp * tensor));
        let along_norms = if sequence_parallel { tensor } else { 1 };
        let norms = self.names(&[("data", data), ("fsdp", fsdp), ("context", context), ("tensor", along_norms)]);
        add(AllReduce, &norms, Backward, false, 3, 4 * (2 * LAYERS + 1) * EMBED);
        let rows = BATCH / (data * fsdp) * LENGTH / context;
        // The stream of activations; the sums behind attention and mlp, and in front of them backwards; embedding and
        // head.
        let stream = 4 * rows * EMBED;
        if tensor > 1 && sequence_parallel {
            for phase in [Forward, Backward] {
                add(AllGather, "tensor", phase, true, 2, 2 * stream / tensor);
                add(ReduceScatter, "tensor", phase, true, 2, 2 * stream);
                add(AllGather, "tensor", phase, false, 1, stream / tensor);
            }
            add(ReduceScatter, "tensor", Forward, false, 1, stream);
            add(ReduceScatter, "tensor", of_loss, false, 1, stream);
            // The gradients of weights need the values that the blocks have read; each device kept its part.
            add(AllGather, "tensor", Backward, true, 2, 2 * stream / tensor);
        } else if tensor > 1 {
            for phase in [Forward, Backward] {
                add(AllReduce, "tensor", phase, true, 2, 2 * stream);
            }
            add(AllReduce, "tensor", Forward, false, 1, stream);
            add(AllReduce, "tensor", of_loss, false, 1, stream);
        }
        if tensor > 1 {
            // Three numbers of each row of logits: the maximum, the sum of exponentials, and the logit of the target.
            let chunks = if in_chunks { CHUNKS } else { 1 };
            add(AllReduce, "tensor", Forward, in_chunks, 3, 3 * 4 * rows / chunks);
        }
        if context > 1 {
            // Keys and values are gathered for attention, and their cotangents scattered.
            let part = 4 * rows * HEADS * HEAD_DIM / tensor;
            add(AllGather, "context", Forward, true, 2, 2 * part);
            // The document ids of the keys, for the mask.
            add(AllGather, "context", Forward, false, 1, 4 * rows);
            add(AllGather, "context", Backward, true, 2, 2 * part);
            add(ReduceScatter, "context", Backward, true, 2, 2 * part * context);
        }
        // The number of tokens, the loss, and the norm of the gradient.
        add(AllReduce, &self.tokens(), Forward, false, 2, 2 * 4);
        add(AllReduce, &self.names(&[("fsdp", fsdp), ("tensor", tensor)]), Forward, false, 1, 4);
        summary
    }
}

#[track_caller]
fn check(mesh: &str) {
    check_with(mesh, "model.loss_chunks=1", false);
}

#[track_caller]
fn check_with(mesh: &str, chunks: &str, in_chunks: bool) {
    for (preset, sequence_parallel) in [("decoder", true), ("decoder-all-reduce", false)] {
        let preset = format!("rules.preset=\"{preset}\"");
        let ledger = lowered(mesh, &[&preset, chunks], &["combine-collectives"]).collectives();
        let (found, expected) = (summary(&ledger), Sizes::of(mesh).expected(sequence_parallel, in_chunks));
        for key in found.keys().chain(expected.keys()) {
            assert_eq!(found.get(key), expected.get(key), "{mesh}, {preset}: {key:?}\n{ledger}");
        }
        // Combined, they are fewer and move the same.
        let combined = lowered(mesh, &[&preset, chunks], &[]).collectives();
        assert!(combined.count().expect("no filter") <= ledger.count().expect("no filter"), "{mesh}\n{combined}");
        assert_eq!(combined.bytes().expect("no filter"), ledger.bytes().expect("no filter"), "{mesh}\n{combined}");
    }
}

#[test]
fn one_axis() {
    check("data=8");
    check("fsdp=8");
    check("tensor=8");
    check("context=8");
}

/// A combination has the collectives of each axis and no others.
#[test]
fn combinations() {
    check("data=2,fsdp=4");
    check("data=4,tensor=2");
    check("fsdp=4,tensor=2");
    check("fsdp=2,context=4");
    check("data=2,fsdp=2,tensor=2");
    check("data=2,context=2,tensor=2");
    check("fsdp=2,context=2,tensor=2");
}

/// A loss in chunks moves what a whole one does: the head is gathered, and its gradient reduced, once for all chunks.
#[test]
fn loss_in_chunks() {
    let chunks = format!("model.loss_chunks={CHUNKS}");
    for mesh in ["data=8", "fsdp=8", "tensor=8", "context=8", "data=2,fsdp=4", "fsdp=2,context=2,tensor=2"] {
        check_with(mesh, &chunks, true);
    }
}

/// The bytes are right also if values have fewer bits, and if the head is the embedding.
#[test]
fn loss_in_chunks_of_other_forms() {
    let chunks = format!("model.loss_chunks={CHUNKS}");
    for mesh in ["data=2,fsdp=4", "fsdp=4,tensor=2", "fsdp=2,context=2,tensor=2"] {
        for dtype in ["model.compute_dtype=\"bf16\"", "model.compute_dtype=\"f32\""] {
            for tied in ["model.tied_embeddings=true", "model.tied_embeddings=false"] {
                let ledger =
                    |chunks: &str| lowered(mesh, &[dtype, tied, chunks], &["combine-collectives"]).collectives();
                let (found, expected) = (ledger(&chunks), ledger("model.loss_chunks=1"));
                assert_eq!(found.bytes(), expected.bytes(), "{mesh} {dtype} {tied}\n{found}\n{expected}");
            }
        }
    }
}

/// Weights written out layer by layer are kept as they were gathered, unless the layer is recomputed.
#[test]
fn gathers_of_recomputed_layers() {
    let gathers = |remat: &str| {
        let set = ["model.scan_layers=false", remat];
        let ledger = lowered("fsdp=8", &set, &["combine-collectives"]).collectives().kind(CollectiveKind::AllGather);
        let count = |ledger: Ledger| ledger.count().expect("no unknown axis");
        (count(ledger.forward()), count(ledger.backward()) + count(ledger.recompute()))
    };
    let layers = WEIGHTS.len() * LAYERS as usize;
    assert_eq!(gathers("remat.policy=\"none\""), (layers + 2, 0));
    assert_eq!(gathers("remat.policy=\"full\""), (layers + 2, layers));
}

/// Gradients accumulated over microbatches in a loop are added up over devices once, after it.
#[test]
fn accumulated_gradients() {
    const MICROBATCHES: usize = 4;
    let config = config("data=8", &[]);
    let model = config.decoder().unwrap();
    let params = model.parameters().map(|_, param| param.spec.clone());
    let batch = Batch::specs(BATCH as usize, LENGTH as usize).map(|_, spec| {
        let dims: Vec<usize> = std::iter::once(MICROBATCHES).chain(spec.ty.dims.iter().copied()).collect();
        TensorSpec::new(spec.ty.dtype, dims).with_axes(&["", "activation_batch", "activation_length"])
    });
    let step = Function::trace("accumulate", (params, batch), |(params, batches)| {
        let zeros = (params.map(|_, param: &Tensor| *param * 0.0), params.final_norm.sum(..) * 0.0);
        let body = |(sum, total): (_, Tensor), batch: Batch<Tensor>| {
            let (loss, gradients) = value_and_grad(params.clone(), |params| model.loss(&params, &batch));
            let mut gradients = gradients.leaves().into_iter();
            let sum = MapTree::map(&sum, |_, sum: &Tensor| *sum + gradients.next().expect("as many"));
            ((sum, total + loss), ())
        };
        scan(zeros, batches, body).0
    })
    .expect("it traces");
    let (mesh, rules) = (config.mesh().expect("a mesh"), config.rule_sets().expect("rules"));
    let options =
        LowerOptions { sharding: Some((&mesh, &rules)), without: &["combine-collectives"], ..LowerOptions::default() };
    let ledger = lower(step.graph(), &options).expect("it lowers").collectives();
    // In the loop only the number of tokens, which every gradient is divided by.
    let inside = ledger.inside_loops();
    assert_eq!(inside.count().expect("no unknown axis"), 1, "{inside}");
    assert_eq!(inside.bytes().expect("no unknown axis"), Amount::Exactly(4 * MICROBATCHES as u64));
    let gradients = 4 * (LAYERS * (WEIGHTS.iter().sum::<u64>() + 2 * EMBED) + EMBED + 2 * VOCAB * EMBED);
    let outside = ledger.outside_loops();
    assert_eq!(outside.count().expect("no unknown axis"), WEIGHTS.len() + 2 + 3 + 1, "{outside}");
    assert_eq!(outside.bytes().expect("no unknown axis"), Amount::Exactly(gradients + 4));
}
