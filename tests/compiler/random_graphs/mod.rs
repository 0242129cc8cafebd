//! Properties of random graphs: passes keep every bit, gradients are slopes, partitioned graphs give the same.
//!
//! Every case is the same in every run. `MESHLOOM_SEED` draws others. A case that fails is shrunk, and printed with its
//! graphs.

mod generate;
mod stablehlo;

use std::sync::Arc;

use generate::{Kind, Recipe, graph, graph_and_rows, inputs, recipe};
use meshloom::autodiff::{Halves, value_and_grad};
use meshloom::compile::{LowerOptions, PASSES, lower};
use meshloom::ir::{DType, Graph, GraphBuilder, GraphTextOptions, Literal, PortInfo, TensorType, verify};
use meshloom::ops::{Call, Op};
use meshloom::partition::partition;
use meshloom::passes::{eliminate_dead_code, hoist_invariants};
use meshloom::sharding::{Mesh, MeshAxis, Spec, propagate_with_sub_axes};
use support::cases::cases;
use support::interpret::{interpret, literal, same_bits};
use support::random::Random;
use support::spmd::{group, run_local};

use super::properties;
use super::split_backward::check_split;

/// Checks a property of random recipes and their numbers, and returns how many were checked.
fn check(name: &str, few: usize, all: u64, property: impl Fn(&Recipe, u64) -> Result<(), String>) -> usize {
    let strategy = (recipe(30, 2), 0..1000u64);
    properties::check(name, few, all, &strategy, |(recipe, numbers)| property(recipe, *numbers))
}

fn optimized(graph: &Graph, without: &[&str]) -> Result<Graph, String> {
    let options = LowerOptions { without, ..LowerOptions::default() };
    lower(graph, &options).map(|lowered| lowered.graph().clone()).map_err(|error| format!("{error}\n{graph}"))
}

fn expect_same_bits(graph: &Graph, other: &Graph, inputs: &[Literal]) -> Result<(), String> {
    let (before, after) = (interpret(graph, inputs), interpret(other, inputs));
    if before.len() == after.len() && before.iter().zip(&after).all(|(before, after)| same_bits(before, after)) {
        return Ok(());
    }
    Err(format!("{graph}\nbecame\n{other}\n{before:?}\n{after:?}"))
}

/// The graphs are worth testing: every op is in many, they are neither tiny nor all NaN, and passes find something to
/// do.
#[test]
fn graphs_are_various() {
    for kind in [Kind::Any, Kind::Smooth] {
        let counts = std::cell::RefCell::new(std::collections::BTreeMap::<&str, usize>::new());
        let count = |what: &'static str, number: usize| *counts.borrow_mut().entry(what).or_default() += number;
        let number = check("compiler random graphs", 300, 1000, |recipe, numbers| {
            let (graph, rows) = graph_and_rows(kind, recipe);
            rows.into_iter().for_each(|row| count(row, 1));
            let (before, after) = (eliminate_dead_code(&graph), optimized(&graph, &[])?);
            count("live nodes", before.total_node_count());
            count("nodes left", after.total_node_count());
            let outputs: Vec<f64> =
                interpret(&graph, &inputs(kind, numbers)).iter().flat_map(Literal::to_f64_vec).collect();
            count("numbers", outputs.len());
            count("finite numbers", outputs.iter().filter(|x| x.is_finite()).count());
            Ok(())
        });
        let counts = counts.into_inner();
        for row in generate::rows(kind) {
            assert!(
                counts.get(row.name).is_some_and(|&count| count * 10 >= number),
                "{kind:?} {}: {counts:?}",
                row.name
            );
        }
        assert!(counts["live nodes"] >= 20 * number, "{kind:?}: {counts:?}");
        assert!(counts["nodes left"] < counts["live nodes"] * 4 / 5, "{kind:?}: {counts:?}");
        assert!(counts["finite numbers"] * 10 >= counts["numbers"] * 8, "{kind:?}: {counts:?}");
    }
}

/// All passes; all but one; each alone.
#[test]
fn passes_keep_every_bit() {
    check("compiler random passes", 300, 1000, |recipe, numbers| {
        let graph = graph(Kind::Any, recipe);
        verify(&graph).map_err(|error| error.to_string())?;
        let inputs = inputs(Kind::Any, numbers);
        let all = optimized(&graph, &[])?;
        expect_same_bits(&graph, &all, &inputs)?;
        let one = numbers as usize % PASSES.len();
        expect_same_bits(&graph, &optimized(&graph, &[PASSES[one].name])?, &inputs)?;
        let others: Vec<&str> = PASSES.iter().map(|pass| pass.name).filter(|&name| name != PASSES[one].name).collect();
        expect_same_bits(&graph, &optimized(&graph, &others)?, &inputs)?;
        // The order of nodes, and of everything else, is the same in every run.
        let again = optimized(&graph, &[])?;
        if again.to_string() != all.to_string() { Err(format!("{all}\nor\n{again}")) } else { Ok(()) }
    });
}

/// Texts read back as the same graphs: as drawn, after all passes, and differentiated.
#[test]
fn texts_read_back() {
    check("compiler random texts", 300, 1000, |recipe, _| {
        let drawn = graph(Kind::Any, recipe);
        let smooth = graph(Kind::Smooth, recipe);
        let gradient = value_and_grad(&smooth, &float_inputs(&smooth)).map_err(|error| error.to_string())?;
        for graph in [&optimized(&drawn, &[])?, &drawn, &gradient] {
            let options = GraphTextOptions { whole_constants: true, ..GraphTextOptions::default() };
            let text = graph.to_text(options);
            let read = Graph::from_text(&text).map_err(|error| format!("{error}\n{text}"))?;
            if read != *graph || read.to_text(options) != text {
                return Err(format!("{text}\nread as\n{}", read.to_text(options)));
            }
        }
        Ok(())
    });
}

/// The sum of products of two lists, and of their absolute values.
fn product(x: &[f64], y: &[f64]) -> (f64, f64) {
    x.iter().zip(y).fold((0.0, 0.0), |(sum, scale), (x, y)| (sum + x * y, scale + (x * y).abs()))
}

/// The inputs that are differentiated.
fn float_inputs(graph: &Graph) -> Vec<usize> {
    (0..graph.inputs().len()).filter(|&index| graph.ty(graph.inputs()[index]).dtype == DType::F64).collect()
}

/// The inputs moved by `step` along a direction that is always the same.
fn moved(inputs: &[Literal], along: &[usize], step: f64) -> (Vec<Literal>, Vec<f64>) {
    let mut direction = Vec::new();
    let mut moved = inputs.to_vec();
    for &index in along {
        let own: Vec<f64> = (0..inputs[index].ty().element_count())
            .map(|position| 1.0 - 0.37 * ((7 * index + 3 * position) % 6) as f64)
            .collect();
        let values = inputs[index].to_f64_vec();
        moved[index] = literal(inputs[index].ty(), &mut values.iter().zip(&own).map(|(x, d)| x + step * d));
        direction.extend(own);
    }
    (moved, direction)
}

/// The slope along the direction, by a central difference of fourth order.
fn slope(graph: &Graph, inputs: &[Literal], along: &[usize]) -> f64 {
    const STEP: f64 = 1e-3;
    let value = |step: f64| interpret(graph, &moved(inputs, along, step).0)[0].to_f64_vec()[0];
    (8.0 * (value(STEP) - value(-STEP)) - (value(2.0 * STEP) - value(-2.0 * STEP))) / (12.0 * STEP)
}

/// The gradient is the slope; passes keep every bit of it; and it is the same, to rounding, whether passes run before
/// differentiation or after.
#[test]
fn gradients_are_slopes() {
    let steep = std::cell::Cell::new(0);
    let number = check("compiler random gradients", 300, 1000, |recipe, numbers| {
        let graph = graph(Kind::Smooth, recipe);
        let (inputs, along) = (inputs(Kind::Smooth, numbers), float_inputs(&graph));
        let gradient = |graph: &Graph| value_and_grad(graph, &along).map_err(|error| format!("{error}\n{graph}"));
        let direct = gradient(&graph)?;
        verify(&direct).map_err(|error| format!("{error}\n{direct}"))?;
        expect_same_bits(&direct, &optimized(&direct, &[])?, &inputs)?;

        let flat = |graph: &Graph| -> Vec<f64> {
            interpret(graph, &inputs)[1..].iter().flat_map(Literal::to_f64_vec).collect()
        };
        let (found, direction) = (flat(&direct), moved(&inputs, &along, 0.0).1);
        let (along_direction, scale) = product(&found, &direction);
        let measured = slope(&graph, &inputs, &along);
        // A function that bends within a step has no slope to be measured there.
        let finer = (slope_bends(&graph, &inputs, &along) - measured).abs();
        let bound = 1e-6 * (1.0 + scale);
        if finer > bound {
            steep.set(steep.get() + 1);
        } else if (along_direction - measured).abs() > bound {
            return Err(format!("slope {measured}, gradient {along_direction}\n{graph}"));
        }

        for before in [hoist_invariants(&eliminate_dead_code(&graph)), optimized(&graph, &[])?] {
            let other = flat(&gradient(&before)?);
            let distance = found.iter().zip(&other).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
            let norm = found.iter().map(|x| x * x).sum::<f64>().sqrt();
            if distance.is_nan() || distance > 1e-10 * (1.0 + norm) {
                return Err(format!("{found:?}\n{other:?}\n{graph}\nbecame\n{before}"));
            }
        }
        Ok(())
    });
    assert!(steep.get() * 20 < number, "{} functions were too steep for their slopes to be measured", steep.get());
}

/// The slope measured with half the step.
fn slope_bends(graph: &Graph, inputs: &[Literal], along: &[usize]) -> f64 {
    const STEP: f64 = 5e-4;
    let value = |step: f64| interpret(graph, &moved(inputs, along, step).0)[0].to_f64_vec()[0];
    (8.0 * (value(STEP) - value(-STEP)) - (value(2.0 * STEP) - value(-2.0 * STEP))) / (12.0 * STEP)
}

/// A spec that deals out the axes to dimensions that they divide.
fn random_spec(random: &mut Random, mesh: &Mesh, dims: &[usize]) -> Spec {
    let mut spec = Spec::replicated(dims.len());
    let mut axes: Vec<MeshAxis> = mesh.axes().collect();
    random.shuffle(&mut axes);
    for axis in axes {
        // One place more: nowhere.
        let dim = random.below(dims.len() + 1);
        if dim < dims.len() && dims[dim].is_multiple_of(spec.part_count(mesh, dim) * mesh.size(axis)) {
            let longer: Vec<MeshAxis> = spec.dim(dim).iter().copied().chain([axis]).collect();
            spec = spec.with_dim(dim, longer);
        }
    }
    spec
}

/// A graph with a spec for each port that calls `graph`.
fn with_specs(graph: &Graph, random: &mut Random, mesh: &Mesh) -> Graph {
    let mut builder = GraphBuilder::new("sharded");
    let mut port =
        |ty: &TensorType| PortInfo { spec: Some(random_spec(random, mesh, &ty.dims)), ..PortInfo::default() };
    let inputs: Vec<_> = graph.input_types().map(|ty| builder.input(ty.clone(), port(ty))).collect();
    let outputs = builder.push(Call { function: Arc::new(graph.clone()) }, &inputs).expect("the graph's own inputs");
    builder.finish(outputs.to_vec(), graph.output_types().map(port).collect())
}

/// The results of the devices of a mesh, with ports split at random, those of one device, and the partitioned graph.
type Both = (Vec<Literal>, Vec<Literal>, Graph);

fn partitioned(graph: &Graph, inputs: &[Literal], seed: u64) -> Result<Both, String> {
    let (local, mesh) = local_graph(graph, seed)?;
    let found = run_local(&local, &mesh, inputs).map_err(|error| format!("{error}\n{graph}\n{local}"))?;
    Ok((found, interpret(graph, inputs), local))
}

/// The graph of one device of a random mesh, with ports split at random.
fn local_graph(graph: &Graph, seed: u64) -> Result<(Graph, Mesh), String> {
    const MESHES: [&[(&str, usize)]; 6] = [
        &[("a", 2), ("b", 2), ("c", 2)],
        &[("a", 8)],
        &[("a", 2), ("b", 3)],
        &[("a", 3), ("b", 2)],
        &[("a", 2), ("b", 4)],
        &[("a", 2), ("b", 2), ("c", 3)],
    ];
    let mut random = Random(seed);
    let mesh = Mesh::new(MESHES[random.below(MESHES.len())].iter().copied()).map_err(|error| error.to_string())?;
    let whole = with_specs(graph, &mut random, &mesh);
    let propagated = propagate_with_sub_axes(&whole, &mesh);
    let local = partition(&propagated.graph, &propagated.mesh, &propagated.shardings);
    let local = local.map_err(|error| format!("{error}\n{whole}"))?.graph;
    verify(&local).map_err(|error| format!("{error}\n{local}"))?;
    Ok((local, propagated.mesh))
}

/// Values and gradients are the same on the devices of a mesh, to rounding; and there is something to partition.
#[test]
fn partitioned_graphs_agree() {
    let counts = std::cell::RefCell::new(std::collections::BTreeMap::<&str, usize>::new());
    let number = check("compiler random partitioned", 300, 1000, |recipe, numbers| {
        let graph = graph(Kind::Smooth, recipe);
        let inputs = inputs(Kind::Smooth, numbers);
        let graph = value_and_grad(&graph, &float_inputs(&graph)).map_err(|error| error.to_string())?;
        let (found, expected, local) = partitioned(&graph, &inputs, numbers)?;
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
            let distance = found.iter().zip(&expected).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
            let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
            if distance.is_nan() || distance > 1e-9 * (1.0 + norm) {
                return Err(format!("output {index}: {found:?}, expected {expected:?}\n{graph}\nbecame\n{local}"));
            }
        }
        support::walk(&local, &mut |_, node| {
            if group(node.op()).is_some() {
                *counts.borrow_mut().entry(node.op().name()).or_default() += 1;
            }
        });
        Ok(())
    });
    for name in ["all-gather", "all-reduce", "all-to-all", "axis-index", "collective-permute", "reduce-scatter"] {
        assert!(counts.borrow().get(name).is_some_and(|&count| count * 25 >= number), "{name}: {counts:?}");
    }
}

/// Whether a graph adds, multiplies or compares floating-point numbers in an order that partitioning may change.
fn depends_on_order(graph: &Graph) -> bool {
    let mut found = false;
    support::walk(graph, &mut |graph, node| {
        let is_fold = matches!(node.op(), Op::Reduce(_) | Op::DotGeneral(_) | Op::Cumulative(_) | Op::Scatter(_));
        found |= is_fold && graph.ty(node.result()).dtype.is_float();
    });
    found
}

/// Without floating-point sums, every number is the same on the devices of a mesh, whatever the ops.
#[test]
fn partitioned_graphs_are_equal() {
    let compared = std::cell::Cell::new(0);
    let number = check("compiler random partitioned exactly", 900, 3000, |recipe, numbers| {
        let graph = eliminate_dead_code(&graph(Kind::Any, recipe));
        if depends_on_order(&graph) {
            return Ok(());
        }
        let inputs = inputs(Kind::Smooth, numbers);
        let (found, expected, local) = partitioned(&graph, &inputs, numbers)?;
        compared.set(compared.get() + 1);
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let same = |(x, y): (&f64, &f64)| x == y || (x.is_nan() && y.is_nan());
            if !found.to_f64_vec().iter().zip(&expected.to_f64_vec()).all(same) {
                return Err(format!("output {index}: {found:?}, expected {expected:?}\n{graph}\nbecame\n{local}"));
            }
        }
        Ok(())
    });
    assert!(compared.get() * 6 >= number, "{} graphs compared", compared.get());
}

/// Many graphs as one: each is called.
fn together(graphs: &[Graph]) -> Graph {
    let mut builder = GraphBuilder::new("together");
    let arguments: Vec<_> = graphs[0].input_types().map(|ty| builder.input(ty.clone(), PortInfo::default())).collect();
    let mut outputs = Vec::new();
    for graph in graphs {
        let call = Call { function: Arc::new(graph.clone()) };
        outputs.extend(builder.push(call, &arguments).expect("graphs of the same inputs"));
    }
    let info = vec![PortInfo::default(); outputs.len()];
    builder.finish(outputs, info)
}

/// On a real back end, with gradients: optimized, unoptimized and interpreted agree. XLA may round a product and a sum
/// together, and sums in another order.
#[test]
fn back_end_agrees() {
    const GROUP: u64 = 25;
    for index in cases("compiler random back end", 1, 0..40) {
        let group: Vec<Recipe> =
            (0..GROUP).map(|place| properties::draw(&recipe(30, 2), GROUP * index + place)).collect();
        let inputs = inputs(Kind::Smooth, index);
        let gradient = |recipe: &Recipe| {
            let graph = graph(Kind::Smooth, recipe);
            value_and_grad(&graph, &float_inputs(&graph)).unwrap_or_else(|error| panic!("{error}\n{graph}"))
        };
        let graphs: Vec<Graph> = group.iter().map(gradient).collect();
        let all = together(&graphs);
        let small = optimized(&all, &[]).unwrap_or_else(|error| panic!("{error}"));
        let expected = interpret(&all, &inputs);
        for (what, graph) in [("unoptimized", &all), ("optimized", &small)] {
            let found = support::run(graph, &inputs);
            for (position, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
                let distance = found.iter().zip(&expected).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
                let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
                assert!(
                    distance <= 1e-9 * (1.0 + norm),
                    "{what}, group {index}, output {position}: {found:?}, expected {expected:?}"
                );
            }
        }
    }
}

/// For any choice of inputs as weights, the two halves of a split backward pass give the results of the whole.
#[test]
fn split_backward_halves_agree() {
    let late = std::cell::Cell::new(0);
    let number = check("compiler random halves", 300, 1000, |recipe, numbers| {
        let graph = graph(Kind::Smooth, recipe);
        let along = float_inputs(&graph);
        let active: Vec<bool> = (0..graph.inputs().len()).map(|input| along.contains(&input)).collect();
        let halves = Halves::of(&graph, &active).map_err(|error| format!("{error}\n{graph}"))?;
        let weights = Random(numbers).below(1 << active.len());
        let split = halves.split(|input| weights >> input & 1 == 1).map_err(|error| format!("{error}\n{graph}"))?;
        late.set(late.get() + usize::from(split.weights_half().node_count() > 0));
        check_split(&graph, &halves, &split, &inputs(Kind::Smooth, numbers))
    });
    assert!(late.get() * 6 >= number, "{} later halves do something", late.get());
}
