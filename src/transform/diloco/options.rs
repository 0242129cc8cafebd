//! The options of a DiLoCo run, and which combinations are possible.

use meshloom_hlo::message::counted;
use meshloom_hlo::words;

use crate::trace::called;

words! {
    /// How pseudo-gradients are sent between replicas.
    #[derive(Default)]
    pub enum Transport {
        /// Full precision: one all-reduce.
        #[default]
        F32 = "f32",
        /// Brain floating point: 2 bytes a number.
        Bf16 = "bf16",
        /// 8-bit floating point (e4m3, without infinities) with a scale for each block: 1 byte a number.
        F8 = "f8",
        /// 4-bit integers from -7 to 7 with a scale for each block, two in a byte.
        Int4 = "int4",
    }
}

/// The choice of the layers that a fragment holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LayerOrder {
    /// Every (P - 1)-th layer: the paper's better choice.
    #[default]
    Interleaved,
    /// Layers that follow one another.
    Sequential,
}

/// Streaming DiLoCo: fragments of the model sync in turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streaming {
    /// Number of fragments, P. The first holds everything outside the layers, each other one a share of the layers.
    pub fragments: usize,
    /// The choice of the layers that a fragment holds.
    pub order: LayerOrder,
    /// Whether the first layer fragments may hold one layer more than the others.
    pub uneven: bool,
    /// The number of steps from the sending of a fragment to its use, tau.
    pub overlap_steps: usize,
    /// Weight of the replica's own value when a fragment comes in, alpha: `alpha * inner + (1 - alpha) * outer`.
    pub overlap_alpha: f64,
}

impl Default for Streaming {
    fn default() -> Streaming {
        Streaming { fragments: 3, order: LayerOrder::Interleaved, uneven: false, overlap_steps: 0, overlap_alpha: 0.0 }
    }
}

/// The form of a DiLoCo run.
///
/// Sources: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv 2311.08105;
/// "Streaming DiLoCo with overlapping communication", arXiv 2501.18512.
#[derive(Clone, Debug, PartialEq)]
pub struct DilocoOptions {
    /// Replicas that train on their own between syncs, R: the size of the mesh axis they are spread over.
    pub replicas: usize,
    /// Whether this is one of replicas that are runs of their own: then R is 1 here, and no step sends anything.
    pub apart: bool,
    /// Steps from one sync of a parameter to its next. With P fragments, one of them syncs every `sync_period / P`
    /// steps, rounded down: then the true period is P times that.
    pub sync_period: usize,
    /// Learning rate of the outer optimizer.
    pub outer_rate: f64,
    /// Nesterov momentum of the outer optimizer.
    pub outer_momentum: f64,
    /// Streaming, or everything at once.
    pub streaming: Option<Streaming>,
    /// How pseudo-gradients are sent.
    pub transport: Transport,
    /// The largest number of numbers that share a scale under [`Transport::F8`] and [`Transport::Int4`], in one
    /// dimension and on one device.
    pub block: usize,
}

impl Default for DilocoOptions {
    fn default() -> DilocoOptions {
        DilocoOptions {
            replicas: 2,
            apart: false,
            sync_period: 20,
            outer_rate: 0.7,
            outer_momentum: 0.9,
            streaming: None,
            transport: Transport::F32,
            block: 64,
        }
    }
}

/// The reason why a DiLoCo run is impossible.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum DilocoError {
    /// A number is zero.
    #[error("the number of {what} of a DiLoCo run is 0; use 1 or more")]
    Zero {
        /// The option.
        what: &'static str,
    },
    /// A number is out of range.
    #[error("{what} is {found}, but must be {expected}")]
    Range {
        /// The option.
        what: &'static str,
        /// Its value.
        found: f64,
        /// The values that are allowed.
        expected: &'static str,
    },
    /// Blocks of an odd size, whose 4-bit integers fill no bytes.
    #[error("4-bit integers are sent two in a byte, but a block holds {block}: use an even block, such as 64")]
    OddBlock {
        /// The block.
        block: usize,
    },
    /// Too few fragments.
    #[error(
        "streaming DiLoCo needs at least 2 fragments, one for everything outside the layers and one for layers, not \
         {fragments}: use more, or no streaming"
    )]
    Fragments {
        /// The number of fragments, P.
        fragments: usize,
    },
    /// More fragments than steps between their syncs.
    #[error(
        "{fragments} fragments sync one at a time, which takes at least as many steps, not {sync_period}: use a longer sync period"
    )]
    Period {
        /// The number of steps.
        sync_period: usize,
        /// The number of fragments, P.
        fragments: usize,
    },
    /// A fragment would be sent again before it is used.
    #[error(
        "a fragment comes in {} after it is sent, but is sent again after {period}: overlap fewer steps",
        counted(*.overlap_steps, "step")
    )]
    Overlap {
        /// The number of steps of overlap, tau.
        overlap_steps: usize,
        /// The number of steps.
        period: usize,
    },
    /// A layout that says of a parameter into how many parts it is cut, but not for each of its dimensions.
    #[error(
        "the layout gives parts of {} of {}, which has {rank}: give all, or none of any",
        counted(*.found, "dimension"), called("parameter", path)
    )]
    Parts {
        /// The parameter.
        path: String,
        /// Dimensions that it has.
        rank: usize,
        /// Dimensions that the layout names.
        found: usize,
    },
    /// No parameter has a leading dimension over layers.
    #[error(
        "streaming DiLoCo cuts the dimension over layers, which no parameter has: stack the layers (`Param::stacked`)"
    )]
    NoLayers,
    /// The layers do not divide evenly.
    #[error(
        "{}{of} cannot be divided into {}: use {} fragments, or allow uneven ones",
        counted(*layers, "layer"), counted(fragments - 1, "layer fragment"), nearest_fragments(*layers, *fragments)
    )]
    Layers {
        /// Layers.
        layers: usize,
        /// Empty, or whose layers.
        of: &'static str,
        /// The number of fragments, P.
        fragments: usize,
    },
    /// Some fragments would be empty.
    #[error("{}{of} cannot fill {}: use at most {} fragments", counted(*layers, "layer"), counted(fragments - 1, "layer fragment"), layers + 1)]
    TooFewLayers {
        /// Layers.
        layers: usize,
        /// Empty, or whose layers.
        of: &'static str,
        /// The number of fragments, P.
        fragments: usize,
    },
    /// A program of this number of steps cannot overlap a transfer with compute.
    #[error(
        "a program that sends while it computes runs whole periods of {period} steps, not {steps}, and applies fragments after 1 to {} \
         steps, not {overlap}: use `Diloco::steps`, which takes any",
        every.saturating_sub(1)
    )]
    StepsPerCall {
        /// The number of steps.
        steps: usize,
        /// Steps of a period.
        period: usize,
        /// The number of steps of overlap, tau.
        overlap: usize,
        /// Steps from sync to sync, k.
        every: usize,
    },
}

meshloom_hlo::debug_is_message!(DilocoError);

/// Numbers of fragments around this one that divide the layers evenly.
fn nearest_fragments(layers: usize, fragments: usize) -> String {
    let fits = |&fragments: &usize| layers.is_multiple_of(fragments - 1);
    let below = (2..fragments).rev().find(fits);
    let above = (fragments + 1..=layers + 1).find(fits);
    let found: Vec<String> = below.into_iter().chain(above).map(|count| count.to_string()).collect();
    found.join(" or ")
}

impl DilocoOptions {
    /// Checks what does not depend on the parameters.
    ///
    /// # Errors
    /// The options exclude each other. The error says which, by what numbers, and what to do.
    pub fn validate(&self) -> Result<(), DilocoError> {
        let &DilocoOptions { replicas, sync_period, outer_rate, outer_momentum, block, .. } = self;
        let counts = [("replicas", replicas), ("steps between syncs", sync_period), ("numbers in a block", block)];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(DilocoError::Zero { what });
        }
        if !(outer_rate >= 0.0 && outer_rate.is_finite()) {
            return Err(DilocoError::Range { what: "the outer rate", found: outer_rate, expected: "at least 0" });
        }
        if !(0.0..1.0).contains(&outer_momentum) {
            let expected = "at least 0 and less than 1";
            return Err(DilocoError::Range { what: "the outer momentum", found: outer_momentum, expected });
        }
        if self.transport == Transport::Int4 && !block.is_multiple_of(2) {
            return Err(DilocoError::OddBlock { block });
        }
        self.streaming.map_or(Ok(()), |streaming| self.validate_streaming(streaming))
    }

    fn validate_streaming(&self, streaming: Streaming) -> Result<(), DilocoError> {
        let Streaming { fragments, overlap_steps, overlap_alpha, .. } = streaming;
        let sync_period = self.sync_period;
        if fragments < 2 {
            return Err(DilocoError::Fragments { fragments });
        }
        if sync_period < fragments {
            return Err(DilocoError::Period { sync_period, fragments });
        }
        let period = sync_period / fragments * fragments;
        if overlap_steps >= period {
            return Err(DilocoError::Overlap { overlap_steps, period });
        }
        match (0.0..=1.0).contains(&overlap_alpha) {
            true => Ok(()),
            false => Err(DilocoError::Range { what: "alpha", found: overlap_alpha, expected: "from 0 to 1" }),
        }
    }
}
