//! DiLoCo as a plain loop that holds the replicas one by one, with outer parameters and velocities as plain vectors.

use meshloom::ir::Literal;
use meshloom::transform::diloco::{DilocoOptions, Fragment, SyncSchedule};
use support::eight_devices::relative_error;

/// The initial state of one replica, whose first leaves are the parameters.
pub struct Start {
    /// The leaves of the state.
    pub state: Vec<Literal>,
    /// The paths of the parameters.
    pub params: Vec<String>,
    /// The number of layers that each parameter of layers stacks.
    pub layers: usize,
}

/// The layers of each fragment but the first.
pub type Cut = [Vec<usize>];

/// The result of a run: each replica's parameters, and the outer ones.
pub struct Outcome {
    pub inner: Vec<Vec<Vec<f32>>>,
    pub outer: Vec<Vec<f32>>,
}

impl Outcome {
    /// Reads the parameters of replicas, which have a leading dimension over replicas, and the outer ones.
    pub fn of(inner: &[Literal], outer: &[Literal], replicas: usize) -> Outcome {
        let inner: Vec<Vec<f32>> = inner.iter().map(numbers).collect();
        let of = |replica: usize| {
            let part = |param: &Vec<f32>| param[replica * param.len() / replicas..][..param.len() / replicas].to_vec();
            inner.iter().map(part).collect()
        };
        Outcome { inner: (0..replicas).map(of).collect(), outer: outer.iter().map(numbers).collect() }
    }
}

fn numbers(literal: &Literal) -> Vec<f32> {
    literal.to_vec::<f32>().expect("numbers")
}

impl Start {
    /// The elements of a parameter that a fragment holds: all, none, or those of some layers.
    fn elements(&self, param: usize, count: usize, fragment: Fragment, cut: &Cut) -> Vec<usize> {
        let is_layer = self.params[param].contains("layers");
        match fragment {
            Fragment::Part(0) if is_layer => Vec::new(),
            Fragment::Part(1..) if !is_layer => Vec::new(),
            Fragment::Whole | Fragment::Part(0) => (0..count).collect(),
            Fragment::Part(number) => {
                let size = count / self.layers;
                cut[number - 1].iter().flat_map(|layer| layer * size..(layer + 1) * size).collect()
            }
        }
    }
}

/// Runs the plain loop. `step` gets the replica, the number of steps before, and the replica's state, and returns the
/// next state.
pub fn reference(
    start: &Start,
    options: &DilocoOptions,
    cut: &Cut,
    steps: u64,
    step: impl Fn(usize, u64, &[Literal]) -> Vec<Literal>,
) -> Outcome {
    let schedule: SyncSchedule = options.schedule().expect("they go together");
    let replicas = options.replicas;
    let count = start.params.len();
    let alpha = options.streaming.map_or(0.0, |streaming| streaming.overlap_alpha) as f32;
    let (rate, momentum) = (options.outer_rate as f32, options.outer_momentum as f32);
    let mut states: Vec<Vec<Literal>> = vec![start.state.clone(); replicas];
    let mut outer: Vec<Vec<f32>> = start.state[..count].iter().map(numbers).collect();
    let mut velocity: Vec<Vec<f32>> = outer.iter().map(|param| vec![0.0; param.len()]).collect();
    let fetch = |states: &[Vec<Literal>]| -> Vec<Vec<Vec<f32>>> {
        states.iter().map(|state| state[..count].iter().map(numbers).collect()).collect()
    };
    for done in 0..steps {
        for (replica, state) in states.iter_mut().enumerate() {
            *state = step(replica, done, state);
        }
        let event = schedule.after_step(done as usize + 1);
        if event == Default::default() {
            continue;
        }
        let mut inner = fetch(&states);
        for param in 0..count {
            let size = outer[param].len();
            let places = |fragment| start.elements(param, size, fragment, cut);
            for at in event.sent.map(places).into_iter().flatten() {
                let outer = &mut outer[param][at];
                let mean = inner.iter().map(|inner| *outer - inner[param][at]).sum::<f32>() / replicas as f32;
                let velocity = &mut velocity[param][at];
                *velocity = momentum * *velocity + mean;
                *outer -= rate * (mean + momentum * *velocity);
            }
            for at in event.applied.map(places).into_iter().flatten() {
                let outer = outer[param][at];
                inner.iter_mut().for_each(|inner| inner[param][at] = alpha * inner[param][at] + (1.0 - alpha) * outer);
            }
        }
        for (state, params) in states.iter_mut().zip(&inner) {
            for (leaf, param) in state.iter_mut().zip(params) {
                *leaf = Literal::from_slice(&leaf.ty().dims.clone(), param).expect("as many");
            }
        }
    }
    Outcome { inner: fetch(&states), outer }
}

/// The largest error of any parameter of any replica, and of any outer parameter.
pub fn worst(found: &Outcome, expected: &Outcome) -> (f64, f64) {
    let wide = |param: &[f32]| param.iter().map(|&number| f64::from(number)).collect::<Vec<f64>>();
    let of = |found: &[Vec<f32>], expected: &[Vec<f32>]| {
        assert_eq!(found.len(), expected.len());
        let errors = found.iter().zip(expected).map(|(found, expected)| relative_error(&wide(found), &wide(expected)));
        errors.fold(0.0, f64::max)
    };
    let inner = found.inner.iter().zip(&expected.inner).map(|(found, expected)| of(found, expected));
    (inner.fold(0.0, f64::max), of(&found.outer, &expected.outer))
}

/// Checks that the parameters of every replica and the outer ones agree to 1e-5.
#[track_caller]
pub fn assert_near(what: impl std::fmt::Display, found: &Outcome, expected: &Outcome) {
    assert_eq!(found.inner.len(), expected.inner.len(), "{what}: replicas");
    let (inner, outer) = worst(found, expected);
    assert!(inner <= 1e-5 && outer <= 1e-5, "{what}: inner {inner:e}, outer {outer:e}");
}
