//! The collectives of any module: modules written by hand, what we emit, and what XLA makes of it.

use crate::hlo::modules::*;
use meshloom::analysis::{Communication, Devices, ModuleCollective, collectives};
use meshloom::emit::{EmitOptions, GroupFormat, device_groups, emit};
use meshloom::hlo::device_groups::DeviceGroups;
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloInstructionProto, HloModuleProto, ReplicaGroup, SourceTarget};
use meshloom::ir::Graph;
use meshloom::partition::{Amount, CollectiveKind, Ledger};
use meshloom::pjrt::CompileOptions;
use meshloom::sharding::Mesh;
use support::cases::cases;
use support::local_graph::*;
use support::plugins::cpu_clients;

// Modules written by hand.

fn entries(module: &HloModuleProto) -> Vec<ModuleCollective> {
    collectives(module, Devices::partitioned(8)).entries
}

#[test]
fn each_kind_moves_what_the_ledger_says() {
    use CollectiveKind as K;
    for (opcode, kind, moved) in [
        ("all-gather", K::AllGather, 48),
        ("all-gather-start", K::AllGather, 48),
        ("all-reduce", K::AllReduce, 24),
        ("all-reduce-start", K::AllReduce, 24),
        ("all-to-all", K::AllToAll, 12),
        ("reduce-scatter", K::ReduceScatter, 12),
    ] {
        let module = around([collective(2, opcode, &[1]), instruction(3, "all-gather-done", &[2])], []);
        let found = entries(&module);
        assert_eq!(found.len(), 1, "{opcode}");
        let entry = &found[0];
        assert_eq!((entry.kind, entry.moved_bytes), (Communication::Collective(kind), Some(moved)), "{opcode}");
        assert_eq!((entry.group_size, entry.bytes, entry.operand_count), (Some(4), Some(16), 1));
        assert_eq!(entry.asynchronous, opcode.ends_with("-start"));
        assert_eq!(entry.moved_bytes, Some(kind.moved_bytes(16, 4)));
    }
    let permute = |pairs: &[(i64, i64)]| {
        let source_target_pairs = pairs.iter().map(|&(source, target)| SourceTarget { source, target }).collect();
        let permute = HloInstructionProto { source_target_pairs, ..instruction(2, "collective-permute", &[1]) };
        entries(&around([permute], []))[0].moved_bytes
    };
    assert_eq!((permute(&[(0, 1), (1, 1)]), permute(&[(0, 0)])), (Some(16), Some(0)));
    let other = entries(&around([collective(2, "ragged-all-to-all", &[1])], []));
    assert_eq!(other[0].kind, Communication::Other("ragged-all-to-all"));
    assert_eq!(other[0].total_moved_bytes(), Amount::Unknown);
    // A pair of send and receive moves what is sent, once.
    let pair = entries(&around([instruction(2, "send", &[1]), instruction(3, "recv", &[1])], []));
    let moved: Vec<_> = pair.iter().map(|entry| (entry.group_size, entry.moved_bytes)).collect();
    assert_eq!(moved, [(None, Some(16)), (None, Some(0))]);
}

/// The meaning of an instruction without groups, or without `use_global_device_ids`.
#[test]
fn groups_that_are_not_written_out() {
    let size = |opcode: &str, change: fn(&mut HloInstructionProto)| {
        let mut instruction = collective(2, opcode, &[1]);
        instruction.replica_groups.clear();
        change(&mut instruction);
        let devices = Devices { replicas: 2, partitions: 4 };
        collectives(&around([instruction], []), devices).entries[0].group_size
    };
    let one = |instruction: &mut HloInstructionProto| {
        instruction.use_global_device_ids = false;
        instruction.replica_groups = vec![ReplicaGroup { replica_ids: vec![0] }, ReplicaGroup { replica_ids: vec![1] }];
    };
    assert_eq!(size("all-reduce", |_| {}), Some(8), "every device");
    assert_eq!(size("all-reduce", |instruction| instruction.channel_id = 0), Some(2), "every replica");
    assert_eq!(size("all-reduce", |instruction| instruction.use_global_device_ids = false), Some(8));
    assert_eq!(size("all-reduce", one), Some(4), "one replica's partitions");
    assert_eq!(size("all-to-all", |instruction| instruction.use_global_device_ids = false), Some(4));
}

/// Kinds without the attribute `use_global_device_ids` have groups of partitions, as soon as they have a channel.
#[test]
fn groups_of_partitions() {
    let text = "HloModule m, num_partitions=8
ENTRY main {
  p = f32[1024]{0} parameter(0)
  out = f32[4096]{0} parameter(1)
  at = s32[4]{0} parameter(2)
  r = f32[4096]{0} ragged-all-to-all(p, out, at, at, at, at), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}
  ROOT b = f32[1024]{0} collective-broadcast(p), channel_id=2, replica_groups={{0,1,2,3},{4,5,6,7}}
}";
    let module = parse(text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module");
    let found = entries(&module);
    let seen: Vec<_> = found.iter().map(|it| (it.kind.name(), it.group_size, it.bytes, it.operand_count)).collect();
    // 1024 numbers of 4 bytes; not the buffer that is written into, nor the indices.
    let bytes = Some(1024 * 4);
    assert_eq!(seen, [("ragged-all-to-all", Some(4), bytes, 1), ("collective-broadcast", Some(4), bytes, 1)]);
}

/// The forms in which JAX writes collectives that XLA makes of custom calls; and unknown custom calls.
#[test]
fn custom_calls_communicate() {
    let call = |name: &str, operands: &str, target: &str, more: &str| {
        format!("  {name} = f32[1024]{{0}} custom-call({operands}), custom_call_target=\"{target}\"{more}\n")
    };
    let start = |kind: &str, config: &str| {
        let config = config.replace('"', "\\\"");
        let more = format!(", frontend_attributes={{async_collective_config=\"{config}\"}}");
        call(&kind.replace('-', "_"), "p", kind, &more)
    };
    let groups = r#""replica_groups": [[0, 1, 2, 3], [4, 5, 6, 7]]"#;
    // Eight numbers of 8 bytes, the lowest first.
    let hex: String = (0..8).map(|device| format!("{device:02X}00000000000000")).collect();
    let text = [
        "HloModule m, num_partitions=8\nENTRY main {\n  p = f32[1024]{0} parameter(0)\n  at = s32[4]{0} parameter(1)\n",
        &call("r", "p, p, at, at, at, at", "ragged_all_to_all",
            ", backend_config={channel_id = 1 : i64, replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>}"),
        &call("h", "p, p, at, at, at, at", "ragged_all_to_all",
            &format!(", backend_config={{replica_groups = dense<\"0x{hex}\"> : tensor<1x8xi64>}}")),
        &start("all-gather-start", &format!("{{\"all_gather_dimension\": 0, {groups}, \"channel_id\": 1}}")),
        &call("d", "all_gather_start", "all-gather-done", ""),
        &start("collective-permute-start", "{\"permutation\": [[0, 1], [1, 0]]}"),
        &call("k", "p", "tpu_custom_call", ", backend_config=\"{\\\"custom_call_config\\\": {\\\"body\\\": 1}}\""),
        &call("n", "p", "tpu_custom_call", ", backend_config=\"{\\\"has_communication\\\": true}\""),
        &call("l", "p", "lapack_spotrf_ffi", ""),
        &call("ROOT o", "p", "my_all_reduce", ""),
        "}",
    ]
    .concat();
    let module = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}")).hlo_module.expect("a module");
    let found = collectives(&module, Devices::partitioned(8));
    let seen = found.entries.iter().map(|it| (it.kind.name(), it.group_size, it.moved_bytes, it.asynchronous));
    let expected = [
        ("ragged-all-to-all", Some(2), None, false),
        ("ragged-all-to-all", Some(8), None, false),
        // 4096 bytes to three others.
        ("all-gather", Some(4), Some(3 * 4096), true),
        ("collective-permute", None, Some(4096), true),
    ];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    assert_eq!(found.entries[3].pairs, [(0, 1), (1, 0)]);
    let uncounted: Vec<_> = found.uncounted.iter().map(|it| (it.target.as_str(), it.name.as_str())).collect();
    assert_eq!(uncounted, [("tpu_custom_call", "n"), ("my_all_reduce", "o")]);
    // Nothing communicates on one device.
    assert!(collectives(&module, Devices::partitioned(1)).uncounted.is_empty());
}

/// Called in every way there is, in this order.
#[test]
fn everything_that_is_called_is_walked() {
    let gather = |id| {
        computation(id, vec![instruction(10 * id, "parameter", &[]), collective(10 * id + 1, "all-gather", &[10 * id])])
    };
    let annotated = HloInstructionProto {
        backend_config: br#"{"known_trip_count":{"n":"7"}}"#.to_vec(),
        ..calling(2, "while", &[1], &[101, 102])
    };
    let module = around(
        [
            annotated,
            calling(3, "while", &[1], &[103, 104]),
            calling(4, "conditional", &[1], &[105, 106]),
            calling(5, "async-start", &[1], &[107]),
            calling(6, "async-done", &[5], &[107]),
            calling(7, "fusion", &[1], &[108]),
            calling(8, "call", &[1], &[109]),
            calling(9, "call", &[1], &[109]),
            calling(10, "custom-call", &[1], &[110]),
            calling(11, "reduce", &[1], &[111]),
            calling(12, "call", &[1], &[100]),
        ],
        (101..112).map(gather),
    );
    let found = entries(&module);
    let found: Vec<_> = found
        .iter()
        .map(|entry| (entry.computation.as_str(), entry.executions, entry.loop_depth, entry.asynchronous))
        .collect();
    let (once, unknown) = (Amount::Exactly(1), Amount::Unknown);
    let expected = [
        ("computation.101", Amount::Exactly(7), 1, false),
        // A condition is asked once more than it says yes.
        ("computation.102", Amount::Exactly(8), 1, false),
        ("computation.103", unknown, 1, false),
        ("computation.104", unknown, 1, false),
        ("computation.105", Amount::AtMost(1), 0, false),
        ("computation.106", Amount::AtMost(1), 0, false),
        ("computation.107", once, 0, true),
        ("computation.108", once, 0, false),
        ("computation.109", once, 0, false),
        ("computation.109", once, 0, false),
        ("computation.110", unknown, 0, false),
    ];
    assert_eq!(found, expected);
}

/// A compiler for TPUs writes a reduce-scatter as a fusion of an all-reduce and a slice.
#[test]
fn a_fused_reduce_scatter_is_one() {
    let fused = |root: &str| {
        let body =
            vec![instruction(20, "parameter", &[]), collective(21, "all-reduce", &[20]), instruction(22, root, &[21])];
        entries(&around([calling(2, "fusion", &[1], &[101])], [computation(101, body)]))[0].clone()
    };
    let scatter = fused("dynamic-slice");
    assert_eq!(scatter.kind, Communication::Collective(CollectiveKind::ReduceScatter));
    assert_eq!((scatter.bytes, scatter.moved_bytes), (Some(16), Some(12)));
    assert_eq!(fused("negate").kind, Communication::Collective(CollectiveKind::AllReduce));
}

// The collectives that meshloom emits.

/// In a scan of 3, a scan of 5: a gather, a scatter and an exchange. Then a permute, and all together.
const NESTED: &str = r#"mesh "a=4,b=2"
nested(%0: f32[8,4] spec=[(a, b), _]) {
  %1 = scan %0 {length=3, carries=1} @0 : f32[8,4]
  %2 = collective-permute %1 {axes=[b] of 2, pairs=[0->1, 1->0]} : f32[8,4]
  %3 = all-reduce %2 {axes=[a, b] of 8, add} : f32[8,4]
  return %3 spec=[(a, b), _]
}

@0 middle(%0: f32[8,4]) {
  %1 = scan %0 {length=5, carries=1} @1 : f32[8,4]
  return %1
}

@1 inside(%0: f32[8,4]) {
  %1 = all-gather %0 {axes=[a] of 4, dim=0} : f32[32,4]
  %2 = reduce-scatter %1 {axes=[a] of 4, dim=0} : f32[8,4]
  %3 = all-to-all %2 {axes=[b] of 2, dim=0} : f32[8,4]
  return %3
}
"#;

fn options(mesh: &Mesh, groups: GroupFormat) -> EmitOptions<'_> {
    EmitOptions { mesh: Some(mesh), partitioned: true, groups, ..EmitOptions::default() }
}

/// Each collective of a ledger is the module's, whatever form its groups have, and whether loops say how often they run
/// or not.
#[test]
fn what_is_emitted_is_what_the_ledger_has() {
    let mesh = mesh("a=4,b=2");
    let graph = Graph::from_text(NESTED).unwrap_or_else(|error| panic!("{error}"));
    let ledger = Ledger::of(&graph, &mesh);
    let ledger: Vec<_> = ledger.iter().unwrap().collect();
    assert_eq!(ledger.len(), 5);
    for groups in [GroupFormat::Lists, GroupFormat::IotaInList, GroupFormat::Iota] {
        let mut module = emit(&graph, options(&mesh, groups)).expect("a module").decode().expect("a module");
        let annotated = entries(&module);
        for computation in &mut module.computations {
            computation.instructions.iter_mut().for_each(|instruction| instruction.backend_config.clear());
        }
        assert_eq!(entries(&module), annotated, "{groups:?}");
        assert_eq!(annotated.len(), ledger.len());
        for (found, entry) in annotated.iter().zip(&ledger) {
            assert_eq!(found.kind, Communication::Collective(entry.kind), "{groups:?}");
            assert_eq!(
                (found.bytes, found.moved_bytes),
                (Some(entry.bytes), Some(entry.moved_bytes)),
                "{}",
                entry.name
            );
            assert_eq!((found.executions, found.loop_depth), (entry.executions, entry.loop_depth), "{}", entry.name);
            assert_eq!(found.name, entry.name);
            if entry.kind != CollectiveKind::CollectivePermute {
                let axes: Vec<&str> = entry.axes.iter().map(String::as_str).collect();
                assert_eq!(lists(&found.groups), device_groups(&mesh, &self::axes(&mesh, &axes)), "{groups:?}");
            }
        }
    }
}

fn lists(groups: &DeviceGroups) -> Vec<Vec<usize>> {
    let lists = groups.lists().expect("groups");
    lists.into_iter().map(|list| list.into_iter().map(|device| device as usize).collect()).collect()
}

// The collectives that XLA makes of them.

/// The groups that a plugin reads are those that were written, in the form that is chosen for it.
#[test]
fn plugins_read_the_groups() {
    let mesh = mesh("a=2,b=4");
    let text = r#"mesh "a=2,b=4"
sum(%0: f32[4] spec=[(a, b)]) {
  %1 = all-reduce %0 {axes=[a] of 2, add} : f32[4]
  return %1 spec=[(a, b)]
}
"#;
    let graph = Graph::from_text(text).unwrap_or_else(|error| panic!("{error}"));
    // All plugins take the form that is chosen for them; in the small tier only one takes the other forms too.
    let wholly = cases("hlo forms of groups", 1, 0..cpu_clients().len());
    for (number, (name, client)) in cpu_clients().iter().enumerate() {
        let version = client.plugin().api_version();
        let chosen = GroupFormat::read_by(version);
        assert_ne!(chosen, GroupFormat::Lists, "{name} {version:?}");
        let forms = [GroupFormat::Lists, GroupFormat::IotaInList, GroupFormat::Iota];
        for groups in forms.into_iter().filter(|form| *form == chosen || wholly.contains(&number)) {
            let module = emit(&graph, options(&mesh, groups)).expect("a module");
            let executable = client.compile(&module.bytes, &CompileOptions::partitioned(8));
            let found = executable.map(|executable| {
                let module = executable.optimized_hlo().expect("a program").decode().expect("a module");
                let found = entries(&module);
                assert_eq!(found.len(), 1, "{name}");
                found[0].groups.lists().unwrap_or_default()
            });
            if groups == chosen || groups == GroupFormat::Lists {
                let expected = [[0, 4], [1, 5], [2, 6], [3, 7]];
                assert_eq!(found.expect("it compiles"), expected, "{name} {version:?} {groups:?}");
            } else {
                // A field that is not known is skipped, and an all-reduce without groups refused.
                assert!(found.is_err(), "{name} {version:?} {groups:?}: {found:?}");
            }
        }
    }
}
