//! The table of all keys: section, key, type, default, bound, meaning, and the other keys that it needs.

use super::section::{Needs, section, tagged};
use super::value::Bound::{AtLeast, Below, Even, MoreThan, Seconds, UpTo};
use super::value::{Auto, Bound, choice};
use meshloom::compile::PartitionMode;
use meshloom::hlo::PlatformKind;
use meshloom::ir::DType;
use meshloom::kernels::{AttentionKernel, ExpertsKernel};
use meshloom::ops::{KeyExchange, RematPolicy};
use meshloom::optim::{AdamW, Muon};
use meshloom::pjrt::ProgramFormat;
use meshloom::transform::diloco::Transport;
use meshloom::transform::pipeline::{Schedule, WeightPlan};
use meshloom_models::families::MOST_LAYERS;
use meshloom_models::families::size::MOST_HEAD_DIM;
use meshloom_nn::{ContextOrder, ExpertExchange};

/// The sizes that a model may have: those of a checkpoint may be anybody's.
const SIZE: Bound = UpTo(1.0, i32::MAX as f64);

/// The model is of a family, not a published one.
const OF_FAMILY: Needs = &[("model.preset", &[""]), ("model.config", &[""])];

/// Our own partitioner splits the program: XLA's partition plain forms.
const EXPLICIT: Needs = &[("partition.mode", &["explicit"])];

/// Fragments sync in turns.
const STREAMING: Needs = &[("diloco.streaming", &["true"])];

tagged! {
    /// `[model.family]`: the parts of a layer.
    ModelFamily by kind {
        /// RMSNorm, rotary positions, grouped-query attention, SwiGLU.
        Llama = "llama" {},
        /// Llama with routed experts.
        Mixtral = "mixtral" {
            /// Number of routed experts.
            experts: usize = 8 => SIZE,
            /// How many of them each token goes through.
            experts_per_token: usize = 2 => SIZE,
            /// Inner width of one expert.
            moe_mlp: usize = 384 => SIZE,
        },
        /// Latent attention and many small routed experts.
        Deepseek = "deepseek" {
            /// Number of routed experts.
            experts: usize = 8 => SIZE,
            /// How many of them each token goes through.
            experts_per_token: usize = 2 => SIZE,
            /// Inner width of one expert.
            moe_mlp: usize = 384 => SIZE,
            /// Experts that every token goes through besides.
            shared_experts: usize = 1 => UpTo(0.0, i32::MAX as f64),
            /// The sum of the weights of a token's experts.
            routed_scaling_factor: f64 = 1.0 => AtLeast(0.0),
            /// Width of the vector that queries are made of; 0 for none.
            q_lora: usize = 128 => UpTo(0.0, i32::MAX as f64),
            /// Width of the vector that keys and values are made of.
            kv_lora: usize = 64 => SIZE,
            /// Width of the part of a head that positions turn; `head_dim` is that of the other part.
            rope_head_dim: usize = 16 => Even(MOST_HEAD_DIM as f64),
            /// Width of a head's values.
            v_head_dim: usize = 32 => SIZE,
        },
    }
}

section! {
    /// `[model]`: the decoder.
    ModelConfig {
        /// A published model by name, such as `llama-3.1-8b`, in place of a family and its keys; empty for none.
        preset: String = String::new(),
        /// A folder with the `config.json` of a published model, in place of a family and its keys; empty for none.
        config: String = String::new(),
        /// The model family, with its keys.
        family: ModelFamily = ModelFamily::Llama {}; OF_FAMILY,
        /// Number of decoder layers.
        layers: usize = 4 => UpTo(1.0, MOST_LAYERS as f64),
        /// Width of the residual stream.
        embed: usize = 256 => SIZE,
        /// Query heads.
        heads: usize = 8 => SIZE; OF_FAMILY,
        /// Key and value heads; each serves `heads / kv_heads` query heads.
        kv_heads: usize = 4 => SIZE; &[OF_FAMILY[0], OF_FAMILY[1], ("model.family.kind", &["llama", "mixtral"])],
        /// Width of one head; even, because rotary positions turn pairs.
        head_dim: usize = 32 => Even(MOST_HEAD_DIM as f64); OF_FAMILY,
        /// Llama: inner width of the feed-forward block.
        mlp: usize = 768 => SIZE; &[OF_FAMILY[0], OF_FAMILY[1], ("model.family.kind", &["llama"])],
        /// Number of token values.
        vocab: usize = 256 => SIZE,
        /// Tokens in a sequence.
        seq: usize = 256 => AtLeast(1.0),
        /// Whether the output head is the embedding table.
        tied_embeddings: bool = false,
        /// Element type of the stored parameters.
        param_dtype: DType = DType::F32,
        /// Element type of the forward and backward pass.
        compute_dtype: DType = DType::F32,
        /// Probability with which an activation is dropped in training.
        dropout: f64 = 0.0 => Below(0.0, 1.0),
        /// Probability with which a weight of attention is dropped in training.
        attention_dropout: f64 = 0.0 => Below(0.0, 1.0),
        /// Whether the layers are one loop over stacked weights, or each its own nodes.
        scan_layers: bool = true,
        /// Models with routed experts: weight of the load-balance loss.
        load_balance_weight: f64 = 0.01 => AtLeast(0.0),
        /// Models with routed experts: slots of an expert for the tokens of a row, as a multiple of those that it needs
        /// where experts are used evenly; a token that finds no slot is dropped. 0 for no capacity: nothing is dropped.
        expert_capacity: f64 = 0.0 => AtLeast(0.0),
        /// Base of the rotary frequencies.
        rope_theta: f64 = 10_000.0 => MoreThan(0.0); OF_FAMILY,
        /// The number that norms add to the mean square.
        norm_epsilon: f64 = 1e-5 => AtLeast(0.0); OF_FAMILY,
        /// Parts of a sequence, a divisor of `seq`, whose logits the loss makes at a time; 0: as few as keep those of a
        /// device within 256 MiB.
        loss_chunks: usize = 0,
        /// Whether a layer works on two halves of the batch in turns, so that communication overlaps with compute.
        batch_split: bool = false,
    }
}

choice! {
    /// How documents fill rows.
    Documents {
        /// One after the other, without gaps; each document of a row is a segment.
        Packed = "packed",
        /// Each in rows of its own; the rest of a row is padding; a longer one takes several.
        OnePerRow = "one-per-row",
    }
}

choice! {
    /// The action on a line of the data that cannot be used.
    BadLines {
        /// The line is an error that names the file and the line.
        Error = "error",
        /// The line is left out, and counted.
        Skip = "skip",
    }
}

section! {
    /// `[data]`: what is trained on.
    DataConfig {
        /// Files, folders and globs of text or JSON Lines, each plain, `.gz` or `.zst`.
        sources: Vec<String> = vec!["examples/data/austen.txt".to_owned()],
        /// The numbers of rows that the sources give, in proportion. If empty, all sources count as one and are
        /// shuffled together.
        weights: Vec<f64> = Vec::new(),
        /// JSON Lines: the field of each line that has the text.
        field: String = "text".to_owned(),
        /// How documents fill rows.
        documents: Documents = Documents::Packed,
        /// The action on a line that cannot be used.
        bad_lines: BadLines = BadLines::Error,
        /// How many times its own size a compressed file may have as text; 16 MiB in any case.
        max_expansion: f64 = 50.0 => AtLeast(1.0),
        /// Documents that are shuffled at a time. The order of an epoch takes memory for this many.
        shuffle_window: usize = 1 << 20 => AtLeast(1.0),
        /// `bytes`, or the path of a `tokenizer.json`.
        tokenizer: String = "bytes".to_owned(),
        /// The folder that keeps tokens from run to run; empty: `meshloom/tokens` in the user's cache folder.
        cache: String = String::new(),
    }
}

tagged! {
    /// `[train.optimizer]`: the optimizer.
    OptimizerConfig by kind {
        /// Adam with decoupled weight decay.
        AdamW = "adamw" {
            /// Decay of the first moment.
            beta1: f64 = AdamW::default().beta1 => Below(0.0, 1.0),
            /// Decay of the second moment.
            beta2: f64 = AdamW::default().beta2 => Below(0.0, 1.0),
            /// Added to the root of the second moment.
            epsilon: f64 = AdamW::default().epsilon => MoreThan(0.0),
        },
        /// Orthogonal momentum for matrices, AdamW for everything else.
        Muon = "muon" {
            /// Decay of the momentum.
            momentum: f64 = Muon::default().momentum => Below(0.0, 1.0),
            /// Root mean square of a matrix's update before the learning rate; that of AdamW's is near 0.2.
            rms: f64 = Muon::default().rms => MoreThan(0.0),
            /// Decay of the first moment.
            beta1: f64 = AdamW::default().beta1 => Below(0.0, 1.0),
            /// Decay of the second moment.
            beta2: f64 = AdamW::default().beta2 => Below(0.0, 1.0),
            /// Added to the root of the second moment.
            epsilon: f64 = AdamW::default().epsilon => MoreThan(0.0),
        },
    }
}

tagged! {
    /// `[train.schedule]`: how the learning rate falls after its warm-up.
    RateSchedule by kind {
        /// As half a cosine.
        Cosine = "cosine" {
            /// Learning rate at the end, as a fraction of the peak.
            floor: f64 = 0.1 => UpTo(0.0, 1.0),
        },
        /// In a straight line.
        Linear = "linear" {
            /// Learning rate at the end, as a fraction of the peak.
            floor: f64 = 0.1 => UpTo(0.0, 1.0),
        },
        /// In a straight line over the last steps: warmup-stable-decay.
        Wsd = "wsd" {
            /// Learning rate at the end, as a fraction of the peak.
            floor: f64 = 0.1 => UpTo(0.0, 1.0),
            /// The last steps, over which the learning rate falls.
            decay_steps: usize = 20 => AtLeast(1.0),
        },
        /// Not at all.
        Constant = "constant" {},
    }
}

section! {
    /// `[train]`: the optimization.
    TrainConfig {
        /// Sequences per step, over all devices.
        batch: usize = 16 => AtLeast(1.0),
        /// Number of steps.
        steps: usize = 200 => AtLeast(1.0),
        /// Seed of the parameters and of the order of the data.
        seed: u64 = 0,
        /// The parameters that a new run starts from, in place of drawn ones: the folder of a published model, or a
        /// checkpoint, from which only the parameters are taken. Empty for none.
        init: String = String::new(),
        /// Parts into which a batch is cut, with gradients accumulated.
        microbatches: usize = 1 => AtLeast(1.0),
        /// Steps that one call of the program runs, in a loop. The numbers are the same whatever it is.
        steps_per_call: usize = 1 => AtLeast(1.0),
        /// Seconds that one call of the program may take; 0 for no limit.
        time_limit: f64 = 1800.0 => Seconds,
        /// Peak learning rate.
        learning_rate: f64 = 3e-3 => AtLeast(0.0),
        /// Steps over which the learning rate rises from zero.
        warmup: usize = 20,
        /// How the learning rate falls after the warm-up.
        schedule: RateSchedule = RateSchedule::default(),
        /// The optimizer.
        optimizer: OptimizerConfig = OptimizerConfig::default(),
        /// Decoupled weight decay, of parameters with two or more dimensions but for biases.
        weight_decay: f64 = 0.1 => AtLeast(0.0),
        /// Patterns of the paths of parameters that do not decay either: `*` stands for any text, `?` for one
        /// character.
        no_decay: Vec<String> = Vec::new(); &[("train.weight_decay", &[])],
        /// Weight of the z-loss, the mean over tokens of the square of logsumexp; 0 for none.
        z_loss: f64 = 0.0 => AtLeast(0.0),
        /// Weight of the loss of further tokens (multi-token prediction), the mean over the layers that predict them;
        /// 0 to leave these layers out.
        further_token_weight: f64 = 0.0 => AtLeast(0.0),
        /// The amount by which a step moves each bias that experts are chosen by: up where an expert has less than an
        /// even share of the choices, and down where it has more; 0 to leave them.
        choice_bias_rate: f64 = 1e-3 => AtLeast(0.0),
        /// Whether parameters narrower than f32 have f32 copies in the optimizer's state.
        master_copies: bool = true; &[("model.param_dtype", &["bf16", "f16"])],
        /// Largest global norm of the gradient.
        clip_norm: f64 = 1.0 => MoreThan(0.0),
        /// How many steps in a row may have a loss or a gradient norm that is not finite; they change nothing. The run
        /// ends with one more, and its state is saved.
        skip_bad_steps: usize = 0,
    }
}

section! {
    /// `[validation]`: the text that a run is judged by.
    ValidationConfig {
        /// Files, folders and globs that are not trained on. Empty for none.
        sources: Vec<String> = Vec::new(),
        /// Steps between evaluations; 0 for one at the end alone.
        every: usize = 0,
        /// Batches of an evaluation, always the same; fewer if there are no more.
        batches: usize = 8 => AtLeast(1.0),
    }
}

section! {
    /// `[checkpoint]`: when the state is saved, and where.
    CheckpointConfig {
        /// The directory; empty for no checkpoints.
        dir: String = String::new(),
        /// Steps between checkpoints; 0 for one at the end alone.
        every: usize = 0,
        /// How many are kept, the newest; 0 for all. The newest of finite numbers is always kept.
        keep: usize = 3; &[("checkpoint.dir", &[])],
        /// How many are kept besides: those with the lowest validation loss. Needs `validation.sources`.
        keep_best: usize = 0; &[("checkpoint.dir", &[])],
    }
}

section! {
    /// `[mesh]`: how devices are arranged.
    MeshConfig {
        /// Axes, major to minor: `data=2,fsdp=4`. One size may be -1: it fills up the devices.
        axes: String = "data=2,fsdp=4".to_owned(),
        /// Axes, or factors of them, that cross slices: `diloco=2`.
        dcn: String = String::new(),
    }
}

tagged! { impl
    /// `[remat]`: what the backward pass recomputes.
    RematPolicy by policy {
        /// Nothing: all values are kept.
        None = "none" {},
        /// Everything but the operands of layers.
        Full = "full" {},
        /// Everything but the results of dots.
        Dots = "dots" {},
        /// Everything but some values, which are kept.
        Save = "save" {
            /// The names of the values.
            names @ 0 = Vec::new(),
        },
        /// Everything but some values, which wait in the host's memory.
        Offload = "offload" {
            /// The names of the values.
            names @ 0 = Vec::new(),
        },
    }
}

section! {
    /// `[kernels]`: what computes ops that have several implementations.
    KernelsConfig {
        /// The implementation of attention. `auto` goes by the platform; `plain` holds all scores.
        attention: Auto<AttentionKernel> = Auto::Auto; EXPLICIT,
        /// The implementation of the products of routed experts. `auto` goes by the platform; `plain` computes every
        /// expert of a device for every row.
        experts: Auto<ExpertsKernel> = Auto::Auto; EXPLICIT,
        /// How tokens travel to experts of other devices. `auto` takes the way that sends fewer bytes; `all-to-all`
        /// needs `model.expert_capacity`.
        experts_exchange: Auto<ExpertExchange> = Auto::Auto,
        /// Where the sequence is split: whether each device gathers all keys (`gather`), or keys and values travel
        /// around a ring while they are used (`ring`).
        context: KeyExchange = KeyExchange::Gather,
        /// The tokens of a row that each device has, where the sequence is split: contiguous ones (`natural`), or such
        /// that each device has an equal share of causal attention (`two-chunk`, `striped`).
        context_order: ContextOrder = ContextOrder::Natural,
        /// Whether all-gathers in front of products with weights, and reduce-scatters behind them, become rings in
        /// which parts travel while others are multiplied. `auto` does so where it pays, on a chip whose speeds are
        /// known.
        collective_matmul: Auto<bool> = Auto::Auto; EXPLICIT,
    }
}

section! {
    /// `[pipeline]`: present only when the mesh has a `stage` axis of more than one device, or `repeats` is more
    /// than 1.
    PipelineConfig {
        /// Parts into which a batch is cut to fill the pipeline: at least as many as the stages, and with several
        /// repeats a multiple of them.
        microbatches: usize = 4 => AtLeast(1.0),
        /// How often a microbatch goes round the stages; more than once only with the schedule circular.
        repeats: usize = 2 => AtLeast(1.0),
        /// Parts of the layers that each stage holds; more than one only with the schedules interleaved, zb-v (which
        /// has two) and auto.
        chunks: usize = 1 => AtLeast(1.0),
        /// Layers that the pipeline has; 0: all of the stack's cycles. Others run in front of it, or behind it, where
        /// the stages split the batch.
        layers: usize = 0,
        /// Layers that a stage holds per repeat, or per chunk; where layers differ, whole cycles of them.
        layers_per_stage: usize = 1 => AtLeast(1.0),
        /// When weights are gathered.
        weights: WeightPlan = WeightPlan::SlidingWindow,
        /// The order of work.
        schedule: Schedule = Schedule::Circular,
        /// Whether activations are sent one iteration late, so that the transfer overlaps with compute.
        delay_forwarding: bool = false,
        /// Whether iterations are a loop, or each its own nodes.
        scan_iterations: bool = true,
        /// Whether repeats are a loop, or each its own nodes.
        scan_repeats: bool = true,
        /// Whether the backward pass reuses gathered weights instead of gathering again.
        keep_gathered: bool = false; &[("pipeline.weights", &["gather-once", "bsw", "bsw-split"])],
        /// The policy of the pipeline's layers: what the backward pass recomputes. Without it, they follow `[remat]`.
        remat: Option<RematPolicy> = None,
        /// Times of a stage's passes over a microbatch, in any unit: forwards, of gradients of inputs, of gradients of
        /// weights. Or three for each chunk of each stage, in the order of the layers. Schedules that are searched go
        /// by them; by default they follow from what is recomputed.
        costs: Vec<f64> = Vec::new(); &[("pipeline.schedule", &["interleaved", "zb-h1", "zb-v", "auto"])],
    }
}

section! {
    /// `[diloco.apart]`: replicas that are runs of their own.
    ApartConfig {
        /// With fewer replicas than these, the run waits.
        min_replicas: usize = 1 => AtLeast(1.0),
        /// The largest norm of a pseudo-gradient that counts; 0 for no limit. One that is not finite never counts.
        max_norm: f64 = 0.0 => AtLeast(0.0),
    }
}

section! {
    /// `[diloco]`: present only when used.
    DilocoConfig {
        /// Model replicas that train on their own between syncs.
        replicas: usize = 2 => AtLeast(1.0),
        /// Steps between syncs.
        sync_period: usize = 20 => AtLeast(1.0),
        /// Learning rate of the outer optimizer.
        outer_lr: f64 = 0.7 => AtLeast(0.0),
        /// Nesterov momentum of the outer optimizer.
        outer_momentum: f64 = 0.9 => Below(0.0, 1.0),
        /// Whether fragments of the model sync in turns.
        streaming: bool = false,
        /// Number of fragments; the first is everything outside the layers.
        fragments: usize = 3 => AtLeast(2.0); STREAMING,
        /// Whether a fragment is a block of consecutive layers, or strided.
        sequential_layers: bool = false; STREAMING,
        /// Steps between the sending of a fragment and its use.
        overlap_steps: usize = 0; STREAMING,
        /// Weight of the inner value when a fragment is merged.
        overlap_alpha: f64 = 0.0 => UpTo(0.0, 1.0); STREAMING,
        /// How pseudo-gradients are sent.
        transport: Transport = Transport::F32,
        /// Numbers that share a scale when they are sent in 8 or 4 bits.
        block: usize = 64 => Even(i32::MAX as f64); &[("diloco.transport", &["f8", "int4"])],
        /// Whether some fragments may hold one layer more than others.
        uneven_fragments: bool = false; STREAMING,
        /// Whether the outer parameters are compared between replicas after each sync.
        check_replicas: bool = false,
        /// Replicas that are runs of their own, each with its own mesh, started by `--replica N`.
        apart: Option<ApartConfig> = None,
    }
}

choice! {
    /// The action where an op cannot work on parts of a value, so that every device needs the whole. It is a setting of
    /// our partitioner alone.
    Replication {
        /// The value is gathered, with a warning.
        Warn = "warn",
        /// It is an error.
        Deny = "deny",
    }
}

section! {
    /// `[partition]`: who splits the program over the devices.
    PartitionConfig {
        /// The partitioner: meshloom's (`explicit`), or XLA's (`gspmd`, `shardy`).
        mode: PartitionMode = PartitionMode::Explicit,
        /// The action where a value cannot be split.
        replication: Replication = Replication::Warn; EXPLICIT,
    }
}

section! {
    /// `[target]`: the devices.
    TargetConfig {
        /// The platform; `auto` is the first of tpu, cuda and cpu that has devices. With a topology it is not looked
        /// at.
        platform: Auto<PlatformKind> = Auto::Chosen(PlatformKind::Cpu),
        /// Number of virtual devices, on the CPU: of each process. Other platforms have the devices they have.
        devices: usize = 8 => AtLeast(1.0); &[("target.platform", &["cpu", "auto"])],
        /// Number of processes that run the program together, each with its own devices; the mesh covers all. `meshloom
        /// train --processes` sets it.
        processes: usize = 1 => AtLeast(1.0),
        /// On cuda, the part of each GPU's memory that the plugin may take; 0 for the plugin's own choice.
        memory_fraction: f64 = 0.0 => UpTo(0.0, 1.0),
        /// On cuda, whether the plugin takes that memory at once; `auto` is the plugin's own choice.
        preallocate: Auto<bool> = Auto::Auto,
        /// On cuda, the numbers of the GPUs to use, as in `0,1`. Empty: all.
        visible_devices: Vec<usize> = Vec::new(),
        /// For ahead-of-time compilation: `v5p:8x8x8`, `tpu7x:2x2x1:slices=2`, `h100:1x1x8`. Empty: the devices at
        /// hand.
        topology: String = String::new(),
        /// The language in which the plugin is given programs: `stablehlo` for one that takes no HLO.
        format: ProgramFormat = ProgramFormat::Hlo,
        /// Whether the compiler options begin with those that suit the chip: `meshloom config --resolved` lists them.
        compiler_preset: bool = true,
        /// Options of the plugin's compiler, each `name=value`, which it must know: XLA's flags and its own. They win
        /// over the preset's.
        compiler_options: Vec<String> = Vec::new(),
        /// Folder in which compiled programs are kept for later runs; `auto` for meshloom's cache, empty for none.
        compile_cache: String = "auto".to_owned(),
    }
}
