//! The stack of traces under way on this thread.
//!
//! Tracing a closure pushes a frame; tensor operations append nodes to the innermost frame. A tensor of an outer frame
//! that is used inside becomes an extra input of the inner graph (a capture), so that graphs are always closed.
//!
//! A wrong operation does not panic and does not return a `Result` (operators could not): the frame keeps the first
//! error, the operation yields a poisoned tensor, further operations do nothing, and the caller that started the trace
//! gets the error.

use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::error::{TraceError, TraceErrorKind};
use super::handle::Tensor;
use crate::ir::{
    AxisNames, DType, Definition, Graph, GraphBuilder, InternalError, OpError, Origin, PortInfo, Scope, TensorType,
    UserLine, Value,
};
use crate::ops::Op;

pub(crate) type CallSite = &'static Location<'static>;

/// The value index of a tensor that stands for an error.
pub(super) const POISON: Value = Value(u32::MAX);

struct Frame {
    id: u32,
    builder: GraphBuilder,
    /// Captured tensors of the frame below, and their inputs here.
    captures: Vec<(Value, Value)>,
    known: FxHashMap<Value, Value>,
    /// Paths of inputs, for messages.
    paths: FxHashMap<Value, Arc<str>>,
    /// The construct whose closure must not capture, if it is one.
    closed: Option<&'static str>,
    error: Option<TraceError>,
    scope: Scope,
}

#[derive(Default)]
struct Stack {
    frames: Vec<Frame>,
    /// The user's line, while a function of several ops runs.
    place: Option<CallSite>,
}

/// Frame ids are unique in the process, so that a tensor sent to another thread is never taken for one of a trace
/// there.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static STACK: RefCell<Stack> = RefCell::new(Stack::default());
}

fn with_stack<R>(f: impl FnOnce(&mut Stack) -> R) -> R {
    STACK.with_borrow_mut(f)
}

/// A traced closure body.
pub(super) struct Body {
    pub(super) builder: GraphBuilder,
    /// Explicit inputs.
    pub(super) inputs: Vec<Value>,
    /// Tensors of the enclosing frame that the body uses.
    pub(super) captured: Vec<Tensor>,
    /// The inputs that stand for them.
    pub(super) capture_inputs: Vec<Value>,
    pub(super) outputs: Vec<Value>,
}

impl Body {
    /// The body as a graph that takes the captures first.
    pub(super) fn captures_first(self) -> (Graph, Vec<Tensor>) {
        let order = self.capture_inputs.iter().chain(&self.inputs).copied().collect();
        (self.builder.finish_ordered(order, self.outputs), self.captured)
    }

    /// Several bodies as graphs that all take the captures of any of them first.
    pub(super) fn share_captures(bodies: Vec<Body>) -> (Vec<Graph>, Vec<Tensor>) {
        let mut captured: Vec<Tensor> = Vec::new();
        for &tensor in bodies.iter().flat_map(|body| &body.captured) {
            if !captured.contains(&tensor) {
                captured.push(tensor);
            }
        }
        let graph = |mut body: Body| {
            let mut order: Vec<Value> = Vec::with_capacity(captured.len() + body.inputs.len());
            for &tensor in &captured {
                let own = body.captured.iter().position(|&own| own == tensor);
                order.push(match own {
                    Some(index) => body.capture_inputs[index],
                    None => body.builder.input(type_of(tensor, Location::caller()), PortInfo::default()),
                });
            }
            order.extend(&body.inputs);
            body.builder.finish_ordered(order, body.outputs)
        };
        (bodies.into_iter().map(graph).collect(), captured)
    }
}

impl Stack {
    fn origin(&self, place: Option<CallSite>) -> Origin {
        let scope = self.frames.last().map_or(Scope::ROOT, |frame| frame.scope);
        Origin { place: self.place.or(place).map(UserLine::Rust), scope, ..Origin::default() }
    }

    fn fail(&mut self, error: TraceError) -> Tensor {
        if let Some(frame) = self.frames.last_mut() {
            frame.error.get_or_insert(error);
            return Tensor { frame: frame.id, value: POISON };
        }
        Tensor { frame: 0, value: POISON }
    }

    fn fail_with(&mut self, kind: TraceErrorKind, place: CallSite) -> Tensor {
        let origin = self.origin(Some(place));
        self.fail(TraceError { kind, origin })
    }

    /// Notes the reason why a tensor has no value in the innermost trace, unless the trace has an error already.
    fn refuse(&mut self, tensor: Tensor, place: CallSite) {
        // A poisoned tensor's error was noted in another frame, or no trace was under way when it was made.
        let kind = if tensor.value == POISON { TraceErrorKind::NoTrace } else { TraceErrorKind::Escaped };
        self.fail_with(kind, place);
    }

    fn known_type(&self, tensor: Tensor) -> Option<&TensorType> {
        let frame = self.frames.iter().rev().find(|frame| frame.id == tensor.frame)?;
        (tensor.value != POISON).then(|| frame.builder.ty(tensor.value))
    }

    /// The value that a tensor is in the innermost frame; `None` after noting an error.
    fn resolve(&mut self, tensor: Tensor, place: CallSite) -> Option<Value> {
        let top = self.frames.last()?;
        if top.error.is_some() {
            return None;
        }
        if top.id == tensor.frame && tensor.value != POISON {
            return Some(tensor.value);
        }
        let owner = self.frames.iter().rposition(|frame| frame.id == tensor.frame);
        let Some(owner) = owner.filter(|_| tensor.value != POISON) else {
            self.refuse(tensor, place);
            return None;
        };
        let mut value = tensor.value;
        for depth in owner + 1..self.frames.len() {
            let ty = self.frames[depth - 1].builder.ty(value).clone();
            if let Some(construct) = self.frames[depth].closed {
                self.fail_with(TraceErrorKind::Capture { construct }, place);
                return None;
            }
            let path = self.frames[depth - 1].paths.get(&value).cloned();
            let frame = &mut self.frames[depth];
            value = *frame.known.entry(value).or_insert_with(|| {
                let input = frame.builder.input(ty, PortInfo::default());
                frame.captures.push((value, input));
                frame.paths.extend(path.map(|path| (input, path)));
                input
            });
        }
        Some(value)
    }

    fn apply(&mut self, op: Op, operands: &[Tensor], place: CallSite) -> Option<SmallVec<[Tensor; 2]>> {
        let mut values: SmallVec<[Value; 8]> = SmallVec::new();
        for &operand in operands {
            values.push(self.resolve(operand, place)?);
        }
        let origin = self.origin(Some(place));
        let frame = self.frames.last_mut()?;
        if frame.error.is_some() {
            return None;
        }
        frame.builder.set_origin(origin);
        match frame.builder.push(op, &values) {
            Ok(results) => Some(results.into_iter().map(|value| Tensor { frame: frame.id, value }).collect()),
            Err(mut error) => {
                for ((_, path), value) in error.operands.iter_mut().zip(&values) {
                    *path = frame.paths.get(value).cloned();
                }
                frame.error = Some(error.into());
                None
            }
        }
    }
}

/// Applies an op with one result.
pub(super) fn apply(op: impl Into<Op>, operands: &[Tensor], place: CallSite) -> Tensor {
    apply_many(op.into(), operands, 1, place)[0]
}

/// Applies an op with a known number of results.
pub(super) fn apply_many(op: Op, operands: &[Tensor], count: usize, place: CallSite) -> SmallVec<[Tensor; 2]> {
    with_stack(|stack| match stack.apply(op, operands, place) {
        Some(results) => results,
        None => SmallVec::from_elem(poison(stack), count),
    })
}

fn poison(stack: &Stack) -> Tensor {
    Tensor { frame: stack.frames.last().map_or(0, |frame| frame.id), value: POISON }
}

/// Notes an error in the innermost trace.
pub(super) fn fail(kind: TraceErrorKind, place: CallSite) -> Tensor {
    with_stack(|stack| stack.fail_with(kind, place))
}

/// Notes an error that has happened inside another trace.
pub(super) fn fail_error(error: TraceError) -> Tensor {
    with_stack(|stack| stack.fail(error))
}

/// Notes an impossible event in the innermost trace, which then fails: `subject` lacks the thing that is `expected` of
/// it.
#[track_caller]
pub fn fail_internal(subject: impl std::fmt::Display, expected: impl std::fmt::Display) -> Tensor {
    let error = InternalError::new(subject, expected);
    with_stack(|stack| {
        let origin = stack.origin(None);
        stack.fail(OpError::from(error.at(origin)).into())
    })
}

/// The type of a tensor. A tensor without a value has that of a scalar `f32`: its error has been noted, or is noted
/// here if its trace is over.
pub(super) fn type_of(tensor: Tensor, place: CallSite) -> TensorType {
    with_stack(|stack| match stack.known_type(tensor) {
        Some(ty) => ty.clone(),
        None => {
            stack.refuse(tensor, place);
            TensorType::scalar(DType::F32)
        }
    })
}

/// The type of a tensor whose trace is under way; `None` also for one that stands for an error.
pub(super) fn known_type(tensor: Tensor) -> Option<TensorType> {
    with_stack(|stack| stack.known_type(tensor).cloned())
}

/// A tensor as the input of a closure's graph: its type, and its path if it is an input itself.
pub(super) fn port_of(tensor: Tensor, place: CallSite) -> (TensorType, PortInfo) {
    let path = with_stack(|stack| {
        let frame = stack.frames.iter().rev().find(|frame| frame.id == tensor.frame)?;
        frame.paths.get(&tensor.value).cloned()
    });
    (type_of(tensor, place), path.map(PortInfo::named).unwrap_or_default())
}

/// The logical axis names that a tensor was given, as an input or by the op that made it; empty for none.
pub(super) fn names_of(tensor: Tensor) -> AxisNames {
    with_stack(|stack| {
        let frame = stack.frames.iter().rev().find(|frame| frame.id == tensor.frame);
        let graph = frame.filter(|_| tensor.value != POISON)?.builder.graph();
        match graph.definition(tensor.value) {
            Definition::Input(input) => Some(graph.input_info().get(input as usize)?.axes.clone()),
            Definition::Result(node, _) => match graph.node(node).op() {
                Op::WithAxes(op) => Some(op.names.clone()),
                _ => None,
            },
        }
    })
    .unwrap_or_default()
}

/// Runs `f` with one more name on the scope path.
pub(super) fn in_scope<R>(name: &str, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<(u32, Scope)>);
    impl Drop for Restore {
        fn drop(&mut self) {
            with_stack(|stack| {
                if let Some((id, scope)) = self.0
                    && let Some(frame) = stack.frames.iter_mut().find(|frame| frame.id == id)
                {
                    frame.scope = scope;
                }
            });
        }
    }
    let _restore = Restore(with_stack(|stack| {
        let frame = stack.frames.last_mut()?;
        let outer = frame.scope;
        frame.scope = outer.child(name);
        Some((frame.id, outer))
    }));
    f()
}

/// Runs `f`, and records `place` as the source line of every op that it makes. A function of tensors that is made of
/// several ops calls this with the line of its own caller, so that errors and reports name that line. Where calls are
/// nested, the outermost decides.
///
/// ```
/// use std::panic::Location;
///
/// use meshloom::trace::{Tensor, composite};
///
/// /// `x * x * x`.
/// #[track_caller]
/// fn cube(x: Tensor) -> Tensor {
///     composite(Location::caller(), || x * x * x)
/// }
/// ```
pub fn composite<R>(place: &'static Location<'static>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<CallSite>);
    impl Drop for Restore {
        fn drop(&mut self) {
            with_stack(|stack| stack.place = self.0);
        }
    }
    let _restore = Restore(with_stack(|stack| {
        let outer = stack.place;
        stack.place = outer.or(Some(place));
        outer
    }));
    f()
}

/// A user's closure, as one from the tensors of its inputs to those of its outputs.
///
/// It is not a type parameter: code that is generic over closures is compiled anew for each of them, in the user's
/// crate. So functions that take a closure are thin, and call those that take this.
pub(super) type TracedClosure<'a> = Box<dyn FnOnce(&[Tensor]) -> Vec<Tensor> + 'a>;

/// Traces a closure as a graph of its own. `closed` names the construct if its closure must not capture.
pub(super) fn trace_body(
    name: &str,
    inputs: Vec<(TensorType, PortInfo)>,
    closed: Option<&'static str>,
    place: CallSite,
    f: TracedClosure<'_>,
) -> Result<Body, TraceError> {
    // If the user's closure panics, the frame must not stay behind for the next trace on this thread.
    struct Pop(usize);
    impl Drop for Pop {
        fn drop(&mut self) {
            with_stack(|stack| stack.frames.truncate(self.0));
        }
    }
    let mut builder = GraphBuilder::new(name);
    let mut paths = FxHashMap::default();
    let mut input = |(ty, info): (TensorType, PortInfo)| {
        let path = info.path.clone();
        let value = builder.input(ty, info);
        if !path.is_empty() {
            paths.insert(value, path);
        }
        value
    };
    let inputs: Vec<Value> = inputs.into_iter().map(&mut input).collect();
    let (depth, id) = with_stack(|stack| {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let scope = stack.frames.last().map_or(Scope::ROOT, |frame| frame.scope);
        let (captures, known) = (Vec::new(), FxHashMap::default());
        stack.frames.push(Frame { id, builder, captures, known, paths, closed, error: None, scope });
        (stack.frames.len() - 1, id)
    });
    let pop = Pop(depth);
    let arguments: Vec<Tensor> = inputs.iter().map(|&value| Tensor { frame: id, value }).collect();
    let outputs = f(&arguments);
    let outputs: Option<Vec<Value>> =
        with_stack(|stack| outputs.into_iter().map(|output| stack.resolve(output, place)).collect());
    let (frame, parent) = with_stack(|stack| (stack.frames.pop(), stack.frames.last().map_or(0, |frame| frame.id)));
    drop(pop);
    let Some(frame) = frame else {
        return Err(TraceError::other("the trace has ended early".to_owned()));
    };
    if let Some(error) = frame.error {
        return Err(error);
    }
    let Some(outputs) = outputs else {
        return Err(TraceError { kind: TraceErrorKind::Escaped, origin: Origin::default() });
    };
    let (outer, capture_inputs): (Vec<Value>, Vec<Value>) = frame.captures.into_iter().unzip();
    let captured = outer.into_iter().map(|value| Tensor { frame: parent, value }).collect();
    Ok(Body { builder: frame.builder, inputs, captured, capture_inputs, outputs })
}

/// Ends the program: [`trace_body`] always calls its closure, so the structure of the outputs is always known.
#[allow(clippy::panic)]
pub(crate) fn unreachable_body() -> ! {
    panic!("defect in meshloom: a traced closure was not called")
}

/// As [`with_builder`], for values that become tensors of the innermost frame.
pub(super) fn push_values(
    tensors: &[Tensor],
    place: CallSite,
    f: impl FnOnce(&mut GraphBuilder, &[Value]) -> Result<Vec<Value>, TraceError>,
) -> Option<Vec<Tensor>> {
    let (values, frame) = with_builder(tensors, place, f)?;
    Some(values.into_iter().map(|value| Tensor { frame, value }).collect())
}

/// Runs `f` on the innermost frame's builder, with the values of `tensors` there.
pub(super) fn with_builder<R>(
    tensors: &[Tensor],
    place: CallSite,
    f: impl FnOnce(&mut GraphBuilder, &[Value]) -> Result<R, TraceError>,
) -> Option<(R, u32)> {
    with_stack(|stack| {
        let values: Option<Vec<Value>> = tensors.iter().map(|&tensor| stack.resolve(tensor, place)).collect();
        let (values, origin) = (values?, stack.origin(Some(place)));
        let frame = stack.frames.last_mut()?;
        frame.builder.set_origin(origin);
        match f(&mut frame.builder, &values) {
            Ok(result) => Some((result, frame.id)),
            Err(error) => {
                frame.error.get_or_insert(error);
                None
            }
        }
    })
}
