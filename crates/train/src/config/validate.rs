//! Checks of values that are of the right type: each alone, then those that depend on one another.

use super::error::{ConfigError, invalid, invalid_described};
use super::placement::{Placement, Split};
use super::{CheckpointConfig, DilocoConfig, RuleSource, RunConfig};
use meshloom::nn::Batch;
use meshloom::ops::RematPolicy;
use meshloom::trace::TensorSpec;

pub(super) type Checked = Result<(), ConfigError>;

impl RunConfig {
    /// Checks that every value is possible, alone and beside the others. Reading a config does this already; it is for
    /// configs that were changed since.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_model()?;
        self.validate_train()?;
        self.validate_checkpoint()?;
        self.validate_rules_and_remat()?;
        self.validate_target()?;
        // Otherwise a plugin knows the devices; `on_devices` then checks the rest.
        if self.knows_devices() { self.validate_on_mesh() } else { Ok(()) }
    }

    /// This config for a topology, or for a plugin's own devices, of which the program turned out to use so many.
    ///
    /// # Errors
    /// The mesh, or what depends on it, does not fit them.
    pub fn on_devices(&self, count: usize) -> Result<RunConfig, ConfigError> {
        let mut config = self.clone();
        config.target.devices = count;
        config.validate_on_mesh()?;
        Ok(config)
    }

    fn validate_on_mesh(&self) -> Checked {
        let placement = self.placement()?;
        self.validate_rules(&placement)?;
        self.validate_experts(&placement)?;
        self.validate_pipeline(placement.axis_size("stage"))?;
        self.validate_microbatch(&placement)?;
        self.validate_diloco(placement.axis_size("diloco"))
    }

    fn validate_model(&self) -> Checked {
        let model = &self.model;
        positive("model.layers", model.layers)?;
        positive("model.embed", model.embed)?;
        positive("model.heads", model.heads)?;
        positive("model.kv_heads", model.kv_heads)?;
        positive("model.head_dim", model.head_dim)?;
        positive("model.mlp", model.mlp)?;
        positive("model.vocab", model.vocab)?;
        positive("model.seq", model.seq)?;
        divides("model.heads", model.heads, "model.kv_heads", model.kv_heads)?;
        if !model.head_dim.is_multiple_of(2) {
            return Err(invalid(
                "model.head_dim",
                model.head_dim,
                "it must be even, because rotary positions turn pairs",
            ));
        }
        if self.data.tokenizer == "bytes" && model.vocab < 256 {
            let reason = "it must be at least 256 with data.tokenizer = \"bytes\"";
            return Err(invalid("model.vocab", model.vocab, reason).because(["data.tokenizer"]));
        }
        within("model.dropout", model.dropout, 0.0..1.0)?;
        self.validate_family()?;
        for (key, text) in [("data.text", &self.data.text), ("data.tokenizer", &self.data.tokenizer)] {
            if text.is_empty() {
                return Err(invalid(key, text, "it must not be empty; give the path of a file"));
            }
        }
        Ok(())
    }

    fn validate_train(&self) -> Checked {
        let train = &self.train;
        positive("train.batch", train.batch)?;
        positive("train.steps", train.steps)?;
        positive("train.microbatches", train.microbatches)?;
        positive("train.steps_per_call", train.steps_per_call)?;
        divides("train.batch", train.batch, "train.microbatches", train.microbatches)?;
        within("train.learning_rate", train.learning_rate, 0.0..f64::INFINITY)?;
        within("train.weight_decay", train.weight_decay, 0.0..f64::INFINITY)?;
        match train.clip_norm > 0.0 {
            true => Ok(()),
            false => Err(invalid("train.clip_norm", train.clip_norm, "it must be more than 0")),
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
        let (value, of) = match (key, self.replicas()) {
            ("train.batch", replicas @ 2..) => (size * replicas, format!("{replicas} times ")),
            _ => (size, String::new()),
        };
        let reason = format!(
            "it must be {of}a multiple of {parts}: rule {rule} splits it over the mesh {mesh:?}; or allow it to be padded by \
             rules.uneven = true"
        );
        Err(invalid(key, value, &reason).because(self.rules.given_keys()).because(["rules.uneven"]))
    }

    /// Checks that the rules can split the rows of a pipeline's microbatch.
    fn validate_microbatch(&self, placement: &Placement) -> Checked {
        let Some(pipeline) = &self.pipeline else { return Ok(()) };
        let rows = self.rows_of_layer();
        let names = [Some("activation_stage"), Some("activation_batch")];
        let dims = [placement.axis_size("stage"), rows];
        match placement.uneven_split("microbatch", &names, &dims) {
            Some((1, split)) => Err(self.too_few_rows("pipeline.microbatches", pipeline.microbatches, rows, &split)),
            _ => Ok(()),
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
        let DilocoConfig { replicas, sync_period, fragments, streaming, .. } = *diloco;
        positive("diloco.replicas", replicas)?;
        positive("diloco.sync_period", sync_period)?;
        if replicas != replicas_of_mesh {
            let reason = format!("it must be the size of the mesh axis \"diloco\", which is {replicas_of_mesh}");
            return Err(invalid("diloco.replicas", replicas, &reason));
        }
        divides("train.batch", self.train.batch, "diloco.replicas", replicas)?;
        let rows = self.rows_of_replica();
        if !rows.is_multiple_of(self.train.microbatches) {
            let reason =
                format!("it must divide the rows of a replica, train.batch / diloco.replicas, which are {rows}");
            let wrong = invalid("train.microbatches", self.train.microbatches, &reason);
            return Err(wrong.because(["train.batch", "diloco.replicas"]));
        }
        positive("diloco.block", diloco.block)?;
        if !diloco.block.is_multiple_of(2) {
            return Err(invalid(
                "diloco.block",
                diloco.block,
                "it must be even: 4-bit integers are sent two in a byte",
            ));
        }
        within("diloco.outer_lr", diloco.outer_lr, 0.0..f64::INFINITY)?;
        within("diloco.outer_momentum", diloco.outer_momentum, 0.0..1.0)?;
        if !(0.0..=1.0).contains(&diloco.overlap_alpha) {
            return Err(invalid("diloco.overlap_alpha", diloco.overlap_alpha, "it must be from 0 to 1"));
        }
        if !streaming {
            return Ok(());
        }
        if fragments < 2 {
            let reason = "it must be at least 2: one for everything outside the layers, one or more for the layers";
            return Err(invalid("diloco.fragments", fragments, reason));
        }
        let (layers, of) = match &self.pipeline {
            Some(pipeline) => {
                (pipeline.repeats * pipeline.layers_per_stage, "the layers of a stage, of which there are")
            }
            None => (self.model.layers, "model.layers, which is"),
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
        let period = sync_period / fragments * fragments;
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

pub(super) fn positive(key: &str, value: usize) -> Checked {
    match value {
        0 => Err(invalid(key, value, "it must be at least 1")),
        _ => Ok(()),
    }
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

/// Reads only check that numbers are finite; NaN, which a changed config may hold, is in no range.
pub(super) fn within(key: &str, value: f64, range: std::ops::Range<f64>) -> Checked {
    match range.contains(&value) {
        true => Ok(()),
        false if range.end.is_infinite() => Err(invalid(key, value, &format!("it must be at least {}", range.start))),
        false => {
            let reason = format!("it must be at least {} and less than {}", range.start, range.end);
            Err(invalid(key, value, &reason))
        }
    }
}
