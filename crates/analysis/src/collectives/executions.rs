//! How often collectives run on each device, and whether the devices of a group run them together.

use super::ModuleCollective;
use crate::devices::Devices;
use crate::executions::{DeviceExecutions, DeviceRun, PlaceRun};
use crate::{Amount, Bounds, Branch, sum};
use meshloom_hlo::device_groups::DeviceGroups;

/// Whether the devices of each group of a collective run it together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Together {
    /// They do.
    Yes,
    /// One of these devices runs it where the other does not.
    No(u64, u64),
    /// It is in a branch that data decides, or the module does not say which devices take part.
    Unknown,
}

impl DeviceExecutions {
    /// Returns how often a collective runs.
    pub fn executions(&self, collective: &ModuleCollective) -> Bounds {
        self.total([collective], |_| Some(1))
    }

    /// Returns the bytes that one device sends in collectives.
    pub fn moved_bytes<'c>(&self, collectives: impl IntoIterator<Item = &'c ModuleCollective>) -> Bounds {
        self.total(collectives, |collective| collective.moved_bytes)
    }

    /// Sums a number over all executions of collectives on one device: the least and the most of any device.
    pub fn total<'c>(
        &self,
        collectives: impl IntoIterator<Item = &'c ModuleCollective>,
        of_one: impl Fn(&ModuleCollective) -> Option<u64>,
    ) -> Bounds {
        self.total_beyond(collectives.into_iter().map(|collective| (collective, &[][..])), of_one)
    }

    /// Sums the same, as if some branches were taken each time that they may be: those that come with a collective,
    /// which are the outermost of the branches around it.
    pub(super) fn total_beyond<'c>(
        &self,
        collectives: impl IntoIterator<Item = (&'c ModuleCollective, &'c [Branch])>,
        of_one: impl Fn(&ModuleCollective) -> Option<u64>,
    ) -> Bounds {
        let each: Vec<(usize, &[Branch], Option<u64>)> =
            collectives.into_iter().map(|(collective, taken)| (collective.place, taken, of_one(collective))).collect();
        let of_run = |run: &DeviceRun| {
            let amounts = each.iter().flat_map(|&(place, taken, each)| {
                run.places.get(place).into_iter().flat_map(|place| &place.amounts).map(move |(branches, executions)| {
                    let (branches, executions) = beyond(taken, branches, *executions);
                    (branches, each.map_or(unless_never(executions), |each| executions.times(each)))
                })
            });
            sum(amounts)
        };
        let all = self.runs().map(of_run).reduce(Bounds::or);
        all.unwrap_or(Bounds { least: 0, most: Some(0) })
    }

    /// Returns whether the devices of each group of a collective run it together.
    pub fn together(&self, collective: &ModuleCollective) -> Together {
        let place = collective.place;
        let is_open = |run: &DeviceRun| run.places.get(place).is_none_or(PlaceRun::is_open);
        if self.runs().any(is_open) {
            return Together::Unknown;
        }
        if self.is_same_on_all() {
            return Together::Yes;
        }
        let Some(groups) = self.groups(collective) else { return Together::Unknown };
        let run = |device: u64| self.run_of(device)?.places.get(place);
        for group in &groups {
            let Some((&first, others)) = group.split_first() else { continue };
            for &other in others {
                match (run(first), run(other)) {
                    (Some(one), Some(another)) if one == another => {}
                    (Some(_), Some(_)) => return Together::No(first, other),
                    _ => return Together::Unknown,
                }
            }
        }
        Together::Yes
    }

    /// Returns the devices that wait for one another in a collective.
    fn groups(&self, collective: &ModuleCollective) -> Option<Vec<Vec<u64>>> {
        let Devices { replicas, partitions } = self.devices();
        // Numbers may then be of replicas, of partitions, or of both.
        if replicas > 1 && partitions > 1 {
            return None;
        }
        // A permute waits for all the devices that take part.
        if !collective.pairs.is_empty() {
            return Some(vec![collective.pairs.iter().flat_map(|&(source, target)| [source, target]).collect()]);
        }
        collective.group_size?;
        match collective.groups {
            DeviceGroups::One => Some(vec![(0..replicas.max(partitions)).collect()]),
            _ => collective.groups.lists(),
        }
    }
}

/// Returns what is left to be decided when these branches are taken.
fn beyond<'b>(taken: &[Branch], branches: &'b [Branch], executions: Amount) -> (&'b [Branch], Amount) {
    match branches.iter().take_while(|branch| taken.contains(branch)).count() {
        0 => (branches, executions),
        known => (&branches[known..], executions.bound().map_or(Amount::Unknown, Amount::Exactly)),
    }
}

/// Returns the sum of an unknown number over some executions: 0 if there are none, else unknown.
fn unless_never(executions: Amount) -> Amount {
    if executions == 0 { executions } else { Amount::Unknown }
}
