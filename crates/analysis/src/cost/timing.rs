//! The times of single instructions and single transfers, for analyses that follow a schedule.

use super::roofline::{Link, Seconds, link};
use super::{CostOptions, work};
use crate::chips::Chip;
use crate::collectives::ModuleCollective;
use crate::walk::{Place, Walk};
use meshloom_hlo::proto::HloInstructionProto;

/// The times of a module's instructions on a chip, at its peak rates.
pub(crate) struct Timer<'w, 'a> {
    walk: &'w Walk<'a>,
    counter: work::Counter<'w, 'a>,
    chip: Chip,
}

impl<'w, 'a> Timer<'w, 'a> {
    pub(crate) fn of(walk: &'w Walk<'a>, chip: Chip) -> Timer<'w, 'a> {
        Timer { walk, counter: work::Counter::new(walk.module()), chip }
    }

    /// Returns the time that one execution of an instruction takes to compute, read and write, in seconds. It is 0 for
    /// an instruction that only runs other computations, and where rates are not known.
    pub(crate) fn seconds(&self, place: &Place<'a>, instruction: &HloInstructionProto) -> f64 {
        let work = self.counter.work(self.walk.computation(place), instruction);
        Seconds::of(&self.chip, &work, None).map_or(0.0, |seconds| seconds.serial)
    }
}

/// Returns the wires that a collective sends over, and the seconds of one execution on them. A collective that sends an
/// amount that depends on its data is taken to send all its operands. The result is `None` for a chip whose rates are
/// not known.
pub(crate) fn transfer(collective: &ModuleCollective, options: &CostOptions) -> Option<(Link, f64)> {
    let chip = options.chip?;
    let link = link(collective, options);
    let bytes = collective.moved_bytes.or(collective.bytes).unwrap_or(0);
    Some((link, link.seconds(&chip, bytes)?))
}
