//! The parameters, and the layers of them, that a fragment holds.
//!
//! The layers that are cut are those of the longest stack. Fragment 0 holds all other parameters, also of shorter
//! stacks beside it; the others hold layers, in turns or block by block. In a pipeline, the leading dimensions are
//! repeats, stages and layers of a stage. The stages are spread over devices, so they are never cut: a fragment holds
//! the same share of each stage's layers, counted repeat by repeat.

use std::ops::Range;

use super::options::{DilocoError, DilocoOptions, LayerOrder, Transport};
use super::schedule::Fragment;
use super::transport::{PartLayout, payload_bytes};
use crate::ir::{AxisNames, DType, Dims, Name};
use crate::trace::{Param, Tensor, Tree, arange, fail_internal, map, scan};

/// Facts about the parameters that their declarations do not state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The leading dimension, among those over layers, that runs over the stages of a pipeline.
    pub stage_dim: Option<usize>,
    /// The leading dimensions of the layers that are cut, such as those of a pipeline; without them, those of the stack
    /// with the most layers.
    pub stack: Option<Vec<usize>>,
    /// For each parameter, the number of parts into which each of its dimensions is cut. A block of numbers that share
    /// a scale stays within one part. An empty list means that no dimension is cut.
    pub parts: Vec<Vec<usize>>,
}

/// A parameter as it is declared.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Names of its dimensions; empty if there are none.
    pub(super) names: AxisNames,
    pub(super) dims: Dims,
    /// Parts of its dimensions.
    pub(super) parts: Vec<usize>,
    /// Number of leading dimensions over layers.
    stacked_dims: usize,
    /// Whether it is of the layers that fragments are cut from.
    is_cut: bool,
}

/// How the parameters are cut into fragments.
#[derive(Clone, Debug)]
pub struct Fragments {
    pub(super) leaves: Vec<Leaf>,
    /// The number of fragments, P; `None` if everything syncs at once.
    count: Option<usize>,
    order: LayerOrder,
    /// The leading dimensions that are cut, with their sizes.
    cut_dims: Vec<(usize, usize)>,
    /// The product of their sizes: the number of layers that are cut, for each stage if there are stages.
    layers: usize,
}

/// Layer fragments of one size, and how many layers each holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SizeClass {
    pub(super) fragments: Range<usize>,
    pub(super) layers: usize,
}

/// The share of the parameters that a program of a sync is for. Fragments with the same number of layers share one
/// program, which gets the number of the fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Share {
    /// All parameters.
    Whole,
    /// The parameters outside the layers.
    Outside,
    /// This number of layers.
    Layers(usize),
}

/// A fragment as a program sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// The parameters that it has a part in.
    pub(super) share: Share,
    /// The number of a fragment of layers, an `s32[]`.
    pub(super) fragment: Option<Tensor>,
}

impl Cut {
    /// All parameters.
    pub(super) const WHOLE: Cut = Cut { share: Share::Whole, fragment: None };
    /// The parameters outside the layers.
    pub(super) const OUTSIDE: Cut = Cut { share: Share::Outside, fragment: None };

    /// This number of layers of this fragment.
    pub(super) fn layers(layers: usize, fragment: Tensor) -> Cut {
        Cut { share: Share::Layers(layers), fragment: Some(fragment) }
    }

    /// The number of layers, and the fragment, if it is one of layers.
    fn by_layers(self) -> Option<(usize, Tensor)> {
        self.share.layers().zip(self.fragment)
    }
}

impl Share {
    /// The number of layers, if it is one of layers.
    pub(super) fn layers(self) -> Option<usize> {
        match self {
            Share::Whole | Share::Outside => None,
            Share::Layers(layers) => Some(layers),
        }
    }
}

impl Fragments {
    /// Cuts parameters as the options say.
    ///
    /// # Errors
    /// There are no stacked layers to cut, or they do not divide as the options want; or the layout is that of other
    /// parameters.
    pub fn new(
        options: &DilocoOptions,
        params: &impl Tree<Leaf = Param>,
        layout: &Layout,
    ) -> Result<Fragments, DilocoError> {
        let leaf = |((index, param), path): ((usize, Param), String)| {
            let rank = param.spec.ty.rank();
            let parts = match layout.parts.get(index) {
                None if layout.parts.is_empty() => vec![1; rank],
                Some(parts) if parts.len() == rank => parts.clone(),
                found => return Err(DilocoError::Parts { path, rank, found: found.map_or(0, Vec::len) }),
            };
            let stacked_dims = param.stacked_dims;
            Ok(Leaf { names: param.spec.axes, dims: param.spec.ty.dims, parts, stacked_dims, is_cut: false })
        };
        let leaves = params.leaves().into_iter().enumerate().zip(params.paths());
        let mut leaves: Vec<Leaf> = leaves.map(leaf).collect::<Result<_, _>>()?;
        let Some(streaming) = options.streaming else {
            return Ok(Fragments {
                leaves,
                count: None,
                order: LayerOrder::default(),
                cut_dims: Vec::new(),
                layers: 0,
            });
        };
        let stack = layout.stack.clone().or_else(|| longest_stack(&leaves)).ok_or(DilocoError::NoLayers)?;
        leaves.iter_mut().for_each(|leaf| leaf.is_cut = leaf.dims[..leaf.stacked_dims] == stack[..]);
        let kept = |(dim, _): &(usize, usize)| Some(*dim) != layout.stage_dim;
        let cut_dims: Vec<(usize, usize)> = stack.into_iter().enumerate().filter(kept).collect();
        let layers = cut_dims.iter().map(|(_, size)| size).product();
        let fragments = streaming.fragments;
        let of = if layout.stage_dim.is_some() { " of each stage" } else { "" };
        if layers < fragments - 1 {
            return Err(DilocoError::TooFewLayers { layers, of, fragments });
        }
        if !streaming.uneven && !layers.is_multiple_of(fragments - 1) {
            return Err(DilocoError::Layers { layers, of, fragments });
        }
        Ok(Fragments { leaves, count: Some(fragments), order: streaming.order, cut_dims, layers })
    }

    /// The layers of a fragment, in order; under a pipeline those of each stage, counted repeat by repeat. The list is
    /// empty for fragment 0 and for a number that no fragment has.
    pub fn layers_of(&self, fragment: Fragment) -> Vec<usize> {
        let (Fragment::Part(number), Some(count)) = (fragment, self.count) else { return (0..self.layers).collect() };
        if number == 0 || number >= count {
            return Vec::new();
        }
        let (cuts, index) = (count - 1, number - 1);
        match self.order {
            LayerOrder::Interleaved => (index..self.layers).step_by(cuts).collect(),
            LayerOrder::Sequential => {
                let (size, longer) = (self.layers / cuts, self.layers % cuts);
                let start = index * size + index.min(longer);
                (start..start + size + usize::from(index < longer)).collect()
            }
        }
    }

    /// Whether the parameter, by its place in the tree, is in that fragment, as a whole or by some of its layers.
    pub fn holds(&self, fragment: Fragment, param: usize) -> bool {
        match fragment {
            Fragment::Whole => param < self.leaves.len(),
            Fragment::Part(number) => self.leaves.get(param).is_some_and(|leaf| leaf.is_cut == (number > 0)),
        }
    }

    /// Bytes that a replica sends of each parameter when this fragment syncs, over all its devices.
    pub fn payload_bytes(&self, fragment: Fragment, transport: Transport, block: usize) -> Vec<usize> {
        let layers = self.layers_of(fragment).len();
        let bytes = |(index, leaf): (usize, &Leaf)| {
            let leading = matches!(fragment, Fragment::Part(1..)).then_some(layers);
            let dims = self.part_dims(leading, leaf);
            let layout = self.part_layout(leading.is_some(), leaf);
            if self.holds(fragment, index) { payload_bytes(transport, block, &dims, &layout) } else { 0 }
        };
        self.leaves.iter().enumerate().map(bytes).collect()
    }

    /// Layer fragments by size, the larger first. The list is empty if everything syncs at once.
    pub(super) fn size_classes(&self) -> Vec<SizeClass> {
        let Some(count) = self.count else { return Vec::new() };
        let (size, longer) = (self.layers / (count - 1), self.layers % (count - 1));
        let classes = [
            SizeClass { fragments: 1..longer + 1, layers: size + 1 },
            SizeClass { fragments: longer + 1..count, layers: size },
        ];
        classes.into_iter().filter(|class| !class.fragments.is_empty()).collect()
    }

    /// The numbers of a fragment's layers, `s32[layers]`.
    fn layer_numbers(&self, layers: usize, fragment: Tensor) -> Tensor {
        let cuts = self.count.map_or(1, |count| count - 1);
        let index = fragment - 1;
        let numbers = arange(DType::S32, layers);
        match self.order {
            LayerOrder::Interleaved => numbers * cuts as i32 + index,
            LayerOrder::Sequential => {
                let (size, longer) = (self.layers / cuts, self.layers % cuts);
                numbers + (index * size as i32 + index.minimum(longer as i32))
            }
        }
    }

    /// The leaves that fragments of a share have a part in.
    pub(super) fn members(&self, share: Share) -> impl Iterator<Item = (usize, &Leaf)> {
        let within = move |(_, leaf): &(usize, &Leaf)| match share {
            Share::Whole => true,
            Share::Outside => !leaf.is_cut,
            Share::Layers(_) => leaf.is_cut,
        };
        self.leaves.iter().enumerate().filter(within)
    }

    /// The parts of the leaves that the fragment has a part in. `leading` dimensions stand before the declared ones.
    /// Layers come as a dimension of their own in front of all, and the dimensions that they are cut from are gone.
    pub(super) fn take(&self, cut: Cut, leaves: &[Tensor], leading: usize) -> Vec<Tensor> {
        let members: Vec<Tensor> = self.members(cut.share).map(|(index, _)| leaf_at(leaves, index)).collect();
        let Some((layers, fragment)) = cut.by_layers() else { return members };
        map(self.layer_numbers(layers, fragment), |number| {
            members.iter().map(|&leaf| self.layer(leaf, number, leading)).collect::<Vec<_>>()
        })
    }

    /// The leaves with the parts of a fragment replaced.
    pub(super) fn put(&self, cut: Cut, leaves: &[Tensor], parts: Vec<Tensor>, leading: usize) -> Vec<Tensor> {
        let members: Vec<usize> = self.members(cut.share).map(|(index, _)| index).collect();
        let parts = match cut.by_layers() {
            None => parts,
            Some((layers, fragment)) => {
                let before: Vec<Tensor> = members.iter().map(|&index| leaf_at(leaves, index)).collect();
                let numbers = self.layer_numbers(layers, fragment);
                let replace = |leaves: Vec<Tensor>, (number, layers): (Tensor, Vec<Tensor>)| {
                    let pairs = leaves.into_iter().zip(layers);
                    let after: Vec<Tensor> =
                        pairs.map(|(leaf, layer)| self.with_layer(leaf, layer, number, leading)).collect();
                    (after, ())
                };
                scan(before, (numbers, parts), replace).0
            }
        };
        let (mut result, mut parts) = (leaves.to_vec(), parts.into_iter());
        for index in members {
            match (result.get_mut(index), parts.next()) {
                (Some(leaf), Some(part)) => *leaf = part,
                _ => drop(fail_internal("a fragment of DiLoCo", "a leaf and a part for each of its parameters")),
            }
        }
        result
    }

    /// The position of a layer, and the size of its part: 1 along the dimensions that are cut.
    fn place(&self, leaf: Tensor, number: Tensor, leading: usize) -> (Vec<Tensor>, Dims) {
        let mut sizes = leaf.dims();
        let mut starts = vec![number.zeros_like(); sizes.len()];
        let mut faster: usize = self.layers;
        for &(dim, size) in &self.cut_dims {
            faster /= size;
            // A tensor that stands for an error has no dimensions.
            if let (Some(start), Some(size_there)) = (starts.get_mut(leading + dim), sizes.get_mut(leading + dim)) {
                *start = (number / faster as i32) % size as i32;
                *size_there = 1;
            }
        }
        (starts, sizes)
    }

    fn layer(&self, leaf: Tensor, number: Tensor, leading: usize) -> Tensor {
        let (starts, sizes) = self.place(leaf, number, leading);
        let is_cut = |dim: usize| self.cut_dims.iter().any(|(cut, _)| leading + cut == dim);
        let kept: Dims = (0..sizes.len()).filter(|&dim| !is_cut(dim)).map(|dim| sizes[dim]).collect();
        leaf.dynamic_slice(&starts, &sizes).reshape(&kept)
    }

    fn with_layer(&self, leaf: Tensor, layer: Tensor, number: Tensor, leading: usize) -> Tensor {
        let (starts, sizes) = self.place(leaf, number, leading);
        leaf.dynamic_update_slice(layer.reshape(&sizes), &starts)
    }

    /// The dimensions of a member's part, with this number of layers if it consists of layers.
    pub(super) fn part_dims(&self, layers: Option<usize>, leaf: &Leaf) -> Dims {
        let Some(layers) = layers else { return leaf.dims.clone() };
        let is_cut = |dim: usize| self.cut_dims.iter().any(|(cut, _)| *cut == dim);
        let kept = leaf.dims.iter().enumerate().filter(|(dim, _)| !is_cut(*dim)).map(|(_, &size)| size);
        [layers].into_iter().chain(kept).collect()
    }

    /// The dimensions of a member's part: names and parts of those that are not cut, the layers' own in front.
    pub(super) fn part_layout(&self, by_layers: bool, leaf: &Leaf) -> PartLayout {
        let rank = leaf.dims.len();
        let name = |dim: usize| leaf.names.get(dim).copied().unwrap_or_default();
        let cut_dim = |dim: &usize| by_layers && self.cut_dims.iter().any(|(cut, _)| cut == dim);
        let mut layout = PartLayout::default();
        if by_layers {
            layout.names.push(Name::default());
            layout.parts.push(1);
            layout.replica_dim = 1;
        }
        for dim in (0..rank).filter(|dim| !cut_dim(dim)) {
            layout.names.push(name(dim));
            layout.parts.push(leaf.parts[dim]);
        }
        layout
    }
}

fn leaf_at(leaves: &[Tensor], index: usize) -> Tensor {
    let leaf = leaves.get(index).copied();
    leaf.unwrap_or_else(|| fail_internal("a fragment of DiLoCo", "a leaf for each of its parameters"))
}

/// The leading dimensions of the stack with the most layers.
fn longest_stack(leaves: &[Leaf]) -> Option<Vec<usize>> {
    let stacks = leaves.iter().filter(|leaf| leaf.stacked_dims > 0).map(|leaf| leaf.dims[..leaf.stacked_dims].to_vec());
    let layers = |stack: &[usize]| stack.iter().product::<usize>();
    // The first of several that are as long.
    stacks.reduce(|longest, stack| if layers(&stack) > layers(&longest) { stack } else { longest })
}
