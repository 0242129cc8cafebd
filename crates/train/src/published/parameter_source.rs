//! New parameters for a state on the devices: each device's part is read on its own, so the host never has a whole one.

use std::ops::Range;

use crate::Error;
use crate::checkpoint::ParameterLeaves;
use meshloom::compile::Program;
use meshloom::ir::{DType, InternalError, Literal};
use meshloom::pjrt::{Array, ArraySpec, Client};
use meshloom::trace::{LayerPath, MapTree, Param, Tree};
use meshloom_models::parameters::ParameterFile;
use meshloom_models::published::{ModelFiles, PublishedWeights};

/// The prefixes of the paths of parameters in the state of a run, each with whether a dimension over replicas stands
/// before theirs.
const PLACES: [(&str, bool); 5] = [
    ("params.", false),
    ("master.", false),
    ("inner.params.", true),
    ("inner.master.", true),
    ("outer.params.", false),
];

/// A source that parameters are read from.
pub(crate) enum ParameterSource<'a> {
    File(ParameterFile),
    Checkpoint(ParameterLeaves<'a>),
    Published(PublishedWeights),
}

impl ParameterSource<'_> {
    /// A box of a parameter of these dimensions, in the type that it is stored in.
    pub(crate) fn part(&self, path: &str, dims: &[usize], shard: &[Range<usize>]) -> Result<Literal, Error> {
        Ok(match self {
            ParameterSource::File(file) => file.read_part(path, shard)?,
            ParameterSource::Checkpoint(leaves) => leaves.read_part(path, dims, shard)?,
            ParameterSource::Published(weights) => weights.read_part(path, dims, shard)?,
        })
    }

    /// The parameters of a model as the first arguments of a program: each device's part is read on its own.
    pub(crate) fn put(&self, declared: &impl Tree<Leaf = Param>, program: &Program) -> Result<Vec<Array>, Error> {
        let executable = program.executable();
        let (client, devices) = (executable.client(), executable.devices());
        let named = Tree::paths(declared).into_iter().zip(declared.leaves());
        let put = |((path, param), ArraySpec { layout, .. }): ((String, Param), &ArraySpec)| -> Result<Array, Error> {
            let ty = param.spec.ty;
            Array::put_parts(client, ty.clone(), layout, devices, |index| {
                Ok(self.part(&path, &ty.dims, &layout.value_part(index))?.convert(ty.dtype))
            })
        };
        named.zip(program.inputs()).map(put).collect()
    }

    /// The files of the model, with the types of published tensors.
    pub(crate) fn with_dtypes(&self, files: ModelFiles) -> ModelFiles {
        match self {
            ParameterSource::Published(weights) => weights.with_dtypes(files),
            _ => files,
        }
    }

    pub(crate) fn dtype(&self, path: &str) -> Result<DType, Error> {
        let found = match self {
            ParameterSource::File(_) => None,
            ParameterSource::Checkpoint(leaves) => leaves.dtype(path),
            ParameterSource::Published(weights) => weights.dtype(&LayerPath::of(path, false).name),
        };
        Ok(found.ok_or_else(|| InternalError::new("a stored model", "each of its parameters"))?)
    }
}

/// A state with other parameters, and other master copies of them; all else is as it was.
pub(crate) fn with_parameters<S>(state: &S, source: &ParameterSource<'_>, client: &Client) -> Result<S, Error>
where
    S: Tree<Leaf = Array> + MapTree<Array, Mapped = S>,
{
    let new = |(path, before): (String, Array)| {
        let place =
            PLACES.iter().find_map(|&(prefix, is_of_replicas)| Some((path.strip_prefix(prefix)?, is_of_replicas)));
        match place {
            Some((path, is_of_replicas)) => read_like(&before, (path, is_of_replicas), source, client),
            None => Ok(before),
        }
    };
    let leaves = state.paths().into_iter().zip(state.leaves()).map(new).collect::<Result<Vec<_>, _>>()?;
    Ok(state.fill(leaves)?)
}

/// A parameter, spread as an array is and of its type.
fn read_like(
    before: &Array,
    (path, is_of_replicas): (&str, bool),
    source: &ParameterSource<'_>,
    client: &Client,
) -> Result<Array, Error> {
    let (ty, layout) = (before.ty(), before.layout());
    let replica_dims = usize::from(is_of_replicas);
    let dims = ty.dims.get(replica_dims..).unwrap_or_default();
    let devices: Vec<usize> = before.shards().iter().map(|shard| shard.device()).collect();
    Array::put_parts(client, ty.clone(), layout, &devices, |index| {
        let own = layout.value_part(index);
        let (replicas, shard) = own.split_at(replica_dims);
        let part = source.part(path, dims, shard)?.convert(ty.dtype);
        Ok(replicas.iter().fold(part, |part, replicas| part.repeated(replicas.len())))
    })
}
