//! Checks of values that are of the right type: each alone, then those that depend on one another.

use super::error::{ConfigError, invalid, invalid_described};
use super::mixture::Mixture;
use super::placement::{Placement, Split};
use super::section::keys_with_value;
use super::{DilocoConfig, KernelsConfig, RateSchedule, RunConfig, TrainConfig};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::Name;
use meshloom::kernels::{AttentionKernel, ExpertsKernel};
use meshloom::ops::RematPolicy;
use meshloom::trace::TensorSpec;
use meshloom::transform::diloco::DilocoError;
use meshloom_models::families::size::{MOST_EXPERTS, MOST_PARAMETERS, expert_count, parameter_bound};
use meshloom_nn::Batch;

pub(super) type Checked = Result<(), ConfigError>;

impl RunConfig {
    /// Checks that every value is possible, alone and beside the others. Reading a config does this already; it is for
    /// configs that were changed since.
    pub fn validate(&self) -> Result<(), ConfigError> {
        keys_with_value(&self.describe())
            .try_for_each(|(path, key, value)| key.bound.check(&path, value, &key.allowed))?;
        self.validate_model()?;
        self.validate_data()?;
        self.validate_train()?;
        self.validate_sources()?;
        self.validate_kept_names()?;
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
        use PlatformKind::{Cuda, Tpu};
        let KernelsConfig { attention, experts, .. } = self.kernels;
        let of_attention = match attention.chosen() {
            Some(AttentionKernel::Mosaic) => Some(Tpu),
            Some(AttentionKernel::Cudnn) => Some(Cuda),
            _ => None,
        };
        let of_experts = match experts.chosen() {
            Some(ExpertsKernel::Mosaic | ExpertsKernel::RaggedDot) => Some(Tpu),
            _ => None,
        };
        // If the platform depends on the devices, it is known only when the program runs.
        let Ok(kind) = self.platform_kind() else { return Ok(()) };
        for (key, choice, needed) in [
            ("kernels.attention", attention.to_string(), of_attention),
            ("kernels.experts", experts.to_string(), of_experts),
        ] {
            if let Some(needed) = needed.filter(|&needed| needed != kind) {
                let reason = format!("it is for {needed}, but the platform is {kind}; \"auto\" takes what it has");
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

    /// Judges a model before anything is built of it: that of a checkpoint may be anybody's.
    fn validate_sizes(&self) -> Checked {
        let model = &self.model;
        let architecture = self.plain_architecture();
        if expert_count(&architecture) > MOST_EXPERTS {
            let reason = format!("there can be {MOST_EXPERTS} in all layers together");
            return Err(invalid("model.family.experts", self.experts(), &reason));
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
        for (key, sources) in [("data.sources", &data.sources), ("validation.sources", &self.validation.sources)] {
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
        let every = self.checkpoint.every;
        if every > 0 && self.checkpoint.dir.is_empty() {
            let reason = "it needs checkpoint.dir, the directory for checkpoints";
            return Err(invalid("checkpoint.every", every, reason).because(["checkpoint.dir"]));
        }
        self.validate_schedule()
    }

    fn validate_schedule(&self) -> Checked {
        let TrainConfig { schedule, warmup, steps, .. } = &self.train;
        match schedule {
            RateSchedule::Wsd { decay_steps, .. } if warmup.saturating_add(*decay_steps) > *steps => {
                let reason =
                    format!("with train.warmup, which is {warmup}, it must fit into train.steps, which is {steps}");
                let wrong = invalid("train.schedule.decay_steps", decay_steps, &reason);
                Err(wrong.because(["train.schedule", "train.warmup", "train.steps"]))
            }
            _ => Ok(()),
        }
    }

    /// Checks that policies that keep values name some.
    fn validate_kept_names(&self) -> Checked {
        let own = self.pipeline.as_ref().and_then(|pipeline| pipeline.remat.as_ref());
        for (section, policy) in [("remat", Some(&self.remat)), ("pipeline.remat", own)] {
            if let Some(RematPolicy::Save(names) | RematPolicy::Offload(names)) = policy
                && names.is_empty()
            {
                let wrong =
                    invalid(&format!("{section}.names"), [""; 0], "it must have the names of the values to keep");
                return Err(wrong.because([format!("{section}.policy"), section.to_owned()]));
            }
        }
        Ok(())
    }

    /// Checks that values of a model have the names that are to be kept. `names` are those that values have.
    pub(crate) fn check_saved_names(&self, names: impl FnOnce() -> Vec<Name>) -> Checked {
        let own = self.pipeline.as_ref().and_then(|pipeline| pipeline.remat.as_ref());
        let policies = [("pipeline.remat.names", own), ("remat.names", Some(&self.remat))];
        let mut kept = policies
            .into_iter()
            .flat_map(|(key, policy)| match policy {
                Some(RematPolicy::Save(kept) | RematPolicy::Offload(kept)) => {
                    kept.iter().map(|name| (key, name.text())).collect()
                }
                _ => Vec::new(),
            })
            .peekable();
        if kept.peek().is_none() {
            return Ok(());
        }
        let names: Vec<String> = names().iter().map(|name| name.text()).collect();
        let Some((key, unknown)) = kept.find(|(_, name)| !names.contains(name)) else { return Ok(()) };
        let suggestion = did_you_mean(&unknown, names.iter().map(String::as_str));
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
        self.validate_replicas(diloco, replicas_of_mesh)?;
        divides("train.batch", self.train.batch, "diloco.replicas", diloco.replicas)?;
        let rows = self.rows_of_replica();
        if !rows.is_multiple_of(self.train.microbatches) {
            let reason =
                format!("it must divide the rows of a replica, train.batch / diloco.replicas, which are {rows}");
            let wrong = invalid("train.microbatches", self.train.microbatches, &reason);
            return Err(wrong.because(["train.batch", "diloco.replicas"]));
        }
        if diloco.streaming { self.validate_streaming(diloco) } else { Ok(()) }
    }

    fn validate_replicas(&self, diloco: &DilocoConfig, replicas_of_mesh: usize) -> Checked {
        let replicas = diloco.replicas;
        match (&diloco.apart, replicas_of_mesh) {
            (Some(apart), _) if apart.min_replicas > replicas => {
                let reason = format!("it must be at most diloco.replicas, which is {replicas}");
                let wrong = invalid("diloco.apart.min_replicas", apart.min_replicas, &reason);
                Err(wrong.because(["diloco.replicas"]))
            }
            (Some(_), 2..) => {
                let reason = "replicas apart have a mesh each: leave out its axis \"diloco\"";
                Err(invalid("mesh.axes", &self.mesh.axes, reason).because(["diloco.apart"]))
            }
            (None, of_mesh) if replicas != of_mesh => {
                let reason = match of_mesh {
                    1 => format!(
                        "mesh.axes has no axis \"diloco\"; give it one of size {replicas}, as in \
                         diloco={replicas},data=-1"
                    ),
                    _ => format!("it must be the size of the mesh axis \"diloco\", which is {of_mesh}"),
                };
                Err(invalid("diloco.replicas", replicas, &reason).because(["mesh.axes"]))
            }
            _ => Ok(()),
        }
    }

    fn validate_streaming(&self, diloco: &DilocoConfig) -> Checked {
        let &DilocoConfig { fragments, sync_period, overlap_steps, .. } = diloco;
        let stack = self.stack();
        let cycle = stack.cycle.len().max(1);
        let (layers, of) = match &self.pipeline {
            Some(pipeline) => {
                let held = pipeline.repeats * pipeline.chunks * pipeline.layers_per_stage / cycle;
                let of = if cycle == 1 { "the layers of a stage" } else { "the cycles of a stage" };
                (held, of)
            }
            None => (stack.cycles, if cycle == 1 { "model.layers" } else { "the cycles of layers" }),
        };
        let wrong = |reason: String| Err(invalid("diloco.fragments", fragments, &reason).because(["model.layers"]));
        if layers < fragments - 1 {
            return wrong(format!("fragments - 1 must be at most {of}: {layers}"));
        }
        if !diloco.uneven_fragments && !layers.is_multiple_of(fragments - 1) {
            return wrong(format!("fragments - 1 must divide {of}: {layers}; or set diloco.uneven_fragments = true"));
        }
        match self.diloco_options().map(|options| options.validate()) {
            Some(Err(error @ DilocoError::Overlap { .. })) => {
                return Err(invalid("diloco.overlap_steps", overlap_steps, &error.to_string()));
            }
            Some(Err(error)) => {
                return Err(
                    invalid("diloco.sync_period", sync_period, &error.to_string()).because(["diloco.fragments"])
                );
            }
            _ => {}
        }
        let every = sync_period / fragments;
        if self.is_apart() && overlap_steps >= every {
            let reason =
                format!("it must be less than the {every} steps from sync to sync: replicas apart have one under way");
            return Err(invalid("diloco.overlap_steps", overlap_steps, &reason).because(["diloco.apart"]));
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
