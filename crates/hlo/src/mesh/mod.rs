//! The device mesh.

mod devices;
mod error;
mod processes;

use std::fmt;

pub use devices::{DevicePlace, axes_along_slice, device_order, slice_shape};
pub use devices::{Piece, common_divisor, cut, dcn_sizes};
pub use error::MeshError;
use smallvec::SmallVec;

use crate::suggest::did_you_mean;

/// A list of mesh axes. For the axes of one dimension the order is major to minor.
pub type Axes = SmallVec<[MeshAxis; Mesh::MAX_AXES]>;

/// One axis of a [`Mesh`], by its place in it (0 is the most major).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeshAxis(u8);

impl MeshAxis {
    /// The axis at that place; `None` if no mesh can have so many axes.
    pub fn new(index: usize) -> Option<MeshAxis> {
        (index < Mesh::MAX_AXES).then_some(MeshAxis(index as u8))
    }

    /// The place in the mesh.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Devices arranged along named axes, major to minor.
///
/// Devices are numbered row-major: the last axis varies fastest, so in `data=2,fsdp=4` device 5 is `data` 1, `fsdp` 1.
/// The text form is that of the run config: `data=2,fsdp=4`. [`device_order`] gives each hardware device its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mesh {
    axes: Vec<(String, usize)>,
    /// The number of parts into which slices cut each axis; empty if none was stated.
    dcn: Vec<usize>,
}

impl Mesh {
    /// The most axes that a mesh can have. An axis is a byte wherever it is stored, and sixteen fit in a spec without
    /// allocation.
    pub const MAX_AXES: usize = 16;

    /// A mesh from names and sizes, major to minor. Without axes it is a single device.
    pub fn new<'a>(axes: impl IntoIterator<Item = (&'a str, usize)>) -> Result<Mesh, MeshError> {
        let mesh =
            Mesh { axes: axes.into_iter().map(|(name, size)| (name.to_owned(), size)).collect(), dcn: Vec::new() };
        let text = || mesh.to_string();
        let mut product = 1usize;
        for (index, (name, size)) in mesh.axes.iter().enumerate() {
            if *size == 0 || !is_axis_name(name) {
                return Err(MeshError::MeshSyntax { text: text(), part: format!("{name}={size}") });
            }
            if mesh.axes[..index].iter().any(|(earlier, _)| earlier == name) {
                return Err(MeshError::DuplicateAxis { text: text(), axis: name.clone() });
            }
            product = match product.checked_mul(*size) {
                Some(product) if product <= u32::MAX as usize && index < Mesh::MAX_AXES => product,
                _ => return Err(MeshError::MeshTooLarge { text: text() }),
            };
        }
        Ok(mesh)
    }

    /// A mesh from its text form, for that many devices. One size may be -1: it becomes what fills up the devices.
    pub fn parse(text: &str, devices: usize) -> Result<Mesh, MeshError> {
        let mut axes = Vec::new();
        let mut fill = None;
        for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let wrong = || MeshError::MeshSyntax { text: text.to_owned(), part: part.to_owned() };
            let (name, size) = part.split_once('=').ok_or_else(wrong)?;
            let (name, size) = (name.trim(), size.trim());
            if size == "-1" {
                if let Some(first) = fill.replace(axes.len()) {
                    let (first, _): (&str, usize) = axes[first];
                    let (first, second) = (first.to_owned(), name.to_owned());
                    return Err(MeshError::TwoFills { text: text.to_owned(), first, second });
                }
                axes.push((name, 1));
            } else {
                axes.push((name, size.parse().map_err(|_| wrong())?));
            }
        }
        // Checked once with 1 in place of -1, so that a wrong name or size is reported rather than its effect on the
        // product.
        let mut mesh = Mesh::new(axes)?;
        let product = mesh.device_count();
        if let Some(fill) = fill {
            if devices == 0 || !devices.is_multiple_of(product) {
                let axis = mesh.axes[fill].0.clone();
                return Err(MeshError::FillDoesNotDivide { text: text.to_owned(), axis, others: product, devices });
            }
            mesh.axes[fill].1 = devices / product;
        } else if product != devices {
            return Err(MeshError::DeviceCount { text: text.to_owned(), product, devices });
        }
        Ok(mesh)
    }

    /// The same mesh over several slices: `diloco=2,fsdp=2` says that these axes, or these factors of them, cross
    /// slices, over the data-center network (DCN). The crossing part of an axis is its major one; the rest stays within
    /// a slice.
    pub fn with_dcn(mut self, text: &str) -> Result<Mesh, MeshError> {
        let mut dcn = vec![1; self.axes.len()];
        for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
            let wrong = || MeshError::DcnSyntax { text: text.to_owned(), part: part.to_owned() };
            let (name, size) = part.split_once('=').ok_or_else(wrong)?;
            let axis = self.require_axis(name.trim())?;
            let parts: usize = size.trim().parse().ok().filter(|&size| size > 0).ok_or_else(wrong)?;
            if !self.size(axis).is_multiple_of(parts) {
                let (axis, size) = (self.name(axis).to_owned(), self.size(axis));
                return Err(MeshError::DcnDoesNotDivide { text: text.to_owned(), axis, size, parts });
            }
            if std::mem::replace(&mut dcn[axis.index()], parts) != 1 {
                let (text, axis) = (text.to_owned(), self.name(axis).to_owned());
                return Err(MeshError::DuplicateAxis { text, axis });
            }
        }
        self.dcn = if dcn.iter().all(|&parts| parts == 1) { Vec::new() } else { dcn };
        Ok(self)
    }

    /// The number of parts into which the borders of slices cut an axis; 1 for an axis that stays within a slice.
    pub fn dcn_size(&self, axis: MeshAxis) -> usize {
        self.dcn.get(axis.index()).copied().unwrap_or(1)
    }

    /// The text form of what crosses slices: `diloco=2`; empty when nothing was said.
    pub fn dcn_text(&self) -> String {
        let crossing = self.axes().filter(|axis| self.dcn_size(*axis) > 1);
        crossing.map(|axis| format!("{}={}", self.name(axis), self.dcn_size(axis))).collect::<Vec<_>>().join(",")
    }

    /// Number of axes.
    pub fn axis_count(&self) -> usize {
        self.axes.len()
    }

    /// The axes, major to minor.
    pub fn axes(&self) -> impl ExactSizeIterator<Item = MeshAxis> + use<> {
        (0..self.axes.len() as u8).map(MeshAxis)
    }

    /// The names of the axes, major to minor.
    pub fn axis_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.axes.iter().map(|(name, _)| name.as_str())
    }

    /// The axis of that name.
    pub fn axis(&self, name: &str) -> Option<MeshAxis> {
        self.axes().find(|axis| self.axes[axis.index()].0 == name)
    }

    /// The axis of that name, or an error that suggests one.
    pub fn require_axis(&self, name: &str) -> Result<MeshAxis, MeshError> {
        self.axis(name).ok_or_else(|| MeshError::UnknownAxis {
            mesh: self.to_string(),
            axis: name.to_owned(),
            suggestion: did_you_mean(name, self.axis_names()),
        })
    }

    /// The name of an axis; `?` for one that belongs to a larger mesh.
    pub fn name(&self, axis: MeshAxis) -> &str {
        self.axes.get(axis.index()).map_or("?", |(name, _)| name)
    }

    /// The name of the axis that an axis is a sub-axis of; its own if it is whole.
    pub fn parent_name(&self, axis: MeshAxis) -> &str {
        self.name(axis).split(":(").next().unwrap_or_default()
    }

    /// The product of the sizes of the sub-axes before a sub-axis; 1 for a whole axis.
    fn size_before(&self, axis: MeshAxis) -> usize {
        let inside = self.name(axis).split_once(":(").and_then(|(_, rest)| rest.split_once(')'));
        inside.and_then(|(before, _)| before.parse().ok()).unwrap_or(1)
    }

    /// A mesh with other axes, which are known to be right.
    fn with_axes(&self, axes: Vec<(String, usize)>) -> Mesh {
        // The DCN parts are left out: only the whole mesh is asked which devices its axes run over.
        Mesh { axes, dcn: Vec::new() }
    }

    /// The mesh with an axis cut in two, `major` parts and the rest, and for each axis of this mesh what became of it;
    /// `None` if no more axes fit.
    pub fn cut(&self, axis: MeshAxis, major: usize) -> Option<(Mesh, Vec<Axes>)> {
        let sizes = |other: MeshAxis| match self.size(other) {
            size if other == axis => vec![major, size / major],
            size => vec![size],
        };
        self.cut_into(&self.axes().map(sizes).collect::<Vec<_>>())
    }

    /// The mesh with each axis cut into parts of these sizes, major to minor, and for each axis of this mesh what
    /// became of it; `None` if no more axes fit.
    pub fn cut_into(&self, sizes: &[Vec<usize>]) -> Option<(Mesh, Vec<Axes>)> {
        let (mut axes, mut parts) = (Vec::new(), Vec::new());
        for (old, sizes) in self.axes().zip(sizes) {
            let (parent, mut before) = (self.parent_name(old), self.size_before(old));
            let mut of_axis = Axes::new();
            for &size in sizes {
                of_axis.push(MeshAxis::new(axes.len())?);
                let whole = size == self.size(old);
                axes.push((if whole { self.name(old).to_owned() } else { format!("{parent}:({before}){size}") }, size));
                before *= size;
            }
            parts.push(of_axis);
        }
        Some((self.with_axes(axes), parts))
    }

    /// The names of axes, in which neighbouring sub-axes are named as the larger one that they make up, or as the whole
    /// axis.
    pub fn names_of(&self, axes: &[MeshAxis]) -> Vec<String> {
        let follow = |&before: &MeshAxis, &next: &MeshAxis| {
            let parent = self.parent_name(next);
            let is_part = parent != self.name(next) && parent == self.parent_name(before);
            is_part && self.size_before(next) == self.size_before(before) * self.size(before)
        };
        let name = |run: &[MeshAxis]| match run {
            &[axis] => self.name(axis).to_owned(),
            _ => {
                let (parent, before) = (self.parent_name(run[0]), self.size_before(run[0]));
                let size: usize = run.iter().map(|&axis| self.size(axis)).product();
                let siblings = self.axes().filter(|&axis| self.parent_name(axis) == parent);
                let is_whole = size == siblings.map(|axis| self.size(axis)).product::<usize>();
                if is_whole { parent.to_owned() } else { format!("{parent}:({before}){size}") }
            }
        };
        axes.chunk_by(follow).map(name).collect()
    }

    /// The size of an axis; 1 for one that belongs to a larger mesh.
    pub fn size(&self, axis: MeshAxis) -> usize {
        self.axes.get(axis.index()).map_or(1, |(_, size)| *size)
    }

    /// Number of devices.
    pub fn device_count(&self) -> usize {
        self.axes.iter().map(|(_, size)| size).product()
    }

    /// Where a device stands along an axis.
    pub fn axis_index(&self, device: usize, axis: MeshAxis) -> usize {
        device / self.stride(axis) % self.size(axis)
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, size)) in self.axes.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{name}={size}")?;
        }
        Ok(())
    }
}

fn is_axis_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == '-')
}
