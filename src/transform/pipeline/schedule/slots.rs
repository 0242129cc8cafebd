//! The slots of buffers. Each value gets one by interval colouring, with as few slots as there are values at once.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::Shape;
use super::verify::Times;

/// Slots of each buffer of a stage. All stages have the same number, as it is one program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slots {
    /// Activations and gradients of them that have arrived, and wait for the pass that reads them.
    pub inbox: usize,
    /// Residuals of an item from its forward pass to its backward pass.
    pub held_b: usize,
    /// Residuals of an item from its forward pass to the gradients of its weights; 0 without [`Shape::split`].
    pub held_w: usize,
    /// Values that the backward pass of an item leaves for the gradients of its weights; 0 without [`Shape::split`].
    pub between: usize,
}

/// The slots of every item, by [`Times::index`]; -1 where it has none.
pub(super) struct AssignedSlots {
    pub slots: Slots,
    /// The input of F.
    pub forward_input: Vec<i32>,
    /// The input of B.
    pub backward_input: Vec<i32>,
    pub held_b: Vec<i32>,
    pub held_w: Vec<i32>,
    pub between: Vec<i32>,
}

/// The moments of a tick, in order. F reads values that have arrived before the loss is written, and B reads after
/// that; the values that the permutes bring are written last.
const FORWARD: usize = 0;
const LOSS: usize = 1;
const BACKWARD: usize = 2;
const END: usize = 3;
const MOMENTS: usize = 4;

/// A value that is in a slot from one moment to another, both included.
struct Stay {
    from: usize,
    to: usize,
    /// The item that it belongs to, and whether it is the input of its backward pass, if that matters.
    index: usize,
    backward: bool,
}

impl AssignedSlots {
    pub fn of(shape: &Shape, times: &Times) -> AssignedSlots {
        let last = shape.virtual_stages() - 1;
        let nothing = || vec![-1; times.forward.len()];
        let mut assigned = AssignedSlots {
            slots: Slots::default(),
            forward_input: nothing(),
            backward_input: nothing(),
            held_b: nothing(),
            held_w: nothing(),
            between: nothing(),
        };
        for stage in 0..shape.stages {
            let (mut inbox, mut held_b, mut held_w, mut between) = (vec![], vec![], vec![], vec![]);
            for chunk in 0..shape.chunks {
                let here = shape.virtual_stage(stage, chunk);
                for microbatch in 0..shape.microbatches {
                    let index = times.index(here, microbatch);
                    let (forward, backward) = (times.forward[index], times.backward[index]);
                    let whole = |from, to| Stay { from, to, index, backward: false };
                    if here > 0 {
                        let sent = times.forward[times.index(here - 1, microbatch)];
                        inbox.push(whole(sent * MOMENTS + END, forward * MOMENTS + FORWARD));
                    }
                    let written = if here == last {
                        forward * MOMENTS + LOSS
                    } else {
                        times.backward[times.index(here + 1, microbatch)] * MOMENTS + END
                    };
                    inbox.push(Stay { from: written, to: backward * MOMENTS + BACKWARD, index, backward: true });
                    // The other buffers are counted in whole ticks: a slot that is read in a tick is not written again
                    // in it.
                    held_b.push(whole(forward, backward));
                    if let Some(&weights) = times.weights.get(index) {
                        held_w.push(whole(forward, weights));
                        between.push(whole(backward, weights));
                    }
                }
            }
            let slots = &mut assigned.slots;
            let (forward_input, backward_input) = (&mut assigned.forward_input, &mut assigned.backward_input);
            colour(inbox, &mut slots.inbox, |stay, slot| match stay.backward {
                false => forward_input[stay.index] = slot,
                true => backward_input[stay.index] = slot,
            });
            colour(held_b, &mut slots.held_b, |stay, slot| assigned.held_b[stay.index] = slot);
            colour(held_w, &mut slots.held_w, |stay, slot| assigned.held_w[stay.index] = slot);
            colour(between, &mut slots.between, |stay, slot| assigned.between[stay.index] = slot);
        }
        assigned
    }
}

/// Gives each value the first slot that is free when it comes. That takes no more slots than there are values at the
/// same time. `most` becomes the number of slots, if it was less.
fn colour(mut stays: Vec<Stay>, most: &mut usize, mut set: impl FnMut(&Stay, i32)) {
    stays.sort_by_key(|stay| (stay.from, stay.to));
    let (mut taken, mut free, mut count) = (BinaryHeap::new(), BTreeSet::new(), 0usize);
    for stay in &stays {
        while let Some(&Reverse((to, slot))) = taken.peek() {
            if to >= stay.from {
                break;
            }
            taken.pop();
            free.insert(slot);
        }
        let slot = free.pop_first().unwrap_or_else(|| {
            count += 1;
            count - 1
        });
        taken.push(Reverse((stay.to, slot)));
        set(stay, number(slot));
    }
    *most = count.max(*most);
}

/// A number of a column. A shape that is valid has none that does not fit.
pub(super) fn number(value: usize) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
