//! How one value is split over a mesh.

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

pub use meshloom_hlo::mesh::Axes;
use meshloom_hlo::mesh::{Mesh, MeshAxis, MeshError};
use meshloom_hlo::message::counted;

use super::Dims;

/// The sharding of one value: for each dimension the mesh axes that it is split over, major to minor, and the mesh axes
/// over which the value is still a partial sum.
///
/// The text form needs the mesh's names: [`Spec::display`] gives `[fsdp, (data,tensor), _]{unreduced: stage}`, where
/// `_` is a dimension that is not split.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Spec {
    dims: SmallVec<[Axes; 4]>,
    unreduced: Axes,
}

impl Spec {
    /// Every device holds the whole value.
    pub fn replicated(rank: usize) -> Spec {
        Spec { dims: SmallVec::from_elem(Axes::new(), rank), unreduced: Axes::new() }
    }

    /// A spec from the axes of each dimension.
    pub fn new(dims: impl IntoIterator<Item = Axes>) -> Spec {
        Spec { dims: dims.into_iter().collect(), unreduced: Axes::new() }
    }

    /// A spec from axis names; an empty list is a dimension that is not split. For tests and examples.
    pub fn from_names(mesh: &Mesh, dims: &[&[&str]]) -> Result<Spec, SpecError> {
        let axes = |names: &&[&str]| names.iter().map(|name| mesh.require_axis(name)).collect::<Result<Axes, _>>();
        let spec = Spec::new(dims.iter().map(axes).collect::<Result<Vec<_>, _>>()?);
        spec.check(mesh)?;
        Ok(spec)
    }

    /// The same with these axes unreduced. Their order carries no meaning, so it is made canonical.
    #[must_use]
    pub fn with_unreduced(mut self, axes: impl IntoIterator<Item = MeshAxis>) -> Spec {
        self.unreduced = axes.into_iter().collect();
        self.unreduced.sort_unstable();
        self
    }

    /// The same with other axes on one dimension; unchanged when there is no such dimension.
    #[must_use]
    pub fn with_dim(mut self, dim: usize, axes: impl IntoIterator<Item = MeshAxis>) -> Spec {
        if let Some(slot) = self.dims.get_mut(dim) {
            *slot = axes.into_iter().collect();
        }
        self
    }

    /// The spec of a batch of values with this spec: with a leading dimension that is not split.
    #[must_use]
    pub fn with_leading_dim(&self) -> Spec {
        let dims = std::iter::once(Axes::new()).chain(self.dims.iter().cloned()).collect();
        Spec { dims, unreduced: self.unreduced.clone() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    /// The axes of every dimension.
    pub fn dims(&self) -> &[Axes] {
        &self.dims
    }

    /// The axes of one dimension; none when there is no such dimension.
    pub fn dim(&self, dim: usize) -> &[MeshAxis] {
        self.dims.get(dim).map_or(&[], |axes| axes)
    }

    /// The axes over which the value is still a partial sum, in mesh order.
    pub fn unreduced(&self) -> &[MeshAxis] {
        &self.unreduced
    }

    /// Whether every device holds the whole, final value.
    pub fn is_replicated(&self) -> bool {
        self.unreduced.is_empty() && self.dims.iter().all(|axes| axes.is_empty())
    }

    /// All axes that occur, those of the dimensions first.
    pub fn used_axes(&self) -> impl Iterator<Item = MeshAxis> {
        self.dims.iter().flatten().chain(&self.unreduced).copied()
    }

    /// The number of parts that a dimension is split into.
    pub fn part_count(&self, mesh: &Mesh, dim: usize) -> usize {
        self.dim(dim).iter().map(|&axis| mesh.size(axis)).product()
    }

    /// The number of parts that a value is split into.
    pub(crate) fn parts(&self, mesh: &Mesh) -> usize {
        self.dims.iter().flatten().map(|&axis| mesh.size(axis)).product()
    }

    /// The index of the part that a device holds.
    pub fn part_index(&self, mesh: &Mesh, device: usize, dim: usize) -> usize {
        self.dim(dim).iter().fold(0, |index, &axis| index * mesh.size(axis) + mesh.axis_index(device, axis))
    }

    /// Checks that every axis is the mesh's and occurs once.
    pub fn check(&self, mesh: &Mesh) -> Result<(), SpecError> {
        let mut seen = [false; Mesh::MAX_AXES];
        for axis in self.used_axes() {
            let spec = || self.display(mesh).to_string();
            if axis.index() >= mesh.axis_count() {
                let (mesh, count) = (mesh.to_string(), mesh.axis_count());
                return Err(SpecError::AxisOutOfRange { spec: spec(), axis: axis.index(), mesh, count });
            }
            if std::mem::replace(&mut seen[axis.index()], true) {
                return Err(SpecError::AxisTwice { spec: spec(), axis: mesh.name(axis).to_owned() });
            }
        }
        Ok(())
    }

    /// The dimensions of one device's part. Every dimension must divide evenly.
    pub fn local_dims(&self, mesh: &Mesh, dims: &[usize]) -> Result<Dims, SpecError> {
        let spec = || self.display(mesh).to_string();
        if dims.len() != self.rank() {
            return Err(SpecError::Rank { spec: spec(), spec_rank: self.rank(), rank: dims.len() });
        }
        let local = |(dim, &size): (usize, &usize)| {
            let parts = self.part_count(mesh, dim);
            match size.is_multiple_of(parts) {
                true => Ok(size / parts),
                false => Err(SpecError::NotDivisible { spec: spec(), dim, size, parts }),
            }
        };
        dims.iter().enumerate().map(local).collect()
    }

    /// For every device, the box of the value that it holds, as a range per dimension.
    pub fn boxes(&self, mesh: &Mesh, dims: &[usize]) -> Result<Vec<Vec<Range<usize>>>, SpecError> {
        let local = self.local_dims(mesh, dims)?;
        let range = |device, dim: usize| {
            let start = self.part_index(mesh, device, dim) * local[dim];
            start..start + local[dim]
        };
        Ok((0..mesh.device_count()).map(|device| (0..dims.len()).map(|dim| range(device, dim)).collect()).collect())
    }

    /// The text form, with the mesh's names.
    pub fn display<'a>(&'a self, mesh: &'a Mesh) -> SpecDisplay<'a> {
        SpecDisplay { spec: self, mesh }
    }
}

/// The text form of a spec: see [`Spec::display`].
#[derive(Clone, Copy, Debug)]
pub struct SpecDisplay<'a> {
    spec: &'a Spec,
    mesh: &'a Mesh,
}

impl fmt::Display for SpecDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |axes: &[MeshAxis]| self.mesh.names_of(axes);
        f.write_str("[")?;
        for (dim, axes) in self.spec.dims.iter().enumerate() {
            let comma = if dim > 0 { ", " } else { "" };
            match names(axes).as_slice() {
                [] => write!(f, "{comma}_")?,
                [name] => write!(f, "{comma}{name}")?,
                several => write!(f, "{comma}({})", several.join(","))?,
            }
        }
        f.write_str("]")?;
        if !self.spec.unreduced.is_empty() {
            write!(f, "{{unreduced: {}}}", names(&self.spec.unreduced).join(","))?;
        }
        Ok(())
    }
}

/// The role of a value, which selects its axis rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Parameters as they are stored between steps.
    Params,
    /// Parameters and activations as the forward and backward pass use them.
    #[default]
    Compute,
    /// Optimizer state.
    Optimizer,
}

/// An error in a spec. All of them are the user's to fix.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the fields are; a suggestion may be empty")]
pub enum SpecError {
    /// The mesh has no such axis.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// A mesh axis occurs twice in one spec.
    #[error("spec {spec} uses mesh axis {axis:?} twice; an axis can split one dimension, or be unreduced, once")]
    AxisTwice { spec: String, axis: String },
    /// A spec holds an axis number that its mesh does not have.
    #[error("spec {spec} refers to mesh axis number {axis}, but the mesh {mesh:?} has {count}")]
    AxisOutOfRange { spec: String, axis: usize, mesh: String, count: usize },
    /// The rank of the spec differs from that of the value.
    #[error("spec {spec} has {}, but the value has {rank}", counted(*.spec_rank, "dimension"))]
    Rank { spec: String, spec_rank: usize, rank: usize },
    /// A dimension is not a multiple of the devices that it is split over.
    #[error("dimension {dim} of size {size} cannot be split by {spec} into {parts} equal parts")]
    NotDivisible { spec: String, dim: usize, size: usize, parts: usize },
}

meshloom_hlo::debug_is_message!(SpecError);
