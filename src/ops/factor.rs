//! Factor rules: which dimensions of an op's operands and results run together.
//!
//! A rule names the loops ("factors") of the op's computation and says for every dimension of every operand and result
//! which factors it runs over, in einsum notation: `bte,ef->btf`. Batching, propagation of shardings and partitioning
//! are written over these rules. The idea is Shardy's (`docs/propagation.md`, `OpShardingRuleAttr`).

use meshloom_hlo::mesh::common_divisor;
use std::fmt;

use smallvec::SmallVec;

use super::ReduceKind;
use crate::ir::{Graph, NodeRef, TensorType};

/// The way in which a factor is split over devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FactorKind {
    /// Each device computes its part of the results, from its part of the operands, by the same op. Tensors without the
    /// factor are whole on every device.
    Parallel,
    /// Each device computes a partial result from its part of the operands; the parts are combined like this. A result
    /// with the factor is split as the operands are. An [initial](FactorRule::initial) operand enters one part only.
    Reduction(ReduceKind),
    /// Every device needs the whole extent, and computes it.
    Replicated,
    /// Every device needs the whole extent, because of what the op computes: as a query needs all keys. So joining the
    /// parts for it is no fallback.
    Gathered,
    /// Parts of the result come from other devices' parts of the operands: collective-permutes move them. The
    /// dimensions that run over the factor may differ in size; the factor's own divides all of them.
    Permutation,
    /// Computed positions point into the dimension. Each device looks at those that fall into its part. A result
    /// without the factor is then a sum over the devices; one with it is split as the operand is.
    Indexed,
}

/// One loop of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factor {
    /// Number of iterations.
    pub size: usize,
    /// The way in which the factor is split.
    pub kind: FactorKind,
}

/// Index of a factor within its rule.
pub type FactorIndex = u32;

/// The factors that one dimension runs over, major to minor; empty for a dimension that takes part in no loop.
pub type DimFactors = SmallVec<[FactorIndex; 1]>;

/// The factors of each dimension of one tensor.
pub type TensorFactors = SmallVec<[DimFactors; 4]>;

/// The factors of an op, and the dimensions that run over them.
///
/// The sizes of a dimension's factors multiply to its size, but for a permutation, whose size divides it; only a
/// dimension of size 1 may have none. In a dimension of two factors with sizes 3 and 4, index `4 * i + j` is iteration
/// `i` of the first and `j` of the second.
///
/// ```
/// # use meshloom::ir::{DType::F32, TensorType};
/// # use meshloom::ops::{Primitive, Reshape};
/// let (from, to) = (TensorType::new(F32, &[8, 6, 5]), TensorType::new(F32, &[48, 5]));
/// let rule = Reshape { dims: to.dims.clone() }.factors(&[&from], &[&to]);
/// assert_eq!(rule.to_string(), "abc->(ab)c");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FactorRule {
    /// All factors.
    pub factors: SmallVec<[Factor; 4]>,
    /// For each operand, its dimensions' factors.
    pub operands: SmallVec<[TensorFactors; 2]>,
    /// For each result, its dimensions' factors.
    pub results: SmallVec<[TensorFactors; 1]>,
    /// An operand that a reduction starts from. Where a reduction factor is split, it enters one part; the others start
    /// from the combiner's identity.
    pub initial: Option<usize>,
    /// Whether operands are independent of each other: a mesh axis may then split a factor of each.
    pub separate: bool,
}

impl FactorRule {
    /// The rule of a node without regions.
    pub(crate) fn of(graph: &Graph, node: NodeRef<'_>) -> Option<FactorRule> {
        let operands: SmallVec<[&TensorType; 4]> = node.operands().iter().map(|&value| graph.ty(value)).collect();
        let results: SmallVec<[&TensorType; 2]> = node.results().map(|value| graph.ty(value)).collect();
        Some(node.op().as_primitive()?.factors(&operands, &results))
    }

    /// A rule for tensors of these types, in which no dimension has a factor yet.
    pub fn empty(operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let blank = |ty: &&TensorType| SmallVec::from_elem(DimFactors::new(), ty.rank());
        FactorRule {
            factors: SmallVec::new(),
            operands: operands.iter().map(blank).collect(),
            results: results.iter().map(blank).collect(),
            initial: None,
            separate: false,
        }
    }

    /// The rule of an op whose tensors all have the same dimensions; each dimension is a loop of its own.
    /// Scalars among them take no part.
    pub fn pointwise(operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        FactorRule::aligned(operands, results, |_| FactorKind::Parallel)
    }

    /// As [`FactorRule::pointwise`], with the way in which each dimension is split.
    pub(crate) fn aligned(
        operands: &[&TensorType],
        results: &[&TensorType],
        kind: impl Fn(usize) -> FactorKind,
    ) -> FactorRule {
        let mut rule = FactorRule::empty(operands, results);
        let Some(dims) = operands.iter().chain(results).map(|ty| &ty.dims).max_by_key(|dims| dims.len()) else {
            return rule;
        };
        for (dim, &size) in dims.iter().enumerate() {
            rule.add(size, kind(dim), &at_every(operands, dim), &at_every(results, dim));
        }
        rule
    }

    /// Adds a factor that is appended to dimension `.1` of operand `.0`, for each pair, and likewise for results.
    pub fn add(
        &mut self,
        size: usize,
        kind: FactorKind,
        operands: &[(usize, usize)],
        results: &[(usize, usize)],
    ) -> FactorIndex {
        let index = self.factors.len() as FactorIndex;
        self.factors.push(Factor { size, kind });
        for &(operand, dim) in operands {
            self.operands[operand][dim].push(index);
        }
        for &(result, dim) in results {
            self.results[result][dim].push(index);
        }
        index
    }

    /// Whether any dimension runs over several factors.
    pub(crate) fn is_compound(&self) -> bool {
        self.operands.iter().chain(&self.results).flatten().any(|factors| factors.len() > 1)
    }

    /// Adds a permutation along dimensions of these tensors, if something divides all their sizes.
    pub(crate) fn permute(&mut self, sizes: &[usize], operands: &[(usize, usize)], results: &[(usize, usize)]) {
        let common = sizes.iter().copied().fold(0, common_divisor);
        if common > 1 && !sizes.contains(&0) {
            self.add(common, FactorKind::Permutation, operands, results);
        }
    }

    /// Adds a parallel factor that dimension `dim` of the first operand and of the first result run over alike.
    pub(crate) fn keep(&mut self, operand: &TensorType, dim: usize) {
        self.add(operand.dims[dim], FactorKind::Parallel, &[(0, dim)], &[(0, dim)]);
    }

    /// The rule with a replicated factor for every dimension that has none yet.
    #[must_use]
    pub fn with_rest_replicated(mut self, operands: &[&TensorType], results: &[&TensorType]) -> FactorRule {
        let missing = |tensors: &[TensorFactors], types: &[&TensorType]| -> Vec<(usize, usize, usize)> {
            let all = types
                .iter()
                .enumerate()
                .flat_map(|(index, ty)| ty.dims.iter().enumerate().map(move |(dim, &size)| (index, dim, size)));
            all.filter(|&(index, dim, _)| tensors[index][dim].is_empty()).collect()
        };
        for (index, dim, size) in missing(&self.operands, operands) {
            self.add(size, FactorKind::Replicated, &[(index, dim)], &[]);
        }
        for (index, dim, size) in missing(&self.results, results) {
            self.add(size, FactorKind::Replicated, &[], &[(index, dim)]);
        }
        self
    }

    /// Returns the rule of the batched op: it has a new parallel factor of `size` as the leading dimension of all
    /// results and of the operands marked.
    pub fn batched(&self, size: usize, operands: &[bool]) -> FactorRule {
        let index = self.factors.len() as FactorIndex;
        let mut rule = self.clone();
        rule.factors.push(Factor { size, kind: FactorKind::Parallel });
        let lead = |tensor: &mut TensorFactors| tensor.insert(0, SmallVec::from_slice(&[index]));
        rule.operands.iter_mut().zip(operands).filter(|(_, batched)| **batched).for_each(|(tensor, _)| lead(tensor));
        rule.results.iter_mut().for_each(lead);
        rule
    }
}

/// The pairs (tensor, `dim`) of all tensors that are not scalars.
fn at_every(tensors: &[&TensorType], dim: usize) -> SmallVec<[(usize, usize); 4]> {
    (0..tensors.len()).filter(|&index| tensors[index].rank() > dim).map(|index| (index, dim)).collect()
}

/// The text is in einsum notation: a letter for each factor, `bte,ef->btf`; a dimension of several factors in
/// parentheses, one without any as `1`. After it, the factors that are not parallel follow by kind, as in `sum=e`; then
/// the initial operand.
impl fmt::Display for FactorRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = |f: &mut fmt::Formatter<'_>, tensors: &[TensorFactors]| -> fmt::Result {
            for (index, dims) in tensors.iter().enumerate() {
                f.write_str(if index > 0 { "," } else { "" })?;
                for factors in dims {
                    match &factors[..] {
                        [] => f.write_str("1")?,
                        &[factor] => write_letter(f, factor)?,
                        several => {
                            f.write_str("(")?;
                            several.iter().try_for_each(|&factor| write_letter(f, factor))?;
                            f.write_str(")")?;
                        }
                    }
                }
            }
            Ok(())
        };
        tensors(f, &self.operands)?;
        f.write_str("->")?;
        tensors(f, &self.results)?;
        let mut written: SmallVec<[FactorKind; 4]> = SmallVec::from_slice(&[FactorKind::Parallel]);
        for factor in &self.factors {
            if written.contains(&factor.kind) {
                continue;
            }
            written.push(factor.kind);
            write!(f, " {}=", factor.kind)?;
            let mut alike = (0..).zip(&self.factors).filter(|(_, other)| other.kind == factor.kind);
            alike.try_for_each(|(index, _)| write_letter(f, index))?;
        }
        match self.initial {
            Some(operand) => write!(f, " initial={operand}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for FactorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactorKind::Parallel => f.write_str("parallel"),
            FactorKind::Reduction(kind) => f.write_str(&format!("{kind:?}").to_lowercase()),
            FactorKind::Replicated => f.write_str("replicated"),
            FactorKind::Gathered => f.write_str("gathered"),
            FactorKind::Permutation => f.write_str("permutation"),
            FactorKind::Indexed => f.write_str("indexed"),
        }
    }
}

fn write_letter(f: &mut fmt::Formatter<'_>, factor: FactorIndex) -> fmt::Result {
    let letter = char::from(b'a' + (factor % 26) as u8);
    if factor < 26 { write!(f, "{letter}") } else { write!(f, "{letter}{}", factor / 26) }
}
