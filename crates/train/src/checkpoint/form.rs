//! The form of a value in a checkpoint, which does not depend on the form that it has in a run.
//!
//! In a checkpoint, all layers of a parameter share one leading dimension: `layers.mlp.up` is `[layers, embed, mlp]`. A
//! run may hold them in the same form, in a pipeline's dimensions `[repeats, stages, layers per stage, ..]`, whose
//! row-major order is that of the layers, or unrolled, as `layers.3.mlp.up`. Each of these is a set of boxes of the one
//! form, so a run reads what another wrote by cutting boxes out of boxes. If replicas train on their own, the replica
//! dimension comes before the layers.

use std::collections::HashMap;
use std::ops::Range;

use super::CheckpointError;
use meshloom::ir::{DType, TensorType};
use meshloom::nn::layer_of;
use meshloom::pjrt::{ShardBox, ShardLayout, shared_runs};
use meshloom::trace::{Param, Tree};
use meshloom::transform::diloco::REPLICAS;

/// A value of a state as a run holds it, and what it is in a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    /// Path in a checkpoint.
    pub path: String,
    /// Type in a checkpoint.
    pub ty: TensorType,
    /// Type in the run.
    pub own_ty: TensorType,
    /// Whether the first dimension is that of replicas.
    pub has_replicas: bool,
    layers: Layers,
}

/// Which dimensions of a run's value are layers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Layers {
    /// None.
    None,
    /// So many, after that of replicas.
    Stacked(usize),
    /// None: the value is that of this layer.
    One(usize),
}

/// A part of what a device holds that is one box in the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// In the checkpoint's value.
    pub stored: ShardBox,
    /// In the device's part, as [`Leaf::view`] has it.
    pub local: ShardBox,
}

/// The leaves of a state's declaration, in its order. Layers that are apart have one path.
pub(super) fn leaves<T: Tree<Leaf = Param>>(declared: &T, prefix: &str) -> Result<Vec<Leaf>, CheckpointError> {
    let mut leaves = Vec::new();
    for (path, param) in declared.paths().into_iter().zip(declared.leaves()) {
        if path.is_empty() {
            return Err(CheckpointError::Path { path });
        }
        leaves.push(Leaf::new(&format!("{prefix}{path}"), &param));
    }
    let mut layers: HashMap<String, usize> = HashMap::new();
    for leaf in &leaves {
        let seen = layers.entry(leaf.path.clone()).or_default();
        // Layers that are apart are visited in order.
        match leaf.layers {
            Layers::One(layer) if layer == *seen => *seen += 1,
            _ if *seen == 0 => *seen = usize::MAX,
            _ => return Err(CheckpointError::Path { path: leaf.path.clone() }),
        }
    }
    for leaf in &mut leaves {
        if matches!(leaf.layers, Layers::One(_)) {
            leaf.ty.dims[usize::from(leaf.has_replicas)] = layers[&leaf.path];
        }
    }
    Ok(leaves)
}

impl Leaf {
    fn new(path: &str, param: &Param) -> Leaf {
        let own_ty = param.spec.ty.clone();
        let has_replicas = param.spec.axes.first().is_some_and(|name| name.text() == REPLICAS);
        let (path, layers) = match (layer_of(path), param.stacked_dims) {
            (Some((path, layer)), 0) => (path, Layers::One(layer)),
            (_, 0) => (path.to_owned(), Layers::None),
            (_, count) => (path.to_owned(), Layers::Stacked(count)),
        };
        let mut leaf = Leaf { path, ty: own_ty.clone(), own_ty, has_replicas, layers };
        leaf.ty.dims = leaf.flatten(&leaf.own_ty.dims).into_iter().collect();
        leaf
    }

    /// Number of replicas, where there are any.
    pub(super) fn replicas(&self) -> Option<usize> {
        self.has_replicas.then(|| self.ty.dims[0])
    }

    /// The run's dimensions of layers.
    fn layer_dims(&self) -> Range<usize> {
        let first = usize::from(self.has_replicas);
        match self.layers {
            Layers::Stacked(count) => first..first + count,
            _ => first..first,
        }
    }

    /// Dimensions of the run's value, or of a part of it, with one dimension of layers.
    fn flatten(&self, dims: &[usize]) -> Vec<usize> {
        let layers = self.layer_dims();
        let mut flat = dims[..layers.start].to_vec();
        if self.layers != Layers::None {
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

    /// What a device holds, as boxes of the checkpoint's value. Padding is left out.
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
        match self.layers {
            Layers::None => vec![Segment { stored, local }],
            Layers::One(layer) => {
                vec![Segment { stored: with_layers(&stored, layer..layer + 1), local: with_layers(&local, 0..1) }]
            }
            Layers::Stacked(_) => {
                // Numbers of layers are places in a row-major value of one byte a layer.
                let numbers = |dims: &[usize]| TensorType::new(DType::U8, &dims[layers.clone()]);
                let (all, own) = (numbers(layout.value_dims()), numbers(&sizes));
                let runs = shared_runs((&all, &stored[layers.clone()]), (&own, &local[layers.clone()]));
                let segment =
                    |(from, to)| Segment { stored: with_layers(&stored, from), local: with_layers(&local, to) };
                runs.map(segment).collect()
            }
        }
    }
}
