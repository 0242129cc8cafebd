//! The borders of manual regions: programs within a program that are written for one device along some mesh axes, and
//! for all devices along the others (JAX's `shard_map`, Shardy's `manual_computation`).
//!
//! Within a region a value has the shape of its part along the manual axes. No sharding there names one of them; along
//! the other axes values are split as anywhere else. In a dimension, manual axes come before the others.

use super::Devices;
use super::rules::*;
use crate::ir::{Axes, Spec};

/// The direction in which a value passes a border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Passage {
    /// Into the region: the whole becomes the part of one device along the manual axes.
    Enter,
    /// Out of the region: the parts make up the whole. Devices that differ along a manual axis that splits no dimension
    /// have equal parts.
    Leave,
}

crate::ir::word_attribute!(Passage { Enter = "enter", Leave = "leave" });

/// A value enters a manual region or leaves it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ManualBorder {
    /// The direction.
    pub passage: Passage,
    /// The manual axes that split each dimension.
    pub spec: Spec,
    /// All axes that are manual in the region.
    pub axes: Axes,
    /// The dimensions of the result.
    pub dims: Dims,
}

crate::ir::op_text!(ManualBorder = "manual-border" {
    passage: bare,
    spec: key("spec"),
    axes: key("manual"),
    dims: result,
});

impl ManualBorder {
    /// The spec within the region of a value that has this one outside: what lies behind the manual axes.
    pub(crate) fn part_of(&self, whole: &Spec) -> Spec {
        let free = |(dim, axes): (usize, &Axes)| match axes.strip_prefix(self.spec.dim(dim)) {
            Some(rest) => rest.iter().copied().take_while(|axis| !self.axes.contains(axis)).collect(),
            None => Axes::new(),
        };
        Spec::new(whole.dims().iter().enumerate().map(free))
    }

    /// The spec outside the region of a value that has this one within.
    pub(crate) fn whole_of(&self, part: &Spec) -> Spec {
        let joined = |(dim, axes): (usize, &Axes)| self.spec.dim(dim).iter().chain(axes).copied().collect::<Axes>();
        Spec::new(part.dims().iter().enumerate().map(joined))
    }
}

impl Primitive for ManualBorder {
    /// The number of parts is checked where the mesh is known.
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        expect_operands(operands, 1)?;
        let (whole, part) = match self.passage {
            Passage::Enter => (&operands[0].dims, &self.dims),
            Passage::Leave => (&self.dims, &operands[0].dims),
        };
        refuse_if!(
            whole.len() != part.len() || self.spec.rank() != whole.len(),
            "a whole of {whole:?}, a part of {part:?} and a spec of {} have other numbers of dimensions",
            self.spec.rank()
        );
        for (dim, (&whole, &part)) in whole.iter().zip(part).enumerate() {
            let divides = if part == 0 { whole == 0 } else { whole.is_multiple_of(part) };
            refuse_if!(
                !divides || self.spec.dim(dim).is_empty() && whole != part,
                "dimension {dim} of the whole, {whole}, is not made up of parts of {part}"
            );
        }
        Ok(one(TensorType { dtype: operands[0].dtype, dims: self.dims.clone() }))
    }

    // Equal operands give unequal parts.
    rules!(facts = Facts { devices: Devices::Unknown, ..Facts::KERNEL });

    // Imported programs are neither differentiated nor batched. The partitioner itself joins the manual axes to the
    // others.
    rules!(derivatives: refused, factors: replicated, batch: refused, partition: unchanged);

    fn emit(&self, context: &mut dyn EmitContext) {
        let id = context.fail("a partitioned program, which has no manual regions");
        context.set_result(0, id);
    }
}

// The importer makes it, since the instruction states shardings over a mesh, which no op knows.
import!(ManualBorder: in_parts);
