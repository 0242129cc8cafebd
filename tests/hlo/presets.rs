//! The presets on a decoder, three ways: the ledger of the partitioned graph, what is counted in the module that is
//! emitted, and what is counted after compilation.

use std::collections::BTreeMap;

use meshloom::analysis::{Communication, Devices, ModuleCollectives, collectives};
use meshloom::compile::Lowered;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::partition::{Amount, CollectiveKind, Ledger};
use meshloom::sharding::Mesh;
use support::cases::cases;
use support::configs::lowered_step;
use support::eight_devices::compile;

/// The executions of collectives, and the bytes that they all move, by kind and mesh axes.
type Traffic = BTreeMap<(String, String), (u64, u64)>;

fn of_ledger(ledger: &Ledger) -> Traffic {
    let mut traffic = Traffic::new();
    for entry in ledger.iter().expect("a ledger") {
        let executions = exactly(entry.executions);
        let sum = traffic.entry((entry.kind.name().to_owned(), entry.axes.join(","))).or_default();
        *sum = (sum.0 + executions, sum.1 + executions * entry.moved_bytes);
    }
    traffic
}

fn of_module(found: &ModuleCollectives) -> Traffic {
    let mut traffic = Traffic::new();
    for entry in &found.entries {
        let Communication::Collective(kind) = entry.kind else { panic!("{entry:?}") };
        let axes = entry.axes.as_ref().unwrap_or_else(|| panic!("along no axis of the mesh: {entry:?}"));
        let axes = axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let executions = exactly(entry.executions);
        let sum = traffic.entry((kind.name().to_owned(), axes)).or_default();
        *sum = (sum.0 + executions, sum.1 + executions * entry.moved_bytes.expect("known bytes"));
    }
    traffic
}

fn exactly(amount: Amount) -> u64 {
    match amount {
        Amount::Exactly(count) => count,
        other => panic!("{other:?}"),
    }
}

/// The bytes of each kind over each axes, however many collectives carry them: XLA combines those that it may.
fn bytes(traffic: &Traffic) -> BTreeMap<&(String, String), u64> {
    traffic.iter().map(|(key, (_, bytes))| (key, *bytes)).collect()
}

fn lower(preset: &str, mesh: &str) -> Lowered {
    let own = [format!("rules.preset={preset}"), format!("mesh.axes={mesh}")];
    let sizes = ["model.layers=2", "model.embed=64", "model.mlp=128", "model.seq=64"];
    lowered_step(&[&own.each_ref().map(String::as_str), &sizes])
}

/// Checks that a program emits what its ledger says, and, where it is compiled, what XLA makes of it: XLA combines
/// collectives, and adds none in a program that is partitioned already.
fn check(preset: &str, axes: &str, is_compiled: bool) {
    let lowered = lower(preset, axes);
    let mesh = lowered.emitted_mesh().cloned().expect("a mesh");
    let plain = Mesh::parse(axes, 8).expect("a mesh");
    let found = |module: &HloModuleProto| collectives(module, Devices::partitioned(8)).along(&plain);
    let own = lowered.collectives();
    let ledger = of_ledger(&own);
    let emitted = of_module(&found(&lowered.module.decode().expect("a module")));
    assert!(!ledger.is_empty());
    assert_eq!(emitted, ledger, "{preset} {axes}, over {mesh}");
    if !is_compiled {
        return;
    }
    let program = compile(&lowered).expect("a compiled program");
    let compiled = found(&program.executable().optimized_hlo().expect("its HLO").decode().expect("a module"));
    for kind in [CollectiveKind::AllGather, CollectiveKind::ReduceScatter] {
        let executions = compiled.kind(kind).map(|entry| entry.executions).fold(Amount::Exactly(0), Amount::plus);
        assert_eq!(executions, own.kind(kind).executions().unwrap(), "{preset} {axes} {kind}");
    }
    let compiled = of_module(&compiled);
    let (before, after) = (bytes(&ledger), bytes(&compiled));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "{preset} {axes}");
    for (key, bytes) in before {
        // Combined collectives round up once where each rounded up by itself.
        let rounding = ledger[key].0;
        assert!(
            bytes.abs_diff(after[key]) <= rounding,
            "{preset} {axes}: {key:?} moves {bytes}, compiled {}",
            after[key]
        );
    }
}

#[test]
fn decoders_move_what_the_ledger_says() {
    let all = [
        ("decoder", "data=2,fsdp=2,tensor=2"),
        ("decoder", "data=2,fsdp=4"),
        ("decoder", "fsdp=8"),
        ("decoder", "data=8"),
        ("decoder", "fsdp=2,tensor=4"),
        ("decoder-all-reduce", "data=2,fsdp=4"),
        ("decoder-all-reduce", "fsdp=4,tensor=2"),
    ];
    let compiled = cases("hlo compiled presets", 1, all);
    for (preset, mesh) in all {
        check(preset, mesh, compiled.contains(&(preset, mesh)));
    }
}
