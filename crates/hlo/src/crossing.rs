//! Collectives between processes, on plugins that have none: each is a custom call onto a function of meshloom's. This
//! file has the text by which a module says what such a call does.
//!
//! The call is of the target [`TARGET`], by XLA's typed FFI. Its operands are the values that are exchanged and then
//! the number of the device, `u32[]`; its results are the result for each operand, and the number again, so that calls
//! can be chained. Its backend configuration is a dictionary with one string, `collective`, which [`Crossing`] writes
//! and reads:
//!
//! ```text
//! all-reduce add over 0,1 of 2x2x4 in 4 processes
//! collective-permute 0>1,1>0 over 0 of 2x4 in 2 processes
//! ```
//!
//! Devices are numbered along the axes of the mesh, the most major first, and lie in the processes in
//! that order, the same number in each.

use std::fmt;
use std::str::FromStr;

use crate::{CollectiveKind, ReduceKind};

/// The function that is called.
pub const TARGET: &str = "meshloom_crossing";

/// The entry of the configuration.
pub const ATTRIBUTE: &str = "collective";

/// The kind of a collective between processes. Parts are counted along the first dimension. A sum of truth values says
/// whether any is true, and a product whether all are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CrossingKind {
    /// Every member gets the parts of all, in the order of their ranks, along a new first dimension.
    AllGather,
    /// Every member gets the combined operands.
    AllReduce(ReduceKind),
    /// Part `r` goes to rank `r`; the part from rank `r` becomes part `r`.
    AllToAll,
    /// Members send to others: pairs of ranks. A member that receives nothing gets zeros.
    CollectivePermute(Vec<(u32, u32)>),
    /// Every member gets its part of the combined operands, without the first dimension.
    ReduceScatter(ReduceKind),
}

/// A collective between processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Crossing {
    /// The kind of the collective.
    pub kind: CrossingKind,
    /// The axes along which the members of a group lie, major to minor.
    pub axes: Vec<usize>,
    /// The sizes of all axes of the mesh.
    pub mesh: Vec<usize>,
    /// The number of processes in which the devices of the mesh lie.
    pub processes: usize,
}

/// A text that does not describe a collective between processes.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" does not describe a collective between processes; expected such as \"{EXAMPLE}\"")]
pub struct CrossingError {
    text: String,
}

crate::debug_is_message!(CrossingError);

const EXAMPLE: &str = "all-reduce add over 0 of 2x4 in 2 processes";

impl Crossing {
    /// The kind as others count it.
    pub fn collective(&self) -> CollectiveKind {
        match self.kind {
            CrossingKind::AllGather => CollectiveKind::AllGather,
            CrossingKind::AllReduce(_) => CollectiveKind::AllReduce,
            CrossingKind::AllToAll => CollectiveKind::AllToAll,
            CrossingKind::CollectivePermute(_) => CollectiveKind::CollectivePermute,
            CrossingKind::ReduceScatter(_) => CollectiveKind::ReduceScatter,
        }
    }

    /// Devices of each process.
    pub fn devices(&self) -> usize {
        self.mesh.iter().product::<usize>() / self.processes.max(1)
    }

    /// The devices of a device's group by their ranks, and its own rank.
    pub fn group(&self, device: usize) -> (Vec<usize>, usize) {
        let strides = |axis: usize| self.mesh.get(axis + 1..).unwrap_or_default().iter().product::<usize>();
        let axes: Vec<(usize, usize)> =
            self.axes.iter().map(|&axis| (strides(axis), self.mesh.get(axis).copied().unwrap_or(1))).collect();
        let own = |&(stride, size): &(usize, usize)| device / stride % size;
        let base = axes.iter().fold(device, |base, axis| base - own(axis) * axis.0);
        let rank = axes.iter().fold(0, |rank, axis| rank * axis.1 + own(axis));
        let mut members = vec![base];
        for (stride, size) in axes {
            members = members.iter().flat_map(|member| (0..size).map(move |at| member + at * stride)).collect();
        }
        (members, rank)
    }

    /// The backend configuration of the call, as MLIR writes a dictionary.
    pub fn backend_config(&self) -> String {
        format!("{{{ATTRIBUTE} = \"{self}\"}}")
    }

    /// Reads what a call of [`TARGET`] does from its backend configuration.
    ///
    /// # Errors
    /// It is not one that [`Crossing::backend_config`] writes.
    pub fn of_backend_config(config: &str) -> Result<Crossing, CrossingError> {
        let inner = config.split_once('"').and_then(|(_, rest)| rest.rsplit_once('"'));
        inner.map_or(config, |(inner, _)| inner).parse()
    }
}

fn joined<T: fmt::Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective().name())?;
        match &self.kind {
            CrossingKind::AllReduce(combine) | CrossingKind::ReduceScatter(combine) => write!(f, " {}", combine.name()),
            CrossingKind::CollectivePermute(pairs) if pairs.is_empty() => f.write_str(" nobody"),
            CrossingKind::CollectivePermute(pairs) => {
                write!(f, " {}", joined(pairs.iter().map(|(source, target)| format!("{source}>{target}")), ","))
            }
            CrossingKind::AllGather | CrossingKind::AllToAll => Ok(()),
        }?;
        let (axes, mesh) = (joined(&self.axes, ","), joined(&self.mesh, "x"));
        write!(f, " over {axes} of {mesh} in {} processes", self.processes)
    }
}

impl FromStr for Crossing {
    type Err = CrossingError;

    fn from_str(text: &str) -> Result<Crossing, CrossingError> {
        read(text).ok_or_else(|| CrossingError { text: text.to_owned() })
    }
}

fn read(text: &str) -> Option<Crossing> {
    let (what, rest) = text.split_once(" over ")?;
    let (axes, rest) = rest.split_once(" of ")?;
    let (mesh, processes) = rest.strip_suffix(" processes")?.split_once(" in ")?;
    let numbers = |text: &str, separator: char| -> Option<Vec<usize>> {
        text.split(separator).map(|number| number.parse().ok()).collect()
    };
    let (kind, detail) = what.split_once(' ').unwrap_or((what, ""));
    let combine = || ReduceKind::named(detail);
    let pair = |pair: &str| {
        let (source, target) = pair.split_once('>')?;
        Some((source.parse().ok()?, target.parse().ok()?))
    };
    let kind = match CollectiveKind::named(kind)? {
        CollectiveKind::AllGather => CrossingKind::AllGather,
        CollectiveKind::AllReduce => CrossingKind::AllReduce(combine()?),
        CollectiveKind::AllToAll => CrossingKind::AllToAll,
        CollectiveKind::CollectivePermute if detail == "nobody" => CrossingKind::CollectivePermute(Vec::new()),
        CollectiveKind::CollectivePermute => {
            CrossingKind::CollectivePermute(detail.split(',').map(pair).collect::<Option<_>>()?)
        }
        CollectiveKind::ReduceScatter => CrossingKind::ReduceScatter(combine()?),
    };
    let (axes, mesh, processes) = (numbers(axes, ',')?, numbers(mesh, 'x')?, processes.parse().ok()?);
    let devices = mesh.iter().try_fold(1usize, |all, &size| all.checked_mul(size))?;
    let fits = processes > 0 && devices > 0 && devices % processes == 0;
    let known = axes.iter().enumerate().all(|(at, axis)| *axis < mesh.len() && !axes[..at].contains(axis));
    (fits && known).then_some(Crossing { kind, axes, mesh, processes })
}
