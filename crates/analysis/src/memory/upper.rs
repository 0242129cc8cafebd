//! An upper bound on the memory of a module that is not compiled.
//!
//! An uncompiled module does not say how a compiler will lay out, fuse and order it: transposed copies of the operands
//! of products, workspaces of libraries, values that a later reader keeps. [`ModuleMemory::temporaries`] is then an
//! estimate that may be too low, and [`upper`] adds the amount that may be missing:
//!
//! - On TPUs, the parts of arguments and results that a device has are padded to tiles, which is computed here. The
//!   two fastest dimensions of an array are padded to 8 rows (as many times more for elements of fewer bits) of 128, a
//!   vector to 1024 elements, a number to 512 bytes.
//! - Temporaries get the [`Margin`] of the platform. It covers every program of a calibration set, which proves nothing
//!   for others; docs/memory.md has the distribution.

use serde::Serialize;

use super::dataflow::other_space;
use super::{MemoryForm, ModuleMemory};
use crate::size::shape_bytes;
use meshloom_hlo::PlatformKind;
use meshloom_hlo::proto::{PrimitiveType, ShapeProto};

/// The memory that temporaries may need beyond the estimate: a part of it, and a number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margin {
    /// The margin as a percentage of the estimate.
    pub percent: u64,
    /// The margin in bytes, besides the percentage.
    pub bytes: u64,
}

impl Margin {
    /// Returns the margin of a platform's compiler, from the calibration set of tests/support/calibration.rs. Its test
    /// fails if a program needs more.
    pub fn of(platform: PlatformKind) -> Margin {
        match platform {
            PlatformKind::Cpu => Margin { percent: 71, bytes: 0 },
            PlatformKind::Cuda => Margin { percent: 53, bytes: 4 << 20 },
            PlatformKind::Tpu => Margin { percent: 45, bytes: 4 << 20 },
        }
    }
}

/// The most device memory that an uncompiled module may need, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UpperMemory {
    /// The compiler that the margin belongs to: `cpu`, `cuda` or `tpu`.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub backend: PlatformKind,
    /// The bytes of all arguments.
    pub arguments: u64,
    /// The bytes of all outputs.
    pub outputs: u64,
    /// The bytes of the outputs that lie in donated arguments.
    pub aliased: u64,
    /// The bytes of all other values.
    pub temporaries: u64,
    /// The bytes of everything that a device holds: arguments, outputs that are not in them, temporaries.
    pub peak: u64,
}

/// The bytes of the arguments and outputs that each device has, in the tiles of a TPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InTiles {
    /// The bytes of all arguments.
    pub arguments: u64,
    /// The bytes of all outputs, with the pointers of their tuple.
    pub outputs: u64,
    /// The bytes of the outputs that lie in donated arguments.
    pub aliased: u64,
}

/// Returns the most memory that a module may need when a backend compiles it, by its estimate; without a backend, that
/// of the one that needs most. The result is `None` for a module that is compiled: its estimate needs no margin.
pub fn upper(estimate: &ModuleMemory, backend: Option<PlatformKind>) -> Option<UpperMemory> {
    if estimate.form != MemoryForm::Uncompiled {
        return None;
    }
    let of = |backend| upper_of(estimate, backend);
    match backend {
        Some(backend) => Some(of(backend)),
        None => PlatformKind::ALL.into_iter().map(of).max_by_key(|upper| upper.peak),
    }
}

fn upper_of(estimate: &ModuleMemory, backend: PlatformKind) -> UpperMemory {
    let Margin { percent, bytes } = Margin::of(backend);
    let share = u64::try_from(u128::from(estimate.temporaries) * u128::from(percent) / 100).unwrap_or(u64::MAX);
    let temporaries = estimate.temporaries.saturating_add(share).saturating_add(bytes);
    let &ModuleMemory { arguments, outputs, aliased, .. } = estimate;
    let InTiles { arguments, outputs, aliased } =
        estimate.in_tiles.filter(|_| backend == PlatformKind::Tpu).unwrap_or(InTiles { arguments, outputs, aliased });
    let peak = arguments.saturating_add(outputs).saturating_sub(aliased).saturating_add(temporaries);
    UpperMemory { backend, arguments, outputs, aliased, temporaries, peak }
}

/// Returns the most bytes that an array takes on a TPU; for a tuple, those of its pointers.
pub(super) fn tiled_bytes(shape: &ShapeProto) -> u64 {
    /// The end of a buffer is a multiple of this.
    const UNIT: u64 = 512;
    const ROWS: u64 = 8;
    const COLUMNS: u64 = 128;
    let in_units = |bytes: u64| bytes.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX);
    if shape.element_type == i32::from(PrimitiveType::Tuple) {
        return in_units(8 * shape.tuple_shapes.len() as u64);
    }
    if other_space(shape).is_some() {
        return 0;
    }
    let bits = PrimitiveType::try_from(shape.element_type).ok().and_then(|of| of.bits());
    let Some(bits) = bits.filter(|&bits| bits > 0) else { return shape_bytes(shape).unwrap_or(0) };
    let tiles: &[u64] = match shape.dimensions.len() {
        0 => &[],
        1 => &[ROWS * COLUMNS],
        _ => &[COLUMNS, ROWS * (32 / bits).max(1)],
    };
    let sizes = shape.dimensions.iter().rev().enumerate().map(|(nth, &size)| {
        let size = u64::try_from(size).unwrap_or(0);
        tiles.get(nth).and_then(|&tile| size.checked_next_multiple_of(tile)).unwrap_or(size)
    });
    in_units(sizes.fold(1u64, u64::saturating_mul).saturating_mul(bits).div_ceil(8))
}
