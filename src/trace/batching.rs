//! `vmap` inside a trace.

use std::panic::Location;

use super::context::{self, CallSite, apply, push_values};
use super::control::{ports, trace_tree};
use super::{Axes, Tensor, TensorTree, TraceError, TraceErrorKind, called, refill};
use crate::batching::{BatchAxis, inline};
use crate::ir::{GraphBuilder, Name, PortInfo, TensorType, Value};
use crate::ops::{AxisList, Batched, Transpose, aligned};
use meshloom_hlo::message::counted;

/// Where the batch is in each leaf of a tree: one axis for all, or one for each leaf in visiting order, `None` for a
/// leaf without. Axes count from the front (0, 1, ..) or the back (-1, -2, ..).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedAxes(Spread);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Spread {
    All(Option<i32>),
    Leaves(Vec<Option<i32>>),
}

impl Default for MappedAxes {
    fn default() -> MappedAxes {
        MappedAxes::from(0)
    }
}

impl From<i32> for MappedAxes {
    fn from(axis: i32) -> MappedAxes {
        MappedAxes(Spread::All(Some(axis)))
    }
}

impl From<Option<i32>> for MappedAxes {
    fn from(axis: Option<i32>) -> MappedAxes {
        MappedAxes(Spread::All(axis))
    }
}

impl<const N: usize> From<[Option<i32>; N]> for MappedAxes {
    fn from(axes: [Option<i32>; N]) -> MappedAxes {
        MappedAxes(Spread::Leaves(axes.into()))
    }
}

impl From<Vec<Option<i32>>> for MappedAxes {
    fn from(axes: Vec<Option<i32>>) -> MappedAxes {
        MappedAxes(Spread::Leaves(axes))
    }
}

impl MappedAxes {
    /// One entry for each of `count` leaves.
    fn leaves(&self, what: &str, count: usize) -> Result<Vec<Option<i32>>, TraceErrorKind> {
        match &self.0 {
            Spread::All(axis) => Ok(vec![*axis; count]),
            Spread::Leaves(axes) if axes.len() == count => Ok(axes.clone()),
            Spread::Leaves(axes) => Err(TraceErrorKind::Mismatch {
                what: format!("the {what} axes of a vmap"),
                expected: format!("one for each of {}", counted(count, "leaf")),
                found: axes.len().to_string(),
            }),
        }
    }
}

/// How a [`vmap`] maps.
#[derive(Clone, Debug, Default)]
pub struct VmapOptions {
    /// The axis of each input that runs over the examples; `None` for an input that all of them share.
    pub inputs: MappedAxes,
    /// The axis of each output that runs over the examples; `None` for one that must be the same for all.
    pub outputs: MappedAxes,
    /// The logical axis name of the batch: it is put before the names that `f` gives with [`Tensor::with_axes`], so the
    /// rules in force shard the batch. A dimension of an example that `f` gives the same name has none then. By default
    /// it is the name that the mapped axis has in the first input that declares one, as an input of the traced function
    /// or by [`Tensor::with_axes`]. Without a name, such a value is not split along the batch.
    pub name: Option<&'static str>,
    /// Number of examples; needed only when no input is mapped.
    pub size: Option<usize>,
}

impl VmapOptions {
    /// The same with these input axes.
    #[must_use]
    pub fn inputs(self, axes: impl Into<MappedAxes>) -> VmapOptions {
        VmapOptions { inputs: axes.into(), ..self }
    }

    /// The same with these output axes.
    #[must_use]
    pub fn outputs(self, axes: impl Into<MappedAxes>) -> VmapOptions {
        VmapOptions { outputs: axes.into(), ..self }
    }

    /// The same with a name for the batch.
    #[must_use]
    pub fn named(self, name: &'static str) -> VmapOptions {
        VmapOptions { name: Some(name), ..self }
    }
}

/// Applies `f`, a function of one example, to a batch: the leading dimension of every leaf of `inputs` runs over the
/// examples, and so does that of every output. `f` may use outer tensors, which all examples share. It is traced once
/// and becomes one computation over the batch, not a loop.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, grad, vmap};
/// # use meshloom::ir::DType::F32;
/// // The gradient of each example's loss on its own.
/// let specs = (TensorSpec::new(F32, [8]), TensorSpec::new(F32, [32, 8]));
/// let function = Function::trace("per_example", specs, |(w, xs)| vmap(xs, |x| grad(w, |w| (w * x).sum(..).tanh())))?;
/// assert_eq!(function.outputs().ty.to_string(), "f32[32,8]");
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn vmap<P: TensorTree, O: TensorTree>(inputs: P, f: impl FnOnce(P) -> O) -> O {
    vmap_with(VmapOptions::default(), inputs, f)
}

/// [`vmap`] with options: other axes, inputs and outputs without the batch, a name for the batch.
///
/// ```
/// # use meshloom::trace::{Function, TensorSpec, VmapOptions, vmap_with};
/// # use meshloom::ir::DType::F32;
/// // Rows of `x` against one vector; the results stand in columns.
/// let specs = (TensorSpec::new(F32, [32, 8]), TensorSpec::new(F32, [8]));
/// let options = VmapOptions::default().inputs([Some(0), None]).outputs(1).named("examples");
/// let function = Function::trace("scaled", specs, |inputs| vmap_with(options, inputs, |(x, w)| x * w))?;
/// assert_eq!(function.outputs().ty.to_string(), "f32[8,32]");
/// # Ok::<(), meshloom::Error>(())
/// ```
#[track_caller]
pub fn vmap_with<P: TensorTree, O: TensorTree>(options: VmapOptions, inputs: P, f: impl FnOnce(P) -> O) -> O {
    let place = Location::caller();
    let leaves = inputs.leaves();
    let examples = Examples::new(&options, &leaves, &inputs.paths(), place).unwrap_or_else(|problem| {
        // After an earlier error types mean nothing, and that error is the one to report.
        if leaves.iter().all(|leaf| leaf.value != context::POISON) {
            context::fail(problem, place);
        }
        Examples::unmapped(&leaves, place)
    });
    let arguments: Vec<Tensor> =
        leaves.iter().zip(&examples.axes).map(|(&leaf, &axis)| front(leaf, axis, place)).collect();
    let (traced, shape) =
        trace_tree("vmap", examples.ports.clone(), None, place, |tensors| f(refill(&inputs, tensors)));
    let results = traced.map_err(context::fail_error).ok().and_then(|body| {
        let (graph, captured) = body.captures_first();
        let operands = [&captured[..], &arguments].concat();
        let axes = options.outputs.leaves("output", graph.outputs().len());
        let axes = axes.map_err(|problem| context::fail(problem, place)).ok()?;
        let mapped = captured.iter().map(|_| false).chain(examples.axes.iter().map(Option::is_some));
        push_values(&operands, place, |builder, values| {
            let operand = |(&value, batched)| Batched { value, batched };
            let operands: Vec<Batched> = values.iter().zip(mapped).map(operand).collect();
            let results = inline(builder, &graph, &operands, examples.axis)?;
            let outputs = results.into_iter().zip(axes).zip(shape.paths());
            outputs.map(|((result, axis), path)| put(builder, result, axis, &path, examples.axis.size)).collect()
        })
    });
    refill(&shape, &mut results.unwrap_or_default().into_iter())
}

/// The examples of a `vmap`, as its inputs describe them.
struct Examples {
    axis: BatchAxis,
    /// For each leaf, the axis that runs over the examples.
    axes: Vec<Option<usize>>,
    /// For each leaf, the type and port that `f` gets.
    ports: Vec<(TensorType, PortInfo)>,
}

impl Examples {
    fn unmapped(leaves: &[Tensor], place: CallSite) -> Examples {
        let ports = ports(leaves, place);
        Examples { axis: BatchAxis::new(1), axes: vec![None; leaves.len()], ports }
    }

    fn new(
        options: &VmapOptions,
        leaves: &[Tensor],
        paths: &[String],
        place: CallSite,
    ) -> Result<Examples, TraceErrorKind> {
        let mut examples = Examples::unmapped(leaves, place);
        let axes = options.inputs.leaves("input", leaves.len())?;
        // The number of examples, and the source that states it.
        let mut size = options.size.map(|size| (size, "the options".to_owned()));
        for (index, path) in paths.iter().enumerate() {
            let Some(axis) = axes[index] else { continue };
            let (ty, _) = &mut examples.ports[index];
            let what = format!("axis {axis} of {}", describe("input", path));
            let found = ty.to_string();
            let Some(position) = resolve(axis, ty.rank()) else {
                let expected = "an axis in range, or `None` for an input without a batch".to_owned();
                return Err(TraceErrorKind::Mismatch { what, expected, found });
            };
            let own = ty.dims.remove(position);
            let (expected, source) =
                size.get_or_insert_with(|| (own, format!("axis {axis} of {}", describe("input", path))));
            if own != *expected {
                let expected = format!("size {expected}, as {source} has");
                return Err(TraceErrorKind::Mismatch { what, expected, found: format!("{own} in {found}") });
            }
            examples.axes[index] = Some(position);
        }
        let Some((size, _)) = size else {
            let message = "a vmap that maps no input needs `VmapOptions::size`".to_owned();
            return Err(TraceErrorKind::Other(message));
        };
        let declared = || {
            let of_leaf = |(&leaf, &axis): (&Tensor, &Option<usize>)| context::names_of(leaf).get(axis?).copied();
            leaves.iter().zip(&examples.axes).filter_map(of_leaf).find(|name| !name.is_none())
        };
        let name = options.name.map(Name::new).or_else(declared).unwrap_or_default();
        examples.axis = BatchAxis { size, name };
        Ok(examples)
    }
}

fn resolve(axis: i32, rank: usize) -> Option<usize> {
    axis.resolve(rank).ok().and_then(|axes| axes.first().copied())
}

fn describe(port: &str, path: &str) -> String {
    format!("{} of a vmap", called(port, path))
}

/// The tensor with the mapped axis in front.
fn front(tensor: Tensor, axis: Option<usize>, place: CallSite) -> Tensor {
    match axis {
        None | Some(0) => tensor,
        Some(axis) => {
            let rest = (0..tensor.rank()).filter(|&dim| dim != axis);
            let permutation = std::iter::once(axis).chain(rest).collect();
            apply(Transpose { permutation }, &[tensor], place)
        }
    }
}

/// A result with the batch where the options want it.
fn put(
    builder: &mut GraphBuilder,
    result: Batched,
    axis: Option<i32>,
    path: &str,
    size: usize,
) -> Result<Value, TraceError> {
    let mismatch = |builder: &GraphBuilder, expected: &str| {
        let what = describe("output", path);
        let found = builder.ty(result.value).to_string();
        let kind = TraceErrorKind::Mismatch { what, expected: expected.to_owned(), found };
        Err(TraceError { kind, origin: builder.origin() })
    };
    let Some(axis) = axis else {
        if result.batched {
            return mismatch(builder, "a value that is the same for all examples, since its axis is `None`");
        }
        return Ok(result.value);
    };
    let value = aligned(builder, result, size)?;
    let rank = builder.ty(value).rank();
    let Some(position) = resolve(axis, rank) else {
        return mismatch(builder, &format!("a rank that has an axis {axis}"));
    };
    let mut permutation: AxisList = (1..rank).collect();
    permutation.insert(position, 0);
    Ok(builder.transpose(value, &permutation)?)
}
