//! When a ring of partial products is faster than a collective and a product one after the other.

use crate::ir::{Graph, NodeRef};
use crate::ops::Op;

/// Where all-gathers in front of products, and reduce-scatters behind them, become rings of permutes beside partial
/// products.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollectiveMatmul {
    /// Nowhere.
    #[default]
    Off,
    /// Wherever products can be cut.
    On,
    /// Where it pays, on devices whose rates are known.
    ///
    /// A ring of `n` devices has `hops = n / 2` rounds, rounded down, as parts travel both ways round. Let `hop` be the
    /// time in which one part goes to a neighbour, and `products` that of the products on a device. One after the
    /// other take `(n - 1) / 2 * hop + products`, since a collective uses both ways too. A ring takes `products / n`,
    /// in which nothing need travel, and then the longer of `hops * hop` and the rest of the products. It pays if it
    /// saves a twentieth, so that what smaller products and their assembly cost is covered; and only where partial
    /// products keep 512 rows and parts are whole tiles of memory.
    Auto {
        /// Multiplications and additions of matrices of `bf16` that a device does while it sends a byte to a neighbour.
        operations_per_byte: u64,
    },
}

/// Rows that a partial product must keep, so that matrix units, of 128 to 256 rows, load each weight for several times
/// as many rows as they have.
const LEAST_ROWS: usize = 512;

/// Rows of a tile in a TPU's memory, of any type: parts of whole tiles are written in place.
const TILE: usize = 16;

/// The share of the time that a ring must not exceed.
const SAVES: f64 = 0.95;

/// A collective of `size` devices beside products.
pub(super) struct Ring {
    pub(super) size: usize,
    pub(super) part_bytes: usize,
    /// Elements of the dimension that a part has.
    pub(super) part_size: usize,
    /// Rows of the smallest partial product.
    pub(super) rows: usize,
    /// Multiplications and additions of the products, all parts together.
    pub(super) operations: f64,
}

impl CollectiveMatmul {
    pub(super) fn takes(self, ring: &Ring) -> bool {
        let operations_per_byte = match self {
            CollectiveMatmul::Off => return false,
            CollectiveMatmul::On => return true,
            CollectiveMatmul::Auto { operations_per_byte } => operations_per_byte,
        };
        if ring.rows < LEAST_ROWS || !ring.part_size.is_multiple_of(TILE) {
            return false;
        }
        // All times are in operations.
        let hop = ring.part_bytes as f64 * operations_per_byte as f64;
        let (size, products) = (ring.size as f64, ring.operations);
        let own = products / size;
        let apart = (size - 1.0) / 2.0 * hop + products;
        let beside = own + (hop * (ring.size / 2) as f64).max(products - own);
        beside <= SAVES * apart
    }
}

/// The operations of a dot, and the number of rows of its operand `side`.
pub(super) fn operations_and_rows(graph: &Graph, node: NodeRef<'_>, side: usize) -> (f64, usize) {
    let Op::DotGeneral(dot) = node.op() else { return (0.0, 0) };
    let (ty, dims) = (graph.ty(node.operands()[side]), &*dot.dims);
    let contract = if side == 0 { &dims.lhs_contract } else { &dims.rhs_contract };
    let batch = if side == 0 { &dims.lhs_batch } else { &dims.rhs_batch };
    let size = |dims: &[usize]| dims.iter().map(|&dim| ty.dims[dim]).product::<usize>().max(1);
    let (summed, apart) = (size(contract), size(batch));
    let operations = 2.0 * graph.ty(node.result()).element_count() as f64 * summed as f64;
    (operations, ty.element_count() / (summed * apart))
}
