//! The phases of a circular pipeline.

use meshloom::transform::pipeline::{PipelineOptions, Task, WeightPlan, WeightUse};

/// Phases follow on each other, and say of each stage at work which repeat it is in.
#[test]
fn phases_cover_the_tasks() {
    for stages in [1, 2, 3, 4, 8] {
        for repeats in 1..=4 {
            for (rounds, delay_forwarding) in [(1, false), (2, false), (2, true), (3, true)] {
                for weights in [WeightPlan::GatherOnce, WeightPlan::SlidingWindow] {
                    let microbatches = stages * rounds;
                    let options = PipelineOptions {
                        stages,
                        repeats,
                        microbatches,
                        weights,
                        delay_forwarding,
                        ..Default::default()
                    };
                    options.validate().unwrap();
                    check(&options);
                }
            }
        }
    }
}

fn check(options: &PipelineOptions) {
    let mut next = 0;
    for phase in options.phases() {
        assert_eq!(phase.iterations.start, next, "{options:?}");
        next = phase.iterations.end;
        for iteration in phase.iterations.clone() {
            let tasks: Vec<Option<Task>> = (0..options.stages).map(|stage| options.task(iteration, stage)).collect();
            let fits = |task: &Task| match phase.weights {
                WeightUse::One(repeat) => task.repeat == repeat,
                WeightUse::Changing(repeat) => task.repeat == repeat || task.repeat + 1 == repeat,
                WeightUse::Any => true,
            };
            assert!(tasks.iter().flatten().all(fits), "{options:?} {phase:?}");
            assert!(phase.has_bubbles || tasks.iter().all(Option::is_some), "{options:?} {phase:?}");
            let enters = tasks[0].is_some_and(|task| task.repeat == 0);
            let leaves = tasks[options.stages - 1].is_some_and(|task| task.repeat + 1 == options.repeats);
            // One loop does both where there is one repeat, and has more iterations than either needs.
            let more = options.repeats == 1;
            assert!(phase.takes_inputs == enters || more && phase.takes_inputs, "{options:?} {phase:?}");
            assert!(phase.gives_outputs == leaves || more && phase.gives_outputs, "{options:?} {phase:?}");
        }
    }
    assert_eq!(next, options.iterations());
}
