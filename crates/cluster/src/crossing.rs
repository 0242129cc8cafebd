//! Collectives whose groups cross processes, on CPU plugins, which have none: each is a custom call onto MPI.
//!
//! A program calls [`Crossing`] with an operand and a header, `s32[2]`: the number of the call site, and the device's
//! place within its process. What the site does, and with whom, has been registered before: for each device of the
//! process a communicator of its own, so that devices do not wait for each other's calls. All processes register the
//! same sites in the same order.
//!
//! Calls of one device on different sites must not overtake each other, or two processes could wait for one another:
//! whoever emits them chains them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use meshloom_mpi::{Communicator, MpiError};
use meshloom_pjrt::{CallFailure, ErrorCode, ForeignCall, ForeignFunction};

use crate::combine::{Combine, of_type};

/// What a call site does between processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrossingKind {
    /// Every member gets the combined operands.
    AllReduce(Combine),
    /// Every member gets its part of the combined operands, cut along the first dimension.
    ReduceScatter(Combine),
    /// Every member gets the operands of all, one after the other along a new first dimension.
    AllGather,
    /// Part `r` along the first dimension goes to member `r`.
    AllToAll,
    /// Member `source` sends to member `target`; who receives nothing gets zeros.
    Permute(Vec<(usize, usize)>),
}

/// A call site, as all processes register it.
#[derive(Clone, Debug)]
pub struct CrossingSite {
    /// What it does.
    pub kind: CrossingKind,
    /// The groups: devices, numbered through the processes, each of another process.
    pub groups: Vec<Vec<usize>>,
}

/// Why a site cannot be.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum CrossingError {
    /// A device is in no group, or in two.
    #[error("device {device} is in {count} groups of a collective between processes, expected one")]
    Groups {
        /// The device.
        device: usize,
        /// In how many it is.
        count: usize,
    },
    /// MPI says so.
    #[error(transparent)]
    Mpi(#[from] MpiError),
}

meshloom_hlo::debug_is_message!(CrossingError);

struct Registered {
    kind: CrossingKind,
    /// For each device of the process.
    members: Vec<Member>,
}

struct Member {
    communicator: Communicator,
    /// Buffers that are kept between calls.
    scratch: Mutex<[Vec<u8>; 2]>,
}

fn sites() -> &'static RwLock<Vec<Arc<Registered>>> {
    static SITES: OnceLock<RwLock<Vec<Arc<Registered>>>> = OnceLock::new();
    SITES.get_or_init(RwLock::default)
}

impl CrossingSite {
    /// Registers the site for the devices of this process, of which each process has as many. Returns its number, which
    /// is the same in all processes that have registered as many before.
    ///
    /// # Errors
    /// The groups do not have each device once; MPI says so.
    pub fn register(&self, world: &Communicator, devices: usize) -> Result<i32, CrossingError> {
        let member = |place: usize| -> Result<Member, CrossingError> {
            let device = world.rank() * devices + place;
            let mut found = self
                .groups
                .iter()
                .enumerate()
                .filter_map(|(number, group)| Some((number, group.iter().position(|&other| other == device)?)));
            let (Some((group, position)), None) = (found.next(), found.next()) else {
                let count = self.groups.iter().filter(|group| group.contains(&device)).count();
                return Err(CrossingError::Groups { device, count });
            };
            let number = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
            let communicator = world.split(number(group), number(position))?;
            Ok(Member { communicator, scratch: Mutex::default() })
        };
        let members = (0..devices).map(member).collect::<Result<Vec<_>, _>>()?;
        let mut all = sites().write().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::new(Registered { kind: self.kind.clone(), members }));
        Ok(i32::try_from(all.len() - 1).unwrap_or(i32::MAX))
    }
}

/// Ends all sites: no program that calls them runs any more. MPI is finalized when its world is gone, too.
pub fn forget_sites() {
    sites().write().unwrap_or_else(PoisonError::into_inner).clear();
}

/// The function that programs call.
#[derive(Debug)]
pub struct Crossing;

impl ForeignFunction for Crossing {
    const NAME: &'static str = "meshloom_crossing";

    fn call(call: &mut ForeignCall<'_>) -> Result<(), CallFailure> {
        let invalid = |message: String| CallFailure { code: ErrorCode::InvalidArgument, message };
        let ([operand, header], [result]) = (call.operands.as_slice(), call.results.as_mut_slice()) else {
            return Err(invalid(format!(
                "a collective between processes has an operand, a header and a result, not {} and {}",
                call.operands.len(),
                call.results.len()
            )));
        };
        let (numbers, _) = header.bytes().as_chunks::<4>();
        let &[site, place] = numbers else { return Err(invalid("its header is no s32[2]".to_owned())) };
        let [site, place] =
            [site, place].map(|number| usize::try_from(i32::from_ne_bytes(number)).unwrap_or(usize::MAX));
        let registered = sites().read().unwrap_or_else(PoisonError::into_inner).get(site).cloned();
        let registered = registered.ok_or_else(|| invalid(format!("there is no site {site}")))?;
        let member = registered.members.get(place).ok_or_else(|| invalid(format!("there is no device {place}")))?;
        let element_type = operand.element_type;
        let combining = |how: Combine| {
            let found = of_type(element_type);
            let (combining, width) = found.ok_or_else(|| invalid(format!("type {element_type} is not reduced")))?;
            Ok::<_, CallFailure>((move |sum: &mut [u8], next: &[u8]| combining(how, sum, next), width))
        };
        let mut scratch = member.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let (communicator, input, output) = (&member.communicator, operand.bytes(), result.bytes_mut());
        let done = match &registered.kind {
            CrossingKind::AllReduce(how) => {
                let (combine, width) = combining(*how)?;
                communicator.all_reduce(input, output, width, &mut scratch, combine)
            }
            CrossingKind::ReduceScatter(how) => {
                communicator.reduce_scatter(input, output, &mut scratch[0], combining(*how)?.0)
            }
            CrossingKind::AllGather => communicator.all_gather(input, output),
            CrossingKind::AllToAll => communicator.all_to_all(input, output),
            CrossingKind::Permute(pairs) => {
                let own = communicator.rank();
                let to = pairs.iter().find(|(source, _)| *source == own).map(|(_, target)| *target);
                let from = pairs.iter().find(|(_, target)| *target == own).map(|(source, _)| *source);
                communicator.permute(input, output, to, from)
            }
        };
        done.map_err(|error| CallFailure { code: ErrorCode::Unavailable, message: error.to_string() })
    }
}
