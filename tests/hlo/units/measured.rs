use meshloom::analysis::Measured;
use meshloom::hlo::parse::parse;
use meshloom::hlo::xplane::{StatValue, XEvent, XEventMetadata, XLine, XPlane, XSpace, XStat, XStatMetadata};

const TEXT: &str = "\
HloModule step

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %fusion.1 = f32[4]{0} negate(%x)
  ROOT %tanh.2 = f32[4]{0} tanh(%fusion.1)
}
";

fn event(metadata_id: i64, microseconds: i64, stats: &[(i64, StatValue)]) -> XEvent {
    let stat =
        |(metadata_id, value): &(i64, StatValue)| XStat { metadata_id: *metadata_id, value: Some(value.clone()) };
    let stats = stats.iter().map(stat).collect();
    XEvent { metadata_id, offset_ps: 0, duration_ps: microseconds * 1_000_000, stats }
}

fn plane(name: &str, events: &[&str], stats: &[&str], lines: Vec<XLine>) -> XPlane {
    let names = |names: &[&str]| (1..).zip(names.iter().map(|name| name.to_string())).collect::<Vec<(i64, _)>>();
    let event = |(id, name): (i64, String)| (id, XEventMetadata { id, name, ..XEventMetadata::default() });
    let stat = |(id, name): (i64, String)| (id, XStatMetadata { id, name });
    XPlane {
        name: name.to_owned(),
        lines,
        event_metadata: names(events).into_iter().map(event).collect(),
        stat_metadata: names(stats).into_iter().map(stat).collect(),
        stats: Vec::new(),
    }
}

fn line(name: &str, events: Vec<XEvent>) -> XLine {
    XLine { name: name.to_owned(), events, ..XLine::default() }
}

fn measured(planes: Vec<XPlane>) -> Measured {
    let module = parse(TEXT).expect("a program").hlo_module.expect("a module");
    Measured::of(&module, &XSpace { planes, hostnames: Vec::new() }, None)
}

fn rows(measured: &Measured) -> Vec<(&str, u64, u64)> {
    let micros = |seconds: f64| (1e6 * seconds).round() as u64;
    measured.instructions.iter().map(|it| (it.name.as_str(), it.events, micros(it.seconds))).collect()
}

/// The layout of a TPU's planes: one line has the instructions, and others repeat them or what is in flight.
#[test]
fn lines_of_ops_are_matched_by_text() {
    let names = ["%fusion.1 = f32[4]{0} negate(%x)", "tanh.2", "%copy.9 = f32[4]{0} copy(%x)"];
    let device = |number: usize| {
        let ops = line("XLA Ops", vec![event(1, 2, &[]), event(2, 3, &[]), event(1, 4, &[]), event(2, 5, &[])]);
        let unknown = line("XLA Ops", vec![event(3, 7, &[])]);
        let others = ["Async XLA Ops", "Steps"].map(|name| line(name, vec![event(1, 100, &[])]));
        let lines = [ops, unknown].into_iter().chain(others).collect();
        plane(&format!("/device:TPU:{number}"), &names, &[], lines)
    };
    let measured = measured(vec![device(0), device(1)]);
    assert_eq!(rows(&measured), [("fusion.1", 4, 12), ("tanh.2", 4, 16)]);
    assert_eq!((measured.devices, measured.runs), (2, 2));
    assert_eq!((1e6 * measured.per_run(measured.seconds)).round(), 7.0);
    assert_eq!((1e6 * measured.unknown_seconds).round(), 14.0);
}

/// The layout of a GPU's planes: kernels on streams, which say their instruction and module.
#[test]
fn kernels_are_matched_by_their_stats() {
    let text = |text: &str| StatValue::Text(text.to_owned());
    let of = |op: &str, module: &str| vec![(1, text(op)), (2, text(module))];
    let events = vec![
        event(1, 2, &of("fusion.1", "step")),
        event(1, 3, &of("tanh.2", "step")),
        event(1, 9, &of("fusion.1", "init")),
        // A copy of the runtime's own.
        event(1, 50, &[]),
    ];
    let stats = ["hlo_op", "hlo_module"];
    let plane = plane("/device:GPU:0", &["kernel"], &stats, vec![line("Stream #16(Compute)", events)]);
    let measured = measured(vec![plane]);
    assert_eq!(rows(&measured), [("fusion.1", 1, 2), ("tanh.2", 1, 3)]);
    assert_eq!((measured.devices, measured.runs), (1, 1));
    assert_eq!((1e6 * measured.other_seconds).round(), 9.0);
    assert_eq!(measured.unknown_seconds, 0.0);
}
