//! A feed-forward block of routed experts: each token goes through a few of many small gated blocks, and through all
//! shared ones.
//!
//! No token is dropped, unless experts have a capacity: the choices of a device's tokens are sorted by expert, and
//! grouped products ([`ragged_dot`](meshloom::trace::ragged_dot)) multiply groups of any size. The block has four
//! steps, so a layer can put other work between them ([`batch_split`](super::DecoderConfig)):
//!
//! | step | what it does | what moves |
//! |---|---|---|
//! | [`route`] | scores, choices, load-balance loss | nothing |
//! | [`dispatch`] | tokens, choices and weights to the experts | an all-gather of tokens along the axes of the experts |
//! | [`run_experts`] | each group of experts works on the tokens that chose it | nothing |
//! | [`combine`] | the groups' results are added up where the tokens came from | a reduce-scatter along the same axes |
//!
//! With a capacity, dispatching and combining may be all-to-alls instead ([`ExpertExchange`]), with the same results.
//! `docs/experts.md` explains why these collectives and not others.

mod exchange;
mod experts;
mod router;
mod slots;

pub use exchange::{ExchangeSizes, ExpertExchange};
pub use experts::{Dispatched, combine, dispatch, run_experts};
pub use router::{Routing, Scoring, route};

use meshloom::trace::Tensor;

use super::layout::Rows;
use super::mlp::{Activation, Mlp, mlp};

meshloom::tree! {
    /// Parameters of [`moe`].
    pub struct Moe<T> {
        /// `[embed, experts]`: the router.
        pub router: T,
        /// `[experts, embed, moe_mlp]`.
        pub gate: T,
        /// `[experts, embed, moe_mlp]`.
        pub up: T,
        /// `[experts, moe_mlp, embed]`.
        pub down: T,
        /// Added to the logits of the router: `[experts]`.
        pub router_bias: Option<T>,
        /// Added to scores where experts are chosen, not to their weights: `[experts]`. No gradient flows into it.
        pub choice_bias: Option<T>,
        /// Biases of the experts.
        pub biases: Option<ExpertBiases<T>>,
        /// The experts that every token goes through, as one block.
        pub shared: Option<Mlp<T>>,
    }

    /// Biases of routed experts.
    pub struct ExpertBiases<T> {
        /// `[experts, moe_mlp]`.
        pub gate: T,
        /// `[experts, moe_mlp]`.
        pub up: T,
        /// `[experts, embed]`.
        pub down: T,
    }
}

impl<T> Moe<T> {
    /// Experts without biases and without shared ones.
    pub fn new(router: T, gate: T, up: T, down: T) -> Moe<T> {
        Moe { router, gate, up, down, router_bias: None, choice_bias: None, biases: None, shared: None }
    }
}

/// Groups of experts. A token chooses groups, then experts in them: a group's score is the sum of its two
/// best (DeepSeek-V3, arXiv 2412.19437, section 2.1.2: node-limited routing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterGroups {
    /// Number of groups; a divisor of the experts, which leaves two or more in a group.
    pub count: usize,
    /// How many a token chooses.
    pub chosen: usize,
}

/// The shape of a block of routed experts. By default there are none.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeConfig {
    /// Number of routed experts.
    pub experts: usize,
    /// How many of them each token goes through.
    pub experts_per_token: usize,
    /// Inner width of one expert.
    pub mlp: usize,
    /// Number of experts that every token goes through besides; their inner width is this times `mlp`.
    pub shared_experts: usize,
    /// The activation of an expert, between its products.
    pub activation: Activation,
    /// How scores come of the router's logits.
    pub scoring: Scoring,
    /// Whether the router's logits have a bias.
    pub router_bias: bool,
    /// Whether scores have a bias where experts are chosen.
    pub choice_bias: bool,
    /// Groups that a token chooses among first.
    pub groups: Option<RouterGroups>,
    /// Whether experts have biases.
    pub biases: bool,
    /// Whether the weights of a token's experts add up to `weight_scale`.
    pub normalize_weights: bool,
    /// The factor of weights.
    pub weight_scale: f64,
    /// The number of slots that an expert has for the tokens of a row, as a multiple of those that it needs where
    /// experts are used evenly ([`MoeConfig::capacity`]). The first tokens of a row that choose an expert get its
    /// slots; the others get nothing from it. With `None`, no token is dropped.
    pub capacity_factor: Option<f64>,
    /// How tokens travel to experts of other devices. The result does not depend on it.
    pub exchange: ExpertExchange,
    /// Groups into which experts are cut; a divisor of `experts`. The result does not depend on it. It is the dimension
    /// by which experts are spread over devices: the size of the mesh axes of `activation_exp`, or a multiple.
    pub expert_groups: usize,
    /// Parts into which rows are cut, each sorted for itself; a divisor of the batch. The result does not depend on it.
    /// It is the dimension by which a batch is spread over devices: the size of the mesh axes of
    /// `activation_batch_no_exp_moe`, or a multiple. The fewer parts, the more rows are neighbours in a product.
    pub batch_parts: usize,
    /// The same of a row's tokens: a divisor of the length, by the mesh axes of `activation_norm_length_moe`.
    pub sequence_parts: usize,
}

impl Default for MoeConfig {
    fn default() -> MoeConfig {
        MoeConfig {
            experts: 0,
            experts_per_token: 2,
            mlp: 0,
            shared_experts: 0,
            activation: Activation::Silu,
            scoring: Scoring::Softmax,
            router_bias: false,
            choice_bias: false,
            groups: None,
            biases: false,
            normalize_weights: true,
            weight_scale: 1.0,
            capacity_factor: None,
            exchange: ExpertExchange::Gather,
            expert_groups: 1,
            batch_parts: 1,
            sequence_parts: 1,
        }
    }
}

/// Routed experts over `x` `[batch, length, embed]`, which is part of the residual stream. Everything has the type of
/// `x`, except the router in `f32`. Returns what the block adds to the stream, and the load-balance loss (a scalar
/// `f32`, see [`Routing`]).
///
/// An expert computes `down(silu(gate(x)) * up(x))`, or with another [`Activation`], and with biases if it has any; a
/// token's result is the sum over its experts, weighted.
///
/// Source: Shazeer et al., "Outrageously Large Neural Networks", arXiv 1701.06538; Jiang et al., "Mixtral of Experts",
/// arXiv 2401.04088; without capacity as Gale et al., "MegaBlocks", arXiv 2211.15841.
pub fn moe(x: Tensor, params: &Moe<Tensor>, config: &MoeConfig) -> (Tensor, Tensor) {
    let (made, routing) = moe_with_routing(x, params, config);
    (made, routing.load_balance_loss)
}

/// As [`moe`], with all that the router decided.
pub(super) fn moe_with_routing(x: Tensor, params: &Moe<Tensor>, config: &MoeConfig) -> (Tensor, Routing) {
    let routing = route(x, params, config);
    let dispatched = dispatch(x, &routing, config);
    let routed = combine(run_experts(&dispatched, params, config), &dispatched);
    (add_shared(x, routed, &routing, params, config), routing)
}

/// Adds to the routed experts' result for `x` that of the shared ones, and the routed ones' last biases.
pub fn add_shared(x: Tensor, routed: Tensor, routing: &Routing, params: &Moe<Tensor>, config: &MoeConfig) -> Tensor {
    let routed = match &params.biases {
        // Here, and not by the experts: where their inner width is split, each device has a partial sum.
        Some(biases) => routed + routing.mixed_by_expert(biases.down, config).convert(routed.dtype()),
        None => routed,
    };
    match &params.shared {
        Some(shared) => routed + Rows::LAYERS.leave_block(mlp(Rows::LAYERS.enter_block(x), shared, config.activation)),
        None => routed,
    }
}
