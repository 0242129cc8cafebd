//! Advice on a plan that is not the best: what it would need to be the best.

use super::LoweredPlan;

/// The change that would make a plan as fast as another.
#[derive(Clone, Debug, PartialEq)]
pub enum Advice {
    /// So many bytes more for each device: it is faster.
    Memory(u64),
    /// Collectives over these axes that take so much less, from 0 to 1.
    Transfers(String, f64),
    /// Shorter bubbles, by so much.
    Bubbles(f64),
    /// Less to compute, by so much: it recomputes more, or its products are smaller.
    Computing(f64),
}

/// Returns the change that a plan would need to be as fast as the best: the smallest relative change of one thing;
/// `None` where no time is known.
pub fn what_it_would_need(found: &LoweredPlan, best: &LoweredPlan, memory: u64) -> Option<Advice> {
    if !found.fits && found.seconds() < best.seconds() {
        return Some(Advice::Memory(found.bytes.saturating_sub(memory)));
    }
    let time = found.time.as_ref()?;
    let behind = time.seconds - best.time.as_ref()?.seconds;
    let transfers = time.transfers.iter().filter(|it| it.waiting >= behind && it.seconds > 0.0);
    let of_transfers =
        transfers.map(|it| (behind / it.seconds, Advice::Transfers(it.axes.clone(), behind / it.seconds)));
    let bubbles =
        (time.idle >= behind && behind > 0.0).then(|| (behind / time.idle, Advice::Bubbles(behind / time.idle)));
    let computing = behind / time.computing.max(f64::MIN_POSITIVE);
    let all = of_transfers.chain(bubbles).chain([(computing, Advice::Computing(computing))]);
    all.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, advice)| advice)
}
