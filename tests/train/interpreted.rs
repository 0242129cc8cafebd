//! Runs of configs by the interpreter: the steps of a trainer without a compiler, and without fusions that round
//! otherwise.

use meshloom::compile::{Lowered, Partitioned};
use meshloom::ir::Literal;
use meshloom::trace::Tree;
use meshloom_nn::TokenOrder;
use meshloom_train::config::RunConfig;
use meshloom_train::run::TrainStep;
use meshloom_train::{Dataset, Text};
use support::interpret::interpret;
use support::spmd::run_local;

/// A run of one replica.
pub struct InterpretedRun {
    pub step: TrainStep,
    lowered: Lowered,
    text: Text,
    seed: u64,
    paths: Vec<String>,
    /// The parameters come first.
    pub state: Vec<Literal>,
    steps_done: u64,
}

impl InterpretedRun {
    /// A run that begins as the trainer does, but that the host draws its state.
    #[track_caller]
    pub fn new(config: &RunConfig) -> InterpretedRun {
        let step = config.train_step().unwrap_or_else(|error| panic!("{error}"));
        let state = step.initialize(config.train.seed).expect("a state");
        InterpretedRun {
            lowered: config.lower_train_step().unwrap_or_else(|error| panic!("{error}")).1,
            text: Text::load(config).unwrap_or_else(|error| panic!("{error}")),
            seed: config.train.seed,
            paths: state.paths(),
            state: state.leaves(),
            step,
            steps_done: 0,
        }
    }

    /// The parameters by their paths.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &Literal)> {
        let all = self.paths.iter().zip(&self.state);
        all.filter_map(|(path, literal)| Some((path.strip_prefix("params.")?, literal)))
    }

    /// The places of parameters in the state, by their paths.
    pub fn places(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<usize> {
        let wanted = |(place, path): (usize, &String)| {
            path.strip_prefix("params.").filter(|path| is_wanted(path)).map(|_| place)
        };
        self.paths.iter().enumerate().filter_map(wanted).collect()
    }

    /// The loss of the next step, and its gradient's norm.
    #[track_caller]
    pub fn step(&mut self) -> [f64; 2] {
        let batch = self.text.batch(self.seed, self.steps_done, self.step.batch).expect("a batch");
        let order = self.step.model.order;
        let batch =
            batch.leaves().into_iter().map(|leaf| if order.is_natural() { leaf } else { arranged(&leaf, order) });
        let inputs: Vec<Literal> = self.state.iter().cloned().chain(batch).collect();
        let mut outputs = match self.lowered.partitioned() {
            Some(Partitioned { graph, mesh, .. }) => {
                run_local(graph, mesh, &inputs).unwrap_or_else(|error| panic!("{error}"))
            }
            None => interpret(self.lowered.graph(), &inputs),
        };
        let metrics = outputs.split_off(self.state.len());
        self.state = outputs;
        self.steps_done += 1;
        [&metrics[0], &metrics[1]].map(|number| number.to_f64_vec()[0])
    }
}

/// Rows whose tokens are in this order.
fn arranged(rows: &Literal, order: TokenOrder) -> Literal {
    let length = rows.ty().dims[1];
    let (places, numbers) = (order.places(length).expect("a length that divides"), rows.to_f64_vec());
    Literal::from_fn(rows.ty().clone(), |index| numbers[index / length * length + places[index % length]])
}
