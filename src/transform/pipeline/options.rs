//! The options of a pipeline, and which combinations are possible.

use meshloom_hlo::message::counted;
use meshloom_hlo::words;

use super::schedule::{Costs, Placement, ScheduleError, Shape, Table};
use crate::ops::RematPolicy;
use crate::trace::{TraceErrorKind, TransformError, called};

words! {
    /// The order in which stages work.
    #[derive(Default)]
    pub enum Schedule {
        /// All forward, then all backward; one repeat.
        Gpipe = "gpipe",
        /// As [`Schedule::Gpipe`], but a stage holds several parts of the layer stack, and microbatches go round
        /// several times.
        #[default]
        Circular = "circular",
        /// A stage starts the backward pass of a microbatch as soon as it can, so it holds few of them. Stages branch:
        /// in a bubble a stage computes nothing. One repeat; the loss is part of the pipeline.
        OneForwardOneBackward = "1f1b",
        /// As [`Schedule::OneForwardOneBackward`], with several chunks of layers on each stage, which shortens the
        /// bubbles.
        Interleaved = "interleaved",
        /// As [`Schedule::OneForwardOneBackward`], but the backward pass is cut in two: the gradients of weights can
        /// wait, and fill bubbles (ZB-H1). A stage holds as many microbatches as there are stages.
        ZeroBubbleOne = "zb-h1",
        /// As [`Schedule::ZeroBubbleOne`], with two chunks of layers on each stage, which lie as a V: the first stage
        /// has the first and the last layers (ZB-V). Bubbles are half as long, and no more is held.
        ZeroBubbleVee = "zb-v",
        /// The table that takes the least time of those that a search finds, with or without a V, with or without
        /// cutting the backward pass; a stage holds at most one and a half times as many microbatches as there are
        /// stages.
        Searched = "auto",
    }
}

impl Schedule {
    /// Whether stages branch, each by a table of its work in each tick, with the loss in their loop. Otherwise all do
    /// the same in every iteration, and bubbles are computed.
    pub fn branches(self) -> bool {
        !matches!(self, Schedule::Gpipe | Schedule::Circular)
    }

    /// Whether the backward pass is to be cut in two, or may be, if the remat policy lets it.
    pub fn cuts_backward(self) -> bool {
        matches!(self, Schedule::ZeroBubbleOne | Schedule::ZeroBubbleVee | Schedule::Searched)
    }

    /// Whether a stage can hold several chunks of layers.
    pub fn has_chunks(self) -> bool {
        matches!(self, Schedule::Interleaved | Schedule::ZeroBubbleVee | Schedule::Searched)
    }
}

words! {
    /// When weights are gathered over the mesh axes that split rows of activations too, as `fsdp` does
    /// ([`StackedWeights`](super::StackedWeights)).
    #[derive(Default)]
    pub enum WeightPlan {
        /// In every iteration, those of the repeats that stages work on.
        PerIteration = "per-iteration",
        /// All of them before the loop.
        GatherOnce = "gather-once",
        /// Each repeat's weights once, ahead of use: a window over two repeats slides along.
        #[default]
        SlidingWindow = "bsw",
        /// As [`WeightPlan::SlidingWindow`], with each repeat's gather in two halves, one after the other.
        SplitSlidingWindow = "bsw-split",
    }
}

impl WeightPlan {
    /// Whether weights are gathered repeat by repeat, ahead of use.
    pub fn slides(self) -> bool {
        matches!(self, WeightPlan::SlidingWindow | WeightPlan::SplitSlidingWindow)
    }
}

/// The form of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineOptions {
    /// Number of stages, S: the size of the mesh axis they are spread over.
    pub stages: usize,
    /// How often a microbatch goes round the stages, R.
    pub repeats: usize,
    /// Chunks of layers on each stage, v; there are v times as many virtual stages as stages. More than one only with
    /// schedules that [have chunks](Schedule::has_chunks).
    pub chunks: usize,
    /// Parts into which a batch is cut, M. At least as many as the stages; with several repeats a multiple of the
    /// stages.
    pub microbatches: usize,
    /// Layers that a stage holds of each repeat, P.
    pub layers_per_stage: usize,
    /// When weights are gathered.
    pub weights: WeightPlan,
    /// The order of work.
    pub schedule: Schedule,
    /// Whether activations are sent one iteration late, so that the transfer overlaps with compute: the delay D from
    /// stage to stage is then two iterations instead of one.
    pub delay_forwarding: bool,
    /// Whether iterations are a loop. Otherwise each has its own nodes.
    pub scan_iterations: bool,
    /// Whether repeats are a loop. Otherwise each has its own nodes.
    pub scan_repeats: bool,
    /// Whether the layers of a stage are a loop. Otherwise each has its own nodes.
    pub scan_layers: bool,
    /// Whether the gathered weights of every repeat are kept for the backward pass, which otherwise gathers again.
    /// Under [`WeightPlan::PerIteration`] there are no weights of a repeat to keep; where stages
    /// [branch](Schedule::branches), both passes use the same gathered weights anyway.
    pub keep_gathered: bool,
    /// The values of a layer that are kept beside its input.
    pub remat: RematPolicy,
    /// The costs of passes, by which schedules are searched and the time of a schedule is stated. By default they
    /// follow from `remat`, as if passes took as long as their products.
    pub costs: Option<Costs>,
}

impl Default for PipelineOptions {
    fn default() -> PipelineOptions {
        PipelineOptions {
            stages: 1,
            repeats: 1,
            chunks: 1,
            microbatches: 1,
            layers_per_stage: 1,
            weights: WeightPlan::default(),
            schedule: Schedule::default(),
            delay_forwarding: false,
            scan_iterations: true,
            scan_repeats: true,
            scan_layers: true,
            keep_gathered: false,
            remat: RematPolicy::Full,
            costs: None,
        }
    }
}

/// The reason why a pipeline is impossible.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum PipelineError {
    /// A number is zero.
    #[error("the number of {what} of a pipeline is 0; use 1 or more")]
    Zero {
        /// The option.
        what: &'static str,
    },
    /// Microbatches do not fill the stages evenly, which several repeats need.
    #[error(
        "the number of microbatches, {microbatches}, is no multiple of the {}, which several repeats need; use {}",
        counted(*stages, "stage"), nearest_multiples(*microbatches, *stages)
    )]
    Microbatches {
        /// The number of microbatches, M.
        microbatches: usize,
        /// The number of stages, S.
        stages: usize,
    },
    /// A circular pipeline's first stage would need a microbatch before it has come round.
    #[error(
        "a microbatch comes round after {round} iterations (stages * delay), but the first stage needs it after the \
         {microbatches} microbatches of a repeat: use at least {round} microbatches, or one repeat"
    )]
    TooFewMicrobatches {
        /// The number of microbatches, M.
        microbatches: usize,
        /// The number of iterations, S * D.
        round: usize,
    },
    /// A schedule of one repeat was asked for more.
    #[error(
        "the schedule {schedule} has one repeat, not {repeats}: set repeats to 1, or use the schedule circular{}",
        if schedule.has_chunks() { "; parts of the layers on a stage are its chunks" } else { "" }
    )]
    Repeats {
        /// The schedule.
        schedule: Schedule,
        /// The number of repeats, R.
        repeats: usize,
    },
    /// A schedule without chunks was asked for several.
    #[error(
        "the schedule {schedule} has one chunk of layers on each stage, not {chunks}: use the schedule interleaved"
    )]
    Chunks {
        /// The schedule.
        schedule: Schedule,
        /// The number of chunks on each stage, v.
        chunks: usize,
    },
    /// A V was asked for other than two chunks.
    #[error("the schedule {schedule} has two chunks of layers on each stage, not {chunks}: set chunks to 2")]
    VeeChunks {
        /// The schedule.
        schedule: Schedule,
        /// The number of chunks on each stage, v.
        chunks: usize,
    },
    /// Fewer microbatches than stages.
    #[error(
        "a pipeline of {} needs as many microbatches or more, not {microbatches}", counted(*stages, "stage")
    )]
    TooFewToFill {
        /// The number of microbatches, M.
        microbatches: usize,
        /// The number of stages, S.
        stages: usize,
    },
    /// An option that does not go with a schedule in which stages branch.
    #[error("the schedule {schedule} does not go with {what}: {instead}")]
    Branches {
        /// The schedule.
        schedule: Schedule,
        /// The option.
        what: &'static str,
        /// The setting to use instead.
        instead: &'static str,
    },
    /// A schedule that contains the loss, in a pipeline without one.
    #[error(
        "the schedule {schedule} computes the loss in its loop, which `pipeline` does not know: use `pipeline_with_loss`"
    )]
    NeedsLoss {
        /// The schedule.
        schedule: Schedule,
    },
    /// There is no such table.
    #[error(transparent)]
    Table(#[from] Box<ScheduleError>),
    /// The batch does not divide into microbatches.
    #[error("a batch of {} does not divide into {}", counted(*.batch, "row"), counted(*.microbatches, "microbatch"))]
    Batch {
        /// Rows.
        batch: usize,
        /// The number of microbatches, M.
        microbatches: usize,
    },
    /// A stacked weight does not have the leading dimensions of the pipeline.
    #[error(
        "{} is {found}, but a pipeline of {}, {} and {} per stage needs the leading dimensions {expected:?}",
        called("stacked weight", path), counted(*.repeats, "repeat"), counted(*.stages, "stage"),
        counted(*.layers_per_stage, "layer")
    )]
    Weight {
        /// Path of the parameter.
        path: String,
        /// Its type.
        found: String,
        /// The number of repeats, R.
        repeats: usize,
        /// The number of stages, S.
        stages: usize,
        /// The number of layers that a stage holds, P.
        layers_per_stage: usize,
        /// The dimensions.
        expected: Vec<usize>,
    },
}

meshloom_hlo::debug_is_message!(PipelineError);

/// The multiple before a number and the one after it, without zero.
fn nearest_multiples(number: usize, of: usize) -> String {
    match number / of {
        0 => of.to_string(),
        times => format!("{} or {}", times * of, (times + 1) * of),
    }
}

impl PipelineOptions {
    /// Iterations from one stage to the next, D.
    pub fn delay(&self) -> usize {
        if self.delay_forwarding { 2 } else { 1 }
    }

    /// Iterations by which the last stage lags behind the first, L = D (S - 1), which is also the number of bubbles.
    pub fn lag(&self) -> usize {
        self.delay() * (self.stages - 1)
    }

    /// Iterations of the forward pass, M R + L.
    pub fn iterations(&self) -> usize {
        self.microbatches * self.repeats + self.lag()
    }

    /// Parts of the layer stack on each stage: repeats or chunks.
    pub fn parts(&self) -> usize {
        self.repeats * self.chunks
    }

    /// Layers in all, S R v P.
    pub fn layers(&self) -> usize {
        self.stages * self.parts() * self.layers_per_stage
    }

    /// The number of microbatches that wait, at any time, in front of the first stage for their next repeat. It is 0 if
    /// a microbatch is needed the moment it comes round.
    pub fn waiting(&self) -> usize {
        if self.repeats > 1 { self.microbatches.saturating_sub(self.stages * self.delay()) } else { 0 }
    }

    /// The leading dimensions of stacked weights, with their logical names: repeats (or chunks), stages, layers of a
    /// stage. Repeats and layers are left out when there is one; then the layer's own dimensions follow.
    pub fn leading_dims(&self) -> Vec<(usize, &'static str)> {
        let mut dims = vec![(self.stages, "layers")];
        if self.parts() > 1 {
            dims.insert(0, (self.parts(), "circular_repeats"));
        }
        if self.layers_per_stage > 1 {
            dims.push((self.layers_per_stage, "layers_per_stage"));
        }
        dims
    }

    /// The costs of passes. By default a forward pass costs 1, and so do the cotangents of inputs and those of weights.
    pub(super) fn costs(&self) -> Costs {
        match (&self.costs, &self.remat) {
            (Some(costs), _) => costs.clone(),
            // A backward pass begins with another forward pass.
            (None, RematPolicy::Full) => Costs::even(1.0, 2.0, 1.0),
            (None, _) => Costs::even(1.0, 1.0, 1.0),
        }
    }

    /// The table of the work of each stage, for schedules in which stages [branch](Schedule::branches). With full
    /// rematerialization it does not cut the backward pass in two: the values for which the gradients of weights would
    /// wait are many times larger than those that a forward pass keeps.
    ///
    /// # Errors
    /// There is no such table, or the schedule has none.
    pub fn table(&self) -> Result<Table, ScheduleError> {
        let (&PipelineOptions { stages, microbatches, chunks, .. }, costs) = (self, self.costs());
        let split = self.schedule.cuts_backward() && self.remat != RematPolicy::Full;
        let shape = Shape { chunks, split, ..Shape::new(stages, microbatches) };
        let (held, searched) = (stages as f64, |shape, most| Table::searched(&[shape], &costs, most));
        match self.schedule {
            Schedule::Gpipe | Schedule::Circular => Table::gpipe(stages, microbatches, self.parts()),
            Schedule::OneForwardOneBackward => Table::one_f_one_b(stages, microbatches),
            // Up to one forward pass and one backward pass are in each tick, so the time is near
            // (M + (S - 1) / v) (f + b + w).
            Schedule::Interleaved => searched(shape, held * (1.0 + 1.0 / chunks.max(1) as f64) + 1.0),
            Schedule::ZeroBubbleOne => searched(shape, held),
            Schedule::ZeroBubbleVee => searched(Shape { placement: Placement::Vee, ..shape }, held),
            Schedule::Searched => Table::auto(&shape, &costs, 1.5 * held),
        }
    }

    /// Checks that there can be such a pipeline.
    ///
    /// # Errors
    /// The options exclude each other. The error says which, by what numbers, and what to do.
    pub fn validate(&self) -> Result<(), PipelineError> {
        let &PipelineOptions { stages, repeats, chunks, microbatches, layers_per_stage, schedule, .. } = self;
        let counts = [
            ("stages", stages),
            ("repeats", repeats),
            ("chunks", chunks),
            ("microbatches", microbatches),
            ("layers per stage", layers_per_stage),
        ];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(PipelineError::Zero { what });
        }
        if let Some(costs) = &self.costs {
            costs.resolve(&Shape { chunks: self.parts(), ..Shape::new(stages, microbatches) })?;
        }
        if schedule != Schedule::Circular && repeats > 1 {
            return Err(PipelineError::Repeats { schedule, repeats });
        }
        if !schedule.has_chunks() && chunks > 1 {
            return Err(PipelineError::Chunks { schedule, chunks });
        }
        if schedule == Schedule::ZeroBubbleVee && chunks != 2 {
            return Err(PipelineError::VeeChunks { schedule, chunks });
        }
        if schedule.branches() {
            let refuse = |what, instead| Err(PipelineError::Branches { schedule, what, instead });
            if microbatches < stages {
                return Err(PipelineError::TooFewToFill { microbatches, stages });
            }
            if self.delay_forwarding {
                return refuse("delayed forwarding", "its transfers overlap with the other direction's compute anyway");
            }
            if self.weights == WeightPlan::PerIteration {
                return refuse(
                    "weights gathered per iteration",
                    "use \"gather-once\" or \"bsw\", which are the same for one repeat",
                );
            }
            return Ok(());
        }
        if repeats == 1 {
            return match microbatches < stages {
                true => Err(PipelineError::TooFewToFill { microbatches, stages }),
                false => Ok(()),
            };
        }
        if !microbatches.is_multiple_of(stages) {
            return Err(PipelineError::Microbatches { microbatches, stages });
        }
        let round = stages * self.delay();
        // So no stage lags by more than a repeat, and the window, of two repeats, is never too small.
        if microbatches < round {
            return Err(PipelineError::TooFewMicrobatches { microbatches, round });
        }
        Ok(())
    }
}

impl From<ScheduleError> for PipelineError {
    fn from(error: ScheduleError) -> PipelineError {
        PipelineError::Table(Box::new(error))
    }
}

impl From<PipelineError> for TraceErrorKind {
    fn from(error: PipelineError) -> TraceErrorKind {
        TraceErrorKind::Transform(TransformError::new(error))
    }
}
