//! Experts for hardware that has XLA's own grouped product.

use std::sync::Arc;

use meshloom::hlo::proto::HloModuleProto;
use meshloom::nn::{MoeConfig, moe};
use meshloom::pjrt::Topology;
use meshloom::pjrt::ahead_of_time::{self, Settings};

use crate::masked::with_gradients;
use crate::support::plugins::large_plugin;
use crate::*;

const MESH: &str = "data=2,fsdp=2,expert=2";

fn lowered(ragged_dot: bool) -> (Arc<Graph>, Lowered) {
    let config = MoeConfig { expert_groups: 2, ..experts(8, 2) };
    let graph = with_gradients(&config, Rows { batch: 16, length: 16, embed: 16 }, moe);
    let (mesh, rules) = (Mesh::parse(MESH, 8).expect("a mesh"), rules(&[]));
    let options = LowerOptions { sharding: Some((&mesh, &rules)), explicit: true, ragged_dot, ..LowerOptions::default() };
    let lowered = lower(&graph, &options).unwrap_or_else(|error| panic!("{error}"));
    (graph, lowered)
}

fn ragged_dots(module: &HloModuleProto) -> Vec<Vec<i64>> {
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let ragged = instructions.filter(|instruction| instruction.opcode == "ragged-dot");
    ragged.map(|instruction| instruction.shape.as_ref().expect("a shape").dimensions.clone()).collect()
}

/// A device has the tokens of four rows: an instruction for each row and product, in its own type of result.
#[test]
fn each_block_of_rows_has_an_instruction() {
    let (_, masked) = lowered(false);
    assert!(ragged_dots(&masked.module.decode()).is_empty());
    let (_, lowered) = lowered(true);
    let found = ragged_dots(&lowered.module.decode());
    let local = lowered.local.as_ref().expect("a program");
    let products = local.nodes().filter(|node| matches!(node.op(), meshloom::ops::Op::RaggedDot(_))).count();
    assert_eq!(found.len(), 4 * products);
    // Rows to the width of experts, and back; gradients of four experts.
    for dims in [vec![32, 8], vec![32, 16], vec![4, 16, 8], vec![4, 8, 16]] {
        assert!(found.contains(&dims), "{dims:?}");
    }
    assert!(found.iter().all(|dims| [2, 3].contains(&dims.len())));
}

/// Where the plugin is at hand.
#[test]
fn they_compile_for_tpu() {
    if large_plugin("tpu", "they_compile_for_tpu").is_none() {
        return;
    }
    let (_, lowered) = lowered(true);
    let settings = Settings { worker: Some(env!("CARGO_BIN_EXE_meshloom-worker").into()), ..Settings::default() };
    let options = CompileOptions::partitioned(8);
    let compiled = ahead_of_time::compile(&Topology::parse("v5e:2x4").unwrap(), &lowered.module.bytes, &options, &settings);
    println!("{:?}", compiled.unwrap_or_else(|error| panic!("{error}")).memory_stats());
}
