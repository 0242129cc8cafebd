//! Every op partitioned over random meshes with random specs: eight devices compute what one does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Mutex;

use meshloom::emit::{EmitOptions, emit};
use meshloom::ir::{DType, GraphBuilder, Literal, PortInfo, TensorType, Value, verify};
use meshloom::ops::*;
use meshloom::partition::{LocalProgram, partition};
use meshloom::pjrt::{Array, ArraySpec, CompileOptions, ShardLayout};
use meshloom::sharding::{Axes, Mesh, MeshAxis, Spec, propagate};

use crate::check::compare;
use crate::computer::{By, in_chunks, is_interpreted};
use crate::factors::rules;
use crate::harness::*;
use crate::table::entries;
use support::cases::{cases, seed};
use support::eight_devices::client;
use support::spmd::run_local;

/// All ordered factorizations of eight, and some with axes of size one.
const MESHES: [&str; 9] = [
    "a=8",
    "a=2,b=4",
    "a=4,b=2",
    "a=2,b=2,c=2",
    "a=2,b=2,c=2,d=1",
    "a=1,b=2,c=1,d=4",
    "a=2,b=1,c=4",
    "a=1,b=8",
    "a=1,b=2,c=2,d=2",
];

/// An op with its operands, and how they are split.
struct Case<'a> {
    name: &'a str,
    run: &'a Run,
    /// Specs of the operands.
    specs: Vec<Spec>,
    /// An axis over which an operand is a partial sum.
    partial: Vec<Option<MeshAxis>>,
    results: Vec<Spec>,
}

/// A spec that deals out a random part of the axes, as far as they divide.
fn random_spec(random: &mut Random, mesh: &Mesh, dims: &[usize], without: Option<MeshAxis>) -> Spec {
    let mut axes: Vec<MeshAxis> = mesh.axes().filter(|&axis| Some(axis) != without).collect();
    random.shuffle(&mut axes);
    let mut split: Vec<Axes> = vec![Axes::new(); dims.len()];
    for axis in axes {
        // Sometimes an axis is left out; else it goes to the first dimension that it divides, from a random one on.
        if dims.is_empty() || random.below(5) == 0 {
            continue;
        }
        let first = random.below(dims.len());
        let fits = |&dim: &usize| {
            let parts: usize = split[dim].iter().map(|&axis| mesh.size(axis)).product();
            dims[dim] > 0 && dims[dim].is_multiple_of(parts * mesh.size(axis))
        };
        if let Some(dim) = (0..dims.len()).map(|step| (first + step) % dims.len()).find(fits) {
            split[dim].push(axis);
        }
    }
    Spec::new(split)
}

fn random_case<'a>(random: &mut Random, mesh: &Mesh, name: &'a str, run: &'a Run) -> Case<'a> {
    let mut partial = Vec::new();
    let mut specs = Vec::new();
    for operand in &run.operands {
        let over = mesh.axes().find(|&axis| mesh.size(axis) == 2);
        let summable = operand.ty.dtype.is_float() && operand.values.iter().all(|value| value.is_finite());
        let over = over.filter(|_| summable && random.below(4) == 0);
        specs.push(random_spec(random, mesh, operand.dims(), over));
        partial.push(over);
    }
    let results = run.expected.iter().map(|result| random_spec(random, mesh, result.dims(), None)).collect();
    Case { name, run, specs, partial, results }
}

impl Case<'_> {
    fn is_split(&self, mesh: &Mesh) -> bool {
        let splits = |spec: &Spec| (0..spec.rank()).any(|dim| spec.part_count(mesh, dim) > 1);
        self.specs.iter().chain(&self.results).any(splits)
    }

    fn describe(&self, mesh: &Mesh) -> String {
        let mut text = format!("{}: {:?} on {mesh}:", self.name, self.run.op);
        for ((operand, spec), partial) in self.run.operands.iter().zip(&self.specs).zip(&self.partial) {
            let _ = write!(text, " {} {}", operand.ty, spec.display(mesh));
            if let Some(axis) = partial {
                let _ = write!(text, " as a sum over {}", mesh.name(*axis));
            }
        }
        for (result, spec) in self.run.expected.iter().zip(&self.results) {
            let _ = write!(text, " -> {} {}", result.ty, spec.display(mesh));
        }
        text
    }

    /// The inputs of the program: an operand that is a sum over devices is one of two rows.
    fn inputs(&self) -> Vec<(Tensor, Spec)> {
        let each = self.run.operands.iter().zip(&self.specs).zip(&self.partial);
        let input = |((operand, spec), partial): ((&Tensor, &Spec), &Option<MeshAxis>)| match partial {
            None => (operand.clone(), spec.clone()),
            Some(axis) => {
                let dims: Vec<usize> = std::iter::once(2).chain(operand.dims().iter().copied()).collect();
                let count = operand.values.len();
                let row = |index: usize| if index.is_multiple_of(2) { operand.values[index] } else { 0.0 };
                let values: Vec<f64> =
                    (0..count).map(row).chain((0..count).map(|index| operand.values[index] - row(index))).collect();
                let spec = spec.with_leading_dim().with_dim(0, [*axis]);
                (Tensor::new(operand.ty.dtype, &dims, &values), spec)
            }
        };
        each.map(input).collect()
    }
}

fn layout(mesh: &Mesh, dims: &[usize], spec: &Spec) -> ShardLayout {
    ShardLayout::from_boxes(dims, spec.boxes(mesh, dims).expect("it divides")).expect("boxes that fit")
}

/// Builds a program of all cases and its inputs, and partitions it for one device.
fn partitioned(mesh: &Mesh, cases: &[&Case<'_>]) -> Result<(LocalProgram, Vec<(Tensor, Spec)>), String> {
    let mut builder = GraphBuilder::new("ops");
    let port = |spec: &Spec| PortInfo { spec: Some(spec.clone()), ..PortInfo::default() };
    let inputs: Vec<Vec<(Tensor, Spec)>> = cases.iter().map(|case| case.inputs()).collect();
    let values: Vec<Vec<Value>> = (inputs.iter())
        .map(|inputs| inputs.iter().map(|(tensor, spec)| builder.input(tensor.ty.clone(), port(spec))).collect())
        .collect();
    let (mut outputs, mut ports) = (Vec::new(), Vec::new());
    for (case, values) in cases.iter().zip(&values) {
        let sum = Reduce { kind: ReduceKind::Sum, axes: AxisList::from_slice(&[0]) };
        let operands: Vec<Value> = (values.iter().zip(&case.partial))
            .map(|(&value, partial)| if partial.is_some() { push(&mut builder, sum.clone(), &[value]) } else { value })
            .collect();
        outputs.extend(builder.push(case.run.op.clone(), &operands).expect("the op takes its operands"));
        ports.extend(case.results.iter().map(port));
    }
    let graph = builder.finish(outputs, ports);
    verify(&graph).expect("a valid graph");
    let local = partition(&graph, mesh, &propagate(&graph, mesh)).map_err(|error| error.to_string())?;
    verify(&local.graph).unwrap_or_else(|error| panic!("the partitioned graph: {error}\n{}", local.graph));
    Ok((local, inputs.into_iter().flatten().collect()))
}

/// Runs the cases as one program on eight devices of the plugin, and returns the problems.
fn check_by_xla(mesh: &Mesh, cases: &[&Case<'_>]) -> Vec<String> {
    // If several cases fail together, the halves are run apart to find the one to blame.
    let blame = |error: String| match cases {
        [case] => vec![format!("{}: {error}", case.describe(mesh))],
        _ => cases.chunks(cases.len().div_ceil(2)).flat_map(|half| check_by_xla(mesh, half)).collect(),
    };
    let (local, inputs) = match partitioned(mesh, cases) {
        Ok(partitioned) => partitioned,
        Err(error) => return blame(error),
    };
    let options = EmitOptions { mesh: Some(mesh), partitioned: true, omit_metadata: true, ..EmitOptions::default() };
    let module = emit(&local.graph, options).expect("a module");
    let client = client();
    let options = CompileOptions { debug_options: support::unoptimized(), ..CompileOptions::partitioned(8) };
    let executable = match client.compile(&module.bytes, &options) {
        Ok(executable) => executable,
        Err(error) => return blame(error.to_string()),
    };
    let arrays: Vec<Array> = (inputs.iter())
        .map(|(tensor, spec)| Array::put(&client, &tensor.literal(), &layout(mesh, tensor.dims(), spec)).expect("put"))
        .collect();
    let specs: Vec<ArraySpec> = (cases.iter())
        .flat_map(|case| case.run.expected.iter().zip(&case.results))
        .map(|(result, spec)| ArraySpec { ty: result.ty.clone(), layout: layout(mesh, result.dims(), spec) })
        .collect();
    let results = executable.run(&arrays.iter().collect::<Vec<_>>(), &specs).expect("a run");
    wrong_results(mesh, cases, results.iter().map(|result| result.get().expect("a result")).collect())
}

/// Runs one case in the interpreter, and returns the problems.
fn check_by_interpreting(mesh: &Mesh, case: &Case<'_>) -> Vec<String> {
    let found = partitioned(mesh, &[case]).and_then(|(local, inputs)| {
        let inputs: Vec<Literal> = inputs.iter().map(|(tensor, _)| tensor.literal()).collect();
        run_local(&local.graph, mesh, &inputs)
    });
    match found {
        Ok(found) => wrong_results(mesh, &[case], found),
        Err(error) => vec![format!("{}, interpreted: {error}", case.describe(mesh))],
    }
}

fn wrong_results(mesh: &Mesh, cases: &[&Case<'_>], found: Vec<Literal>) -> Vec<String> {
    let mut found = found.into_iter();
    let mut problems = Vec::new();
    for case in cases {
        for expected in &case.run.expected {
            let narrow = expected.ty.dtype.is_float() && expected.ty.dtype.byte_count() < 4;
            let tolerance = case.run.tolerance.max(if narrow { 1e-2 } else { 1e-5 });
            let found = found.next().expect("a result");
            problems.extend(compare(&case.describe(mesh), &found, expected, tolerance).err());
        }
    }
    problems
}

/// Ops that cannot be run in parts, and why.
const LEFT_OUT: [&str; 1] = [
    // Its targets take whole operands on one device.
    "CustomCall",
];

/// Runs with sizes that many axes divide, of the ops for which it makes a difference how a dimension is split.
fn larger() -> Vec<(String, Run)> {
    let mut runs = Vec::new();
    let mut add = |name: &str, op: Op, operands: Vec<Tensor>| {
        let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty.clone()).collect();
        let graph =
            graph("reference", &types, |builder, inputs| builder.push(op.clone(), inputs).expect("it fits").to_vec());
        let inputs: Vec<Literal> = operands.iter().map(Tensor::literal).collect();
        let found = By::Interpreter.run(&graph, &inputs);
        let expected = found
            .iter()
            .map(|literal| Tensor::new(literal.ty().dtype, &literal.ty().dims, &literal.to_f64_vec()))
            .collect();
        runs.push((name.to_owned(), Run { op, operands, expected, tolerance: 1e-6 }));
    };
    let x = || random(DType::F32, &[16, 24], -2.0, 2.0);
    let slice = |ranges: [(usize, usize, usize); 2]| -> Op {
        let ranges = ranges.map(|(start, limit, stride)| SliceDim { start, limit, stride });
        Slice { ranges: ranges.into() }.into()
    };
    for ranges in [
        [(0, 8, 1), (0, 24, 1)],
        [(3, 11, 1), (1, 17, 1)],
        [(8, 16, 1), (20, 24, 1)],
        [(0, 16, 2), (0, 24, 3)],
        [(1, 16, 2), (5, 21, 2)],
        [(0, 16, 1), (2, 10, 1)],
        [(15, 16, 1), (0, 12, 1)],
    ] {
        add("slice", slice(ranges), vec![x()]);
    }
    for padding in [
        [(2, 6), (0, 0)],
        [(0, 8), (8, 0)],
        [(-4, -4), (-1, 1)],
        [(16, 16), (-8, 0)],
        [(-3, 11), (3, -3)],
        [(40, 8), (0, 8)],
    ] {
        let padding: Box<[PadDim]> = padding.map(|(low, high)| PadDim { low, high, interior: 0 }).into();
        for filling in [0.0, 1.5] {
            add("pad", Pad { padding: padding.clone() }.into(), vec![x(), Tensor::scalar(DType::F32, filling)]);
        }
    }
    for sizes in [&[8, 8][..], &[16, 8, 8], &[4, 12], &[2, 6, 8], &[24, 8]] {
        for axis in 0..2 {
            let part = |&size: &usize| {
                random(DType::F32, if axis == 0 { [size, 24] } else { [24, size] }.as_slice(), -1.0, 1.0)
            };
            add("concatenate", Concatenate { axis }.into(), sizes.iter().map(part).collect());
        }
    }
    for axis in 0..2 {
        for shift in [0, 1, -1, 2, 3, 7, -9, 12, 23, 100] {
            add("roll", Roll { axis, shift }.into(), vec![x()]);
        }
        add("reverse", Reverse { axes: AxisList::from_slice(&[axis]) }.into(), vec![x()]);
        for kind in CumulativeKind::ALL {
            add("cumulative", Cumulative { kind, axis, reverse: false }.into(), vec![x()]);
        }
        add("argmax", ArgReduce { kind: ArgReduceKind::Max, axis }.into(), vec![x()]);
        add("iota", Iota { ty: TensorType::new(DType::S32, &[16, 24]), axis }.into(), vec![]);
        for kind in ReduceKind::ALL {
            let dtype = if matches!(kind, ReduceKind::And | ReduceKind::Or) { DType::S32 } else { DType::F32 };
            let operand = random(dtype, &[16, 24], 0.5, 3.0);
            add("reduce", Reduce { kind, axes: AxisList::from_slice(&[axis]) }.into(), vec![operand]);
        }
    }
    add("reverse", Reverse { axes: AxisList::from_slice(&[0, 1]) }.into(), vec![x()]);
    let bounds = |value| random(DType::F32, &[16, 24], value, value + 1.0);
    add("clamp", Clamp.into(), vec![bounds(-1.5), x(), bounds(0.5)]);
    add("clamp", Clamp.into(), vec![Tensor::scalar(DType::F32, -1.0), x(), Tensor::scalar(DType::F32, 1.0)]);
    for dtype in [DType::BF16, DType::F64, DType::S32] {
        add("convert", Convert(dtype).into(), vec![x()]);
    }
    for (from, to) in [
        (&[16, 24][..], &[4, 4, 24][..]),
        (&[16, 24], &[384]),
        (&[384], &[16, 24]),
        (&[8, 2, 24], &[16, 24]),
        (&[16, 24], &[2, 8, 8, 3]),
        (&[4, 4, 24], &[16, 4, 6]),
        (&[6, 8], &[8, 6]),
        (&[16, 1, 24], &[16, 24]),
    ] {
        add("reshape", Reshape { dims: to.into() }.into(), vec![random(DType::F32, from, -1.0, 1.0)]);
    }
    for (sizes, starts) in [
        ([4, 24], [5, 0]),
        ([1, 24], [15, 0]),
        ([8, 2], [9, 21]),
        ([16, 8], [0, 30]),
        ([2, 3], [-4, 7]),
        ([12, 24], [2, 0]),
    ] {
        let start = |index: usize| Tensor::scalar(DType::S32, f64::from(starts[index]));
        add("dynamic-slice", DynamicSlice { sizes: sizes.as_slice().into() }.into(), vec![x(), start(0), start(1)]);
        let update = random(DType::F32, &sizes, 5.0, 9.0);
        add("dynamic-update-slice", DynamicUpdateSlice.into(), vec![x(), update, start(0), start(1)]);
    }
    let rows = GatherDims {
        offset_dims: [1].as_slice().into(),
        collapsed_dims: [0].as_slice().into(),
        start_index_map: [0].as_slice().into(),
        index_vector_dim: 1,
        ..GatherDims::default()
    };
    let points = GatherDims {
        collapsed_dims: [0, 1].as_slice().into(),
        start_index_map: [1, 0].as_slice().into(),
        index_vector_dim: 1,
        ..GatherDims::default()
    };
    let paired = GatherDims {
        collapsed_dims: [1].as_slice().into(),
        operand_batch_dims: [0].as_slice().into(),
        indices_batch_dims: [0].as_slice().into(),
        start_index_map: [1].as_slice().into(),
        index_vector_dim: 1,
        ..GatherDims::default()
    };
    let promise = IndexPromise::default();
    for dtype in [DType::S32, DType::U32, DType::S64] {
        let low = if dtype == DType::U32 { 0.0 } else { -5.0 };
        for (dims, sizes, indices) in [
            (&rows, [1, 24], random(dtype, &[8], low, 20.0)),
            (&points, [1, 1], random(dtype, &[8, 2], low, 26.0)),
            (&paired, [1, 1], random(dtype, &[16], low, 26.0)),
        ] {
            let gather = Gather { dims: Box::new(dims.clone()), slice_sizes: sizes.as_slice().into(), promise };
            add("gather", gather.into(), vec![x(), indices.clone()]);
            let update_dims = if sizes[1] == 24 { vec![8, 24] } else { indices.dims()[..1].to_vec() };
            for kind in ScatterKind::ALL {
                // Where several updates meet, the last one wins, and which that is is not defined.
                if kind == ScatterKind::Set {
                    continue;
                }
                let updates = random(DType::F32, &update_dims, 0.5, 1.5);
                let scatter = Scatter { dims: Box::new(dims.clone()), kind, promise };
                add("scatter", scatter.into(), vec![x(), indices.clone(), updates]);
            }
        }
    }
    let distinct_rows = Tensor::new(DType::S32, &[8], &[3.0, 15.0, 0.0, 9.0, 4.0, 22.0, -1.0, 8.0]);
    let set = Scatter { dims: Box::new(rows), kind: ScatterKind::Set, promise };
    add("scatter", set.into(), vec![x(), distinct_rows, random(DType::F32, &[8, 24], 5.0, 6.0)]);
    let dot = DotDims {
        lhs_batch: [0].as_slice().into(),
        rhs_batch: [0].as_slice().into(),
        lhs_contract: [2].as_slice().into(),
        rhs_contract: [1].as_slice().into(),
    };
    let dot = DotGeneral { dims: Box::new(dot), dtype: DType::F32, precision: Precision::Highest };
    add(
        "dot",
        dot.into(),
        vec![random(DType::F32, &[4, 8, 16], -1.0, 1.0), random(DType::F32, &[4, 16, 8], -1.0, 1.0)],
    );
    runs
}

/// The runs to split: those of the table, those of larger sizes, and the numbers of the runs of each op.
struct Runs<'a> {
    all: Vec<(&'a str, &'a Run)>,
    larger: usize,
    by_variant: Vec<Vec<usize>>,
}

impl<'a> Runs<'a> {
    fn new(table: impl Iterator<Item = (&'a str, &'a Run)>, larger: &'a [(String, Run)]) -> Runs<'a> {
        let all: Vec<(&str, &Run)> = table.chain(larger.iter().map(|(name, run)| (name.as_str(), run))).collect();
        let mut by_variant: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, (_, run)) in all.iter().enumerate() {
            by_variant.entry(run.op.variant()).or_default().push(index);
        }
        Runs { all, larger: larger.len(), by_variant: by_variant.into_values().collect() }
    }

    /// Draws the case of a number, with its mesh. Larger sizes, which have more ways to be split, come up more often.
    fn case(&self, number: u64) -> (usize, Case<'a>) {
        let mut random = Random(number);
        for _ in 0..1000 {
            let chosen = if random.below(2) == 0 {
                let own = &self.by_variant[random.below(self.by_variant.len())];
                own[random.below(own.len())]
            } else {
                self.all.len() - self.larger + random.below(self.larger)
            };
            let (name, run) = self.all[chosen];
            let mesh = random.below(MESHES.len());
            let case = random_case(&mut random, &mesh_of(mesh), name, run);
            if case.is_split(&mesh_of(mesh)) {
                return (mesh, case);
            }
        }
        panic!("nothing can be split");
    }
}

fn mesh_of(index: usize) -> Mesh {
    Mesh::parse(MESHES[index], 8).expect("a mesh")
}

/// The interpreter takes all cases whose ops it knows; the plugin takes some of these and some of the others.
#[test]
fn eight_devices_compute_what_one_does() {
    let (entries, larger) = (entries(), larger());
    let of_table = rules(&entries).into_iter().map(|(name, run, _)| (name, run));
    let runs = Runs::new(of_table.filter(|(_, run)| !LEFT_OUT.contains(&run.op.variant())), &larger);
    let seed = seed(1) << 32;
    let chosen: Vec<(usize, Case<'_>)> =
        cases("ops partition", 400, 0..2400).into_iter().map(|number| runs.case(seed + number)).collect();
    let of = |runs: &mut dyn Iterator<Item = &Run>| runs.map(|run| run.op.variant()).collect::<BTreeSet<_>>();
    let all = of(&mut runs.all.iter().map(|(_, run)| *run));
    let split = of(&mut chosen.iter().map(|(_, case)| case.run));
    let missing: Vec<_> = all.difference(&split).collect();
    assert!(missing.is_empty() || chosen.len() < 1000, "never split: {missing:?}");

    let problems = Mutex::new(Vec::new());
    let (known, others): (Vec<_>, Vec<_>) = chosen.iter().partition(|(_, case)| is_interpreted(&case.run.op));
    in_chunks(&known, 1, |chunk| {
        for (mesh, case) in chunk {
            let found = check_by_interpreting(&mesh_of(*mesh), case);
            problems.lock().expect("a lock").extend(found);
        }
    });
    let mut by_mesh: BTreeMap<usize, Vec<&Case<'_>>> = BTreeMap::new();
    for (mesh, case) in [cases("ops partition by XLA", 20, known), cases("ops partition by XLA", 10, others)].concat() {
        by_mesh.entry(*mesh).or_default().push(case);
    }
    let chunks: Vec<(usize, &[&Case<'_>])> =
        by_mesh.iter().flat_map(|(&mesh, cases)| cases.chunks(60).map(move |chunk| (mesh, chunk))).collect();
    in_chunks(&chunks, 1, |chunk| {
        for (mesh, cases) in chunk {
            let found = check_by_xla(&mesh_of(*mesh), cases);
            problems.lock().expect("a lock").extend(found);
        }
    });
    let problems = problems.into_inner().expect("a lock");
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
}
