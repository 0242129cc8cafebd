//! The choice of an implementation for each op that has several.

use crate::ops::{AttentionSizes, RaggedSizes};
use crate::pjrt::Platform;
use meshloom_hlo::PlatformKind;
use meshloom_mosaic::grouped::rows_of_block;

meshloom_hlo::words! {
    /// The implementation of attention.
    pub enum AttentionKernel {
        /// Dots and a softmax over all scores.
        Plain = "plain",
        /// A loop over blocks of queries and keys, with a softmax that is corrected as blocks come.
        Blockwise = "blockwise",
        /// Kernels of ours for TPU, as Mosaic text. Attention that they do not compute is computed blockwise.
        Mosaic = "mosaic",
        /// cuDNN's fused attention, on CUDA. Attention that it does not compute is refused.
        Cudnn = "cudnn",
    }
}

meshloom_hlo::words! {
    /// The implementation of the grouped products of routed experts.
    pub enum ExpertsKernel {
        /// One dot over rows masked by group, which multiplies each row once for each group.
        Plain = "plain",
        /// A loop over blocks of rows, each with the matrix of its group.
        Blockwise = "blockwise",
        /// Kernels of ours for TPU, as Mosaic text. Products that they do not compute are computed blockwise.
        Mosaic = "mosaic",
        /// XLA's instruction `ragged-dot`, which libtpu makes a kernel. Products that it does not compute are computed
        /// blockwise. A program for several devices is then emitted in the local form
        /// ([`ProgramForm`](crate::emit::ProgramForm)). On other platforms it is refused.
        RaggedDot = "ragged-dot",
    }
}

meshloom_hlo::words! {
    /// The implementation of the user's own kernels ([`Kernel`](crate::trace::Kernel)).
    pub enum OwnKernels {
        /// The kernels' definitions.
        Plain = "plain",
        /// The first of a kernel's implementations for the platform that takes the operands, else the definition.
        Platform = "platform",
    }
}

/// The numbers of queries and keys of a block of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// Queries.
    pub queries: usize,
    /// Keys.
    pub keys: usize,
}

/// The implementation of each op that has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernels {
    /// The implementation of attention.
    pub attention: AttentionKernel,
    /// The implementation of grouped products.
    pub experts: ExpertsKernel,
    /// The implementation of the user's own kernels.
    pub own: OwnKernels,
    /// The platform that the program is compiled for, by which blocks are chosen.
    pub platform: PlatformKind,
    /// The blocks of blockwise attention, if not those that suit the platform.
    pub blocks: Option<Blocks>,
    /// The rows of a block of blockwise grouped products, if not as many as suit the platform.
    pub rows: Option<usize>,
}

/// The kernels that every plugin takes, for a CPU.
impl Default for Kernels {
    fn default() -> Kernels {
        Kernels::portable(PlatformKind::Cpu)
    }
}

impl Kernels {
    /// Returns the kernels that every plugin takes, with blocks for one platform.
    pub const fn portable(platform: PlatformKind) -> Kernels {
        let (attention, experts) = (AttentionKernel::Blockwise, ExpertsKernel::Blockwise);
        Kernels { attention, experts, own: OwnKernels::Platform, platform, blocks: None, rows: None }
    }

    /// Returns the kernels that are fastest on a platform.
    pub fn on(platform: &Platform) -> Kernels {
        let portable = Kernels::portable(platform.kind());
        match platform.kind() {
            PlatformKind::Tpu => {
                Kernels { attention: AttentionKernel::Mosaic, experts: ExpertsKernel::Mosaic, ..portable }
            }
            PlatformKind::Cpu | PlatformKind::Cuda => portable,
        }
    }

    /// Returns the forms that hold everything at once. Other implementations are compared with them, and XLA can
    /// partition them.
    pub const fn plain() -> Kernels {
        Kernels {
            attention: AttentionKernel::Plain,
            experts: ExpertsKernel::Plain,
            own: OwnKernels::Plain,
            ..Kernels::portable(PlatformKind::Cpu)
        }
    }

    /// The blocks of an attention: the requested ones, or square ones whose side is a power of two.
    ///
    /// A block's scores are the largest value that a loop holds. On a CPU they should stay in its cache, and small
    /// blocks compute less beyond the diagonal; but a short row of whose queries the device has a part is one block,
    /// since a loop costs more than the scores beyond the diagonal. Elsewhere large blocks fill the matrix units.
    pub fn blocks_of(&self, sizes: &AttentionSizes) -> Blocks {
        let blocks = self.blocks.unwrap_or_else(|| {
            let size = self.block_size(sizes);
            Blocks { queries: size, keys: size }
        });
        Blocks { queries: blocks.queries.clamp(1, sizes.queries.max(1)), keys: blocks.keys.clamp(1, sizes.keys.max(1)) }
    }

    /// The blocks that an attention is cut into. Returns `None` if the plain form is asked for, or if one block holds
    /// it all, for which the plain form is best.
    pub(super) fn cut_of(&self, sizes: &AttentionSizes) -> Option<Blocks> {
        let blocks = self.blocks_of(sizes);
        let is_one = sizes.queries <= blocks.queries && sizes.keys <= blocks.keys;
        (self.attention != AttentionKernel::Plain && !is_one).then_some(blocks)
    }

    /// The number of scores that a device computes for a head of one row, where places are data: all scores of each
    /// pair of blocks in which a query may see a key, whether it does or not. Attention is causal without a window, and
    /// the row has one segment. `query_places` and `key_places` are the places of the tokens that the device has.
    pub fn computed_scores(&self, sizes: &AttentionSizes, query_places: &[usize], key_places: &[usize]) -> usize {
        let Some(Blocks { queries, keys }) = self.cut_of(sizes) else { return query_places.len() * key_places.len() };
        let latest: Vec<Option<&usize>> = query_places.chunks(queries).map(|block| block.iter().max()).collect();
        let earliest: Vec<Option<&usize>> = key_places.chunks(keys).map(|block| block.iter().min()).collect();
        let seen_by = |query: &Option<&usize>| earliest.iter().filter(|key| *key <= query).count();
        latest.iter().map(seen_by).sum::<usize>() * queries * keys
    }

    fn block_size(&self, sizes: &AttentionSizes) -> usize {
        let heads = sizes.batch.iter().product::<usize>() * sizes.kv_heads * sizes.groups;
        let longest = sizes.queries.max(sizes.keys);
        // The pairs of blocks that see each other are found while the program runs.
        let has_part = self.platform == PlatformKind::Cpu && sizes.queries < sizes.keys;
        if has_part && longest <= SHORT_ROW && heads * sizes.queries * sizes.keys * 4 <= CPU_SCORE_BYTES {
            return longest;
        }
        let (most, score_bytes) = match self.platform {
            PlatformKind::Cpu => ((longest / 16).next_power_of_two().clamp(128, 512), CPU_SCORE_BYTES),
            PlatformKind::Cuda | PlatformKind::Tpu => (512, 64 << 20),
        };
        let mut size = most;
        while size > 128 && heads * size * size * 4 > score_bytes {
            size /= 2;
        }
        size
    }

    /// The number of rows of a block of a grouped product: the requested one, or a power of two by the platform and the
    /// rows of a group. Returns `None` if one block holds all rows: each group would be a product of that block, which
    /// the plain form computes in one dot.
    ///
    /// On a CPU a block of about a group's rows is best, up to 128. Elsewhere more of them fill the matrix units and
    /// read a matrix less often; a group should have at least ten blocks, because the last one is computed whole.
    pub(super) fn rows_of(&self, sizes: &RaggedSizes) -> Option<usize> {
        if let Some(rows) = self.rows {
            return Some(rows.clamp(1, sizes.rows.max(1)));
        }
        let of_group = sizes.rows / sizes.groups.max(1);
        let rows = match self.platform {
            PlatformKind::Cpu => of_group.next_power_of_two().clamp(16, 128),
            PlatformKind::Cuda | PlatformKind::Tpu => rows_of_block(512, of_group),
        };
        (rows < sizes.rows).then_some(rows)
    }

    /// The first row of a block is a multiple of this: any row on a CPU, whole tiles of memory elsewhere. A TPU then
    /// does slices, product and update as one.
    pub(super) fn tile_of(&self, block: usize) -> usize {
        match self.platform {
            PlatformKind::Cpu => 1,
            PlatformKind::Cuda | PlatformKind::Tpu if block.is_multiple_of(TILE) => TILE,
            PlatformKind::Cuda | PlatformKind::Tpu => block,
        }
    }
}

/// The most bytes of a block's scores on a CPU, so that they stay in its cache.
const CPU_SCORE_BYTES: usize = 8 << 20;

/// The most tokens of a row that a CPU attends to at once, if it has a part of the queries.
const SHORT_ROW: usize = 256;

/// Rows of a tile in a TPU's memory, of any type: (8, 128) or (16, 128) elements.
pub(super) const TILE: usize = 16;
