//! Advice on a plan that is not the best: what it would need to be the best.

use super::Found;

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

/// Returns the change that a plan would need to be as fast as the best: the smallest relative change of one thing.
pub fn what_it_would_need(found: &Found, best: &Found, memory: u64) -> Advice {
    if !found.fits && found.time.seconds < best.time.seconds {
        return Advice::Memory(found.bytes.saturating_sub(memory));
    }
    let behind = found.time.seconds - best.time.seconds;
    let transfers = found.time.transfers.iter().filter(|it| it.waiting >= behind && it.seconds > 0.0);
    let of_transfers =
        transfers.map(|it| (behind / it.seconds, Advice::Transfers(it.axes.clone(), behind / it.seconds)));
    let bubbles = (found.time.idle >= behind && behind > 0.0)
        .then(|| (behind / found.time.idle, Advice::Bubbles(behind / found.time.idle)));
    let computing = behind / found.time.computing.max(f64::MIN_POSITIVE);
    let all = of_transfers.chain(bubbles).chain([(computing, Advice::Computing(computing))]);
    all.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(Advice::Computing(computing), |(_, advice)| advice)
}
