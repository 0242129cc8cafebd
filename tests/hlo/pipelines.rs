//! Pipelines in programs: of JAX programs written by hand, and of our own, whose tables are known.

use meshloom::analysis::pipelines::{Item, LoopSchedule, Order, Pass, Pipeline, Row, pipelines};
use meshloom::analysis::{DeviceWalk, Devices, collectives_of_walk};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read;
use meshloom::hlo::source::Sources;
use meshloom::sharding::Mesh;
use meshloom::transform::pipeline::{Task, Timeline};
use meshloom_train::config::RunConfig;

fn found(module: &HloModuleProto, mesh: &Mesh) -> Vec<Pipeline> {
    let devices = Devices::partitioned(mesh.device_count());
    let walk = DeviceWalk::of(module, devices);
    let collectives = collectives_of_walk(&walk, Sources::of(module)).along(mesh);
    pipelines(walk.walk(), &collectives, devices)
}

/// The pipelines of a stored program over eight devices.
fn of_file(name: &str) -> Vec<Pipeline> {
    let bytes =
        std::fs::read(support::path("tests/foreign").join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let module = read::read(&bytes, &read::Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}")).module;
    found(&module, &Mesh::parse("data=2,stage=4", 8).expect("a mesh"))
}

/// By stage, a column for each iteration: the numbers, or `.` for a bubble.
fn drawn(row: &Row) -> Vec<String> {
    let cell = |items: &Vec<Item>| match items.as_slice() {
        [] => ".".to_owned(),
        items => items.iter().map(|item| item.number.to_string()).collect::<Vec<_>>().join("+"),
    };
    row.cells.iter().map(|stage| stage.iter().map(cell).collect::<Vec<_>>().join(" ")).collect()
}

fn schedules(pipelines: &[Pipeline]) -> Vec<&LoopSchedule> {
    assert_eq!(pipelines.len(), 1, "{pipelines:?}");
    assert_eq!((pipelines[0].axis.as_str(), pipelines[0].stages), ("stage", 4));
    pipelines[0].loops.iter().map(|it| it.schedule.as_ref().unwrap_or_else(|why| panic!("{why}"))).collect()
}

const FORMS: [&str; 2] = ["lowered/{}.hlo.txt", "lowered/{}.stablehlo.txt"];

/// The schedule is the one that `tests/oracle/schedule_programs.py` states: stage s has microbatch k in tick s + 2 k,
/// and back in tick 2 S - 1 - s + 2 k.
#[test]
fn one_forward_one_backward() {
    for form in FORMS {
        let found = of_file(&form.replace("{}", "one_forward_one_backward"));
        let all = schedules(&found);
        let [LoopSchedule { order: Order::OneForwardOneBackward, microbatches: Some(6), rows }] = all.as_slice() else {
            panic!("{all:?}")
        };
        assert_eq!(rows.iter().map(|row| row.pass).collect::<Vec<_>>(), [Pass::Forward, Pass::Backward]);
        assert_eq!(
            [drawn(&rows[0]), drawn(&rows[1])].concat(),
            [
                "0 . 1 . 2 . 3 . 4 . 5 . . . . . . .",
                ". 0 . 1 . 2 . 3 . 4 . 5 . . . . . .",
                ". . 0 . 1 . 2 . 3 . 4 . 5 . . . . .",
                ". . . 0 . 1 . 2 . 3 . 4 . 5 . . . .",
                ". . . . . . . 0 . 1 . 2 . 3 . 4 . 5",
                ". . . . . . 0 . 1 . 2 . 3 . 4 . 5 .",
                ". . . . . 0 . 1 . 2 . 3 . 4 . 5 . .",
                ". . . . 0 . 1 . 2 . 3 . 4 . 5 . . .",
            ]
        );
        // 6 of 18 ticks of each stage.
        assert!((found[0].bubble().expect("known") - 1.0 / 3.0).abs() < 1e-12);
    }
}

/// Two chunks of 8 microbatches, as `schedule_programs.py` lists them.
#[test]
fn interleaved() {
    for form in FORMS {
        let found = of_file(&form.replace("{}", "interleaved"));
        let all = schedules(&found);
        let [LoopSchedule { order: Order::Interleaved { chunks: 2 }, microbatches: Some(8), rows }] = all.as_slice()
        else {
            panic!("{all:?}")
        };
        let ends = |row: &Row| [drawn(row)[0].clone(), drawn(row)[3].clone()];
        let expected = [
            "0 1 2 3 4 5 6 7 8 9 10 . 11 . . . 12 . 13 . 14 . 15 . . . . . . . . . . . . . . .",
            ". . . 0 1 2 3 4 . 5 . 6 . 7 . 8 . 9 . 10 . 11 . 12 . 13 . 14 . 15 . . . . . . . .",
            ". . . . . . . . . . . 0 . 1 . . . 2 . 3 . 4 . 5 6 7 . 8 . 9 . 10 . 11 12 13 14 15",
            ". . . . . . . . 0 . 1 . 2 . 3 . 4 . 5 . 6 . 7 . 8 . 9 . 10 . 11 12 13 14 15 . . .",
        ];
        assert_eq!([ends(&rows[0]), ends(&rows[1])].concat(), expected);
    }
}

/// Four microbatches go round twice; what JAX makes of the backward pass has no index of its own.
#[test]
fn circular() {
    for form in FORMS {
        let found = of_file(&form.replace("{}", "circular"));
        let all = schedules(&found);
        let [forward, backward] = all.as_slice() else { panic!("{all:?}") };
        for schedule in [forward, backward] {
            assert_eq!((schedule.order, schedule.microbatches), (Order::Circular { repeats: 2 }, Some(4)));
        }
        assert_eq!((forward.rows[0].pass, backward.rows[0].pass), (Pass::Forward, Pass::Backward));
        assert_eq!(drawn(&forward.rows[0])[1], ". 0 1 2 3 0 1 2 3 . .");
        assert_eq!(drawn(&backward.rows[0])[1], ". . 3 2 1 0 3 2 1 0 .");
        assert_eq!(forward.rows[0].cells[1][5], [Item { number: 0, part: Some(1) }]);
        assert!((found[0].bubble().expect("known") - 3.0 / 11.0).abs() < 1e-12);
    }
}

/// Six microbatches along a ring that is not used as one: the inputs of the first stage show it, in every form.
#[test]
fn fills_and_drains() {
    for name in ["pipeline.partitioned.pb", "pipeline.optimized.txt", "pipeline.tpu.pb", "pipeline.gpu.txt"] {
        let found = of_file(name);
        let all = schedules(&found);
        assert_eq!(all.len(), 2, "{name}");
        for schedule in &all {
            assert_eq!((schedule.order, schedule.microbatches), (Order::FillDrain, Some(6)), "{name}");
        }
        assert_eq!(
            drawn(&all[0].rows[0]),
            ["0 1 2 3 4 5 . . .", ". 0 1 2 3 4 5 . .", ". . 0 1 2 3 4 5 .", ". . . 0 1 2 3 4 5"]
        );
        assert_eq!(drawn(&all[1].rows[0])[3], "5 4 3 2 1 0 . . .", "{name}");
    }
}

/// A ring with an index that counts nothing: the number of times that a microbatch goes round it is unknown.
#[test]
fn what_is_not_known_is_not_drawn() {
    let text = "HloModule ring, num_partitions=4

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %first = s32[] constant(0)
  %cut = f32[8] dynamic-slice(%x, %first), dynamic_slice_sizes={8}
  %y = f32[8] tanh(%cut)
  %sent = f32[8] collective-permute(%y), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT %t = (s32[], f32[8]) tuple(%next, %sent)
}

%goes_on (s: (s32[], f32[8])) -> pred[] {
  %s = (s32[], f32[8]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %all = s32[] constant(11)
  ROOT %less = pred[] compare(%i, %all), direction=LT
}

ENTRY %ring (x: f32[8]) -> f32[8] {
  %x = f32[8] parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8]) tuple(%zero, %x)
  %loop = (s32[], f32[8]) while(%start), condition=%goes_on, body=%body
  ROOT %end = f32[8] get-tuple-element(%loop), index=1
}
";
    let module = |text: &str| read::read(text.as_bytes(), &read::Limits::default()).expect("a module").module;
    let mesh = Mesh::parse("stage=4", 4).expect("a mesh");
    // Seven iterations are those of one microbatch, handed on in every other.
    for iterations in ["11", "7"] {
        let ring = found(&module(&text.replace("11", iterations)), &mesh);
        assert_eq!(
            ring[0].loops[0].schedule,
            Err("all stages do the same in every iteration, and no index says on which microbatch")
        );
        assert_eq!(ring[0].bubble(), None);
    }
    // Without the way back to the first stage, it fills and drains.
    let line = found(&module(&text.replace(",{3,0}", "")), &mesh);
    let schedule = line[0].loops[0].schedule.as_ref().expect("a schedule");
    assert_eq!((schedule.order, schedule.microbatches), (Order::FillDrain, Some(8)));
}

/// The schedules found in meshloom's own programs are those of their tables.
#[test]
fn our_own_are_as_their_tables_say() {
    let forms = [
        ("1f1b", 1, 6, Order::OneForwardOneBackward),
        ("interleaved", 2, 8, Order::Interleaved { chunks: 2 }),
        ("zb-h1", 1, 6, Order::ZeroBubble),
        ("zb-v", 2, 6, Order::ZeroBubbleVee),
    ];
    for (schedule, chunks, microbatches, order) in forms {
        let rows = 8 * microbatches;
        let set = [
            "model.layers=8".to_owned(),
            "model.embed=16".to_owned(),
            "model.seq=8".to_owned(),
            format!("train.batch={rows}"),
            "mesh.axes=stage=4,data=2".to_owned(),
            "remat.policy=none".to_owned(),
            format!("pipeline.schedule={schedule}"),
            format!("pipeline.chunks={chunks}"),
            format!("pipeline.microbatches={microbatches}"),
            format!("pipeline.layers_per_stage={}", 2 / chunks),
            "pipeline.repeats=1".to_owned(),
            "pipeline.weights=gather-once".to_owned(),
        ];
        let config = RunConfig::from_overrides(&set).unwrap_or_else(|error| panic!("{schedule}: {error}"));
        let (_, lowered) = config.lower_train_step().unwrap_or_else(|error| panic!("{schedule}: {error}"));
        let module = lowered.module.decode().expect("our own");
        let found = found(&module, lowered.emitted_mesh().expect("a mesh"));
        let all = schedules(&found);
        let [own] = all.as_slice() else { panic!("{schedule}: {all:?}") };
        assert_eq!((own.order, own.microbatches), (order, Some(microbatches)), "{schedule}");
        let options = config.pipeline_options().expect("options").expect("a pipeline");
        let timeline = Timeline::of(&options);
        let item = |task: &Task| Item { number: task.microbatch, part: (chunks > 1).then_some(task.repeat) };
        for row in &own.rows {
            for (stage, cells) in row.cells.iter().enumerate() {
                let expected: Vec<Vec<Item>> = timeline
                    .columns
                    .iter()
                    .map(|column| match row.pass {
                        Pass::Forward => column.forward[stage].iter().map(item).collect(),
                        Pass::Backward => column.backward[stage].iter().map(item).collect(),
                        Pass::Weights => column.weights[stage].iter().map(item).collect(),
                    })
                    .collect();
                let found = &cells[..expected.len()];
                if row.pass == Pass::Weights && chunks > 1 {
                    // The chunk is an index there.
                    let counts = |cells: &[Vec<Item>]| cells.iter().map(Vec::len).collect::<Vec<_>>();
                    assert_eq!(counts(found), counts(&expected), "{schedule}, stage {stage}");
                } else {
                    assert_eq!(found, expected, "{schedule} {:?}, stage {stage}", row.pass);
                }
                assert!(cells[expected.len()..].iter().all(Vec::is_empty), "{schedule}");
            }
        }
    }
}
