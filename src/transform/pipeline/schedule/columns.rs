//! A table as numbers, which the program that runs it reads.

use serde::Serialize;

/// Slots of each buffer of a stage. All stages have as many: it is one program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Slots {
    /// Activations and gradients of them that have arrived, and wait for the pass that reads them.
    pub inbox: usize,
    /// Residuals of an item from its forward pass to its backward pass.
    pub held_b: usize,
    /// Residuals of an item from its forward pass to its last piece of weights; none without
    /// [`Shape::split`](super::Shape::split).
    pub held_w: usize,
    /// What the backward pass of an item leaves for its pieces of weights; none without
    /// [`Shape::split`](super::Shape::split).
    pub between: usize,
}

/// A table as numbers.
///
/// In each tick, all stages do the following, in this order:
///
/// 1. F, where `forward` is not 0. It reads `forward_input`, and writes its residuals into `forward_held_b` and
///    `forward_held_w`.
/// 2. The loss of microbatch `leaves_for_loss`, if it is not -1, of the F of stage
///    [`loss_stage`](super::Shape::loss_stage). The gradient goes into `loss_slot` of that stage's inbox.
/// 3. B, where `backward` is not 0. It reads `backward_input` and `backward_held_b`, and writes `backward_between`.
/// 4. W's, as many as `weights_count`. Each reads `weights_held_w` and `weights_between`.
/// 5. The permutes: what `sends_right` and `sends_left` say goes to the neighbours, who put it into the slots of their
///    inboxes that `arrives_from_left` and `arrives_from_right` say. What stays is put into `forward_stays` and
///    `backward_stays`.
///
/// A slot that B or W has read is not written in the same tick again, so they can read buffers as they were when the
/// tick began, but for what F or B of the same item wrote in the tick. A slot of the inbox that has been read can be
/// written later in the tick: by the loss if F read it, by the permutes in any case.
///
/// Columns with stages are `[tick][stage]`. -1 is nothing, unless a column says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Columns {
    /// Slots of buffers.
    pub slots: Slots,
    /// Entries of weights in a tick of a stage, at most.
    pub max_weights: usize,

    /// 0 for none, else 1 + the chunk.
    pub forward: Vec<Vec<i32>>,
    /// The microbatch; -1 for none.
    pub forward_microbatch: Vec<Vec<i32>>,
    /// The slot of the inbox with the input; -1 for none, or if it comes from outside (see `enters`).
    pub forward_input: Vec<Vec<i32>>,
    /// The slot of `held_b` for the residuals.
    pub forward_held_b: Vec<Vec<i32>>,
    /// The slot of `held_w` for the residuals; -1 without [`Shape::split`](super::Shape::split).
    pub forward_held_w: Vec<Vec<i32>>,

    /// 0 for none, else 1 + the chunk.
    pub backward: Vec<Vec<i32>>,
    /// The microbatch; -1 for none.
    pub backward_microbatch: Vec<Vec<i32>>,
    /// The slot of the inbox with the gradient of the chunk's result.
    pub backward_input: Vec<Vec<i32>>,
    /// The slot of `held_b` with the residuals.
    pub backward_held_b: Vec<Vec<i32>>,
    /// The slot of `held_w` with the residuals, which the W's of the item read too; -1 without
    /// [`Shape::split`](super::Shape::split).
    pub backward_held_w: Vec<Vec<i32>>,
    /// The slot of `between` for the W's of the item; -1 without [`Shape::split`](super::Shape::split).
    pub backward_between: Vec<Vec<i32>>,

    /// How many W's; they are the first entries of the columns below.
    pub weights_count: Vec<Vec<i32>>,
    /// 0 for none, else 1 + the chunk. This column and the others of weights have `max_weights` entries for each stage:
    /// `[tick][stage * max_weights + entry]`.
    pub weights: Vec<Vec<i32>>,
    /// The microbatch; -1 for none.
    pub weights_microbatch: Vec<Vec<i32>>,
    /// The piece; -1 for none.
    pub weights_piece: Vec<Vec<i32>>,
    /// The slot of `held_w`.
    pub weights_held_w: Vec<Vec<i32>>,
    /// The slot of `between`.
    pub weights_between: Vec<Vec<i32>>,

    /// What goes to the stage after: 0 nothing, 1 the result of F, 2 that of B.
    pub sends_right: Vec<Vec<i32>>,
    /// What goes to the stage before: 0 nothing, 1 the result of F, 2 that of B.
    pub sends_left: Vec<Vec<i32>>,
    /// The slot of the inbox for what the stage before sent.
    pub arrives_from_left: Vec<Vec<i32>>,
    /// The slot of the inbox for what the stage after sent.
    pub arrives_from_right: Vec<Vec<i32>>,
    /// The slot of the inbox for the result of this stage's own F: only at the turn of a V.
    pub forward_stays: Vec<Vec<i32>>,
    /// The slot of the inbox for the result of this stage's own B: only at the turn of a V. F and B can both stay in one
    /// tick.
    pub backward_stays: Vec<Vec<i32>>,

    /// `[tick]`: the microbatch that F of the first virtual stage takes from outside; it is on stage 0.
    pub enters: Vec<i32>,
    /// `[tick]`: the microbatch whose loss is computed.
    pub leaves_for_loss: Vec<i32>,
    /// `[tick]`: the slot of the inbox of the loss's stage for the gradient of the loss.
    pub loss_slot: Vec<i32>,
    /// `[tick]`: the microbatch whose gradient leaves B of the first virtual stage; it is on stage 0.
    pub exits: Vec<i32>,
}
