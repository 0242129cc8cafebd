//! Smallest cuts of networks, by maximum flow (Dinic's algorithm).

/// A capacity that no cut pays, since it is above the sum of all others.
pub const UNBOUNDED: u128 = u128::MAX / 4;

/// A network under construction: vertices by number, with [`Network::SOURCE`] and [`Network::SINK`] there already.
pub struct Network {
    /// For each vertex, its arcs.
    leaving: Vec<Vec<usize>>,
    /// Each arc has its reverse beside it, with the number `arc ^ 1`.
    arcs: Vec<Arc>,
}

struct Arc {
    to: usize,
    /// The flow that the arc can still take.
    room: u128,
}

impl Network {
    /// The vertex where flow begins.
    pub const SOURCE: usize = 0;
    /// The vertex where flow ends.
    pub const SINK: usize = 1;

    /// A network of only a source and a sink.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Network {
        Network { leaving: vec![Vec::new(), Vec::new()], arcs: Vec::new() }
    }

    /// Adds a vertex.
    pub fn vertex(&mut self) -> usize {
        self.leaving.push(Vec::new());
        self.leaving.len() - 1
    }

    /// Adds an arc. A cut with `from` on the source's side and `to` on the sink's side pays its capacity.
    pub fn arc(&mut self, from: usize, to: usize, capacity: u128) {
        for (from, to, room) in [(from, to, capacity), (to, from, 0)] {
            self.leaving[from].push(self.arcs.len());
            self.arcs.push(Arc { to, room });
        }
    }

    /// For each vertex, whether it is on the source's side of the smallest cut. If there are several such cuts, the one
    /// nearest to the source is taken.
    pub fn cut(mut self) -> Vec<bool> {
        loop {
            let levels = self.levels();
            if levels[Network::SINK].is_none() {
                return levels.iter().map(Option::is_some).collect();
            }
            self.fill(&levels);
        }
    }

    /// For each vertex, its distance from the source in arcs that have room.
    fn levels(&self) -> Vec<Option<usize>> {
        let mut levels = vec![None; self.leaving.len()];
        levels[Network::SOURCE] = Some(0);
        let mut reached = vec![Network::SOURCE];
        let mut next = 0;
        while let Some(&vertex) = reached.get(next) {
            next += 1;
            for &arc in &self.leaving[vertex] {
                let Arc { to, room } = self.arcs[arc];
                if room > 0 && levels[to].is_none() {
                    levels[to] = levels[vertex].map(|level| level + 1);
                    reached.push(to);
                }
            }
        }
        levels
    }

    /// Sends as much as fits along paths on which each arc leads one level further.
    fn fill(&mut self, levels: &[Option<usize>]) {
        // The first arc of each vertex that may still lead to the sink.
        let mut next = vec![0; self.leaving.len()];
        let mut path: Vec<usize> = Vec::new();
        loop {
            let vertex = path.last().map_or(Network::SOURCE, |&arc| self.arcs[arc].to);
            if vertex == Network::SINK {
                let flow = path.iter().map(|&arc| self.arcs[arc].room).min().unwrap_or(0);
                for &arc in &path {
                    self.arcs[arc].room -= flow;
                    self.arcs[arc ^ 1].room = self.arcs[arc ^ 1].room.saturating_add(flow);
                }
                // The search goes on from the first arc that is full.
                let full = path.iter().position(|&arc| self.arcs[arc].room == 0).unwrap_or(0);
                path.truncate(full);
                continue;
            }
            match self.leaving[vertex].get(next[vertex]) {
                Some(&arc) => {
                    let Arc { to, room } = self.arcs[arc];
                    let further = levels[to].is_some() && levels[to] == levels[vertex].map(|level| level + 1);
                    if room > 0 && further { path.push(arc) } else { next[vertex] += 1 }
                }
                None => match path.pop() {
                    Some(arc) => next[self.arcs[arc ^ 1].to] += 1,
                    None => return,
                },
            }
        }
    }
}
