//! The mesh axes that split each factor of one op: the one decision that propagation and partitioning share.

use smallvec::SmallVec;

use super::{Axes, Mesh, MeshAxis, Spec};
use crate::ops::{DimFactors, FactorKind, FactorRule, TensorFactors};

/// The mesh axes of each factor of a rule, major to minor.
pub(crate) type FactorAxes = SmallVec<[Axes; 4]>;

/// The claim of one tensor on one factor.
struct Claim {
    axes: Axes,
    /// Bytes of the tensor: of two claims that agree in all else, the tensor that costs more to move wins.
    bytes: u64,
}

/// Decides for each factor the axes that it is split over, from the specs of those tensors that have one (operands
/// first, then results; `bytes` of each).
///
/// A factor gets the axes that most of its tensors have. A mesh axis can split only one factor of an op; where several
/// claim it, it goes to the one claimed by most tensors, then to a parallel one rather than a reduction, then to the
/// one whose tensors are larger. So in `x[b,e] w[e,m]`, with `b` and `e` both over `fsdp`, `x` and the result outvote
/// the weight, which is gathered; that is what FSDP means.
pub(crate) fn resolve(mesh: &Mesh, rule: &FactorRule, specs: &[Option<&Spec>], bytes: &[u64]) -> FactorAxes {
    let mut claims: SmallVec<[SmallVec<[Claim; 3]>; 4]> = rule.factors.iter().map(|_| SmallVec::new()).collect();
    let tensors = rule.operands.iter().chain(&rule.results);
    for ((factors, spec), &bytes) in tensors.zip(specs).zip(bytes) {
        let Some(spec) = spec else { continue };
        for (dim, factors) in factors.iter().enumerate() {
            for (factor, axes) in split_axes(mesh, rule, factors, spec.dim(dim)) {
                claims[factor].push(Claim { axes, bytes });
            }
        }
    }
    let mut chosen: FactorAxes = claims.iter().map(|claims| strongest(claims)).collect();
    for (factor, axes) in rule.factors.iter().zip(&mut chosen) {
        if matches!(factor.kind, FactorKind::Replicated | FactorKind::Gathered) {
            axes.clear();
        }
    }
    settle_conflicts(mesh, rule, &claims, &mut chosen);
    while drop_interleaved(mesh, rule, &mut chosen) {}
    chosen
}

/// Parts of a dimension are contiguous only as long as every more major factor is split to its end: a factor after one
/// that is not cannot be split. Returns whether there was any such factor.
fn drop_interleaved(mesh: &Mesh, rule: &FactorRule, chosen: &mut [Axes]) -> bool {
    let mut dropped = false;
    for factors in rule.operands.iter().chain(&rule.results).flatten().filter(|factors| factors.len() > 1) {
        let mut is_whole = true;
        for &factor in factors {
            let factor = factor as usize;
            if !is_whole && !chosen[factor].is_empty() {
                chosen[factor].clear();
                dropped = true;
            }
            let parts: usize = chosen[factor].iter().map(|&axis| mesh.size(axis)).product();
            is_whole &= parts == rule.factors[factor].size;
        }
    }
    dropped
}

/// Deals the axes of one dimension out to its factors, major to minor, as far as they divide them.
pub(crate) fn split_axes(
    mesh: &Mesh,
    rule: &FactorRule,
    factors: &DimFactors,
    axes: &[MeshAxis],
) -> SmallVec<[(usize, Axes); 2]> {
    let mut dealt = SmallVec::new();
    let mut rest = axes;
    for &factor in factors {
        let factor = factor as usize;
        let mut left = rule.factors[factor].size;
        let mut own = Axes::new();
        while let Some((&axis, others)) = rest.split_first() {
            let size = mesh.size(axis);
            if left <= 1 || !left.is_multiple_of(size) {
                break;
            }
            left /= size;
            own.push(axis);
            rest = others;
        }
        dealt.push((factor, own));
        // A factor that is not split to its end leaves nothing for the more minor ones.
        if left > 1 {
            break;
        }
    }
    dealt
}

/// The axes that most claims agree with: those that are equal to them or begin with them.
fn strongest(claims: &[Claim]) -> Axes {
    let score = |candidate: &Claim| {
        let agreeing = claims.iter().filter(|other| other.axes.starts_with(&candidate.axes));
        let (votes, bytes) = agreeing.fold((0, 0), |(votes, bytes), claim| (votes + 1, bytes + claim.bytes));
        (!candidate.axes.is_empty(), votes, candidate.axes.len(), bytes)
    };
    claims.iter().rev().max_by_key(|claim| score(claim)).map(|claim| claim.axes.clone()).unwrap_or_default()
}

/// Leaves every axis to one factor.
fn settle_conflicts(mesh: &Mesh, rule: &FactorRule, claims: &[SmallVec<[Claim; 3]>], chosen: &mut [Axes]) {
    for axis in mesh.axes() {
        let claimed = |factor: &usize| chosen[*factor].contains(&axis);
        let claimants: SmallVec<[usize; 4]> = (0..chosen.len()).filter(claimed).collect();
        if claimants.len() < 2 {
            continue;
        }
        let score = |&factor: &usize| {
            let having = claims[factor].iter().filter(|claim| claim.axes.contains(&axis));
            let (votes, bytes) = having.fold((0, 0), |(votes, bytes), claim| (votes + 1, bytes + claim.bytes));
            // An op that would have to add up its results afterwards comes last.
            let is_sum = matches!(rule.factors[factor].kind, FactorKind::Reduction(_));
            (votes, !is_sum, bytes, std::cmp::Reverse(factor))
        };
        let mut losers: SmallVec<[usize; 4]> = SmallVec::new();
        let separate: SmallVec<[&TensorFactors; 4]> = rule.operands.iter().filter(|_| rule.separate).collect();
        let groups = separate.iter().map(|dims| Some(*dims)).chain((!rule.separate).then_some(None));
        for group in groups {
            let runs_over =
                |factor: &usize| group.is_none_or(|dims| dims.iter().flatten().any(|&own| own as usize == *factor));
            let own = || claimants.iter().copied().filter(runs_over);
            let winner = own().max_by_key(score);
            losers.extend(own().filter(|&factor| Some(factor) != winner));
        }
        for factor in losers {
            // A factor that has lost in one group already does not have the axis any more.
            if let Some(end) = chosen[factor].iter().position(|&other| other == axis) {
                chosen[factor].truncate(end);
            }
        }
    }
}

/// The spec that a tensor has under these factor axes.
pub(crate) fn spec_of(factors: &[DimFactors], axes: &[Axes]) -> Spec {
    let of_dim =
        |factors: &DimFactors| factors.iter().flat_map(|&factor| axes[factor as usize].iter().copied()).collect();
    Spec::new(factors.iter().map(of_dim))
}
