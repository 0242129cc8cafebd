//! The form of a value in a checkpoint, which does not depend on the form that it has in a run.
//!
//! In a checkpoint, layers of a parameter that are alike share one leading dimension: `layers.mlp.up` is
//! `[layers, embed, mlp]`. A run may hold them in the same form, in a pipeline's dimensions
//! `[repeats, stages, layers per stage, ..]`, whose row-major order is that of the layers, every second layer in one
//! value and the others in another, or unrolled, as `layers.3.mlp.up`. Each of these is a set of boxes of the one form,
//! so a run reads what another wrote by cutting boxes out of boxes. If replicas train on their own, the replica
//! dimension comes before the layers.
//!
//! Layers whose parameters of one name differ in type do not share a dimension: `layers.mlp.up` may be of the first
//! three layers, and `layers.3::1.mlp.up` of those from number 3 on. Layers whose numbers are not consecutive are
//! listed: `layers.0,1,3.mlp.up`.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use super::CheckpointError;
use meshloom::ir::{DType, TensorType};
use meshloom::pjrt::{ShardBox, ShardLayout, shared_runs};
use meshloom::trace::{LayerNumbers, LayerPath, Param, Tree};
use meshloom::transform::diloco::REPLICAS;

/// A value of a state as a run holds it, and its form in a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct RunLeaf {
    /// Path in a checkpoint.
    pub path: String,
    /// Type in a checkpoint.
    pub ty: TensorType,
    /// Type in the run.
    pub own_ty: TensorType,
    /// Whether the first dimension is that of replicas.
    pub has_replicas: bool,
    /// The layers that the value holds; `None` if it belongs to no layer.
    layers: Option<Layers>,
}

/// The dimensions of a run's value that run over layers, and the layers in them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layers {
    /// Its dimensions over layers, after that of replicas.
    dims: usize,
    /// The places of its layers among those of the checkpoint's value.
    places: Vec<usize>,
}

/// A part of what a device holds that is one box in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// In the checkpoint's value.
    pub stored: ShardBox,
    /// In the device's part, as [`RunLeaf::view`] has it.
    pub local: ShardBox,
}

/// A leaf, by its place among all, and the numbers of its layers.
type LeafMember = (usize, Vec<usize>);

/// The leaves of a state's declaration, in its order. Layers that are apart have one path.
pub(super) fn leaves<T: Tree<Leaf = Param>>(declared: &T, prefix: &str) -> Result<Vec<RunLeaf>, CheckpointError> {
    let mut leaves = Vec::new();
    // The leaves, and the numbers of their layers, that share a value in the checkpoint.
    let mut groups: BTreeMap<(String, String), Vec<LeafMember>> = BTreeMap::new();
    let mut taken = HashSet::new();
    for (index, (path, param)) in declared.paths().into_iter().zip(declared.leaves()).enumerate() {
        if path.is_empty() {
            return Err(CheckpointError::Path(path));
        }
        let LayerPath { name, numbers } = LayerPath::of(&format!("{prefix}{path}"), param.stacked_dims > 0);
        let leaf = RunLeaf::new(name, &param, numbers.is_some());
        if let Some(LayerNumbers { first, step }) = numbers {
            let count: usize = param.spec.ty.dims[leaf.layer_dims()].iter().product();
            let numbers = (0..count).map(|layer| first + layer * step.unwrap_or(1)).collect();
            groups.entry((leaf.path.clone(), leaf.type_of_layer().to_string())).or_default().push((index, numbers));
        } else if !taken.insert(leaf.path.clone()) {
            return Err(CheckpointError::Path(leaf.path));
        }
        leaves.push(leaf);
    }
    for ((name, _), members) in groups {
        let mut all: Vec<usize> = members.iter().flat_map(|(_, numbers)| numbers).copied().collect();
        all.sort_unstable();
        let path = path_of(name, &all);
        let has_two_of_a_layer = all.windows(2).any(|pair| pair[0] == pair[1]);
        if has_two_of_a_layer || !taken.insert(path.clone()) {
            return Err(CheckpointError::Path(path));
        }
        for (index, numbers) in members {
            let leaf = &mut leaves[index];
            leaf.path.clone_from(&path);
            leaf.ty.dims[usize::from(leaf.has_replicas)] = all.len();
            if let Some(layers) = &mut leaf.layers {
                layers.places = numbers.iter().map(|number| all.partition_point(|other| other < number)).collect();
            }
        }
    }
    Ok(leaves)
}

/// The path of a name of layers with these numbers, in order.
fn path_of(name: String, all: &[usize]) -> String {
    let first = all.first().copied().unwrap_or_default();
    let step = all.get(1).map_or(1, |second| second - first);
    if all.iter().enumerate().all(|(place, &number)| number == first + place * step) {
        return LayerPath { name, numbers: Some(LayerNumbers { first, step: Some(step) }) }.to_string();
    }
    let listed: Vec<String> = all.iter().map(usize::to_string).collect();
    LayerPath::numbered(&name, &listed.join(","))
}

impl RunLeaf {
    fn new(path: String, param: &Param, has_layers: bool) -> RunLeaf {
        let own_ty = param.spec.ty.clone();
        let has_replicas = param.spec.axes.first().is_some_and(|name| name.text() == REPLICAS);
        let layers = has_layers.then_some(Layers { dims: param.stacked_dims, places: Vec::new() });
        let mut leaf = RunLeaf { path, ty: own_ty.clone(), own_ty, has_replicas, layers };
        leaf.ty.dims = leaf.flatten(&leaf.own_ty.dims).into_iter().collect();
        leaf
    }

    /// The type of one layer, of one replica.
    fn type_of_layer(&self) -> TensorType {
        TensorType::new(self.own_ty.dtype, &self.own_ty.dims[self.layer_dims().end..])
    }

    /// Number of replicas, where there are any.
    pub(super) fn replicas(&self) -> Option<usize> {
        self.has_replicas.then(|| self.ty.dims[0])
    }

    /// The run's dimensions of layers.
    fn layer_dims(&self) -> Range<usize> {
        let first = usize::from(self.has_replicas);
        first..first + self.layers.as_ref().map_or(0, |layers| layers.dims)
    }

    /// Dimensions of the run's value, or of a part of it, with one dimension of layers.
    fn flatten(&self, dims: &[usize]) -> Vec<usize> {
        let layers = self.layer_dims();
        let mut flat = dims[..layers.start].to_vec();
        if self.layers.is_some() {
            flat.push(dims[layers.clone()].iter().product());
        }
        flat.extend_from_slice(&dims[layers.end..]);
        flat
    }

    /// The type of a device's part, with one dimension of layers; row-major, the bytes are the same.
    pub(super) fn view(&self, layout: &ShardLayout, device: usize) -> TensorType {
        let dims: Vec<usize> = layout.boxes()[device].iter().map(ExactSizeIterator::len).collect();
        TensorType::new(self.own_ty.dtype, &self.flatten(&dims))
    }

    /// The part of the value that a device holds, as boxes of the checkpoint's value. Padding is left out.
    pub(super) fn segments(&self, layout: &ShardLayout, device: usize) -> Vec<Segment> {
        let held = &layout.boxes()[device];
        let sizes: Vec<usize> = held.iter().map(ExactSizeIterator::len).collect();
        let stored = layout.value_part(device);
        let local: ShardBox = stored.iter().map(|range| 0..range.len()).collect();
        if stored.iter().any(Range::is_empty) {
            return Vec::new();
        }
        let layers = self.layer_dims();
        let with_layers = |shard: &ShardBox, run: Range<usize>| -> ShardBox {
            let (before, after) = (&shard[..layers.start], &shard[layers.end..]);
            before.iter().cloned().chain([run]).chain(after.iter().cloned()).collect()
        };
        let Some(Layers { places, .. }) = &self.layers else { return vec![Segment { stored, local }] };
        // Numbers of layers are places in a row-major value of one byte a layer.
        let numbers = |dims: &[usize]| TensorType::new(DType::U8, &dims[layers.clone()]);
        let (all, own) = (numbers(layout.value_dims()), numbers(&sizes));
        let runs = shared_runs((&all, &stored[layers.clone()]), (&own, &local[layers.clone()]));
        // Layers side by side in both are one piece.
        let pieces = |(from, to): (Range<usize>, Range<usize>)| {
            let mut pieces: Vec<(Range<usize>, Range<usize>)> = Vec::new();
            for (&place, to) in places[from].iter().zip(to) {
                match pieces.last_mut() {
                    Some((stored, local)) if stored.end == place => (stored.end, local.end) = (place + 1, to + 1),
                    _ => pieces.push((place..place + 1, to..to + 1)),
                }
            }
            pieces
        };
        let segment = |(from, to)| Segment { stored: with_layers(&stored, from), local: with_layers(&local, to) };
        runs.flat_map(pieces).map(segment).collect()
    }
}
