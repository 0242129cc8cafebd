//! The bytes that one block of experts moves, counted by hand.

use meshloom::partition::CollectiveKind::{AllGather, AllReduce, ReduceScatter};
use meshloom::partition::Ledger;
use meshloom::trace::{Function, value_and_grad};
use meshloom_nn::{MoeConfig, moe};

use meshloom::compile::{LowerOptions, lower};
use meshloom::sharding::{Mesh, RuleSets};
use support::experts::*;

/// Loss and gradients of a block on a mesh; the gradients lie as the inputs do.
pub fn ledger(config: &MoeConfig, rows: Rows, mesh: &str) -> Ledger {
    ledger_by(&rules(&[]), config, rows, mesh)
}

/// The same by other rules.
pub fn ledger_by(rules: &RuleSets, config: &MoeConfig, rows: Rows, mesh: &str) -> Ledger {
    let specs = (stream(rows), parameters(rows.embed, config));
    let function = Function::trace("experts", specs, |inputs| {
        value_and_grad(inputs, |(x, params)| {
            let (result, loss) = moe(x, &params, config);
            result.square().sum(..) + loss
        })
    });
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    let mesh = Mesh::parse(mesh, 8).expect("a mesh");
    // A gradient replaces its input, so it lies as that does.
    let aliases = (0..graph.inputs().len()).map(|input| (input + 1, input)).collect();
    let options =
        LowerOptions { sharding: Some((&mesh, rules)), aliases, deny_replication: true, ..LowerOptions::default() };
    let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
    Ledger::of(&lowered.partitioned().expect("a local program").graph, &mesh)
}

/// Over the axis of experts alone go tokens and their choices to the experts, and results back; and the same for the
/// gradients, with the tokens once more, as they are not kept gathered.
#[test]
fn tokens_are_gathered_and_results_scattered() {
    let rows = Rows { batch: 8, length: 12, embed: 16 };
    let config = MoeConfig { expert_groups: 2, batch_parts: 4, ..experts(8, 2) };
    let ledger = ledger(&config, rows, "data=2,fsdp=2,expert=2");
    let tokens = (rows.batch / 8 * rows.length * rows.embed * 4) as u64;
    let choices = (rows.batch / 8 * rows.length * config.experts_per_token * 4) as u64;
    let expert = ledger.over_exactly(&["expert"]);
    assert_eq!(expert.forward().kind(AllGather).bytes().unwrap(), tokens + 2 * choices);
    assert_eq!(expert.forward().kind(ReduceScatter).bytes().unwrap(), 2 * tokens);
    assert_eq!(expert.backward().kind(AllGather).bytes().unwrap(), tokens);
    assert_eq!(expert.backward().kind(ReduceScatter).bytes().unwrap(), 2 * (tokens + choices));
    assert_eq!(expert.kind(AllReduce).count().unwrap(), 0);
}

/// The weights of experts stay where they are along `expert`, and are gathered along `fsdp` as all weights are.
#[test]
fn weights_of_experts_are_gathered_along_fsdp_alone() {
    let rows = Rows { batch: 8, length: 12, embed: 16 };
    let config = MoeConfig { expert_groups: 2, batch_parts: 4, ..experts(8, 2) };
    let ledger = ledger(&config, rows, "data=2,fsdp=2,expert=2");
    let weight = (config.experts / 2 * rows.embed / 2 * config.mlp * 4) as u64;
    let fsdp = ledger.over_exactly(&["fsdp"]);
    assert_eq!(fsdp.forward().kind(AllGather).bytes().unwrap(), 3 * weight);
    assert_eq!(fsdp.backward().kind(ReduceScatter).bytes().unwrap(), 3 * 2 * weight);
    assert_eq!(fsdp.kind(AllReduce).count().unwrap(), 0);
}

/// With one group on a mesh that splits experts, their weights have to be gathered: it works, and is named.
#[test]
fn one_group_of_split_experts_is_a_named_fallback() {
    let specs = (stream(ROWS), parameters(ROWS.embed, &experts(8, 2)));
    let config = MoeConfig { batch_parts: 4, ..experts(8, 2) };
    let function = Function::trace("experts", specs, |(x, params)| moe(x, &params, &config));
    let graph = function.unwrap_or_else(|error| panic!("{error}")).graph().clone();
    let (mesh, rules) = (Mesh::parse("fsdp=4,expert=2", 8).expect("a mesh"), rules(&[]));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), ..LowerOptions::default() };
    let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        lowered.partitioned().expect("it is partitioned").fallbacks.len(),
        3,
        "{:?}",
        lowered.partitioned().expect("it is partitioned").fallbacks
    );
    assert!(
        lowered
            .partitioned()
            .expect("it is partitioned")
            .fallbacks
            .iter()
            .all(|fallback| fallback.to_string().contains("ragged-dot")),
        "{:?}",
        lowered.partitioned().expect("it is partitioned").fallbacks
    );
}
