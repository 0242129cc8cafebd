//! Errors of tables.

use meshloom_hlo::message::counted;

use super::{Route, Work};

/// The reason why a table is impossible, or cannot be run.
#[derive(Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// A number is zero.
    #[error("the number of {what} of a pipeline's schedule is 0; use 1 or more")]
    Zero {
        /// The number.
        what: &'static str,
    },
    /// More entries than a table can have.
    #[error(
        "a schedule of {} with {} and {} has more than {limit} entries: use fewer",
        counted(*.stages, "stage"), counted(*.microbatches, "microbatch"), counted(*.chunks, "chunk")
    )]
    TooLarge {
        /// The number of stages, S.
        stages: usize,
        /// The number of microbatches, M.
        microbatches: usize,
        /// The number of chunks on each stage, v.
        chunks: usize,
        /// The most entries.
        limit: usize,
    },
    /// A V has two chunks.
    #[error("chunks in the form of a V are 2 on each stage, not {chunks}: use 2, or place them in a loop")]
    VeeChunks {
        /// The number of chunks on each stage, v.
        chunks: usize,
    },
    /// A generator needs a microbatch for each stage.
    #[error(
        "{} do not fill {}: use at least as many microbatches",
        counted(*.microbatches, "microbatch"), counted(*.stages, "stage")
    )]
    TooFewMicrobatches {
        /// The number of microbatches, M.
        microbatches: usize,
        /// The number of stages, S.
        stages: usize,
    },
    /// A tick has cells for another number of stages.
    #[error("tick {tick} has {}, but there are {expected}", counted(*.found, "cell"), expected = counted(*.expected, "stage"))]
    Stages {
        /// The tick.
        tick: usize,
        /// The number of stages, S.
        expected: usize,
        /// Cells.
        found: usize,
    },
    /// An entry that the shape does not have.
    #[error("stage {stage} does {work} in tick {tick}, which the shape of the schedule does not have")]
    Unknown {
        /// The tick.
        tick: usize,
        /// The stage.
        stage: usize,
        /// The unknown work.
        work: Work,
    },
    /// A stage does the same work twice.
    #[error("stage {stage} does {work} in tick {tick}, but has done it in tick {before}")]
    Twice {
        /// The tick.
        tick: usize,
        /// The stage.
        stage: usize,
        /// The repeated work.
        work: Work,
        /// The tick in which the stage did it first.
        before: usize,
    },
    /// Work that no stage does.
    #[error("stage {stage} never does {work}")]
    Missing {
        /// The stage.
        stage: usize,
        /// The missing work.
        work: Work,
    },
    /// Work is done before a result that it needs can be used.
    #[error("stage {stage} does {work} in tick {tick}, but {needed} of stage {from} is there from tick {there} on")]
    Early {
        /// The tick.
        tick: usize,
        /// The stage.
        stage: usize,
        /// The early work.
        work: Work,
        /// The work whose result it needs.
        needed: Work,
        /// The stage that does the needed work.
        from: usize,
        /// The first tick in which its result can be used.
        there: usize,
    },
    /// Two payloads would go the same way.
    #[error(
        "stage {stage} does {forward} and {backward} in tick {tick}, and both results go {}: one permute carries one",
        if *.route == Route::Left { "left" } else { "right" }
    )]
    Collision {
        /// The tick.
        tick: usize,
        /// The stage.
        stage: usize,
        /// The first work of the tick.
        forward: Work,
        /// The second work of the tick.
        backward: Work,
        /// Where both results go.
        route: Route,
    },
    /// Microbatches enter or leave out of order.
    #[error("stage {stage} does {work} in tick {tick}, but the next in order is microbatch {expected}")]
    Order {
        /// The tick.
        tick: usize,
        /// The stage.
        stage: usize,
        /// The work out of order.
        work: Work,
        /// The microbatch that comes next.
        expected: usize,
    },
    /// Costs for another number of virtual stages.
    #[error("costs are given for {}, but there are {expected}", counted(*.found, "virtual stage"))]
    Costs {
        /// Virtual stages of the shape.
        expected: usize,
        /// Costs.
        found: usize,
    },
    /// A cost that is not a time.
    #[error("a cost of a pipeline's schedule is {cost}; use finite numbers, 0 or more, that are not all 0")]
    Cost {
        /// The number.
        cost: f64,
    },
    /// A memory cap that is NaN.
    #[error("the memory cap of a pipeline's schedule is {cap}; use a number of microbatches")]
    Cap {
        /// The number.
        cap: f64,
    },
    /// No table was found under a memory cap.
    #[error("no schedule was found that holds at most {cap} microbatches per stage: allow at least {least}")]
    NoTable {
        /// The cap.
        cap: f64,
        /// The least that a table holds.
        least: f64,
    },
}

meshloom_hlo::debug_is_message!(ScheduleError);
