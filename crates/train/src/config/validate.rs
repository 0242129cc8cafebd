//! Checks of values that are of the right type: each alone, then those that depend on one another.

use super::error::{ConfigError, invalid, invalid_described};
use super::mixture::Mixture;
use super::placement::{Placement, Split};
use super::{
    AttentionChoice, CheckpointConfig, DilocoConfig, ExpertsChoice, KernelsConfig, RateSchedule, RuleSource, RunConfig,
    TrainConfig,
};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::Name;
use meshloom::ops::RematPolicy;
use meshloom::trace::TensorSpec;
use meshloom_models::families::MOST_LAYERS;
use meshloom_models::families::size::{MOST_EXPERTS, MOST_HEAD_DIM, MOST_PARAMETERS, expert_count, parameter_bound};
use meshloom_nn::Batch;

pub(super) type Checked = Result<(), ConfigError>;

impl RunConfig {
    /// Checks that every value is possible, alone and beside the others. Reading a config does this already; it is for
    /// configs that were changed since.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_bounds()?;
        self.validate_range()?;
        self.validate_model()?;
        self.validate_data()?;
        self.validate_train()?;
        self.validate_checkpoint()?;
        self.validate_rules_and_remat()?;
        self.validate_target()?;
        self.validate_kernels()?;
        // Otherwise a plugin knows the devices; `on_devices` then checks the rest.
        if self.knows_devices() { self.validate_on_mesh() } else { Ok(()) }
    }

    /// Returns this config for a topology, or for a plugin's own devices, once the program is known to use `count` of
    /// them.
    ///
    /// # Errors
    /// The mesh, or what depends on it, does not fit them.
    pub fn on_devices(&self, count: usize) -> Result<RunConfig, ConfigError> {
        let mut config = self.clone();
        // If processes would not have equal numbers of devices, the check of the mesh reports it.
        config.target.devices = count / self.target.processes.max(1);
        config.validate_on_mesh()?;
        Ok(config)
    }

    fn validate_kernels(&self) -> Checked {
        let KernelsConfig { attention, experts, .. } = self.kernels;
        const MOSAIC: (PlatformKind, &str) = (PlatformKind::Tpu, "its kernels are for TPUs");
        let of_attention = match attention {
            AttentionChoice::Mosaic => Some(MOSAIC),
            AttentionChoice::Cudnn => Some((PlatformKind::Cuda, "cuDNN is for CUDA")),
            AttentionChoice::Auto | AttentionChoice::Plain | AttentionChoice::Blockwise => None,
        };
        let of_experts = match experts {
            ExpertsChoice::Mosaic => Some(MOSAIC),
            ExpertsChoice::RaggedDot => Some((PlatformKind::Tpu, "the instruction is a kernel on TPUs alone")),
            ExpertsChoice::Auto | ExpertsChoice::Plain | ExpertsChoice::Blockwise => None,
        };
        let choices =
            [("kernels.attention", attention.name(), of_attention), ("kernels.experts", experts.name(), of_experts)];
        // If the platform depends on the devices, it is known only when the program runs.
        let Ok(kind) = self.platform_kind() else { return Ok(()) };
        for (key, choice, needed) in choices {
            if let Some((_, what)) = needed.filter(|&(needed, _)| needed != kind) {
                let reason = format!("{what}, but the platform is {kind}; \"auto\" takes what it has");
                return Err(invalid(key, choice, &reason).because(["target.platform"]));
            }
        }
        Ok(())
    }

    fn validate_on_mesh(&self) -> Checked {
        let placement = self.placement()?;
        self.validate_diloco(placement.axis_size("diloco"))?;
        self.validate_rules(&placement)?;
        self.validate_loss_chunks(&placement)?;
        self.validate_context_order(&placement)?;
        self.validate_experts(&placement)?;
        self.validate_pipeline(placement.axis_size("stage"))?;
        self.validate_rows_of_layer(&placement)
    }

    /// Checks that numbers stay numbers in the program, which has them as `f32`.
    fn validate_range(&self) -> Checked {
        // These are no part of the program, but seconds.
        const WIDE: &str = "time_limit";
        for (section, keys) in self.write_sections() {
            for (key, value) in keys {
                let Some(number) = value.as_float().filter(|&number| number != 0.0 && key != WIDE) else { continue };
                if !(number as f32).is_normal() {
                    let (least, most) = (f32::MIN_POSITIVE, f32::MAX);
                    let reason = format!("f32 cannot hold it; give a number from {least:e} to {most:e}");
                    return Err(invalid(&format!("{section}.{key}"), number, &reason));
                }
            }
        }
        Ok(())
    }

    fn validate_model(&self) -> Checked {
        let model = &self.model;
        if self.published().is_none() {
            self.validate_sizes()?;
            divides("model.heads", model.heads, "model.kv_heads", model.kv_heads)?;
        }
        if self.data.tokenizer == "bytes" && model.vocab < 256 {
            let reason = "it must be at least 256 with data.tokenizer = \"bytes\"";
            return Err(invalid("model.vocab", model.vocab, reason).because(["data.tokenizer"]));
        }
        self.validate_family()
    }

    /// Judges the sizes of a model before anything is built of them: those of a checkpoint may be anybody's.
    fn validate_sizes(&self) -> Checked {
        let model = &self.model;
        let size = i32::MAX as usize;
        for (key, value, most) in [
            ("layers", model.layers, MOST_LAYERS),
            ("embed", model.embed, size),
            ("heads", model.heads, size),
            ("kv_heads", model.kv_heads, size),
            ("head_dim", model.head_dim, MOST_HEAD_DIM),
            ("mlp", model.mlp, size),
            ("vocab", model.vocab, size),
            ("experts", model.experts, size),
            ("experts_per_token", model.experts_per_token, size),
            ("moe_mlp", model.moe_mlp, size),
            ("shared_experts", model.shared_experts, size),
            ("q_lora", model.q_lora, size),
            ("kv_lora", model.kv_lora, size),
            ("rope_head_dim", model.rope_head_dim, MOST_HEAD_DIM),
            ("v_head_dim", model.v_head_dim, size),
        ] {
            if value > most {
                return Err(invalid(&format!("model.{key}"), value, &format!("it must be at most {most}")));
            }
        }
        let architecture = self.plain_architecture();
        if expert_count(&architecture) > MOST_EXPERTS {
            let reason = format!("there can be {MOST_EXPERTS} in all layers together");
            return Err(invalid("model.experts", model.experts, &reason));
        }
        let parameters = parameter_bound(&architecture);
        if parameters > MOST_PARAMETERS {
            let reason = format!("with the other sizes it makes {parameters} parameters, more than can be addressed");
            return Err(invalid("model.embed", model.embed, &reason));
        }
        Ok(())
    }

    fn validate_data(&self) -> Checked {
        let data = &self.data;
        if data.sources.is_empty() {
            return Err(invalid("data.sources", &data.sources, "it must have at least one file, folder or glob"));
        }
        for (key, sources) in [("data.sources", &data.sources), ("data.validation", &data.validation)] {
            if sources.iter().any(String::is_empty) {
                return Err(invalid(key, sources, "none may be empty; give files, folders or globs"));
            }
        }
        for (key, text) in [("data.field", &data.field), ("data.tokenizer", &data.tokenizer)] {
            if text.is_empty() {
                return Err(invalid(key, text, "it must not be empty"));
            }
        }
        Mixture::new(&data.weights, data.sources.len())
            .map(drop)
            .map_err(|reason| invalid("data.weights", &data.weights, &reason).because(["data.sources"]))
    }

    fn validate_train(&self) -> Checked {
        let train = &self.train;
        divides("train.batch", train.batch, "train.microbatches", train.microbatches)?;
        let (seq, most) = (self.model.seq, i32::MAX as usize);
        if train.batch.checked_mul(seq).is_none_or(|tokens| tokens > most) {
            let reason = format!("times model.seq, which is {seq}, it must be at most {most}; lower one of them");
            return Err(invalid("train.batch", train.batch, &reason).because(["model.seq"]));
        }
        self.validate_schedule()
    }

    fn validate_schedule(&self) -> Checked {
        let TrainConfig { schedule, decay_steps, warmup, steps, .. } = &self.train;
        let wrong = |reason: &str, because: &[&str]| {
            Err(invalid("train.decay_steps", decay_steps, reason).because(because.iter().copied()))
        };
        match (schedule, *decay_steps) {
            (RateSchedule::Wsd, 0) => {
                wrong("it must be at least 1 with train.schedule = \"wsd\": the steps of decay", &["train.schedule"])
            }
            (RateSchedule::Wsd, decay) if warmup.saturating_add(decay) > *steps => {
                let reason =
                    format!("with train.warmup, which is {warmup}, it must fit into train.steps, which is {steps}");
                wrong(&reason, &["train.warmup", "train.steps"])
            }
            (RateSchedule::Wsd, _) | (_, 0) => Ok(()),
            _ => wrong("it is for train.schedule = \"wsd\"", &["train.schedule"]),
        }
    }

    fn validate_checkpoint(&self) -> Checked {
        let CheckpointConfig { dir, every, .. } = &self.checkpoint;
        match *every > 0 && dir.is_empty() {
            true => {
                let reason = "it needs checkpoint.dir, the directory for checkpoints";
                Err(invalid("checkpoint.every", every, reason).because(["checkpoint.dir"]))
            }
            false => Ok(()),
        }
    }

    fn validate_rules_and_remat(&self) -> Checked {
        for (section, source) in self.rules.sources() {
            if let RuleSource::File(path) = source
                && path.is_empty()
            {
                let reason = "it must not be empty; give the path of a rule file";
                return Err(invalid(&format!("{section}.{}", source.key()), path, reason));
            }
        }
        let needs_names = matches!(self.remat.policy, RematPolicy::Save(_) | RematPolicy::Offload(_));
        match self.remat.names.is_empty() {
            true if needs_names => {
                let reason = "it needs remat.names, the values to keep";
                Err(invalid("remat.policy", self.remat.policy.name(), reason).because(["remat.names"]))
            }
            false if !needs_names => {
                let reason = "names are for remat.policy = \"save\" or \"offload\"";
                Err(invalid("remat.names", &self.remat.names, reason).because(["remat.policy"]))
            }
            _ => Ok(()),
        }
    }

    /// The keys that name values to keep, with those names.
    pub(crate) fn saved_names(&self) -> impl Iterator<Item = (&'static str, &String)> {
        let of_pipeline = self.pipeline.iter().flat_map(|pipeline| &pipeline.remat_names);
        let of_all = self.remat.names.iter().map(|name| ("remat.names", name));
        of_all.chain(of_pipeline.map(|name| ("pipeline.remat_names", name)))
    }

    /// Checks that values of a model have the names that are to be kept. `names` are those that values have.
    pub(crate) fn check_saved_names(&self, names: &[Name]) -> Checked {
        let names: Vec<String> = names.iter().map(|name| name.text()).collect();
        let Some((key, unknown)) = self.saved_names().find(|(_, name)| !names.contains(name)) else { return Ok(()) };
        let suggestion = did_you_mean(unknown, names.iter().map(String::as_str));
        let reason = format!("no value of the model has this name{suggestion}; there are {}", names.join(", "));
        Err(invalid(key, unknown, &reason))
    }

    fn validate_rules(&self, placement: &Placement) -> Checked {
        if let Err(error) = placement.rules.check_mesh(&placement.mesh) {
            let (key, value) = self.rules.faulty_key(&placement.mesh, &error);
            return Err(invalid_described(&key, value, &error.to_string()));
        }
        self.validate_batch(placement)
    }

    /// Checks that the rules can split a batch, so that its keys are named rather than an input of the program.
    fn validate_batch(&self, placement: &Placement) -> Checked {
        let names = match self.pipeline {
            Some(_) => Batch::<TensorSpec>::AXES_OF_PIPELINE.map(Some),
            None => Batch::<TensorSpec>::AXES.map(Some),
        };
        let sizes = [("train.batch", self.rows_at_once()), ("model.seq", self.model.seq)];
        let Some((dim, split)) = placement.uneven_split("batch", &names, &sizes.map(|(_, size)| size)) else {
            return Ok(());
        };
        let (key, size) = sizes[dim];
        if dim == 0 && self.train.microbatches > 1 {
            return Err(self.too_few_rows("train.microbatches", self.train.microbatches, size, &split));
        }
        let Split { parts, rule, mesh } = split;
        let (value, parts) = if dim == 0 { (self.train.batch, parts * self.replicas()) } else { (size, parts) };
        let of_replicas = match (dim, self.replicas()) {
            (0, replicas @ 2..) => format!(" ({} for each of the {replicas} replicas)", parts / replicas),
            _ => String::new(),
        };
        let reason = format!(
            "it must be a multiple of {parts}{of_replicas}: rule {rule} splits it over the mesh {mesh:?}; or allow it to be padded by \
             rules.uneven = true"
        );
        Err(invalid(key, value, &reason).because(self.rules.given_keys()).because(["rules.uneven"]))
    }

    /// Checks that the rules can split the rows that a layer works on: a microbatch of a pipeline, or half of them.
    fn validate_rows_of_layer(&self, placement: &Placement) -> Checked {
        let (names, stages) = match &self.pipeline {
            Some(_) => ([Some("activation_stage"), Some("activation_batch")], placement.axis_size("stage")),
            None => ([None, Some("activation_batch")], 1),
        };
        let rows = self.rows_of_layer();
        let uneven = |rows: usize| match placement.uneven_split("microbatch", &names, &[stages, rows]) {
            Some((1, split)) => Some(split),
            _ => None,
        };
        if let Some((pipeline, split)) = self.pipeline.as_ref().zip(uneven(rows)) {
            return Err(self.too_few_rows("pipeline.microbatches", pipeline.microbatches, rows, &split));
        }
        match uneven(rows / 2).filter(|_| self.model.batch_split) {
            Some(Split { parts, rule, mesh }) => {
                let reason = format!(
                    "half of the {rows} rows that a layer works on must be a multiple of {parts}: rule {rule} splits them over the \
                     mesh {mesh:?}"
                );
                let keys = ["train.batch", "train.microbatches", "pipeline.microbatches"];
                Err(invalid("model.batch_split", true, &reason).because(keys))
            }
            None => Ok(()),
        }
    }

    /// A rule wants more rows of a microbatch than this number of them leaves.
    fn too_few_rows(&self, key: &str, microbatches: usize, rows: usize, split: &Split) -> ConfigError {
        let Split { parts, rule, mesh } = split;
        let reason = format!(
            "a microbatch of train.batch = {} has {rows} rows then, which must be a multiple of {parts}: rule {rule} splits them over \
             the mesh {mesh:?}",
            self.train.batch
        );
        invalid(key, microbatches, &reason).because(["train.batch"]).because(self.rules.given_keys())
    }

    fn validate_diloco(&self, replicas_of_mesh: usize) -> Checked {
        let Some(diloco) = &self.diloco else {
            return match replicas_of_mesh {
                1 => Ok(()),
                _ => Err(needs_section(&self.mesh.axes, "diloco", "a section [diloco]: add it, or give")),
            };
        };
        let DilocoConfig { replicas, sync_period, fragments, streaming, apart, min_replicas, .. } = *diloco;
        if min_replicas > replicas {
            let reason = format!("it must be at most diloco.replicas, which is {replicas}");
            return Err(invalid("diloco.min_replicas", min_replicas, &reason).because(["diloco.replicas"]));
        }
        if apart && replicas_of_mesh > 1 {
            let reason = "replicas apart have a mesh each: leave out its axis \"diloco\"";
            return Err(invalid("mesh.axes", &self.mesh.axes, reason).because(["diloco.apart"]));
        }
        if !apart && replicas != replicas_of_mesh {
            let reason = match replicas_of_mesh {
                1 => format!(
                    "mesh.axes has no axis \"diloco\"; give it one of size {replicas}, as in diloco={replicas},data=-1"
                ),
                _ => format!("it must be the size of the mesh axis \"diloco\", which is {replicas_of_mesh}"),
            };
            return Err(invalid("diloco.replicas", replicas, &reason).because(["mesh.axes"]));
        }
        divides("train.batch", self.train.batch, "diloco.replicas", replicas)?;
        let rows = self.rows_of_replica();
        if !rows.is_multiple_of(self.train.microbatches) {
            let reason =
                format!("it must divide the rows of a replica, train.batch / diloco.replicas, which are {rows}");
            let wrong = invalid("train.microbatches", self.train.microbatches, &reason);
            return Err(wrong.because(["train.batch", "diloco.replicas"]));
        }
        if !streaming {
            return Ok(());
        }
        if fragments < 2 {
            let reason = "it must be at least 2: one for everything outside the layers, one or more for the layers";
            return Err(invalid("diloco.fragments", fragments, reason));
        }
        let stack = self.stack();
        let cycle = stack.cycle.len().max(1);
        let (layers, of) = match &self.pipeline {
            Some(pipeline) if cycle == 1 => (
                pipeline.repeats * pipeline.chunks * pipeline.layers_per_stage,
                "the layers of a stage, of which there are",
            ),
            Some(pipeline) => (
                pipeline.repeats * pipeline.chunks * pipeline.layers_per_stage / cycle,
                "the cycles of a stage, of which there are",
            ),
            None if cycle > 1 => (stack.cycles, "the cycles of layers, of which there are"),
            None => (stack.cycles, "model.layers, which is"),
        };
        if layers < fragments - 1 {
            let reason = format!("fragments - 1 must be at most {of} {layers}");
            return Err(invalid("diloco.fragments", fragments, &reason).because(["model.layers"]));
        }
        if !diloco.uneven_fragments && !layers.is_multiple_of(fragments - 1) {
            let reason = format!("fragments - 1 must divide {of} {layers}; or set diloco.uneven_fragments = true");
            return Err(invalid("diloco.fragments", fragments, &reason).because(["model.layers"]));
        }
        if sync_period < fragments {
            let reason =
                format!("it must be at least diloco.fragments, which is {fragments}: one fragment syncs at a time");
            return Err(invalid("diloco.sync_period", sync_period, &reason).because(["diloco.fragments"]));
        }
        let every = sync_period / fragments;
        if apart && diloco.overlap_steps >= every {
            let reason =
                format!("it must be less than the {every} steps from sync to sync: replicas apart have one under way");
            return Err(invalid("diloco.overlap_steps", diloco.overlap_steps, &reason).because(["diloco.apart"]));
        }
        let period = every * fragments;
        if diloco.overlap_steps >= period {
            let reason = format!("it must be less than the {period} steps until the same fragment syncs again");
            return Err(invalid("diloco.overlap_steps", diloco.overlap_steps, &reason));
        }
        match self.model.scan_layers {
            true => Ok(()),
            false => {
                let reason = "diloco.streaming needs it to be true";
                Err(invalid("model.scan_layers", false, reason).because(["diloco.streaming"]))
            }
        }
    }
}

/// Refuses a mesh axis that only a section gives a meaning.
pub(super) fn needs_section(axes: &str, axis: &str, section: &str) -> ConfigError {
    let reason = format!("an axis \"{axis}\" needs {section} its devices to another axis");
    invalid("mesh.axes", axes, &reason)
}

fn divides(key: &str, value: usize, divisor_key: &str, divisor: usize) -> Checked {
    match value.is_multiple_of(divisor) {
        true => Ok(()),
        false => {
            let reason = format!("it must be a multiple of {divisor_key}, which is {divisor}");
            Err(invalid(key, value, &reason).because([divisor_key]))
        }
    }
}
