//! This bench measures the cost of the gate in a train step. It runs the default decoder's step on one CPU device and
//! the same program with a constant in place of the judgement, one step of each in turn.
//!
//! ```text
//! cargo bench --bench gate -- [rounds]
//! ```
//!
//! It prints the smallest and the median seconds of each, and the ratio of both.

use std::time::Instant;

use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::ir::{DType, Graph, GraphBuilder, Literal, TensorType, Value};
use meshloom::ops::{Op, Splat, Unary, UnaryKind};
use meshloom::pjrt::{Array, Client, ClientOptions, Plugin};
use meshloom::trace::Tree;
use meshloom_benches::smallest_and_median;
use meshloom_train::config::RunConfig;
use meshloom_train::run::aliases;
use meshloom_train::{Dataset, Text};

/// The graph with each scalar that is judged taken for finite.
fn without_judgement(graph: &Graph) -> anyhow::Result<Graph> {
    let mut builder = GraphBuilder::new("train_step");
    let mut map: Vec<Option<Value>> = vec![None; graph.value_count()];
    for (&input, info) in graph.inputs().iter().zip(graph.input_info()) {
        map[input.index()] = Some(builder.input(graph.ty(input).clone(), info.clone()));
    }
    let mut judged = 0;
    for node in graph.nodes() {
        builder.set_origin(node.origin());
        let is_judgement =
            matches!(node.op(), Op::Unary(Unary(UnaryKind::IsFinite))) && graph.ty(node.result()).rank() == 0;
        let results = if is_judgement {
            judged += 1;
            builder.push(Splat::new(TensorType::new(DType::Pred, &[]), 1.0), &[])?
        } else {
            let operands: Vec<Value> = node.operands().iter().filter_map(|operand| map[operand.index()]).collect();
            builder.push(node.op().clone(), &operands)?
        };
        node.results().zip(results).for_each(|(old, new)| map[old.index()] = Some(new));
    }
    anyhow::ensure!(judged == 2, "{judged} scalars are judged, not the loss and the norm");
    let outputs = graph.outputs().iter().filter_map(|output| map[output.index()]).collect();
    Ok(builder.finish(outputs, graph.output_info().to_vec()))
}

/// A program and its state.
struct Side {
    program: Program,
    state: Vec<Array>,
}

impl Side {
    fn step(&mut self, batch: &[Literal]) -> anyhow::Result<f64> {
        let mut arguments = self.state.clone();
        arguments.extend(self.program.put(arguments.len(), &batch.to_vec())?);
        let start = Instant::now();
        let mut outputs = self.program.run(&arguments.iter().collect::<Vec<_>>())?;
        outputs.iter().try_for_each(Array::block_until_ready)?;
        let seconds = start.elapsed().as_secs_f64();
        outputs.truncate(self.state.len());
        self.state = outputs;
        Ok(seconds)
    }
}

fn main() -> anyhow::Result<()> {
    // `cargo bench` adds `--bench`.
    let rounds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(20usize).max(1);
    let overrides = [meshloom_benches::text(), "mesh.axes=data=1".to_owned(), "target.devices=1".to_owned()];
    let config = RunConfig::from_overrides(&overrides)?;
    let (step, text) = (config.train_step()?, Text::load(&config)?);
    let function = step.trace()?;
    let client =
        Client::new(&Plugin::find("cpu")?, &ClientOptions { device_count: Some(1), ..ClientOptions::default() })?;
    let options = LowerOptions { aliases: aliases(&function), ..LowerOptions::default() };
    let first = step.initialize(config.train.seed)?.leaves();
    let side = |graph: &Graph| -> anyhow::Result<Side> {
        let program = lower(graph, &options)?.compile(&client)?;
        let state = program.put(0, &first)?;
        Ok(Side { program, state })
    };
    let mut sides = [side(function.graph())?, side(&without_judgement(function.graph())?)?];
    let mut seconds = [Vec::new(), Vec::new()];
    for round in 0..rounds + 3 {
        let batch = text.batch(config.train.seed, round as u64, step.batch)?.leaves();
        // In turn, so that neither is always the first.
        for turn in [round % 2, 1 - round % 2] {
            let time = sides[turn].step(&batch)?;
            if round >= 3 {
                seconds[turn].push(time);
            }
        }
    }
    let [judged, not] = seconds.each_ref().map(|seconds| smallest_and_median(seconds));
    println!("judged: smallest {:.4} s, median {:.4} s of {rounds} steps", judged.0, judged.1);
    println!("not:    smallest {:.4} s, median {:.4} s", not.0, not.1);
    println!("ratio:  {:.4} of the smallest, {:.4} of the medians", judged.0 / not.0, judged.1 / not.1);
    Ok(())
}
