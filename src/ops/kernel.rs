//! Calls of kernels that the user has described: a definition in plain ops, and implementations for platforms.
//!
//! A kernel stays one node until a program is partitioned, so that every pass sees an op with rules. Then its
//! implementation takes its place, for the shapes of one device ([`expand`](crate::kernels::expand)). Where no
//! implementation fits, and where XLA partitions, the definition takes its place.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, RwLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::RuleText;
use super::rules::*;
use crate::ir::{Attribute, Graph, GraphTextError, Name, Printer, Reader};
use meshloom_hlo::PlatformKind;
use meshloom_hlo::suggest::did_you_mean;

/// The properties of a kernel that the compiler needs. [`Kernel`](crate::trace::Kernel) implements them by closures.
pub trait KernelRules: Send + Sync {
    /// The kernel's name, which no other kernel of the process has.
    fn name(&self) -> Name;

    /// The kernel's factor rule.
    fn rule(&self) -> &RuleText;

    /// The element type of each result.
    ///
    /// # Errors
    /// The kernel does not take operands of these types.
    fn result_dtypes(&self, operands: &[&TensorType]) -> Result<SmallVec<[DType; 1]>, TypeError>;

    /// The definition in plain ops, which takes operands of these types and returns the results. For a device's part of
    /// the operands it returns the part of the results that the factor rule states.
    ///
    /// # Errors
    /// An op of it refuses its operands, or the results are not of the types that the rule says.
    fn definition(&self, operands: &[TensorType]) -> Result<Arc<Graph>, TypeError>;

    /// The gradient, which takes operands of these types, the results, and a cotangent for each result, and returns the
    /// cotangents of operands. It is `None` if the definition is to be differentiated.
    ///
    /// # Errors
    /// As [`KernelRules::definition`].
    fn gradient(&self, operands: &[TensorType]) -> Result<Option<Arc<KernelGradient>>, TypeError>;

    /// The implementation on a platform, for operands of these types on one device. It is `None` if the definition is
    /// the implementation.
    ///
    /// # Errors
    /// An op of it refuses its operands, or its results are not of the types that the rule says.
    fn implementation(
        &self,
        platform: PlatformKind,
        operands: &[TensorType],
    ) -> Result<Option<KernelImplementation>, TypeError>;
}

/// The gradient of a kernel.
pub struct KernelGradient {
    /// The graph takes operands, results and their cotangents, and returns cotangents of some operands.
    pub graph: Graph,
    /// The operands that the graph's outputs are the cotangents of; those of the others are zero.
    pub operands: Vec<usize>,
}

/// The implementation of a kernel on a platform.
pub struct KernelImplementation {
    /// The implementation's name.
    pub name: String,
    /// A description of how it works on these operands, for people.
    pub how: String,
    /// The graph takes the operands and returns the results.
    pub graph: Graph,
}

/// A kernel that is registered in this process. Two are equal if they have the same name.
#[derive(Clone)]
pub struct KernelRef(Arc<dyn KernelRules>);

/// A kernel's name that is refused.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelNameError {
    /// Another kernel has the name.
    #[error("a kernel `{0}` is registered already; give each kernel a name of its own, and register it once")]
    Taken(String),
    /// The name is empty.
    #[error("a kernel needs a name")]
    Empty,
}

meshloom_hlo::debug_is_message!(KernelNameError);

/// All kernels of the process, by name, so that graphs that are read from text find them.
static KERNELS: LazyLock<RwLock<FxHashMap<Name, KernelRef>>> = LazyLock::new(RwLock::default);

impl KernelRef {
    /// Registers a kernel in this process. It is known by its name from then on, for as long as the process runs.
    ///
    /// # Errors
    /// The kernel has no name, or that of another kernel.
    pub fn register(kernel: impl KernelRules + 'static) -> Result<KernelRef, KernelNameError> {
        let name = kernel.name();
        if name.is_none() {
            return Err(KernelNameError::Empty);
        }
        // A poisoned lock still holds a valid table: nothing between lock and unlock leaves it half-changed.
        let mut kernels = KERNELS.write().unwrap_or_else(|error| error.into_inner());
        if kernels.contains_key(&name) {
            return Err(KernelNameError::Taken(name.text()));
        }
        let kernel = KernelRef(Arc::new(kernel));
        kernels.insert(name, kernel.clone());
        Ok(kernel)
    }

    /// The kernel with a name; `None` if no kernel with that name is registered.
    pub fn named(name: &str) -> Option<KernelRef> {
        KERNELS.read().unwrap_or_else(|error| error.into_inner()).get(&Name::new(name)).cloned()
    }

    /// The names of all kernels that are registered, in order.
    pub fn names() -> Vec<String> {
        let kernels = KERNELS.read().unwrap_or_else(|error| error.into_inner());
        let mut names: Vec<String> = kernels.keys().map(|name| name.text()).collect();
        names.sort();
        names
    }

    /// The rules of the kernel.
    pub fn rules(&self) -> &dyn KernelRules {
        &*self.0
    }
}

impl PartialEq for KernelRef {
    fn eq(&self, other: &KernelRef) -> bool {
        self.0.name() == other.0.name()
    }
}

impl Eq for KernelRef {}

impl Hash for KernelRef {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name().hash(state);
    }
}

impl fmt::Debug for KernelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.name())
    }
}

/// In text, a kernel is its name. It must be registered where the text is read.
impl Attribute for KernelRef {
    fn write(&self, out: &mut Printer<'_>) {
        self.0.name().write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<KernelRef, GraphTextError> {
        let start = *reader;
        let name = reader.string()?;
        KernelRef::named(&name).ok_or_else(|| {
            let known = KernelRef::names();
            let suggestion = did_you_mean(&name, known.iter().map(String::as_str));
            start.fail(format!(
                "no kernel `{name}` is registered in this process{suggestion}; register it before the text is read"
            ))
        })
    }
}

/// Calls a kernel: see [`KernelRules`] and [`Kernel`](crate::trace::Kernel).
///
/// Operands and results have the dimensions that its factor rule says. It has the gradient that the kernel states, else
/// that of its definition; forward mode differentiates the definition. A batch is one more leading dimension, if the
/// operands that differ between examples have such dimensions (`...`) by the rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelCall {
    /// The kernel.
    pub kernel: KernelRef,
}

crate::ir::op_text!(KernelCall = "kernel-call" { kernel: lead });

impl KernelCall {
    /// The definition in plain ops, which takes this op's `operands` and returns its results.
    ///
    /// # Errors
    /// The kernel's definition refuses the operands.
    pub fn define(&self, builder: &mut GraphBuilder, operands: &[Value]) -> Result<Values, OpError> {
        let types: Vec<TensorType> = operands.iter().map(|&value| builder.ty(value).clone()).collect();
        let graph = self.kernel.rules().definition(&types);
        let graph = graph.map_err(|error| OpError::new(self.name(), error, types, builder.origin()))?;
        Ok(builder.inline(&graph.relocated(builder.origin()), operands))
    }
}

impl Primitive for KernelCall {
    fn infer(&self, operands: &[&TensorType]) -> Result<ResultTypes, TypeError> {
        let kernel = self.kernel.rules();
        let dims = kernel.rule().result_dims(operands)?;
        let dtypes = kernel.result_dtypes(operands)?;
        Ok(dtypes.into_iter().zip(dims).map(|(dtype, dims)| TensorType { dtype, dims }).collect())
    }

    rules!(facts: KERNEL, jvp: by_definition, partition: unchanged, emit: by_definition);

    fn vjp(&self, context: &mut VjpContext<'_>) -> Result<(), OpError> {
        let count = context.operand_count();
        let types: Vec<TensorType> = (0..count).map(|index| context.operand_type(index).clone()).collect();
        let gradient = self.kernel.rules().gradient(&types);
        let origin = context.builder.origin();
        let Some(gradient) = gradient.map_err(|error| OpError::new(self.name(), error, types, origin))? else {
            return context.by_definition(|builder, operands| self.define(builder, operands));
        };
        let mut arguments: Values = (0..count).map(|index| context.operand(index)).collect();
        let result_count = self.kernel.rules().rule().result_count();
        arguments.extend((0..result_count).map(|index| context.result(index)));
        for index in 0..result_count {
            let result = context.result(index);
            let cotangent = context.cotangent(index);
            arguments.push(cotangent.unwrap_or_else(|| context.builder.zeros_like(result)));
        }
        let cotangents = context.builder.inline(&gradient.graph.relocated(origin), &arguments);
        gradient.operands.iter().zip(cotangents).for_each(|(&operand, cotangent)| context.set(operand, cotangent));
        Ok(())
    }

    fn factors(&self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        self.kernel.rules().rule().rule(operands, results)
    }

    fn batch(&self, context: &mut BatchContext<'_>) -> Result<(), OpError> {
        let rule = self.kernel.rules().rule();
        let mut operands = Values::new();
        for index in 0..context.operand_count() {
            match (rule.has_leading(index), context.is_batched(index)) {
                (true, _) => operands.push(context.aligned(index)?),
                (false, false) => operands.push(context.operand(index)),
                (false, true) => {
                    let types = (0..context.operand_count()).map(|index| context.example_type(index)).collect();
                    let problem = format!(
                        "operand {index} differs between examples, but has no leading dimensions (`...`) in the factor rule \
                         `{rule}`"
                    );
                    let error = TypeError::Attribute(problem);
                    return Err(OpError::new(self.name(), error, types, context.builder.origin()));
                }
            }
        }
        context.apply(self.clone(), &operands)
    }
}

import!(KernelCall: in_parts);
