//! Putting implementations in the place of ops.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{AttentionKernel, ExpertsKernel, Kernels, OwnKernels, blockwise, cudnn, grouped, mosaic, ragged};
use crate::ir::{BodyCache, Graph, GraphCopy, Name, NodeRef, OpError, OpName, TensorType};
use crate::ops::{AttentionForm, KernelCall, KernelImplementation, Op, RaggedDot};
use crate::trace::TraceError;

/// The implementation of an op of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse {
    /// The name of the op, or the kernel's own name for a kernel of the user's.
    pub op: String,
    /// The types of its operands, on one device.
    pub operands: Vec<TensorType>,
    /// The name of the implementation, as in run configs, or as a kernel of the user's calls it.
    pub implementation: String,
    /// How it works on these operands.
    pub how: String,
    /// The number of times that it stands in the program; a loop counts once.
    pub count: usize,
}

/// Replaces the ops of a graph, the program of one device, that have several implementations. Also returns the
/// implementation of each of them. `tidy` cleans up the graph of an implementation.
///
/// # Errors
/// An implementation refuses its own operands, which is a defect.
pub fn expand(
    graph: &Graph,
    kernels: &Kernels,
    tidy: &dyn Fn(&Graph) -> Graph,
) -> Result<(Graph, Vec<KernelUse>), TraceError> {
    if !has_any(graph) {
        return Ok((graph.clone(), Vec::new()));
    }
    let mut expansion = KernelExpansion {
        kernels,
        tidy,
        made: FxHashMap::default(),
        under_way: Vec::new(),
        bodies: BodyCache::default(),
        uses: Vec::new(),
    };
    let expanded = expansion.graph(graph)?;
    Ok((expanded, expansion.uses))
}

/// The properties of a node that its implementation depends on.
#[derive(PartialEq, Eq, Hash)]
struct CallKey {
    op: Op,
    types: Vec<TensorType>,
    /// Whether no segment can mask, for attention by cuDNN.
    has_one_segment: bool,
}

/// The implementation of a call.
struct MadeKernel {
    /// The uses in it, by their index, and the number of times each stands there.
    uses: Vec<(usize, usize)>,
    /// The graph of the implementation. It is `None` for an op in its plain form.
    graph: Option<Arc<Graph>>,
}

struct KernelExpansion<'a> {
    kernels: &'a Kernels,
    tidy: &'a dyn Fn(&Graph) -> Graph,
    /// The implementations made so far; equal calls share one.
    made: FxHashMap<CallKey, MadeKernel>,
    /// Kernels whose implementations are being expanded.
    under_way: Vec<Name>,
    bodies: BodyCache,
    uses: Vec<KernelUse>,
}

impl KernelExpansion<'_> {
    fn graph(&mut self, graph: &Graph) -> Result<Graph, TraceError> {
        let mut copy = GraphCopy::with_inputs(graph);
        for node in graph.nodes() {
            if let Some(found) = self.implementation(graph, node)? {
                copy.inline(node, &found.relocated(node.origin()));
                continue;
            }
            match node.op().try_map_regions(|_, body| self.body(body))? {
                Some(op) => copy.node_as(node, op),
                None => copy.node(node),
            };
        }
        Ok(copy.finish())
    }

    fn body(&mut self, body: &Arc<Graph>) -> Result<Arc<Graph>, TraceError> {
        if !has_any(body) {
            return Ok(body.clone());
        }
        if let Some(done) = self.bodies.find(body) {
            return Ok(done);
        }
        let done = Arc::new(self.graph(body)?);
        Ok(self.bodies.insert(body, done))
    }

    /// The graph that computes a node. Returns `None` if the op has only one implementation, or stays in its plain
    /// form.
    fn implementation(&mut self, graph: &Graph, node: NodeRef<'_>) -> Result<Option<Arc<Graph>>, TraceError> {
        if !has_implementations(node.op()) {
            return Ok(None);
        }
        let is_attention = matches!(node.op(), Op::Attention(_) | Op::AttentionGradient(_));
        let by_cudnn = self.kernels.attention == AttentionKernel::Cudnn && is_attention;
        let call = CallKey {
            op: node.op().clone(),
            types: node.operands().iter().map(|&value| graph.ty(value).clone()).collect(),
            has_one_segment: by_cudnn && has_one_segment(graph, node),
        };
        if let Some(made) = self.made.get(&call) {
            made.uses.iter().for_each(|&(number, count)| self.uses[number].count += count);
            return Ok(made.graph.clone());
        }
        let before: Vec<usize> = self.uses.iter().map(|used| used.count).collect();
        let found = match (&call.op, &call.types) {
            (Op::Attention(op), types) if by_cudnn => Some(self.cudnn(op.0, &call, node)?.forward(types)?),
            (Op::AttentionGradient(op), types) if by_cudnn => Some(self.cudnn(op.0, &call, node)?.backward(types)?),
            (Op::Attention(op), types) => match mosaic::attention(op, types, self.kernels)? {
                None => blockwise::attention(op, types, self.kernels)?,
                found => found,
            },
            (Op::AttentionGradient(op), types) => match mosaic::attention_gradient(op, types, self.kernels)? {
                None => blockwise::attention_gradient(op, types, self.kernels)?,
                found => found,
            },
            (Op::RaggedDot(op), types) if self.kernels.experts == ExpertsKernel::RaggedDot => {
                match self.by_instruction(op, &call, node)? {
                    None => grouped::ragged_dot(op, types, self.kernels)?,
                    found => found,
                }
            }
            (Op::RaggedDot(op), types) => match mosaic::ragged_dot(op, types, self.kernels)? {
                None => grouped::ragged_dot(op, types, self.kernels)?,
                found => found,
            },
            (Op::KernelCall(op), types) => Some(self.kernel_call(op, types, node)?),
            _ => None,
        };
        let (implementation, how) = match &found {
            Some(found) => (found.name.clone(), found.how.clone()),
            None => (PLAIN.to_owned(), String::new()),
        };
        let op = match &call.op {
            Op::KernelCall(op) => op.kernel.rules().name().text(),
            op => op.name().to_owned(),
        };
        let operands = call.types.clone();
        self.uses.push(KernelUse { op, operands, implementation, how, count: 1 });
        let graph = found.map(|found| Arc::new((self.tidy)(&found.graph)));
        let counts = self.uses.iter().enumerate();
        let uses = counts.map(|(number, used)| (number, used.count - before.get(number).copied().unwrap_or(0)));
        let uses = uses.filter(|(_, count)| *count > 0).collect();
        self.made.insert(call, MadeKernel { uses, graph: graph.clone() });
        Ok(graph)
    }

    /// Attention by cuDNN, or the reason why cuDNN does not compute this one.
    fn cudnn(&self, form: AttentionForm, call: &CallKey, node: NodeRef<'_>) -> Result<cudnn::CudnnCall, OpError> {
        let CallKey { op, types, has_one_segment } = call;
        cudnn::CudnnCall::new(form, types, self.kernels.platform, *has_one_segment)
            .map_err(|error| OpError::new(op.name(), error, types.clone(), node.origin()))
    }

    /// A grouped product by XLA's instruction, or the reason why the platform does not have it.
    fn by_instruction(
        &self,
        op: &RaggedDot,
        call: &CallKey,
        node: NodeRef<'_>,
    ) -> Result<Option<KernelImplementation>, TraceError> {
        ragged::check(self.kernels.platform)
            .map_err(|error| OpError::new(op.name(), error, call.types.clone(), node.origin()))?;
        ragged::ragged_dot(op, &call.types)
    }

    /// The implementation of a kernel of the user's: the first that fits, or the definition.
    fn kernel_call(
        &mut self,
        op: &KernelCall,
        types: &[TensorType],
        node: NodeRef<'_>,
    ) -> Result<KernelImplementation, TraceError> {
        let (kernel, kernels) = (op.kernel.rules(), self.kernels);
        let refused = |error| TraceError::from(OpError::new(op.name(), error, types.to_vec(), node.origin()));
        // An implementation may be written for the operands that suit it, and call its own kernel for others.
        let found = match kernels.own {
            OwnKernels::Platform if !self.under_way.contains(&kernel.name()) => {
                kernel.implementation(kernels.platform, types).map_err(refused)?
            }
            OwnKernels::Platform | OwnKernels::Plain => None,
        };
        let found = match found {
            Some(found) => found,
            None => {
                let graph = (*kernel.definition(types).map_err(refused)?).clone();
                KernelImplementation { name: PLAIN.to_owned(), how: String::new(), graph }
            }
        };
        // Either may call kernels.
        self.under_way.push(kernel.name());
        let graph = self.graph(&found.graph);
        self.under_way.pop();
        Ok(KernelImplementation { graph: graph?, ..found })
    }
}

/// The implementation that is the op itself, or its definition.
const PLAIN: &str = "plain";

fn has_implementations(op: &Op) -> bool {
    matches!(op, Op::Attention(_) | Op::AttentionGradient(_) | Op::RaggedDot(_) | Op::KernelCall(_))
}

/// Whether the queries and keys of an attention are of one segment: their segments are the same number everywhere.
fn has_one_segment(graph: &Graph, node: NodeRef<'_>) -> bool {
    let number = |index: usize| graph.splat(node.operands()[index]);
    number(3).is_some_and(|of_queries| number(4) == Some(of_queries))
}

fn has_any(graph: &Graph) -> bool {
    graph.nodes().any(|node| has_implementations(node.op()) || node.op().regions().any(|body| has_any(body)))
}
