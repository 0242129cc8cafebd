//! The microbatches of loops whose stages all do the same, found by the indices of the slices that an iteration cuts
//! out of its inputs.

use super::super::devices::Devices;
use super::super::values::Values;
use super::super::walk::Walk;
use super::PermuteLoop;
use meshloom_hlo::proto::HloInstructionProto;

/// The number of rounds of each microbatch, and the times at which stages work on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rounds {
    pub(super) microbatches: usize,
    pub(super) repeats: usize,
    /// The number of iterations from one stage to the next.
    pub(super) delay: usize,
    pub(super) is_backward: bool,
}

impl Rounds {
    /// Returns the item of a stage in an iteration: a microbatch in a repeat, counted through the repeats.
    pub(super) fn item(&self, iterations: usize, stage: usize, iteration: usize) -> Option<usize> {
        // A backward loop goes through the iterations in reverse.
        let iteration = if self.is_backward { iterations.checked_sub(iteration + 1)? } else { iteration };
        let item = iteration.checked_sub(self.delay * stage)?;
        (item < self.microbatches * self.repeats).then_some(item)
    }
}

/// Finds the rounds of a loop by the indices of its slices. Weights that a stage picks by repeat are the best sign. The
/// inputs that the first stage takes give the number of microbatches.
pub(super) fn rounds(
    walk: &Walk<'_>,
    values: &mut Values<'_, '_>,
    devices: Devices,
    within: &PermuteLoop,
) -> Option<Rounds> {
    let all = slices(walk, within.body);
    let mut sequence = |&(place, slice, dim): &(usize, &HloInstructionProto, usize), stage: usize| {
        values.become_device(*within.devices.get(stage)?, devices);
        let start = |iteration| values.slice_start(place, slice, dim, &within.inside(iteration));
        (0..within.it.iterations).map(start).collect::<Option<Vec<u64>>>()
    };
    let stages = within.devices.len();
    let by_repeat = all.iter().find_map(|slice| {
        let first = sequence(slice, 0)?;
        let second = sequence(slice, 1)?;
        let found = [false, true].into_iter().find_map(|back| repeats(&first, &second, stages, back))?;
        let is_of_stage = |stage| sequence(slice, stage).is_some_and(|own| own == expected(&found, within, stage));
        (0..stages).all(is_of_stage).then_some(found)
    });
    by_repeat.or_else(|| {
        all.iter().find_map(|slice| {
            let first = sequence(slice, 0)?;
            let microbatches = first.iter().zip(0..).take_while(|&(&start, iteration)| start == iteration).count();
            // Fewer microbatches do not fill the stages; an index that stays where it is counts nothing.
            let lag = within.it.iterations.checked_sub(microbatches).filter(|_| microbatches >= stages)?;
            let delay = [1, 2].into_iter().find(|delay| lag == delay * (stages - 1))?;
            Some(Rounds { microbatches, repeats: 1, delay, is_backward: false })
        })
    })
}

/// Returns the slices that an iteration cuts out at an index, each with the dimension of the index.
fn slices<'a>(walk: &Walk<'a>, body: usize) -> Vec<(usize, &'a HloInstructionProto, usize)> {
    let mut found = Vec::new();
    for (number, place) in walk.places().iter().enumerate() {
        if place.innermost_loop != Some(body) || place.branches != walk.places()[body].branches {
            continue;
        }
        let slices = place.computation.instructions.iter().filter(|it| it.opcode == "dynamic-slice");
        found.extend(
            slices.flat_map(|it| (0..it.operand_ids.len().saturating_sub(1)).map(move |dim| (number, it, dim))),
        );
    }
    found
}

/// Returns the rounds, by the repeats in which two neighbouring stages work.
fn repeats(first: &[u64], second: &[u64], stages: usize, is_backward: bool) -> Option<Rounds> {
    let in_order = |starts: &[u64]| -> Vec<u64> {
        if is_backward { starts.iter().rev().copied().collect() } else { starts.to_vec() }
    };
    let (first, second) = (in_order(first), in_order(second));
    let begins = |starts: &[u64]| starts.iter().position(|&start| start == 1);
    let microbatches = begins(&first)?;
    let delay = begins(&second)?.checked_sub(microbatches).filter(|&delay| delay > 0)?;
    let repeats = usize::try_from(*first.iter().max()?).ok()?.checked_add(1)?;
    let fits = microbatches >= stages && first.len() == microbatches * repeats + delay * (stages - 1);
    fits.then_some(Rounds { microbatches, repeats, delay, is_backward })
}

/// Returns the repeat of a stage in each iteration; in bubbles, the nearest repeat.
fn expected(rounds: &Rounds, within: &PermuteLoop, stage: usize) -> Vec<u64> {
    let repeat = |iteration: usize| {
        let iteration = if rounds.is_backward { within.it.iterations - 1 - iteration } else { iteration };
        let item = iteration.saturating_sub(rounds.delay * stage);
        (item / rounds.microbatches).min(rounds.repeats - 1) as u64
    };
    (0..within.it.iterations).map(repeat).collect()
}
