//! Whether a module is the program of one device: JAX's modules before and after XLA's partitioner, and ours.

use std::fs;

use meshloom::analysis::{Partitioning, device_count};
use meshloom::hlo::parse::parse;
use meshloom::hlo::read;

/// Returns the partitioning of a module in any form, on the devices that it names.
fn of(bytes: &[u8]) -> Partitioning {
    let found = read::read(bytes, &read::Limits::default()).unwrap_or_else(|error| panic!("{error}"));
    Partitioning::of(&found.module, device_count(&found.module, found.config.as_ref()))
}

/// The kind alone.
fn kind(found: &Partitioning) -> &'static str {
    match found {
        Partitioning::Single => "single",
        Partitioning::Done => "done",
        Partitioning::Manual => "manual",
        Partitioning::Pending { .. } => "pending",
    }
}

/// The files named unoptimized are as JAX lowered them; XLA has partitioned all others, which a schedule, the header or
/// the collectives alone show.
#[test]
fn jax_programs_are_pending_until_xla_partitions_them() {
    let mut counts = (0, 0);
    for entry in fs::read_dir(support::path("tests/foreign")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() || name.ends_with(".toml") {
            continue;
        }
        let pending = name.contains(".unoptimized.");
        let expected = if pending { "pending" } else { "done" };
        assert_eq!(kind(&of(&fs::read(&path).unwrap())), expected, "{name}");
        counts = (counts.0 + usize::from(pending), counts.1 + usize::from(!pending));
    }
    assert!(counts.0 >= 6 && counts.1 >= 20, "{counts:?}");
}

#[test]
fn our_programs_are_manual_once_they_are_partitioned() {
    let cases = [
        ("partition", "", "manual"),
        ("diloco", "", "manual"),
        ("pipeline", "_local", "manual"),
        ("pipeline", "_global", "pending"),
        ("psdp", "local", "manual"),
        ("psdp", "global", "pending"),
        ("decoder", ".one_device", "single"),
        ("ops", "", "single"),
    ];
    for (folder, ending, expected) in cases {
        let mut checked = 0;
        for entry in fs::read_dir(support::path("hlo_snapshots").join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if !path.to_str().unwrap().ends_with(&format!("{ending}.snap")) {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            // Behind the header of the snapshot.
            let Some(start) = text.find("HloModule ") else { continue };
            assert_eq!(kind(&of(&text.as_bytes()[start..])), expected, "{}", path.display());
            checked += 1;
        }
        assert!(checked > 0, "{folder} {ending}");
    }
}

/// One mark each, in the smallest programs that have it.
#[test]
fn each_mark_is_known() {
    let tiles = "sharding={devices=[8]<=[8]}";
    let parameter = format!("p = f32[16]{{0}} parameter(0), {tiles}");
    let border = |name: &str, shape: &str, operand: &str, target: &str, sharding: &str| {
        format!("{name} = {shape} custom-call({operand}), custom_call_target=\"{target}\", sharding={sharding}")
    };
    let enter = border("e", "f32[2]{0}", "p", "SPMDFullToShardShape", "{manual}");
    let leave = |operand: &str| border("ROOT l", "f32[16]{0}", operand, "SPMDShardToFullShape", "{devices=[8]<=[8]}");
    let lines = |lines: &[&str]| lines.join("\n  ");
    let collective = "ROOT r = f32[16]{0} all-reduce(p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, \
                      use_global_device_ids=true, to_apply=sum";
    let cases = [
        ("work on a global value", 8, lines(&[&parameter, "ROOT n = f32[16]{0} negate(p)"]), "pending"),
        ("for one partition", 1, lines(&["p = f32[16]{0} parameter(0)", "ROOT n = f32[16]{0} negate(p)"]), "single"),
        ("a collective", 8, lines(&[&parameter, collective]), "done"),
        (
            "an annotation",
            8,
            lines(&[&parameter, &border("a", "f32[16]{0}", "p", "Sharding", "{replicated}"), collective]),
            "pending",
        ),
        ("a manual region", 8, lines(&[&parameter, &enter, "n = f32[2]{0} negate(e)", &leave("n")]), "manual"),
        (
            "work after it",
            8,
            lines(&[&parameter, &enter, &leave("e").replace("ROOT ", ""), "ROOT n = f32[16]{0} negate(l)"]),
            "pending",
        ),
        (
            "work before it",
            8,
            lines(&[&parameter, "n = f32[16]{0} negate(p)", &enter.replace("(p)", "(n)"), &leave("e")]),
            "pending",
        ),
        (
            "a constant in it",
            8,
            lines(&[
                &parameter,
                &enter,
                "c = f32[] constant(1)",
                "b = f32[2]{0} broadcast(c), dimensions={}",
                "n = f32[2]{0} add(e, b)",
                &leave("n"),
            ]),
            "manual",
        ),
        (
            "scalars outside of it",
            8,
            lines(&[
                &parameter,
                "s = f32[] parameter(1)",
                "one = f32[] constant(1)",
                "t = f32[] add(s, one)",
                &enter,
                &leave("e").replace("ROOT ", ""),
                "ROOT r = (f32[16]{0}, f32[]) tuple(l, t)",
            ]),
            "manual",
        ),
        (
            "a loop in it",
            8,
            lines(&[&parameter, &enter, "w = f32[2]{0} while(e), body=body, condition=condition", &leave("w")]),
            "manual",
        ),
    ];
    for (name, partitions, entry, expected) in cases {
        let text = format!(
            "HloModule m, num_partitions={partitions}\n\nsum {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
             ROOT s = f32[] add(a, b)\n}}\n\nbody {{\n  x = f32[2]{{0}} parameter(0)\n  ROOT y = f32[2]{{0}} negate(x)\n}}\n\n\
             condition {{\n  x = f32[2]{{0}} parameter(0)\n  ROOT c = pred[] constant(false)\n}}\n\nENTRY main {{\n  {entry}\n}}\n"
        );
        let parsed = parse(&text).unwrap_or_else(|error| panic!("{name}: {error}\n{text}"));
        let module = parsed.hlo_module.as_ref().expect("a module");
        let devices = device_count(module, parsed.config.as_ref());
        assert_eq!(kind(&Partitioning::of(module, devices)), expected, "{name}:\n{text}");
        // A schedule comes after the partitioner, whatever the annotations say.
        let scheduled = text.replacen("HloModule m", "HloModule m, is_scheduled=true", 1);
        let expected = if partitions == 1 { "single" } else { "done" };
        assert_eq!(kind(&of(scheduled.as_bytes())), expected, "{name}, scheduled");
    }
}

/// A region that is manual along some axes of its mesh is to be partitioned along the others.
#[test]
fn some_axes_may_be_manual() {
    let border = |name: &str, shape: &str, operand: &str, target: &str, axes: &str, key: &str| {
        format!(
            "{name} = {shape} custom-call({operand}), custom_call_target=\"xla.sdy.{target}\", \
             frontend_attributes={{xla.sdy.manual_axes=\"#sdy<manual_axes{{{axes}}}>\",\
             xla.sdy.{key}=\"#sdy.sharding_per_value<[<@mesh, [{{\\\"data\\\"}}]>]>\"}}"
        )
    };
    let region = |axes: &str, inside: &str| {
        let enter = border("e", "f32[8]{0}", "p", "GlobalToLocalShape", axes, "in_shardings");
        let leave = border("ROOT l", "f32[16]{0}", "n", "LocalToGlobalShape", axes, "out_shardings");
        format!("p = f32[16]{{0}} parameter(0)\n  {enter}\n  {inside}\n  {leave}")
    };
    let (data, tensor) = ("\\\"data\\\"", "\\\"tensor\\\"");
    let negate = "n = f32[8]{0} negate(e)";
    let nested = [
        border("i", "f32[2]{0}", "e", "GlobalToLocalShape", tensor, "in_shardings"),
        "m = f32[2]{0} negate(i)".to_owned(),
        border("n", "f32[8]{0}", "m", "LocalToGlobalShape", tensor, "out_shardings"),
    ]
    .join("\n  ");
    let tiled = |sharding: &str| {
        format!(
            "p = f32[16]{{0}} parameter(0)\n  e = f32[8]{{0}} custom-call(p), \
             custom_call_target=\"SPMDFullToShardShape\", sharding={sharding}\n  {negate}\n  ROOT l = f32[16]{{0}} \
             custom-call(n), custom_call_target=\"SPMDShardToFullShape\", sharding={{devices=[8]<=[8]}}"
        )
    };
    let left = |axes: &[&str]| Some(axes.iter().map(|axis| (*axis).to_owned()).collect::<Vec<_>>());
    let cases = [
        (region(&format!("{data}, {tensor}"), negate), "manual", None),
        (region(data, negate), "pending", left(&["tensor"])),
        // Both regions together are manual along all axes.
        (region(data, &nested), "manual", None),
        (region(data, &format!("{nested}\n  q = f32[8]{{0}} add(n, e)")), "pending", left(&["tensor"])),
        (tiled("{manual}"), "manual", None),
        (tiled("{devices=[1,2,4]<=[8] last_tile_dims={manual, replicated}}"), "pending", left(&[])),
        (tiled("{devices=[1,8]<=[8] last_tile_dims={manual}}"), "manual", None),
    ];
    for (entry, expected, expected_left) in cases {
        let meshes = "{mesh = #sdy.mesh<[\"data\"=2, \"tensor\"=4, \"one\"=1]>}";
        let text = format!(
            "HloModule m, num_partitions=8, frontend_attributes={{xla.sdy.meshes={meshes}}}\n\nENTRY main {{\n  {entry}\n}}\n"
        );
        let found = of(text.as_bytes());
        assert_eq!(kind(&found), expected, "{text}");
        let along = match found {
            Partitioning::Pending { along, .. } => along,
            _ => None,
        };
        assert_eq!(along, expected_left, "{text}");
    }
}
