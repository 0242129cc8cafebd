//! Tests of the work of each device where its number decides: stages that branch by a table, as those of a pipeline do.

use meshloom::analysis::{Amount, Bounds};
use meshloom::analysis::{CostOptions, DeviceWalk, Devices, ModuleCollectives, Together, Walk, collectives, cost};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read;

/// Four stages of two devices: device `d` is on stage `d / 2`. In each of five ticks, a stage takes the branch that the
/// table names: 0 nothing; 1 an all-reduce of 64 bytes with its neighbour on the stage; 2 a loop over it, as often as
/// the table of counts says. `groups` are those of the all-reduce.
fn text(groups: &str) -> String {
    format!(
        "HloModule stages, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

%nothing (t.0: (f32[16], s32[1,2])) -> f32[16] {{
  %t.0 = (f32[16], s32[1,2]) parameter(0)
  ROOT %x.0 = f32[16] get-tuple-element(%t.0), index=0
}}

%once (t.1: (f32[16], s32[1,2])) -> f32[16] {{
  %t.1 = (f32[16], s32[1,2]) parameter(0)
  %x.1 = f32[16] get-tuple-element(%t.1), index=0
  ROOT %sum.1 = f32[16] all-reduce(%x.1), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=%add
}}

%goes_on (c.2: (f32[16], s32[1,2])) -> pred[] {{
  %c.2 = (f32[16], s32[1,2]) parameter(0)
  %left.2 = s32[1,2] get-tuple-element(%c.2), index=1
  %first.2 = s32[1,1] slice(%left.2), slice={{[0:1], [0:1]}}
  %flag.2 = s32[] reshape(%first.2)
  %zero.2 = s32[] constant(0)
  ROOT %more.2 = pred[] compare(%flag.2, %zero.2), direction=GT
}}

%one_of_them (c.3: (f32[16], s32[1,2])) -> (f32[16], s32[1,2]) {{
  %c.3 = (f32[16], s32[1,2]) parameter(0)
  %x.3 = f32[16] get-tuple-element(%c.3), index=0
  %sum.3 = f32[16] all-reduce(%x.3), channel_id=2, replica_groups={groups}, use_global_device_ids=true, to_apply=%add
  %left.3 = s32[1,2] get-tuple-element(%c.3), index=1
  %zero.3 = s32[] constant(0)
  %rest.3 = s32[1,2] pad(%left.3, %zero.3), padding=0_0x-1_1
  ROOT %next.3 = (f32[16], s32[1,2]) tuple(%sum.3, %rest.3)
}}

%several (t.4: (f32[16], s32[1,2])) -> f32[16] {{
  %t.4 = (f32[16], s32[1,2]) parameter(0)
  %loop.4 = (f32[16], s32[1,2]) while(%t.4), condition=%goes_on, body=%one_of_them
  ROOT %x.4 = f32[16] get-tuple-element(%loop.4), index=0
}}

%tick (s: (s32[], f32[16], s32[5,1], s32[5,1,2])) -> (s32[], f32[16], s32[5,1], s32[5,1,2]) {{
  %s = (s32[], f32[16], s32[5,1], s32[5,1,2]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[16] get-tuple-element(%s), index=1
  %table = s32[5,1] get-tuple-element(%s), index=2
  %counts = s32[5,1,2] get-tuple-element(%s), index=3
  %zero = s32[] constant(0)
  %one = s32[] constant(1)
  %row = s32[1,1] dynamic-slice(%table, %i, %zero), dynamic_slice_sizes={{1,1}}
  %which = s32[] reshape(%row)
  %count_row = s32[1,1,2] dynamic-slice(%counts, %i, %zero, %zero), dynamic_slice_sizes={{1,1,2}}
  %count = s32[1,2] reshape(%count_row)
  %given = (f32[16], s32[1,2]) tuple(%x, %count)
  %y = f32[16] conditional(%which, %given, %given, %given), branch_computations={{%nothing, %once, %several}}
  %next = s32[] add(%i, %one)
  ROOT %out = (s32[], f32[16], s32[5,1], s32[5,1,2]) tuple(%next, %y, %table, %counts)
}}

%all_ticks (s.5: (s32[], f32[16], s32[5,1], s32[5,1,2])) -> pred[] {{
  %s.5 = (s32[], f32[16], s32[5,1], s32[5,1,2]) parameter(0)
  %i.5 = s32[] get-tuple-element(%s.5), index=0
  %five.5 = s32[] constant(5)
  ROOT %go.5 = pred[] compare(%i.5, %five.5), direction=LT
}}

ENTRY %main (x.6: f32[16]) -> f32[16] {{
  %x.6 = f32[16] parameter(0)
  %device = u32[] partition-id()
  %number = s32[] convert(%device)
  %two = s32[] constant(2)
  %stage = s32[] divide(%number, %two)
  %zero.6 = s32[] constant(0)
  %whole = s32[5,4] constant({{ {{1,0,0,0}}, {{1,1,0,0}}, {{2,1,1,0}}, {{2,2,0,1}}, {{0,2,2,2}} }})
  %mine = s32[5,1] dynamic-slice(%whole, %zero.6, %stage), dynamic_slice_sizes={{5,1}}
  %all_counts = s32[5,4,2] constant({{ {{{{0,0}},{{0,0}},{{0,0}},{{0,0}}}}, {{{{0,0}},{{0,0}},{{0,0}},{{0,0}}}}, {{{{1,0}},{{0,0}},{{0,0}},{{0,0}}}}, {{{{1,1}},{{1,0}},{{0,0}},{{0,0}}}}, {{{{0,0}},{{1,1}},{{1,1}},{{0,0}}}} }})
  %my_counts = s32[5,1,2] dynamic-slice(%all_counts, %zero.6, %stage, %zero.6), dynamic_slice_sizes={{5,1,2}}
  %start = (s32[], f32[16], s32[5,1], s32[5,1,2]) tuple(%zero.6, %x.6, %mine, %my_counts)
  %end = (s32[], f32[16], s32[5,1], s32[5,1,2]) while(%start), condition=%all_ticks, body=%tick
  ROOT %y.6 = f32[16] get-tuple-element(%end), index=1
}}
"
    )
}

fn module(groups: &str) -> HloModuleProto {
    parsed(&text(groups))
}

fn parsed(text: &str) -> HloModuleProto {
    read::read(text.as_bytes(), &read::Limits::default()).unwrap_or_else(|error| panic!("{error}")).module
}

const ON_A_STAGE: &str = "{{0,1},{2,3},{4,5},{6,7}}";
const ACROSS_STAGES: &str = "{{0,2},{1,3},{4,6},{5,7}}";

fn found(module: &HloModuleProto) -> ModuleCollectives {
    collectives(module, Devices::partitioned(8))
}

/// The last stage runs one all-reduce, and the loop not at all; the others run two outside it, or one, and up to three
/// inside.
#[test]
fn each_stage_runs_what_its_table_says() {
    let module = module(ON_A_STAGE);
    let found = found(&module);
    let executions: Vec<Amount> = found.entries.iter().map(|entry| entry.executions).collect();
    assert_eq!(executions, [Amount::AtMost(2), Amount::AtMost(3)], "the most of any device");
    // By stage 2 + 3, 2 + 3, 1 + 2 and 1 + 0.
    assert_eq!(found.execution_bounds(), Bounds { least: 1, most: Some(5) });
    assert_eq!(found.moved_bounds(), Bounds { least: 64, most: Some(5 * 64) });
    assert_eq!(found.some(found.entries[..1].to_vec()).execution_bounds(), Bounds { least: 1, most: Some(2) });
    // One branch of three, of a conditional that is not decided.
    let undecided = Walk::of(&module);
    let branches = undecided.places().iter().filter(|place| !place.undecided.is_empty());
    assert!(branches.clone().count() > 0 && branches.clone().all(|place| place.executions != Amount::Exactly(1)));
    let decided = DeviceWalk::of(&module, Devices::partitioned(8));
    assert!(decided.walk().places().iter().all(|place| place.undecided.is_empty()));
}

/// libtpu copies a small table to faster memory while others run, and writes some reshapes as a sum over dimensions of
/// one place.
#[test]
fn a_table_in_another_form_says_the_same() {
    let counts = |found: ModuleCollectives| {
        let entries: Vec<_> = found.entries.iter().map(|entry| (entry.executions, found.together(entry))).collect();
        (entries, found.execution_bounds())
    };
    let text = text(ON_A_STAGE);
    let copied = "%started = (s32[5,1], s32[5,1], u32[]) copy-start(%sliced)\n%mine = s32[5,1] copy-done(%started)";
    let added = "%of (l: s32[], r: s32[]) -> s32[] {
  %l = s32[] parameter(0)
  %r = s32[] parameter(1)
  ROOT %both = s32[] add(%l, %r)
}
";
    let forms = [
        text.replace("%mine = ", "%sliced = ").replace("%all_counts = ", &format!("{copied}\n%all_counts = ")),
        text.replace("%nothing (", &format!("{added}\n%nothing ("))
            .replace("reshape(%row)", "reduce(%row, %zero), dimensions={0,1}, to_apply=%of"),
    ];
    for form in forms {
        assert_ne!(form, text);
        assert_eq!(counts(found(&parsed(&form))), counts(found(&parsed(&text))), "{form}");
    }
    // Two places are added up, whatever they are.
    let sum =
        text.replace("%first.2 = s32[1,1] slice(%left.2), slice={[0:1], [0:1]}", "%first.2 = s32[1,2] copy(%left.2)");
    let sum = sum.replace("%nothing (", &format!("{added}\n%nothing ("));
    let sum = sum.replace(
        "%flag.2 = s32[] reshape(%first.2)\n  %zero.2 = s32[] constant(0)",
        "%zero.2 = s32[] constant(0)\n  %flag.2 = s32[] reduce(%first.2, %zero.2), dimensions={0,1}, to_apply=%of",
    );
    let found = found(&parsed(&sum));
    assert_eq!(found.entries[1].executions, Amount::Unknown);
}

/// Fewer devices than the table has stages for: the first four are stages 0 and 1.
#[test]
fn where_devices_agree_executions_are_exact() {
    let module = module("{{0,1},{2,3}}");
    let found = collectives(&module, Devices::partitioned(4));
    let executions: Vec<Amount> = found.entries.iter().map(|entry| entry.executions).collect();
    assert_eq!(executions, [Amount::Exactly(2), Amount::Exactly(3)]);
    assert_eq!(found.executions(), Amount::Exactly(5));
}

#[test]
fn groups_must_not_lie_across_branches() {
    let of = |groups: &str| -> Vec<Together> {
        let found = found(&module(groups));
        found.entries.iter().map(|entry| found.together(entry)).collect()
    };
    assert_eq!(of(ON_A_STAGE), [Together::Yes; 2]);
    // Stages 0 and 1 run both as often, but in other ticks.
    assert_eq!(of(ACROSS_STAGES), [Together::No(0, 2); 2]);
    // All devices.
    assert_eq!(of("{}"), [Together::No(0, 2); 2]);
}

/// A selector that depends on data may differ, and is not known.
#[test]
fn data_decides_nothing() {
    let mut module = module(ON_A_STAGE);
    let entry = module.computations.iter_mut().find(|it| it.id == module.entry_computation_id).expect("an entry");
    let device = entry.instructions.iter_mut().find(|it| it.opcode == "partition-id").expect("a number");
    device.opcode = "custom-call".to_owned();
    device.custom_call_target = "random".to_owned();
    let found = found(&module);
    assert_eq!(found.entries.iter().map(|entry| found.together(entry)).collect::<Vec<_>>(), [Together::Unknown; 2]);
    assert_eq!(found.entries[0].executions, Amount::AtMost(5));
    assert_eq!(found.entries[1].executions, Amount::Unknown);
    assert_eq!(found.execution_bounds(), Bounds { least: 0, most: None });
}

/// `cost` counts the branches that run, on the device that runs each most.
#[test]
fn cost_counts_what_runs() {
    let module = module(ON_A_STAGE);
    let cost = cost(&module, &CostOptions::devices(Devices::partitioned(8)));
    assert_eq!(cost.total.link_bytes, 5 * 64);
    assert!(!cost.assumptions.branches, "{:?}", cost.assumptions);
    assert!(cost.assumptions.loops_counted_once.is_empty(), "{:?}", cost.assumptions);
    // The last stage comes to the inner loop, and has no iteration of it.
    let trips: Vec<_> = cost.loops.iter().map(|it| (it.name.as_str(), it.trip_count, it.trips)).collect();
    let inner = ("loop.4", None, Bounds { least: 0, most: Some(2) });
    assert_eq!(trips, [("end", Some(5), Bounds { least: 5, most: Some(5) }), inner]);
}
