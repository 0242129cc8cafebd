//! The links that transfers take, and their time on them.

use indexmap::IndexSet;

use crate::collectives::ModuleCollective;
use crate::cost::{CostOptions, Link, transfer};
use crate::estimate::{FROM_HOST, TO_HOST};
use crate::host_transfers::{HostCopy, Move};

const NETWORK: &str = "the network";
const SWITCH: &str = "the switch";

/// The links of transfers, by number.
pub(super) struct Wiring {
    /// The links of each transfer, and its time on them.
    pub(super) times: Vec<(Vec<usize>, f64)>,
    /// The names of the links; those of an axis end with the way round it.
    names: Vec<String>,
}

/// Whether a permute goes both ways round, as the exchange of two devices does.
fn is_swap(entry: &ModuleCollective) -> bool {
    entry.pairs.iter().any(|&(from, to)| entry.pairs.contains(&(to, from)))
}

impl Wiring {
    /// Returns the links of each collective, with its time on them; `None` for a chip without rates.
    pub(super) fn of(entries: &[ModuleCollective], options: &CostOptions) -> Option<Wiring> {
        let is_switched = options.chip?.is_switched();
        let mut links: IndexSet<String> = IndexSet::from([NETWORK.to_owned()]);
        let mut wires = Vec::new();
        for entry in entries {
            let (link, mut seconds) = transfer(entry, options)?;
            let names = match (link, &entry.axes) {
                (Link::Network, _) => Some(vec![NETWORK.to_owned()]),
                (Link::Ring, _) if is_switched => Some(vec![SWITCH.to_owned()]),
                // Parts of an axis lie on its links. A permute by several places takes the links that many times. A
                // shift goes one way, over half of the links; all other transfers go both ways.
                (Link::Ring, Some(axes)) => {
                    let places = entry.shift.unwrap_or(0);
                    seconds *= places.unsigned_abs().max(1) as f64;
                    let ways = match places {
                        0 => &["+", "-"][..],
                        _ if is_swap(entry) => &["+", "-"],
                        1.. => &["+"],
                        _ => &["-"],
                    };
                    if ways.len() == 1 {
                        seconds *= 2.0;
                    }
                    let names = axes.iter().map(|axis| axis.whole_name());
                    Some(names.flat_map(|name| ways.iter().map(move |way| format!("{name} {way}"))).collect())
                }
                (Link::Ring, None) => None,
            };
            let numbers =
                names.map(|names| names.into_iter().map(|name| links.insert_full(name).0).collect::<Vec<_>>());
            wires.push((numbers, seconds));
        }
        // A collective that may be anywhere needs at least one ring.
        if links.len() < 2 {
            links.insert(if is_switched { SWITCH } else { "any axis" }.to_owned());
        }
        let all = |numbers: Option<Vec<usize>>| numbers.unwrap_or_else(|| (1..links.len()).collect());
        let times = wires.into_iter().map(|(numbers, seconds)| (all(numbers), seconds)).collect();
        Some(Wiring { times, names: links.into_iter().collect() })
    }

    /// Adds a copy over the link to the host, which takes no time if the link's rate is not known.
    pub(super) fn add_host_copy(&mut self, copy: HostCopy, rate: Option<f64>) {
        let name = if copy.direction == Move::ToHost { TO_HOST } else { FROM_HOST };
        let link = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        self.times.push((vec![link], rate.map_or(0.0, |rate| copy.bytes as f64 / rate)));
    }

    pub(super) fn link_count(&self) -> usize {
        self.names.len()
    }

    /// Returns the names of the lanes in which links are drawn, and the lane of each link. Both ways round an axis are
    /// one lane where each transfer takes both.
    pub(super) fn lanes(&self) -> (Vec<String>, Vec<usize>) {
        let other_way = |name: &str| {
            let axis = name.strip_suffix(" +");
            axis.map(|axis| format!("{axis} -")).and_then(|other| self.names.iter().position(|it| *it == other))
        };
        let is_one = |a: usize, b: usize| self.times.iter().all(|(links, _)| links.contains(&a) == links.contains(&b));
        let used = |link: usize| self.times.iter().any(|(links, _)| links.contains(&link));
        let mut names: Vec<String> = Vec::new();
        let mut lanes = vec![0; self.names.len()];
        let mut is_done = vec![false; self.names.len()];
        for (link, name) in self.names.iter().enumerate() {
            if is_done[link] || !used(link) {
                continue;
            }
            lanes[link] = names.len();
            let twin = other_way(name).filter(|&other| is_one(link, other));
            if let Some(other) = twin {
                (lanes[other], is_done[other]) = (names.len(), true);
            }
            names.push(if twin.is_some() { name.trim_end_matches(" +").to_owned() } else { name.clone() });
        }
        (names, lanes)
    }
}
