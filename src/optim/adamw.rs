//! AdamW, and clipping by the global norm.

use std::panic::Location;

use wildmatch::WildMatch;

use super::expect_one_for_each;
use super::step::UpdateStep;
use crate::ir::{DType, Role};
use crate::trace::{Init, MapTree, Operand, Param, Tensor, Tree, composite, refill};

/// AdamW's constants.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// The number added to the root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay, for parameters that decay ([`Param::decays`]): those of two or more dimensions (not
    /// counting those over stacked layers), but for biases.
    pub weight_decay: f64,
    /// Patterns of the paths of parameters that do not decay either: `*` stands for any text, `?` for one character.
    pub no_decay: Vec<String>,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1, no_decay: Vec::new() }
    }
}

crate::tree! {
    /// AdamW's state for parameters of the tree type `P`.
    pub struct AdamWState<P> {
        /// First moments, `f32`.
        pub first: P,
        /// Second moments, `f32`.
        pub second: P,
    }
}

impl AdamW {
    /// The state's declaration: moments like the parameters, in `f32`, zero at first.
    pub fn state<P: Tree<Leaf = Param> + MapTree<Param, Mapped = P>>(&self, params: &P) -> AdamWState<P> {
        let moments = || params.map(|_, param| moment(param));
        AdamWState { first: moments(), second: moments() }
    }

    /// The first of the patterns in `no_decay` that no parameter matches, which is probably a mistake.
    pub fn unmatched(&self, declared: &impl Tree<Leaf = Param>) -> Option<&str> {
        let paths = declared.paths();
        let is_unmatched = |pattern: &&String| !paths.iter().any(|path| WildMatch::new(pattern).matches(path));
        self.no_decay.iter().find(is_unmatched).map(String::as_str)
    }

    /// Whether each of these parameters decays.
    pub(super) fn decaying(&self, declared: &impl Tree<Leaf = Param>) -> Vec<bool> {
        let exempt: Vec<WildMatch> = self.no_decay.iter().map(|pattern| WildMatch::new(pattern)).collect();
        let decays = |(path, param): (String, Param)| {
            let is_exempt = exempt.iter().any(|pattern| pattern.matches(&path));
            self.weight_decay != 0.0 && param.decays && !is_exempt
        };
        declared.paths().into_iter().zip(declared.leaves()).map(decays).collect()
    }

    /// One step: new parameters and state. `declared` are the parameters' declarations, `step` (an integer scalar, or
    /// an [`UpdateStep`]) counts from 0, `rate` is an `f32` scalar or a number. The step is computed in `f32`.
    ///
    /// `p := p - rate * (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay * p)` with `t = step + 1`.
    ///
    /// All trees have as many leaves as the parameters; else the trace notes an error.
    ///
    /// Source: Loshchilov & Hutter, "Decoupled Weight Decay Regularization", arXiv 1711.05101.
    #[track_caller]
    pub fn update<P: Tree<Leaf = Tensor>>(
        &self,
        declared: &impl Tree<Leaf = Param>,
        params: &P,
        gradients: &P,
        state: &AdamWState<P>,
        step: impl Into<UpdateStep>,
        rate: impl Operand,
    ) -> (P, AdamWState<P>) {
        let (place, step) = (Location::caller(), step.into());
        let (leaves, firsts, seconds) = (params.leaves(), state.first.leaves(), state.second.leaves());
        let lists = [
            ("gradients", gradients.leaves().len()),
            ("declared parameters", declared.leaves().len()),
            ("moments", firsts.len()),
            ("moments", seconds.len()),
        ];
        expect_one_for_each("AdamW", leaves.len(), &lists, place);
        composite(place, || {
            let count = (step.number + 1).convert(DType::F32);
            let correction = |beta: f64| (1.0 - (count * beta.ln()).exp()).recip();
            let (first_correction, second_correction) = (correction(self.beta1), correction(self.beta2));
            let leaves = leaves.into_iter().zip(gradients.leaves()).zip(self.decaying(declared));
            let (mut new_params, mut new_first, mut new_second) = (Vec::new(), Vec::new(), Vec::new());
            for (((param, gradient), decays), (first, second)) in leaves.zip(firsts.into_iter().zip(seconds)) {
                let gradient = gradient.convert(DType::F32);
                let first = step.kept(first * self.beta1 + gradient * (1.0 - self.beta1), first);
                let second = step.kept(second * self.beta2 + gradient.square() * (1.0 - self.beta2), second);
                let direction = (first * first_correction) / ((second * second_correction).sqrt() + self.epsilon);
                new_params.push(step.kept(moved(param, direction, decays.then_some(self.weight_decay), rate), param));
                new_first.push(first);
                new_second.push(second);
            }
            let refilled = |tree: &P, leaves: Vec<Tensor>| refill(tree, &mut leaves.into_iter());
            let (first, second) = (refilled(&state.first, new_first), refilled(&state.second, new_second));
            (refilled(params, new_params), AdamWState { first, second })
        })
    }
}

/// A parameter after a step along a direction of `f32`, with this weight decay. The change is computed in `f32`, and
/// taken from the parameter in its own type where that is wider.
pub(super) fn moved(param: Tensor, direction: Tensor, weight_decay: Option<f64>, rate: impl Operand) -> Tensor {
    let change = match weight_decay {
        Some(decay) => direction + param.convert(DType::F32) * decay,
        None => direction,
    };
    let wide = param.dtype().at_least_f32();
    (param.convert(wide) - (change * rate).convert(wide)).convert(param.dtype())
}

/// The declaration of an optimizer's mean over steps for a parameter: `f32`, zero at first.
pub(super) fn moment(param: &Param) -> Param {
    let mut moment = param.clone();
    moment.spec.ty.dtype = DType::F32;
    moment.spec.role = Role::Optimizer;
    moment.init = Init::Constant(0.0);
    moment
}

/// The Euclidean norm of all leaves together, as an `f32` scalar.
#[track_caller]
pub fn global_norm<P: Tree<Leaf = Tensor>>(tree: &P) -> Tensor {
    composite(Location::caller(), || {
        let squares = tree.leaves().into_iter().map(|leaf| leaf.convert(DType::F32).square().sum(..));
        let total = squares.reduce(|sum, square| sum + square);
        total.unwrap_or_else(|| crate::trace::zeros(DType::F32, [])).sqrt()
    })
}

/// Scales all leaves down so that their global norm, given as `norm`, is at most `limit`.
#[track_caller]
pub fn clip_by_global_norm<P: Tree<Leaf = Tensor>>(tree: &P, norm: Tensor, limit: f64) -> P {
    composite(Location::caller(), || {
        let factor = norm.maximum(limit).recip() * limit;
        let mut leaves = tree.leaves().into_iter().map(|leaf| {
            let factor = factor.convert(leaf.dtype());
            leaf * factor
        });
        refill(tree, &mut leaves)
    })
}
