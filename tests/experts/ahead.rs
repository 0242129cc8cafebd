//! Experts for hardware that is not there.

use meshloom::nn::{MoeConfig, moe};
use meshloom::pjrt::Topology;
use meshloom::pjrt::ahead_of_time::{self, Settings};

use crate::masked::with_gradients;
use crate::support::plugins::large_plugin;
use crate::*;

/// A block and its gradients compile for TPUs, where that plugin is at hand.
#[test]
fn experts_compile_for_tpu() {
    if large_plugin("tpu", "experts_compile_for_tpu").is_none() {
        return;
    }
    let config = MoeConfig { expert_groups: 2, ..experts(8, 2) };
    let graph = with_gradients(&config, Rows { batch: 16, length: 16, embed: 16 }, moe);
    let lowered = partitioned(&graph, "data=2,fsdp=2,expert=2", &rules(&[]));
    let settings = Settings { worker: Some(env!("CARGO_BIN_EXE_meshloom-worker").into()), ..Settings::default() };
    let (topology, options) = (Topology::parse("v5e:2x4").expect("a topology"), CompileOptions::partitioned(8));
    let compiled = ahead_of_time::compile(&topology, &lowered.module.bytes, &options, &settings);
    println!("{:?}", compiled.unwrap_or_else(|error| panic!("{error}")).memory_stats());
}
