//! Schedules as data and as pictures.

use insta::assert_snapshot;
use meshloom::ops::RematPolicy;
use meshloom::transform::pipeline::{PipelineOptions, Schedule, Timeline, WeightPlan};

fn options(stages: usize, repeats: usize, microbatches: usize) -> PipelineOptions {
    let options = PipelineOptions { stages, repeats, microbatches, ..PipelineOptions::default() };
    options.validate().unwrap();
    options
}

fn one_forward_one_backward(stages: usize, microbatches: usize) -> PipelineOptions {
    let schedule = Schedule::OneForwardOneBackward;
    PipelineOptions { stages, microbatches, schedule, ..PipelineOptions::default() }
}

/// Numbers worked out by hand from what the schedule says.
#[test]
fn counts_by_hand() {
    struct Case {
        options: PipelineOptions,
        iterations: [usize; 3],
        fraction: f64,
        /// Forward, backward, reduce-scatters.
        gathers: [usize; 3],
        permutes: usize,
        alive: Vec<usize>,
        gathered: usize,
    }
    let delayed = |options| PipelineOptions { delay_forwarding: true, ..options };
    let with = |weights, keep_gathered, options| PipelineOptions { weights, keep_gathered, ..options };
    let cases = [
        // 4 + 3 iterations, with inputs and results moving in all of them.
        Case {
            options: options(4, 1, 4),
            iterations: [7, 4, 3],
            fraction: 3.0 / 7.0,
            gathers: [1, 1, 1],
            permutes: 2 * (7 + 7),
            alive: vec![4; 4],
            gathered: 1,
        },
        // 8 + 1: inputs move during the first 4, results during the last 4.
        Case {
            options: options(2, 2, 4),
            iterations: [9, 8, 1],
            fraction: 1.0 / 9.0,
            gathers: [2, 2, 2],
            permutes: 2 * (9 + 8),
            alive: vec![8; 2],
            gathered: 2,
        },
        // 18 + 4 with a delay of two.
        Case {
            options: delayed(options(3, 3, 6)),
            iterations: [22, 18, 4],
            fraction: 4.0 / 22.0,
            gathers: [3, 3, 3],
            permutes: 2 * (22 + 12),
            alive: vec![18; 3],
            gathered: 2,
        },
        Case {
            options: with(WeightPlan::SlidingWindow, true, options(2, 4, 2)),
            iterations: [9, 8, 1],
            fraction: 1.0 / 9.0,
            gathers: [4, 0, 4],
            permutes: 2 * (9 + 4),
            alive: vec![8; 2],
            gathered: 4,
        },
        Case {
            options: with(WeightPlan::GatherOnce, false, options(2, 2, 2)),
            iterations: [5, 4, 1],
            fraction: 0.2,
            gathers: [2, 2, 2],
            permutes: 2 * (5 + 4),
            alive: vec![4; 2],
            gathered: 2,
        },
        Case {
            options: with(WeightPlan::GatherOnce, true, options(2, 2, 2)),
            iterations: [5, 4, 1],
            fraction: 0.2,
            gathers: [2, 0, 2],
            permutes: 2 * (5 + 4),
            alive: vec![4; 2],
            gathered: 2,
        },
        Case {
            options: with(WeightPlan::PerIteration, false, options(2, 2, 2)),
            iterations: [5, 4, 1],
            fraction: 0.2,
            gathers: [5, 5, 5],
            permutes: 2 * (5 + 4),
            alive: vec![4; 2],
            gathered: 1,
        },
        // 8 + 2 * 3; stage s has its own and those that are under way to the last stage and back.
        Case {
            options: one_forward_one_backward(4, 8),
            iterations: [14, 8, 6],
            // Each of the first and the last 3 ticks has one pass.
            fraction: 3.0 / 11.0,
            gathers: [1, 0, 1],
            permutes: 3 * 14,
            alive: vec![7, 5, 3, 1],
            gathered: 1,
        },
        // One stage hands nothing on.
        Case {
            options: options(1, 2, 3),
            iterations: [6, 6, 0],
            fraction: 0.0,
            gathers: [2, 2, 2],
            permutes: 0,
            alive: vec![6],
            gathered: 2,
        },
    ];
    for Case { options, iterations, fraction, gathers, permutes, alive, gathered } in cases {
        let counts = Timeline::of(&options).counts;
        let found = [counts.iterations, counts.real_iterations, counts.bubble_iterations];
        assert_eq!(found, iterations, "{options:?}");
        assert!((counts.bubble_fraction - fraction).abs() < 1e-15, "{options:?}");
        assert_eq!([counts.gathers_forward, counts.gathers_backward, counts.scatters], gathers, "{options:?}");
        assert_eq!(counts.permutes, permutes, "{options:?}");
        assert_eq!(counts.alive, alive, "{options:?}");
        assert_eq!(counts.gathered_repeats, gathered, "{options:?}");
    }
}

/// Every microbatch goes through every stage once in each repeat, forwards, then backwards; a stage's weights are there
/// when it works, and at most two repeats' are unless they are kept.
#[test]
fn schedules_are_sound() {
    for stages in [1, 2, 3, 4] {
        for (repeats, rounds, delay_forwarding) in
            [(1, 1, false), (1, 2, true), (2, 1, false), (3, 2, true), (5, 3, false)]
        {
            for weights in WeightPlan::ALL {
                for keep_gathered in [false, true] {
                    let base = options(stages, repeats, stages * rounds);
                    check(&PipelineOptions { delay_forwarding, weights, keep_gathered, ..base });
                }
            }
        }
        check(&one_forward_one_backward(stages, 3 * stages));
    }
}

fn check(options: &PipelineOptions) {
    options.validate().unwrap();
    let timeline = Timeline::of(options);
    let (mut done, mut undone) = (Vec::new(), Vec::new());
    for (at, column) in timeline.columns.iter().enumerate() {
        let sides = [(&column.forward, &mut done), (&column.backward, &mut undone)];
        for (tasks, list) in sides {
            for (stage, task) in tasks.iter().enumerate().filter_map(|(stage, task)| Some((stage, (*task)?))) {
                list.push((task.repeat, task.microbatch, stage));
                let there =
                    timeline.windows.iter().any(|it| it.alive.contains(&at) && it.repeats.contains(&task.repeat));
                assert!(there || timeline.windows.is_empty(), "{options:?}: {task:?} in column {at}");
            }
        }
        for task in &undone {
            assert!(done.contains(task), "{options:?}: {task:?}");
        }
    }
    for list in [&mut done, &mut undone] {
        let count = list.len();
        list.sort_unstable();
        list.dedup();
        assert_eq!(
            (list.len(), count),
            (count, options.repeats * options.microbatches * options.stages),
            "{options:?}"
        );
    }
    for window in &timeline.windows {
        let used = |at: usize| {
            let column = &timeline.columns[at];
            let tasks = column.forward.iter().chain(&column.backward).flatten();
            tasks.into_iter().any(|task| window.repeats.contains(&task.repeat))
        };
        // A gather hides behind columns that do not need it; they are released as soon as no one does.
        assert!(
            options.weights == WeightPlan::GatherOnce || !window.gather.clone().any(used),
            "{options:?} {window:?}"
        );
        assert!(used(window.alive.end - 1), "{options:?} {window:?}");
    }
    if options.weights.slides() && !options.keep_gathered {
        assert!(timeline.counts.gathered_repeats <= 2, "{options:?}");
    }
}

#[test]
fn pictures() {
    assert_snapshot!(Timeline::of(&options(2, 2, 4)), @r"
    forward      0   1   2   3   4   5   6   7   8
    stage 0    0:0 0:1 0:2 0:3 1:0 1:1 1:2 1:3   .
    stage 1      . 0:0 0:1 0:2 0:3 1:0 1:1 1:2 1:3
    held       0.5   1 1.5   2 2.5   3 3.5   4   4
    weights 0    =   =   =   =   =
    weights 1    ~   ~   ~   ~   =   =   =   =   =

    backward     8   7   6   5   4   3   2   1   0
    stage 0      . 1:3 1:2 1:1 1:0 0:3 0:2 0:1 0:0
    stage 1    1:3 1:2 1:1 1:0 0:3 0:2 0:1 0:0   .
    held         4   4 3.5   3 2.5   2 1.5   1 0.5
    weights 1    =   =   =   =  =+
    weights 0    ~   ~   ~   ~   =   =   =   =  =+
    ");
    assert_snapshot!(Timeline::of(&one_forward_one_backward(3, 4)), @r"
    forward and backward   0  1  2  3  4  5  6  7
    stage 0 forward        0  1  2  3  .  .  .  .
      backward             .  .  .  .  0  1  2  3
    stage 1 forward        .  0  1  2  3  .  .  .
      backward             .  .  .  0  1  2  3  .
    stage 2 forward        .  .  0  1  2  3  .  .
      backward             .  .  0  1  2  3  .  .
    held                   1  2  3  4  4  3  2  1
    weights 0              =  =  =  =  =  =  = =+
    ");
    let schedule = Schedule::ZeroBubbleVee;
    let vee = PipelineOptions { schedule, chunks: 2, remat: RematPolicy::None, ..options(2, 1, 4) };
    assert_snapshot!(Timeline::of(&vee), @r"
    forward and backward    0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15  16  17  18  19  20 …  22  23  24
    stage 0 forward       0:0 0:1 0:2 1:0   .   . 1:1   .   . 0:3   .   . 1:2   .   .   .   . 1:3   .   .   . …   .   .   .
      backward              .   .   .   . 1:0   .   . 1:1   .   . 0:0   .   . 1:2   . 0:1   .   . 1:3   . 0:2 … 0:3   .   .
      of weights            .   .   .   .   . 1:0   .   . 1:1   .   . 0:0   .   . 1:2   . 0:1   .   . 1:3   . …   . 0:3   .
    stage 1 forward         . 0:0 1:0 0:1 1:1   .   . 0:2   .   . 1:2   .   . 0:3   .   . 1:3   .   .   .   . …   .   .   .
      backward              .   .   .   .   . 1:0   .   . 0:0   .   . 1:1   .   . 0:1   .   . 1:2   . 0:2 1:3 …   .   .   .
      of weights            .   .   .   .   .   . 1:0   .   . 0:0   .   . 1:1   .   . 0:1   .   . 1:2   .   . … 0:2 1:3 0:3
    held                  0.5   1 1.5   2   2   2   2   2   2   2   2   2   2   2   2   2   2   2   2 1.5 1.5 … 1.5   1 0.5
    weights, all            =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   = …   =   =  =+
    ");
    let weights = WeightPlan::GatherOnce;
    assert_snapshot!(Timeline::of(&PipelineOptions { weights, schedule: Schedule::Gpipe, ..options(4, 1, 4) }), @r"
    forward    0 1 2 3 4 5 6
    stage 0    0 1 2 3 . . .
    stage 1    . 0 1 2 3 . .
    stage 2    . . 0 1 2 3 .
    stage 3    . . . 0 1 2 3
    held       1 2 3 4 4 4 4
    weights 0  = = = = = = =

    backward    6  5  4  3  2  1  0
    stage 0     .  .  .  3  2  1  0
    stage 1     .  .  3  2  1  0  .
    stage 2     .  3  2  1  0  .  .
    stage 3     3  2  1  0  .  .  .
    held        4  4  4  4  3  2  1
    weights 0   =  =  =  =  =  = =+
    ");
    // Long ones are folded.
    let long = Timeline::of(&options(4, 2, 32));
    assert_snapshot!(long, @r"
    forward       0    1    2    3    4    5    6 …   28   29   30   31   32   33   34   35 …   60   61   62   63   64   65   66
    stage 0     0:0  0:1  0:2  0:3  0:4  0:5  0:6 … 0:28 0:29 0:30 0:31  1:0  1:1  1:2  1:3 … 1:28 1:29 1:30 1:31    .    .    .
    stage 1       .  0:0  0:1  0:2  0:3  0:4  0:5 … 0:27 0:28 0:29 0:30 0:31  1:0  1:1  1:2 … 1:27 1:28 1:29 1:30 1:31    .    .
    stage 2       .    .  0:0  0:1  0:2  0:3  0:4 … 0:26 0:27 0:28 0:29 0:30 0:31  1:0  1:1 … 1:26 1:27 1:28 1:29 1:30 1:31    .
    stage 3       .    .    .  0:0  0:1  0:2  0:3 … 0:25 0:26 0:27 0:28 0:29 0:30 0:31  1:0 … 1:25 1:26 1:27 1:28 1:29 1:30 1:31
    held        0.5    1  1.5    2  2.5    3  3.5 … 14.5   15 15.5   16 16.5   17 17.5   18 … 30.5   31 31.5   32   32   32   32
    weights 0     =    =    =    =    =    =    = …    =    =    =    =    =    =    =      …
    weights 1     ~    ~    ~    ~    ~    ~    ~ …    ~    ~    ~    ~    =    =    =    = …    =    =    =    =    =    =    =

    backward     66   65   64   63   62   61   60 …   35   34   33   32   31   30   29   28 …    6    5    4    3    2    1    0
    stage 0       .    .    . 1:31 1:30 1:29 1:28 …  1:3  1:2  1:1  1:0 0:31 0:30 0:29 0:28 …  0:6  0:5  0:4  0:3  0:2  0:1  0:0
    stage 1       .    . 1:31 1:30 1:29 1:28 1:27 …  1:2  1:1  1:0 0:31 0:30 0:29 0:28 0:27 …  0:5  0:4  0:3  0:2  0:1  0:0    .
    stage 2       . 1:31 1:30 1:29 1:28 1:27 1:26 …  1:1  1:0 0:31 0:30 0:29 0:28 0:27 0:26 …  0:4  0:3  0:2  0:1  0:0    .    .
    stage 3    1:31 1:30 1:29 1:28 1:27 1:26 1:25 …  1:0 0:31 0:30 0:29 0:28 0:27 0:26 0:25 …  0:3  0:2  0:1  0:0    .    .    .
    held         32   32   32   32 31.5   31 30.5 …   18 17.5   17 16.5   16 15.5   15 14.5 …  3.5    3  2.5    2  1.5    1  0.5
    weights 1     =    =    =    =    =    =    = …    =    =    =   =+                     …
    weights 0     ~    ~    ~    ~    ~    ~    ~ …    ~    =    =    =    =    =    =    = …    =    =    =    =    =    =   =+
    ");
    assert!(format!("{long:#}").lines().all(|line| !line.contains('…')));
    let many = Timeline::of(&options(32, 1, 32)).to_string();
    assert!(many.lines().all(|line| line.chars().count() < 130), "{many}");
}

#[test]
fn as_json() {
    let json = serde_json::to_value(Timeline::of(&options(2, 1, 2))).unwrap();
    assert_eq!(json["schedule"], "circular");
    assert_eq!(
        json["columns"][1]["forward"],
        serde_json::json!([{"microbatch": 1, "repeat": 0}, {"microbatch": 0, "repeat": 0}])
    );
    assert_eq!(json["columns"][0]["forward"][1], serde_json::Value::Null);
    assert_eq!(json["counts"]["bubble_iterations"], 1);
    assert_eq!(json["windows"][0]["alive"], serde_json::json!({"start": 0, "end": 3}));
}

/// The tables of docs/pipeline-schedules.md: bubbles, and what a stage holds in microbatches of all its layers.
#[test]
fn figures_of_the_docs() {
    let docs = include_str!("../../docs/pipeline-schedules.md");
    let mut missing = Vec::new();
    for remat in [RematPolicy::Full, RematPolicy::None] {
        for (stages, microbatches) in [(4, 8), (4, 16), (8, 16)] {
            let cell = |schedule: Schedule, repeats: usize, chunks: usize| {
                let plain = options(stages, repeats, microbatches);
                let options = PipelineOptions { schedule, chunks, remat: remat.clone(), ..plain };
                options.validate().unwrap();
                let Timeline { counts, held, .. } = Timeline::of(&options);
                let held = held.into_iter().fold(0.0, f64::max);
                format!("{:.1} %, {held}", 100.0 * counts.bubble_fraction)
            };
            let mut cells = vec![
                format!("{stages}, {microbatches}"),
                cell(Schedule::Gpipe, 1, 1),
                cell(Schedule::OneForwardOneBackward, 1, 1),
                cell(Schedule::Circular, 2, 1),
                cell(Schedule::Interleaved, 1, 2),
            ];
            if remat == RematPolicy::None {
                let others = [(Schedule::ZeroBubbleOne, 1), (Schedule::ZeroBubbleVee, 2), (Schedule::Searched, 2)];
                cells.extend(others.map(|(schedule, chunks)| cell(schedule, 1, chunks)));
            }
            let row = format!("| {} |", cells.join(" | "));
            if !docs.contains(&row) {
                missing.push(row);
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}
