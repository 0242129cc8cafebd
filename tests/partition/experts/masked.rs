//! Routed experts against every expert applied to every token, and masked.

use meshloom::ir::Literal;
use meshloom::trace::{Function, Tensor, arange, einsum};
use meshloom_nn::{ExpertExchange, Moe, MoeConfig, Scoring, moe};

use super::interpreted;
use meshloom::ir::DType;
use support::cases::cases;
use support::experts::*;

/// The same block without sorting or selection: expert `e` is chosen if fewer than `experts_per_token` come before it.
pub fn all_masked(x: Tensor, params: &Moe<Tensor>, config: &MoeConfig) -> (Tensor, Tensor) {
    let [batch, length, _] = x.shape();
    let count = config.experts;
    let logits = einsum("bte,ex->btx", &[x, params.router]);
    let scores = match config.scoring {
        Scoring::Softmax => {
            let exp = logits.exp();
            exp / exp.sum(-1).broadcast_like(exp, [0, 1])
        }
        Scoring::Sigmoid => 1.0 / (1.0 + (-logits).exp()),
    };
    let dims = [batch, length, count, count];
    let (own, other) = (scores.expand(-1).broadcast_to(dims), scores.expand(2).broadcast_to(dims));
    let number = arange(DType::S32, count);
    let (own_number, other_number) = (number.expand(-1).broadcast_to(dims), number.broadcast_to(dims));
    let before = other.greater(own) | (other.equal(own) & other_number.less(own_number));
    let rank = before.convert(DType::S32).sum(-1);
    let chosen = rank.less(config.experts_per_token as f64).convert(DType::F32);
    let mut weights = scores * chosen;
    if config.normalize_weights {
        weights = weights / weights.sum(-1).broadcast_like(weights, [0, 1]);
    }
    if let Some(capacity) = config.capacity(length) {
        let (row, column) = (arange(DType::S32, length), arange(DType::S32, length).expand(0));
        let earlier = row.expand(-1).broadcast_to([length, length]).less(column.broadcast_to([length, length]));
        let taken = einsum("bsx,st->btx", &[chosen, earlier.convert(DType::F32)]);
        weights = weights * taken.less(capacity as f64 - 0.5).convert(DType::F32);
    }
    let gate = einsum("bte,xem->btxm", &[x, params.gate]);
    let up = einsum("bte,xem->btxm", &[x, params.up]);
    let each = einsum("btxm,xme->btxe", &[gate * gate.logistic() * up, params.down]);
    let mut result = einsum("btxe,btx->bte", &[each, weights * config.weight_scale]);
    if let Some(shared) = &params.shared {
        let (gate, up) = (einsum("bte,em->btm", &[x, shared.gate]), einsum("bte,em->btm", &[x, shared.up]));
        result = result + einsum("btm,me->bte", &[gate * gate.logistic() * up, shared.down]);
    }
    let fraction = chosen.mean(1) / config.experts_per_token as f64;
    let probability = (scores / scores.sum(-1).broadcast_like(scores, [0, 1])).mean(1);
    (result, (fraction * probability).sum(-1).mean(..) * count as f64)
}

/// The case that XLA takes too in the small tier.
const IN_GROUPS: &str = "in groups";

fn check(what: &str, config: &MoeConfig, change: impl Fn(&mut Vec<Literal>)) -> Vec<Vec<f64>> {
    let graphs = [moe as Block, all_masked].map(|block| with_gradients(config, ROWS, block));
    let mut inputs = random_inputs(&graphs[0], 5);
    change(&mut inputs);
    let [found, expected] = graphs.each_ref().map(|graph| interpreted(graph, &inputs));
    check_equal(what, &found, &expected, 1e-5);
    for graph in cases("partition experts by XLA", usize::from(what == IN_GROUPS), [&graphs[0]]) {
        check_equal(what, &run_on_one(graph, &inputs), &expected, 1e-5);
    }
    assert!(found.iter().flatten().all(|number| number.is_finite()), "{what}");
    found
}

#[test]
fn experts_do_what_all_of_them_masked_would() {
    let cases = [
        ("two of eight", experts(8, 2)),
        (IN_GROUPS, MoeConfig { expert_groups: 4, batch_parts: 8, ..experts(8, 3) }),
        ("in groups of one", MoeConfig { expert_groups: 8, sequence_parts: 3, ..experts(8, 3) }),
        ("in parts", MoeConfig { expert_groups: 2, batch_parts: 2, sequence_parts: 4, ..deepseek(experts(8, 4)) }),
        ("all", MoeConfig { normalize_weights: false, ..experts(4, 4) }),
        ("the only one", experts(1, 1)),
        ("one, not normalized", MoeConfig { normalize_weights: false, expert_groups: 2, ..experts(6, 1) }),
        ("deepseek", deepseek(experts(16, 6))),
    ];
    for (what, config) in cases {
        check(what, &config, |_| ());
    }
}

/// The first tokens of a row get the slots of an expert, whichever way they travel.
#[test]
fn slots_are_filled_in_the_order_of_tokens() {
    for exchange in ExpertExchange::ALL {
        for (factor, config) in [
            (0.5, experts(8, 2)),
            (1.0, MoeConfig { expert_groups: 2, batch_parts: 2, sequence_parts: 4, ..experts(8, 3) }),
            (1.25, deepseek(experts(16, 6))),
            (1.0, experts(4, 4)),
        ] {
            let config = MoeConfig { capacity_factor: Some(factor), exchange, ..config };
            check(&format!("{}, capacity {factor}", exchange.name()), &config, |_| ());
        }
    }
}

/// No token chooses experts 1 and 5, nor any of group 1 of 4: these contribute nothing, and no result is NaN.
#[test]
fn an_expert_may_have_no_token() {
    let starved = [1, 2, 3, 5];
    for groups in [1, 4] {
        let config = MoeConfig { expert_groups: groups, ..experts(8, 2) };
        let outputs = check("starved", &config, |inputs| {
            let positive = |x: f64| x.abs() as f32 + 0.1;
            let x: Vec<f32> = inputs[0].to_f64_vec().into_iter().map(positive).collect();
            inputs[0] = Literal::from_slice(&inputs[0].ty().dims, &x).expect("x");
            let column = |(index, x): (usize, f64)| if starved.contains(&(index % 8)) { -5.0 } else { x as f32 };
            let router: Vec<f32> = inputs[1].to_f64_vec().into_iter().enumerate().map(column).collect();
            inputs[1] = Literal::from_slice(&inputs[1].ty().dims, &router).expect("a router");
        });
        // Results, loss, gradients of x and router, then those of the experts.
        for gradient in &outputs[4..7] {
            let part = gradient.len() / 8;
            let is_zero = |expert: usize| gradient[expert * part..][..part].iter().all(|&number| number == 0.0);
            assert!(starved.into_iter().all(is_zero));
            assert!((0..8).filter(|&expert| !is_zero(expert)).count() >= 2);
        }
    }
}

#[test]
fn impossible_sizes_are_errors() {
    let error = |config: MoeConfig| {
        let specs = (stream(ROWS), parameters(ROWS.embed, &config));
        let function = Function::trace("experts", specs, |(x, params)| moe(x, &params, &config));
        function.err().unwrap_or_else(|| panic!("{config:?} is possible")).to_string()
    };
    let many = error(experts(4, 5));
    assert!(many.contains("the 5 largest of 4 elements do not exist") && many.contains("router.rs"), "{many}");
    let groups = error(MoeConfig { expert_groups: 3, ..experts(8, 2) });
    assert!(groups.contains("8 experts") && groups.contains('3'), "{groups}");
    let rows = error(MoeConfig { batch_parts: 3, ..experts(8, 2) });
    assert!(rows.contains("8 rows") && rows.contains('3'), "{rows}");
    let parts = error(MoeConfig { sequence_parts: 5, ..experts(8, 2) });
    assert!(parts.contains("12 tokens") && parts.contains('5'), "{parts}");
}
