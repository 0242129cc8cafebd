//! Kernels of the user's own: a definition in plain ops, the rule by which it is split, and its implementations on
//! platforms.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::context::{apply_many, fail_error, known_type, trace_body};
use super::{CallSite, Tensor, TraceError};
use crate::ir::{DType, Graph, Name, OpError, OpName, Origin, PortInfo, TensorType, TypeError};
use crate::ops::{
    CustomCall, KernelCall, KernelGradient, KernelImplementation, KernelNameError, KernelRef, KernelRules, RuleText,
    RuleTextError,
};
use meshloom_hlo::PlatformKind;
use meshloom_hlo::message::counted;

type KernelDefinition = dyn Fn(&[Tensor]) -> Vec<Tensor> + Send + Sync;
type GradientClosure = dyn Fn(&[Tensor], &[Tensor], &[Tensor]) -> Vec<Option<Tensor>> + Send + Sync;
type KernelClosure = dyn FnOnce(&[Tensor]) -> Vec<Tensor> + Send;
type Choice = dyn Fn(&[TensorType]) -> Option<KernelBody> + Send + Sync;

/// The element type of a kernel's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultDType {
    /// The element type of the operand with this number.
    OfOperand(usize),
    /// Always this.
    Is(DType),
}

/// The implementation of a kernel on one device.
pub enum KernelBody {
    /// A call of code that the plugin knows, or compiles.
    Call(CustomCall),
    /// A function of tensors.
    Traced(Box<KernelClosure>),
}

impl KernelBody {
    /// A function of tensors, from the operands to the results.
    pub fn traced(f: impl FnOnce(&[Tensor]) -> Vec<Tensor> + Send + 'static) -> KernelBody {
        KernelBody::Traced(Box::new(f))
    }
}

struct Implementation {
    name: String,
    platforms: Vec<PlatformKind>,
    choose: Box<Choice>,
}

/// A kernel that is being described; [`Kernel::register`] makes it callable.
///
/// Its closures are called with operands of the whole program and, when it is partitioned, again with those of one
/// device: a size that the function depends on must be taken from the operands, in a way that holds of parts as the
/// factor rule says.
///
/// ```
/// use meshloom::prelude::*;
/// use meshloom::trace::Kernel;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Rows times a vector. A device with a part of `d` has a part of each sum.
/// let kernel = Kernel::new("example_row_dots", "...td,d->...t | sum d", |operands| {
///     let (x, w) = (operands[0], operands[1]);
///     vec![(x * w.broadcast_to(x.dims())).sum(-1)]
/// })?;
/// let kernel = kernel.register()?;
/// let function = Function::trace("dots", (TensorSpec::new(F32, [4, 8]), TensorSpec::new(F32, [8])), |(x, w)| {
///     kernel.call(&[x, w])[0]
/// })?;
/// assert_eq!(function.outputs().ty.to_string(), "f32[4]");
/// # Ok(())
/// # }
/// ```
pub struct Kernel {
    name: Name,
    rule: RuleText,
    results: Vec<ResultDType>,
    definition: Arc<KernelDefinition>,
    gradient: Option<Arc<GradientClosure>>,
    implementations: Vec<Implementation>,
    place: CallSite,
    definitions: MadeGraphs<Graph>,
    gradients: MadeGraphs<KernelGradient>,
}

/// Graphs made so far, by the types of operands.
struct MadeGraphs<T>(Mutex<MadeByTypes<T>>);
type MadeByTypes<T> = FxHashMap<Vec<TensorType>, Result<Arc<T>, TypeError>>;

impl<T> Default for MadeGraphs<T> {
    fn default() -> MadeGraphs<T> {
        MadeGraphs(Mutex::default())
    }
}

impl<T> MadeGraphs<T> {
    fn of(&self, types: &[TensorType], make: impl FnOnce() -> Result<T, TypeError>) -> Result<Arc<T>, TypeError> {
        // Nothing is locked while a graph is made: that may ask for the graphs of other types.
        if let Some(known) = self.0.lock().unwrap_or_else(|error| error.into_inner()).get(types) {
            return known.clone();
        }
        let made = make().map(Arc::new);
        self.0.lock().unwrap_or_else(|error| error.into_inner()).entry(types.to_vec()).or_insert(made).clone()
    }
}

impl Kernel {
    /// A kernel with a factor rule, in the notation of [`RuleText`], and a definition in plain ops, which runs where no
    /// implementation fits. Results have the element type of the first operand.
    ///
    /// # Errors
    /// The rule cannot be read.
    #[track_caller]
    pub fn new(
        name: &str,
        rule: &str,
        definition: impl Fn(&[Tensor]) -> Vec<Tensor> + Send + Sync + 'static,
    ) -> Result<Kernel, RuleTextError> {
        let rule: RuleText = rule.parse()?;
        Ok(Kernel {
            name: Name::new(name),
            results: vec![ResultDType::OfOperand(0); rule.result_count()],
            rule,
            definition: Arc::new(definition),
            gradient: None,
            implementations: Vec::new(),
            place: Location::caller(),
            definitions: MadeGraphs::default(),
            gradients: MadeGraphs::default(),
        })
    }

    /// States the element types of the results.
    #[must_use]
    pub fn with_result_dtypes(self, dtypes: impl IntoIterator<Item = ResultDType>) -> Kernel {
        Kernel { results: dtypes.into_iter().collect(), ..self }
    }

    /// States the gradient: from operands, results and the cotangents of results to a cotangent of each operand, `None`
    /// for zero. It may call kernels. Without it, the definition is differentiated.
    #[must_use]
    pub fn with_gradient(
        self,
        gradient: impl Fn(&[Tensor], &[Tensor], &[Tensor]) -> Vec<Option<Tensor>> + Send + Sync + 'static,
    ) -> Kernel {
        Kernel { gradient: Some(Arc::new(gradient)), ..self }
    }

    /// Adds an implementation for some platforms. `choose` gets the types that one device's operands have. It returns
    /// the body for them, or `None` to leave them to the implementations added later, and to the definition.
    #[must_use]
    pub fn with_implementation(
        mut self,
        name: &str,
        platforms: &[PlatformKind],
        choose: impl Fn(&[TensorType]) -> Option<KernelBody> + Send + Sync + 'static,
    ) -> Kernel {
        let (name, platforms, choose) = (name.to_owned(), platforms.to_vec(), Box::new(choose));
        self.implementations.push(Implementation { name, platforms, choose });
        self
    }

    /// Makes the kernel known to this process by its name, for as long as the process runs.
    ///
    /// # Errors
    /// The kernel has no name, or that of another kernel.
    pub fn register(self) -> Result<KernelRef, KernelNameError> {
        KernelRef::register(self)
    }

    fn result_types(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, TypeError> {
        let operands: SmallVec<[&TensorType; 8]> = operands.iter().collect();
        let (dims, dtypes) = (self.rule.result_dims(&operands)?, self.result_dtypes(&operands)?);
        Ok(dtypes.into_iter().zip(dims).map(|(dtype, dims)| TensorType { dtype, dims }).collect())
    }

    /// A closure's graph.
    fn traced(
        &self,
        part: &'static str,
        inputs: impl IntoIterator<Item = TensorType>,
        f: impl FnOnce(&[Tensor]) -> Vec<Tensor> + Send,
    ) -> Result<Graph, TypeError> {
        let place = self.place;
        let ports: Vec<(TensorType, PortInfo)> = inputs.into_iter().map(|ty| (ty, PortInfo::default())).collect();
        let traced = alone(self.name, part, || trace_body(part, ports, Some("a kernel"), place, Box::new(f)));
        let body = traced.map_err(|problem| self.problem(part, problem))?;
        Ok(body.builder.finish_body(body.outputs))
    }

    fn problem(&self, part: &str, problem: impl fmt::Display) -> TypeError {
        TypeError::Attribute(format!("the {part} of kernel `{}`: {problem}", self.name))
    }

    /// Refuses results of a closure whose types differ from those that the rule states.
    fn expect_results(&self, part: &str, graph: &Graph, expected: &[TensorType]) -> Result<(), TypeError> {
        if graph.output_types().eq(expected) {
            return Ok(());
        }
        let list = |types: &mut dyn Iterator<Item = &TensorType>| {
            types.map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let (found, expected) = (list(&mut graph.output_types()), list(&mut expected.iter()));
        Err(self.problem(part, format!("it gives {found}, but the factor rule `{}` says {expected}", self.rule)))
    }
}

thread_local! {
    /// The closures of kernels that are being traced.
    static UNDER_WAY: RefCell<Vec<(Name, &'static str)>> = const { RefCell::new(Vec::new()) };
}

/// Traces a closure of a kernel on a thread of its own: the trace that asks for it may be in the middle of an op.
fn alone<T: Send>(
    kernel: Name,
    part: &'static str,
    trace: impl FnOnce() -> Result<T, TraceError> + Send,
) -> Result<T, TraceError> {
    let mut under_way = UNDER_WAY.with_borrow(Vec::clone);
    if under_way.contains(&(kernel, part)) {
        return Err(TraceError::other("it needs itself; express it in other ops".to_owned()));
    }
    under_way.push((kernel, part));
    let run = move || {
        UNDER_WAY.set(under_way);
        trace()
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl KernelRules for Kernel {
    fn name(&self) -> Name {
        self.name
    }

    fn rule(&self) -> &RuleText {
        &self.rule
    }

    fn result_dtypes(&self, operands: &[&TensorType]) -> Result<SmallVec<[DType; 1]>, TypeError> {
        let (expected, found) = (self.rule.result_count(), self.results.len());
        if expected != found {
            let dtypes = counted(found, "element type");
            return Err(self.problem("results", format!("{dtypes} stated for {}", counted(expected, "result"))));
        }
        let dtype = |dtype: &ResultDType| match *dtype {
            ResultDType::Is(dtype) => Ok(dtype),
            ResultDType::OfOperand(operand) => operands.get(operand).map(|ty| ty.dtype).ok_or_else(|| {
                self.problem("results", format!("one is of the type of operand {operand}, which there is not"))
            }),
        };
        self.results.iter().map(dtype).collect()
    }

    fn definition(&self, operands: &[TensorType]) -> Result<Arc<Graph>, TypeError> {
        self.definitions.of(operands, || {
            let define = self.definition.clone();
            let graph = self.traced("definition", operands.to_vec(), move |tensors| define(tensors))?;
            self.expect_results("definition", &graph, &self.result_types(operands)?)?;
            Ok(graph)
        })
    }

    fn gradient(&self, operands: &[TensorType]) -> Result<Option<Arc<KernelGradient>>, TypeError> {
        let Some(gradient) = self.gradient.clone() else { return Ok(None) };
        let made = self.gradients.of(operands, || {
            let results = self.result_types(operands)?;
            let (count, of_results) = (operands.len(), results.len());
            let inputs: Vec<TensorType> = operands.iter().chain(&results).chain(&results).cloned().collect();
            // The operands that have a cotangent, and the number of cotangents that were stated.
            let stated: Mutex<(Vec<usize>, usize)> = Mutex::default();
            let graph = self.traced("gradient", inputs, |tensors| {
                let (own, rest) = tensors.split_at(count);
                let (made, cotangents) = rest.split_at(of_results);
                let found = gradient(own, made, cotangents);
                let places = (0..found.len()).filter(|&operand| found[operand].is_some()).collect();
                *stated.lock().unwrap_or_else(|error| error.into_inner()) = (places, found.len());
                found.into_iter().flatten().collect()
            })?;
            let (places, found) = stated.into_inner().unwrap_or_else(|error| error.into_inner());
            if found != count {
                let (found, count) = (counted(found, "cotangent"), counted(count, "operand"));
                let problem = format!("it gives {found}, but the kernel has {count}");
                return Err(self.problem("gradient", problem));
            }
            for (&operand, ty) in places.iter().zip(graph.output_types()) {
                if *ty != operands[operand] || !ty.dtype.is_float() {
                    let problem = format!(
                        "the cotangent of operand {operand} is {ty}, but the operand is {}; give `None` for one that is not \
                         of a floating-point type",
                        operands[operand]
                    );
                    return Err(self.problem("gradient", problem));
                }
            }
            Ok(KernelGradient { graph, operands: places })
        });
        made.map(Some)
    }

    fn implementation(
        &self,
        platform: PlatformKind,
        operands: &[TensorType],
    ) -> Result<Option<KernelImplementation>, TypeError> {
        let mut fitting = self.implementations.iter().filter(|one| one.platforms.contains(&platform));
        let chosen = fitting.find_map(|one| Some((one, (one.choose)(operands)?)));
        let Some((Implementation { name, .. }, body)) = chosen else { return Ok(None) };
        let part = "implementation";
        let (how, graph) = match body {
            KernelBody::Call(call) => {
                let how = format!("calls {}", call.target);
                let count = call.results.len();
                let trace = |tensors: &[Tensor]| apply_many(call.into(), tensors, count, self.place).to_vec();
                (how, self.traced(part, operands.to_vec(), trace)?)
            }
            KernelBody::Traced(f) => (String::new(), self.traced(part, operands.to_vec(), f)?),
        };
        self.expect_results(part, &graph, &self.result_types(operands)?)?;
        Ok(Some(KernelImplementation { name: name.clone(), how, graph }))
    }
}

impl KernelRef {
    /// Calls the kernel; returns its results.
    #[track_caller]
    pub fn call(&self, operands: &[Tensor]) -> Vec<Tensor> {
        let place = Location::caller();
        let (kernel, op) = (self.rules(), KernelCall { kernel: self.clone() });
        let count = kernel.rule().result_count();
        // A definition that is wrong is found here, where the user can see which call it was.
        let types: Option<Vec<TensorType>> = operands.iter().map(|&operand| known_type(operand)).collect();
        if let Some(types) = types.filter(|types| kernel.rule().result_dims(&types.iter().collect::<Vec<_>>()).is_ok())
            && let Err(error) = kernel.definition(&types)
        {
            let failed = fail_error(OpError::new(op.name(), error, types, Origin::at(place)).into());
            return vec![failed; count];
        }
        apply_many(op.into(), operands, count, place).to_vec()
    }
}
