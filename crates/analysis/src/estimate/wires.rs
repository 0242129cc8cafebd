//! The wires that join a collective's devices, and the time that the collective takes on them.

use super::hardware::{Dimension, Hardware, Wire};
use crate::AxisPart;
use crate::collectives::ModuleCollective;
use crate::communication::Communication;
use meshloom_hlo::mesh::{Mesh, MeshAxis, Piece, common_divisor, cut, dcn_sizes};
use meshloom_hlo::{CollectiveKind, PlatformKind};

/// The part of one dimension of the hardware that a group of devices covers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    /// Number of the dimension, the one with the fastest links first.
    dimension: usize,
    /// The number of the group's devices along it.
    extent: usize,
    /// The distance between neighbours.
    stride: usize,
}

/// A mesh on hardware.
pub(super) struct Wires<'h> {
    hardware: &'h Hardware,
    mesh: &'h Mesh,
    /// For each axis, its piece of each dimension.
    pieces: Vec<Vec<Piece>>,
}

impl<'h> Wires<'h> {
    /// Returns `None` if the mesh does not fill the hardware.
    pub(super) fn new(mesh: &'h Mesh, hardware: &'h Hardware) -> Option<Wires<'h>> {
        let sizes: Vec<usize> = mesh.axes().map(|axis| mesh.size(axis)).collect();
        let mut shape: Vec<usize> = hardware.dimensions.iter().map(|dimension| dimension.size).collect();
        // Slices, unlike hosts of GPUs, are no dimension of a box: the mesh says which axes cross them.
        let slices = hardware.dimensions.last().filter(|last| last.wire == Wire::Network).map(|last| last.size);
        let Some(slices) = slices.filter(|_| hardware.chip.backend != PlatformKind::Cuda) else {
            return Some(Wires { hardware, mesh, pieces: cut(&sizes, &shape)? });
        };
        shape.pop();
        let dcn = dcn_sizes(mesh, slices).ok()?;
        let within: Vec<usize> = sizes.iter().zip(&dcn).map(|(size, dcn)| size / dcn).collect();
        let mut pieces = cut(&within, &shape)?;
        pieces.iter_mut().zip(&dcn).for_each(|(pieces, &size)| pieces.push(Piece { size, stride: 1 }));
        Some(Wires { hardware, mesh, pieces })
    }

    /// Returns for each axis and each dimension of the hardware the number of devices, and along a torus the distance
    /// between neighbours.
    pub(super) fn placement(&self) -> Vec<Vec<(usize, usize)>> {
        let of_piece = |(piece, it): (&Piece, &Dimension)| match it.wire {
            Wire::Torus if piece.size > 1 => (piece.size, piece.stride),
            _ => (piece.size, 1),
        };
        let of_axis = |pieces: &Vec<Piece>| pieces.iter().zip(&self.hardware.dimensions).map(of_piece).collect();
        self.pieces.iter().map(of_axis).collect()
    }

    /// Returns the time of one execution, in seconds.
    pub(super) fn seconds(&self, collective: &ModuleCollective) -> f64 {
        let spans = match &collective.axes {
            Some(axes) => self.spans(axes),
            None => self.everything(),
        };
        let sent = collective.moved_bytes.or(collective.bytes).unwrap_or(0) as f64;
        if sent == 0.0 || spans.is_empty() {
            return 0.0;
        }
        let members: f64 = spans.iter().map(|span| span.extent as f64).product();
        let moving = match collective.kind {
            Communication::Collective(CollectiveKind::CollectivePermute) | Communication::Other(_) => {
                self.permute(&spans, sent, collective.shift)
            }
            Communication::Collective(CollectiveKind::AllToAll) => {
                self.all_to_all(&spans, sent * members / (members - 1.0))
            }
            Communication::Collective(kind) => {
                let passes = if kind == CollectiveKind::AllReduce { 2.0 } else { 1.0 };
                self.rings(&spans, sent * members / (members - 1.0), passes)
            }
        };
        moving + self.latency(&spans, collective.kind)
    }

    fn dimension(&self, span: &Span) -> &Dimension {
        &self.hardware.dimensions[span.dimension]
    }

    /// Returns the time of gathers and reductions that send bytes round in a number of passes. They go in stages: all
    /// bytes along the fastest dimensions, and along slower ones the part that the devices of the faster ones do not
    /// share. Stages over different kinds of wires overlap, and the dimensions of a torus carry a part each. In shared
    /// memory everything is read and written once.
    fn rings(&self, spans: &[Span], bytes: f64, passes: f64) -> f64 {
        let (mut left, mut longest) = (bytes, 0.0f64);
        for wire in Wire::FASTEST_FIRST {
            let along: Vec<&Span> = spans.iter().filter(|span| self.dimension(span).wire == wire).collect();
            let members: f64 = along.iter().map(|span| span.extent as f64).product();
            if members > 1.0 {
                let rate: f64 = along.iter().map(|span| self.rate(span)).sum();
                let sent = if wire == Wire::Memory { left / passes } else { left * (members - 1.0) / members };
                longest = longest.max(sent / rate);
            }
            left /= members;
        }
        longest
    }

    /// Returns the time in which each device sends every other a part of the bytes. Along a ring a part travels a
    /// quarter of it on average, and the links carry all passing parts; along a line it travels twice as far.
    fn all_to_all(&self, spans: &[Span], bytes: f64) -> f64 {
        let of = |span: &Span| {
            let members = span.extent as f64;
            match self.dimension(span).wire {
                Wire::Memory => bytes / self.rate(span),
                Wire::Core | Wire::Switch | Wire::Network => bytes * (members - 1.0) / members / self.rate(span),
                Wire::Torus => bytes * members / 4.0 / self.rate(span),
            }
        };
        spans.iter().map(of).fold(0.0, f64::max)
    }

    /// Returns the time of a step to the neighbour along the axis, on the slowest wire of any pair.
    fn permute(&self, spans: &[Span], bytes: f64, shift: Option<i64>) -> f64 {
        let hops = shift.map_or(1.0, |shift| shift.unsigned_abs().max(1) as f64);
        let of = |span: &Span| match self.dimension(span).wire {
            Wire::Memory | Wire::Core | Wire::Switch | Wire::Network => bytes / self.rate(span),
            // The values go one way round.
            Wire::Torus => {
                let one_way = self.hardware.neighbour_rate() / span.stride as f64;
                bytes * hops.min(span.extent as f64 / 2.0) / one_way
            }
        };
        spans.iter().map(of).fold(0.0, f64::max)
    }

    /// Returns the bytes per second that a device sends along a span.
    fn rate(&self, span: &Span) -> f64 {
        let dimension = self.dimension(span);
        let rate = self.hardware.rate(dimension);
        match dimension.wire {
            Wire::Memory | Wire::Core | Wire::Switch | Wire::Network => rate,
            Wire::Torus => {
                let is_ring = dimension.wraps && span.extent * span.stride == dimension.size;
                // A line is used one way at its ends. Groups that lie between one another share their links.
                let ways = if is_ring { 1.0 } else { 0.5 };
                rate * ways / span.stride as f64
            }
        }
    }

    fn latency(&self, spans: &[Span], kind: Communication) -> f64 {
        let rounds = |members: usize| (members as f64).log2().ceil();
        let steps = |span: &Span| match (kind, self.dimension(span).wire) {
            // Threads wait for one another: in a permute for all, else for those of their group.
            (Communication::Collective(CollectiveKind::CollectivePermute), Wire::Memory) => {
                rounds(self.dimension(span).size)
            }
            (_, Wire::Memory) => rounds(span.extent),
            (Communication::Collective(CollectiveKind::CollectivePermute) | Communication::Other(_), _) => 1.0,
            (Communication::Collective(CollectiveKind::AllReduce), _) => 2.0 * rounds(span.extent),
            (_, Wire::Torus) => span.extent as f64 / 2.0,
            (_, Wire::Core | Wire::Switch | Wire::Network) => rounds(span.extent),
        };
        let of = |span: &Span| steps(span) * self.dimension(span).latency;
        self.hardware.launch + spans.iter().map(of).sum::<f64>()
    }

    fn everything(&self) -> Vec<Span> {
        let dimensions = self.hardware.dimensions.iter().enumerate();
        let span = |(dimension, it): (usize, &Dimension)| Span { dimension, extent: it.size, stride: 1 };
        dimensions.map(span).filter(|span| span.extent > 1).collect()
    }

    /// Returns the spans that axes together cover.
    fn spans(&self, axes: &[AxisPart]) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for part in axes {
            let known = self.mesh.axes().find(|&axis| self.mesh.name(axis) == part.name);
            let Some(axis) = known else { return self.everything() };
            for span in self.of_axis(axis, part.part) {
                match spans.iter_mut().find(|known| known.dimension == span.dimension) {
                    Some(known) => {
                        known.extent *= span.extent;
                        known.stride = known.stride.min(span.stride);
                    }
                    None => spans.push(span),
                }
            }
        }
        spans.sort_by_key(|span| span.dimension);
        spans
    }

    /// Returns the spans of an axis, or of a part of it: the number of steps before it, and its own size.
    fn of_axis(&self, axis: MeshAxis, part: Option<(u64, u64)>) -> Vec<Span> {
        let size = self.mesh.size(axis);
        let whole = || (1, size);
        let (before, own) = part.map_or_else(whole, |(before, own)| (before as usize, own as usize));
        // The pieces of an axis are its digits, the fastest first.
        let (mut skip, mut take) = (size / (before * own).max(1), own);
        let mut spans = Vec::new();
        for (dimension, piece) in self.pieces[axis.index()].iter().enumerate() {
            let skipped = common_divisor(skip, piece.size);
            skip /= skipped;
            let extent = if skip > 1 { 1 } else { common_divisor(take, piece.size / skipped) };
            take /= extent;
            if extent > 1 {
                spans.push(Span { dimension, extent, stride: piece.stride * skipped });
            }
        }
        spans
    }
}
