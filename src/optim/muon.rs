//! Muon: momentum made orthogonal, for parameters that are matrices.

use std::panic::Location;

use super::adamw::{AdamW, AdamWState, moment, moved};
use super::expect_one_for_each;
use super::step::UpdateStep;
use crate::ir::{DType, Name, Role};
use crate::ops::WithAxes;
use crate::trace::{
    MapTree, MatrixDims, Operand, Param, Subtree, Tensor, Tree, composite, einsum, fail_internal, fori_loop, refill,
    scope,
};

/// Coefficients of the Newton-Schulz iteration, and how often it runs.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
const ITERATIONS: usize = 5;

/// The number added to the norm that a matrix is divided by.
const NORM_EPSILON: f64 = 1e-8;

/// The logical axis of stacked layers whose matrices are dealt out to devices. It is split over the axes of its rule as
/// far as they divide the number of layers.
const MATRICES: &str = "matrices";

/// Muon's constants.
///
/// A parameter that is declared to be matrices ([`Param::matrix`]) has a momentum `m`, and moves along a matrix with
/// singular values near 1; all other parameters are AdamW's. With gradient `g`, momentum `mu` and step `t` from 1:
///
/// ```text
/// m := mu * m + (1 - mu) * g
/// d := orthogonal(mu * m / (1 - mu^(t + 1)) + (1 - mu) * g / (1 - mu^t))
/// p := p - rate * (rms * sqrt(max(rows, columns)) * d + decay * p)
/// ```
///
/// `orthogonal` divides by the Frobenius norm and runs five iterations `x := a x + b (x x^T) x + c (x x^T)^2 x`. So an
/// update has the root mean square `rms` or nearly so, whatever the matrix: near that of AdamW's updates with 0.2, so
/// that one learning rate and one weight decay serve both. All in `f32`.
///
/// These are the semantics of optax's `contrib.muon` with `consistent_rms = rms`. Sources: Jordan et al., "Muon", 2024;
/// for the factor, Liu et al., "Muon is Scalable for LLM Training", arXiv 2502.16982.
///
/// The iteration needs whole matrices. If layers are stacked in one dimension, each device gathers some of them, and
/// works on those alone: that dimension is named `matrices`, and rules may split it over the axes that split the
/// parameters. Devices along other axes repeat each other's work, as do all where layers are not stacked.
#[derive(Clone, Debug, PartialEq)]
pub struct Muon {
    /// Decay of the momentum, mu.
    pub momentum: f64,
    /// Root mean square of a matrix's update, before the rate.
    pub rms: f64,
    /// The optimizer of all parameters that are not matrices. Its weight decay and its exemptions hold for matrices
    /// too.
    pub adamw: AdamW,
}

impl Default for Muon {
    fn default() -> Muon {
        Muon { momentum: 0.95, rms: 0.2, adamw: AdamW::default() }
    }
}

crate::tree! {
    /// Muon's state.
    pub struct MuonState<T> {
        /// Momenta of the matrices, `f32`.
        pub momentum: Subtree<T>,
        /// AdamW's state of the other parameters.
        pub others: AdamWState<Subtree<T>>,
    }
}

/// The facts about a matrix that a step needs.
struct Matrix {
    declared: Param,
    dims: MatrixDims,
    decays: bool,
}

impl Muon {
    /// The state's declaration: one momentum for each matrix, two moments for each other parameter, in `f32`, zero at
    /// first.
    pub fn state(&self, params: &impl Tree<Leaf = Param>) -> MuonState<Param> {
        let is_matrix = are_matrices(params);
        let others = Subtree::of(params, &is_matrix.iter().map(|is_matrix| !is_matrix).collect::<Vec<_>>());
        let momentum = Subtree::of(params, &is_matrix).map(|_, param| moment(param));
        MuonState { momentum, others: self.adamw.state(&others) }
    }

    /// One step: new parameters and state. `declared` are the parameters' declarations, `step` (an integer scalar)
    /// counts from 0, `rate` is an `f32` scalar or a number.
    ///
    /// Parameters, gradients and declarations must be equal in number, and the state must be that of these
    /// declarations; else the trace notes an error.
    #[track_caller]
    pub fn update<P: Tree<Leaf = Tensor>>(
        &self,
        declared: &impl Tree<Leaf = Param>,
        params: &P,
        gradients: &P,
        state: &MuonState<Tensor>,
        step: impl Into<UpdateStep>,
        rate: impl Operand,
    ) -> (P, MuonState<Tensor>) {
        let (place, step) = (Location::caller(), step.into());
        let (count, is_matrix) = (params.leaves().len(), are_matrices(declared));
        let of_matrices = is_matrix.iter().filter(|is_matrix| **is_matrix).count();
        let lists = [("gradients", gradients.leaves().len()), ("declared parameters", is_matrix.len())];
        expect_one_for_each("Muon", count, &lists, place);
        expect_one_for_each("Muon", of_matrices, &[("momenta", state.momentum.leaves().len())], place);
        composite(place, || {
            let other: Vec<bool> = is_matrix.iter().map(|is_matrix| !is_matrix).collect();
            let [other_params, other_gradients] = [params, gradients].map(|tree| Subtree::of(tree, &other));
            let declared_others = Subtree::of(declared, &other);
            let (other_params, others) =
                self.adamw.update(&declared_others, &other_params, &other_gradients, &state.others, step, rate);

            let count = (step.number + 1).convert(DType::F32);
            let share = |count: Tensor| (1.0 - (count * self.momentum.ln()).exp()).recip();
            let (past, present) = (share(count + 1.0) * self.momentum, share(count) * (1.0 - self.momentum));
            let mut other_params = other_params.leaves().into_iter();
            let mut momenta = state.momentum.leaves().into_iter();
            let (mut new_params, mut new_momenta) = (Vec::new(), Vec::new());
            let decays = self.adamw.decaying(declared).into_iter();
            let leaves = params.leaves().into_iter().zip(gradients.leaves()).zip(declared.leaves()).zip(decays);
            for (((param, gradient), declared), decays) in leaves {
                let Some(dims) = declared.matrix else {
                    let missing = || fail_internal("Muon", "AdamW's update of each other parameter");
                    new_params.push(other_params.next().unwrap_or_else(missing));
                    continue;
                };
                let Some(momentum) = momenta.next() else { continue };
                let gradient = gradient.convert(DType::F32);
                let new = momentum * self.momentum + gradient * (1.0 - self.momentum);
                let matrix = Matrix { declared, dims, decays };
                new_params.push(step.kept(self.moved(param, new * past + gradient * present, &matrix, rate), param));
                new_momenta.push(step.kept(new, momentum));
            }
            let momentum = refill(&state.momentum, &mut new_momenta.into_iter());
            (refill(params, &mut new_params.into_iter()), MuonState { momentum, others })
        })
    }

    /// A parameter after a step along a direction that is yet to be made orthogonal.
    fn moved(&self, param: Tensor, direction: Tensor, matrix: &Matrix, rate: impl Operand) -> Tensor {
        let orthogonal = scope("newton_schulz", || orthogonal(direction, matrix));
        let (_, rows, columns) = matrix.sizes();
        let direction = orthogonal * (self.rms * (rows.max(columns) as f64).sqrt());
        moved(param, direction, matrix.decays.then_some(self.adamw.weight_decay), rate)
    }
}

impl Matrix {
    /// Number of leading dimensions that run over matrices.
    fn leading(&self) -> usize {
        self.declared.stacked_dims + self.dims.batch
    }

    /// The leading dimensions, rows and columns.
    fn sizes(&self) -> (&[usize], usize, usize) {
        let dims = &self.declared.spec.ty.dims[..];
        let (leading, rest) = dims.split_at(self.leading().min(dims.len()));
        let (rows, columns) = rest.split_at(self.dims.inputs.min(rest.len()));
        (leading, rows.iter().product(), columns.iter().product())
    }

    /// The sharding of a value with this many dimensions in which matrices are whole: nothing splits the dimensions of
    /// rows and columns, and stacked layers are dealt out.
    fn whole(&self, rank: usize) -> WithAxes {
        let mut names = self.declared.spec.axes.clone();
        names.truncate(self.leading());
        names.resize(rank, Name::default());
        if let (1, Some(name)) = (self.declared.stacked_dims, names.first_mut()) {
            *name = Name::new(MATRICES);
        }
        WithAxes { role: Role::Optimizer, as_divides: true, ..WithAxes::new(names) }
    }

    /// The sharding of the parameter's state.
    fn at_rest(&self) -> WithAxes {
        let mut names = self.declared.spec.axes.clone();
        names.resize(self.declared.spec.ty.rank(), Name::default());
        WithAxes { role: Role::Optimizer, ..WithAxes::new(names) }
    }
}

fn are_matrices(params: &impl Tree<Leaf = Param>) -> Vec<bool> {
    params.leaves().into_iter().map(|param| param.matrix.is_some()).collect()
}

/// Matrices with the singular vectors of these and singular values near 1, by Newton-Schulz iterations.
fn orthogonal(direction: Tensor, matrix: &Matrix) -> Tensor {
    let (leading, rows, columns) = matrix.sizes();
    let whole = |x: Tensor| x.with_logical_axes(matrix.whole(x.rank()));
    let x = whole(direction).reshape([leading, &[rows, columns]].concat());
    let kept: Vec<i32> = (0..leading.len() as i32).collect();
    let norm = x.square().sum([-2, -1]).sqrt() + NORM_EPSILON;
    let x = x / norm.broadcast_like(x, &kept[..]);
    // Products of the shorter side with itself are the smaller ones; the iteration of the transpose is the transpose.
    let batch: String = ('a'..='h').take(leading.len()).collect();
    let product = |[left, right, result]: [&str; 3], x: Tensor, y: Tensor| {
        einsum(&format!("{batch}{left},{batch}{right}->{batch}{result}"), &[x, y])
    };
    let (gram, applied) = match rows <= columns {
        true => (["rk", "sk", "rs"], ["sk", "rs", "rk"]),
        false => (["kr", "ks", "rs"], ["ks", "sr", "kr"]),
    };
    let [a, b, c] = COEFFICIENTS;
    let x = fori_loop(ITERATIONS, x, |_, x| {
        let gram = product(gram, x, x);
        let polynomial = gram * b + product(["rt", "ts", "rs"], gram, gram) * c;
        // Otherwise the axes that split the result would split the carry as well, which would be gathered in every
        // iteration.
        whole(x * a + product(applied, x, polynomial))
    });
    whole(x.reshape(direction.dims())).with_logical_axes(matrix.at_rest())
}
