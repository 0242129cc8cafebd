//! Experts with a capacity: what is dropped, and tokens that travel by all-to-all.

use meshloom::ir::Literal;
use meshloom::partition::CollectiveKind::{AllGather, AllReduce, AllToAll, ReduceScatter};
use meshloom::trace::Function;
use meshloom_nn::{ExchangeSizes, ExpertExchange, MoeConfig, moe};
use meshloom_train::Trainer;
use meshloom_train::config::RunConfig;

use super::meshes::config;
use super::traffic::{ledger, ledger_by};
use super::{interpreted, interpreted_over};
use support::cases::cases;
use support::eight_devices::{client, relative_error};
use support::experts::*;

/// Experts whose slots hold some multiple of what they need where they are used evenly, by all-to-all.
fn exchanged(config: MoeConfig, capacity_factor: f64) -> MoeConfig {
    MoeConfig { capacity_factor: Some(capacity_factor), exchange: ExpertExchange::AllToAll, ..config }
}

#[test]
fn slots_are_those_of_a_row() {
    let slots = |factor: f64, length: usize| exchanged(experts(8, 2), factor).capacity(length);
    assert_eq!(slots(1.0, 12), Some(3));
    assert_eq!(slots(1.1, 12), Some(4));
    assert_eq!(slots(1e-6, 12), Some(1));
    assert_eq!(slots(4.0, 12), Some(12));
    assert_eq!(slots(100.0, 12), Some(12));
    assert_eq!(experts(8, 2).capacity(12), None);
}

/// Values and gradients on every mesh, by either exchange, are those of one device that has all tokens and experts.
#[test]
fn meshes_and_exchanges_drop_the_same() {
    for (config, factor) in [(experts(8, 3), 0.9), (deepseek(experts(16, 2)), 1.25)] {
        let plain = MoeConfig { capacity_factor: Some(factor), ..config };
        let reference = with_gradients(&plain, ROWS, moe);
        let inputs = random_inputs(&reference, 11);
        let expected = interpreted(&reference, &inputs);
        let dropless =
            interpreted(&with_gradients(&MoeConfig { capacity_factor: None, ..plain.clone() }, ROWS, moe), &inputs);
        assert!(relative_error(&dropless[0], &expected[0]) > 1e-2, "nothing is dropped");
        let meshes = [
            ("data=4,expert=2", 2, 4, 1),
            ("fsdp=2,expert=4", 4, 2, 1),
            ("expert=8", 8, 1, 1),
            ("data=2,fsdp=2,expert=2", 2, 4, 1),
            ("expert=4,tensor=2", 4, 1, 1),
            ("fsdp=2,expert=2,context=2", 2, 2, 2),
        ];
        for (mesh, expert_groups, batch_parts, sequence_parts) in meshes {
            // An all-to-all wants whole rows: the run config refuses it here.
            let exchanges = if sequence_parts > 1 { &ExpertExchange::ALL[..1] } else { &ExpertExchange::ALL[..] };
            for &exchange in exchanges {
                let config = MoeConfig { expert_groups, batch_parts, sequence_parts, exchange, ..plain.clone() };
                let (graph, what) = (with_gradients(&config, ROWS, moe), format!("{mesh}, {}", exchange.name()));
                check_equal(&what, &interpreted_over(&graph, mesh, &rules(&[]), &inputs), &expected, 1e-5);
                let is_first = mesh == meshes[0].0 && exchange == ExpertExchange::AllToAll && plain.shared_experts > 0;
                for graph in cases("partition exchanges by XLA", usize::from(is_first), [&graph]) {
                    check_equal(&what, &run(&partitioned(graph, mesh, &rules(&[])), &inputs), &expected, 1e-5);
                }
            }
        }
    }
}

/// With as many slots as a row has tokens, nothing is dropped.
#[test]
fn a_large_capacity_drops_nothing() {
    let plain = experts(8, 2);
    let reference = with_gradients(&plain, ROWS, moe);
    let inputs = random_inputs(&reference, 12);
    let expected = interpreted(&reference, &inputs);
    let config = MoeConfig { expert_groups: 4, batch_parts: 2, ..exchanged(plain, 4.0) };
    let found = interpreted_over(&with_gradients(&config, ROWS, moe), "data=2,expert=4", &rules(&[]), &inputs);
    check_equal("all slots", &found, &expected, 1e-5);
}

/// All tokens choose expert 0, which has two slots for a row: the first two tokens of each row get something from it,
/// and the others what the shared experts make of them, bit by bit.
#[test]
fn what_finds_no_slot_gets_the_shared_part_alone() {
    for shared in [0, 2] {
        for exchange in ExpertExchange::ALL {
            let config = MoeConfig { shared_experts: shared, ..exchanged(experts(8, 1), 1.2) };
            let config = MoeConfig { exchange, ..config };
            assert_eq!(config.capacity(ROWS.length), Some(2));
            let specs = (stream(ROWS), parameters(ROWS.embed, &config));
            let function = Function::trace("experts", specs, |(x, params)| moe(x, &params, &config).0);
            let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
            let mut inputs = random_inputs(&graph, 5);
            let x: Vec<f32> = inputs[0].to_f64_vec().into_iter().map(|x| x.abs() as f32 + 0.1).collect();
            inputs[0] = Literal::from_slice(&inputs[0].ty().dims, &x).expect("x");
            let router: Vec<f32> = (0..ROWS.embed * 8).map(|index| if index % 8 == 0 { 1.0 } else { -1.0 }).collect();
            inputs[1] = Literal::from_slice(&inputs[1].ty().dims, &router).expect("a router");
            let found = interpreted(&graph, &inputs).remove(0);
            // Without what routed experts add: the third of their matrices is zero.
            let zeros = vec![0.0f32; inputs[4].to_f64_vec().len()];
            inputs[4] = Literal::from_slice(&inputs[4].ty().dims, &zeros).expect("zeros");
            let without = interpreted(&graph, &inputs).remove(0);
            assert_eq!(without.iter().any(|&number| number != 0.0), shared > 0);
            for (token, (found, without)) in found.chunks(ROWS.embed).zip(without.chunks(ROWS.embed)).enumerate() {
                assert_eq!(found != without, token % ROWS.length < 2, "{}: token {token}", exchange.name());
            }
        }
    }
}

/// Over the axis of experts nothing moves but slots and their weights, there and back, and their cotangents.
#[test]
fn slots_move_by_all_to_all_alone() {
    let rows = Rows { batch: 8, length: 12, embed: 16 };
    let config = MoeConfig { expert_groups: 2, batch_parts: 4, ..exchanged(experts(8, 2), 1.0) };
    let ledger = ledger(&config, rows, "data=2,fsdp=2,expert=2");
    // One row on each device, and three slots for each expert.
    let weights = (8 * 3 * 4) as u64;
    let slots = weights * rows.embed as u64;
    let expert = ledger.over_exactly(&["expert"]);
    assert_eq!(expert.forward().kind(AllToAll).bytes().unwrap(), 2 * slots + weights);
    assert_eq!(expert.backward().kind(AllToAll).bytes().unwrap(), 2 * slots + weights);
    assert_eq!(expert.forward().kind(AllToAll).operands_moved().unwrap(), 3);
    assert_eq!(expert.backward().kind(AllToAll).operands_moved().unwrap(), 3);
    for kind in [AllGather, ReduceScatter, AllReduce] {
        assert_eq!(expert.kind(kind).count().unwrap(), 0, "{kind:?}");
    }
    // The weights of experts stay along `expert`. Along `fsdp` they are gathered, and their gradients scattered.
    let weight = (config.experts / 2 * rows.embed / 2 * config.mlp * 4) as u64;
    let fsdp = ledger.over_exactly(&["fsdp"]);
    assert_eq!(fsdp.kind(AllGather).bytes().unwrap(), 3 * weight);
    assert_eq!(fsdp.kind(ReduceScatter).bytes().unwrap(), 3 * 2 * weight);
    assert_eq!(fsdp.kind(AllReduce).count().unwrap(), 0);
}

/// Under `tensor`, slots hold partial sums when they travel, and are added up where they arrive.
#[test]
fn sums_over_tensor_are_added_up_where_slots_arrive() {
    let rows = Rows { batch: 8, length: 12, embed: 16 };
    let config = MoeConfig { expert_groups: 4, batch_parts: 1, ..exchanged(experts(8, 2), 1.0) };
    let ledger = ledger(&config, rows, "expert=4,tensor=2");
    let weights = (2 * 8 * 3 * 4) as u64;
    let slots = weights * rows.embed as u64;
    let expert = ledger.over_exactly(&["expert"]).kind(AllToAll);
    assert_eq!(expert.forward().bytes().unwrap(), 2 * slots + weights);
    assert_eq!(expert.backward().bytes().unwrap(), 2 * slots + weights);
    // Nothing that all devices of `tensor` add up is more than slots and their weights.
    let sums = ledger.over_exactly(&["tensor"]).kind(AllReduce);
    assert!(sums.iter().expect("collectives").all(|part| part.bytes <= slots + weights), "{sums}");
    assert_eq!(sums.forward().iter().expect("collectives").filter(|part| part.bytes == slots).count(), 1, "{sums}");
}

/// The bytes by which an exchange is chosen are those of the ledger, and the one that is chosen has fewer.
#[test]
fn the_cheaper_exchange_is_taken() {
    let rows = Rows { batch: 8, length: 12, embed: 16 };
    let mut taken = [0, 0];
    for (mesh, devices, batch_parts) in [("data=4,expert=2", 2, 4), ("data=2,expert=4", 4, 2), ("expert=8", 8, 1)] {
        for (per_token, factor) in [(1, 1.0), (2, 1.0), (2, 2.0), (3, 1.0)] {
            let what = format!("{mesh}: {per_token} experts, capacity {factor}");
            let config = MoeConfig { expert_groups: devices, batch_parts, ..exchanged(experts(8, per_token), factor) };
            let sizes = ExchangeSizes { rows: 1, length: rows.length, embed: rows.embed, element_bytes: 4, devices };
            let moved = ExpertExchange::ALL.map(|exchange| {
                let config = MoeConfig { exchange, ..config.clone() };
                // The router is whole, so that its parts do not travel beside the tokens.
                let rules = rules(&[("embed", &[])]);
                let over = ledger_by(&rules, &config, rows, mesh).over_exactly(&["expert"]);
                // The router's gradient and the loss are all-reduced in either case.
                let bytes = [AllGather, ReduceScatter, AllToAll]
                    .map(|kind| over.kind(kind).moved_bytes().unwrap().bound().expect("a number of bytes"));
                let moved: u64 = bytes.iter().sum();
                assert_eq!(
                    Some(u128::from(moved)),
                    config.exchange_bytes(exchange, sizes),
                    "{what}: {}",
                    exchange.name()
                );
                moved
            });
            let cheaper = config.cheaper_exchange(sizes);
            assert_eq!(cheaper == ExpertExchange::AllToAll, moved[1] < moved[0], "{what}: {moved:?}");
            taken[usize::from(cheaper == ExpertExchange::AllToAll)] += 1;
        }
    }
    assert!(taken[0] >= 2 && taken[1] >= 2, "{taken:?}");
}

#[test]
fn all_to_all_without_capacity_is_an_error() {
    let config = MoeConfig { exchange: ExpertExchange::AllToAll, ..experts(8, 2) };
    let specs = (stream(ROWS), parameters(ROWS.embed, &config));
    let function = Function::trace("experts", specs, |(x, params)| moe(x, &params, &config)).map(|_| ());
    let error = function.expect_err("it is refused").to_string();
    assert!(error.contains("a capacity factor, which gives an all-to-all its slots"), "{error}");
}

/// A run config with `kernels.experts_exchange` on its default chooses the exchange by bytes.
#[test]
fn the_run_config_chooses_by_bytes() {
    let taken = |mesh: &str, set: &[&str]| {
        let architecture = config(mesh, &[&["model.family=mixtral"], set].concat()).architecture().unwrap();
        architecture.stack.cycle[0].routed().unwrap().exchange
    };
    let (gather, exchange) = (ExpertExchange::Gather, ExpertExchange::AllToAll);
    let capacity = "model.expert_capacity=1.0";
    // Three experts per token, in slots without room to spare: fewer than 8 and 4 devices, more than 2.
    assert_eq!(taken("expert=8", &[capacity]), exchange);
    assert_eq!(taken("data=2,expert=4", &[capacity]), exchange);
    assert_eq!(taken("data=4,expert=2", &[capacity]), gather);
    assert_eq!(taken("data=2,expert=4", &["model.expert_capacity=1.5"]), gather);
    assert_eq!(taken("expert=8", &[]), gather);
    assert_eq!(taken("data=8", &[capacity]), gather);
    assert_eq!(taken("expert=4,context=2", &[capacity]), gather);
    assert_eq!(taken("expert=4,tensor=2", &[capacity]), gather);
    assert_eq!(taken("expert=8", &[capacity, "kernels.experts_exchange=gather"]), gather);
    assert_eq!(taken("data=4,expert=2", &[capacity, "kernels.experts_exchange=all-to-all"]), exchange);
}

#[test]
fn impossible_exchanges_are_refused() {
    let check = |overrides: &[&str], reason: &str| {
        let base = ["model.family=mixtral", "kernels.experts_exchange=all-to-all"];
        let set: Vec<String> = base.iter().chain(overrides).map(|&text| text.to_owned()).collect();
        let message = RunConfig::from_overrides(&set).expect_err("it is refused").to_string();
        assert!(
            message.contains("kernels.experts_exchange is \"all-to-all\": ") && message.contains(reason),
            "{message}"
        );
    };
    let capacity = "model.expert_capacity=1.0";
    check(
        &["mesh.axes=data=2,expert=4"],
        "it needs a capacity, which gives every expert its slots; set model.expert_capacity",
    );
    check(
        &[capacity, "mesh.axes=expert=4,context=2"],
        "rows must be whole where slots are filled, but the rules split activation_norm_length_moe over 2 devices of \
         expert=4,context=2; take \"gather\"",
    );
    check(
        &[capacity, "mesh.axes=data=2,expert=4", "rules.uneven=true", "train.batch=12"],
        "the 12 rows that a layer works on at once must be a multiple of the 8 devices",
    );
}

/// A run takes the same steps by either exchange, and learns.
#[test]
fn a_run_by_all_to_all_takes_the_steps_of_one_by_gather() {
    let exchanges = cases("partition exchange runs", 1, ["all-to-all", "gather"]);
    let losses: Vec<Vec<f64>> = exchanges
        .iter()
        .map(|exchange| {
            let exchange = format!("kernels.experts_exchange={exchange}");
            let set = ["model.family=deepseek", "model.expert_capacity=1.25", "train.warmup=2", &exchange];
            let config = config("fsdp=2,expert=4", &set);
            let mut trainer = Trainer::new(&config, &client()).unwrap_or_else(|error| panic!("{error}"));
            (0..6).map(|_| trainer.step().expect("a step").loss).collect()
        })
        .collect();
    for losses in &losses {
        assert!(losses[5] < losses[0] - 0.1, "{losses:?}");
    }
    for pair in losses.windows(2) {
        assert!(relative_error(&pair[1], &pair[0]) <= 1e-4, "{losses:?}");
    }
}
