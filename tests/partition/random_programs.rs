//! Random programs: emitted with shardings, imported and partitioned, they compute what they do on one device.
//!
//! Sums are made small again at once, so that a value never loses more digits than a few additions cost.

use std::sync::Arc;

use meshloom::compile::{LowerOptions, lower_module};
use meshloom::emit::{Annotation, EmitOptions, emit};
use meshloom::ir::{Axes, DType, Dims, Graph, GraphBuilder, Literal, OpError, PortInfo, Spec, TensorType, Value};
use meshloom::ops::{
    Binary, BinaryKind, BroadcastInDim, Compare, Concatenate, Cumulative, CumulativeKind, Direction, DotDims,
    DotGeneral, Iota, Pad, PadDim, Precision, Reduce, ReduceKind, Reshape, Reshard, Reverse, Roll, Scan, Select, Slice,
    SliceDim, Sort, Splat, Transpose, Unary, UnaryKind,
};
use meshloom::sharding::Mesh;
use support::anchored::spread;
use support::cases::{cases, seed};
use support::eight_devices::relative_error;
use support::interpret::interpret;
use support::numbers;
use support::random::Random;
use support::spmd::run_local;

const MESHES: [(&str, usize); 6] =
    [("a=2,b=4", 8), ("a=8", 8), ("a=2,b=2,c=2", 8), ("a=4,b=2", 8), ("a=3,b=2", 6), ("a=2,b=3,c=2", 12)];
const SIZES: [usize; 6] = [4, 6, 8, 12, 16, 24];
const ANNOTATIONS: [Annotation; 3] = [Annotation::Tiles, Annotation::ShardyAttributes, Annotation::ShardyNamed];

/// A program under construction. An op that does not fit its operands is left out.
struct Program<'a> {
    random: &'a mut Random,
    mesh: &'a Mesh,
    builder: GraphBuilder,
    values: Vec<Value>,
}

impl Program<'_> {
    fn dims(&self, value: Value) -> Dims {
        self.builder.ty(value).dims.clone()
    }

    /// A value, most often one of the last.
    fn any(&mut self) -> Value {
        let back = self.random.below(self.values.len()).min(self.random.below(self.values.len()));
        self.values[self.values.len() - 1 - back]
    }

    fn like(&mut self, value: Value) -> Value {
        let alike: Vec<Value> =
            self.values.iter().copied().filter(|&other| self.builder.ty(other) == self.builder.ty(value)).collect();
        alike[self.random.below(alike.len())]
    }

    /// A value times a number.
    fn scaled(&mut self, value: Value, by: f64) -> Result<Value, OpError> {
        let ty = self.builder.ty(value).clone();
        let by = self.splat(ty, by)?;
        self.builder.push1(Binary(BinaryKind::Multiply), &[value, by])
    }

    fn splat(&mut self, ty: TensorType, number: f64) -> Result<Value, OpError> {
        self.builder.push1(Splat::new(ty, number), &[])
    }

    /// Even parts of dimensions, along axes in any order.
    fn spec(&mut self, dims: &[usize]) -> Spec {
        let mut axes: Axes = self.mesh.axes().collect();
        self.random.shuffle(&mut axes);
        let mut of_dims = vec![Axes::new(); dims.len()];
        for axis in axes {
            let dim = self.random.below(dims.len() + 1);
            if dim < dims.len() {
                let parts: usize = of_dims[dim].iter().map(|&axis| self.mesh.size(axis)).product();
                if dims[dim].is_multiple_of(parts * self.mesh.size(axis)) {
                    of_dims[dim].push(axis);
                }
            }
        }
        Spec::new(of_dims)
    }

    fn grow(&mut self) {
        let value = self.any();
        let dims = self.dims(value);
        let rank = dims.len();
        let axis = self.random.below(rank.max(1));
        let made = match self.random.below(18) {
            0 | 1 => {
                let kind = [UnaryKind::Tanh, UnaryKind::Sine, UnaryKind::Negate][self.random.below(3)];
                self.builder.push1(Unary(kind), &[value])
            }
            2 | 3 => {
                let kinds = [BinaryKind::Add, BinaryKind::Multiply, BinaryKind::Subtract, BinaryKind::Maximum];
                let (kind, other) = (kinds[self.random.below(4)], self.like(value));
                let made = self.builder.push1(Binary(kind), &[value, other]);
                made.and_then(|made| self.scaled(made, 0.5))
            }
            4 | 5 => {
                let other = self.any();
                let others = self.dims(other);
                let pairs: Vec<(usize, usize)> = (0..rank)
                    .flat_map(|left| (0..others.len()).map(move |right| (left, right)))
                    .filter(|&(left, right)| dims[left] == others[right])
                    .collect();
                let Some(&(left, right)) = pairs.get(self.random.below(pairs.len().max(1))) else { return };
                let dims = DotDims {
                    lhs_contract: [left].into_iter().collect(),
                    rhs_contract: [right].into_iter().collect(),
                    ..DotDims::default()
                };
                let dot = DotGeneral { dims: dims.into(), dtype: DType::F32, precision: Precision::Highest };
                let size = self.dims(value)[left];
                let product = self.builder.push1(dot, &[value, other]);
                product.and_then(|product| self.scaled(product, 1.0 / size as f64))
            }
            6 => {
                let kind = [ReduceKind::Sum, ReduceKind::Max, ReduceKind::Min][self.random.below(3)];
                let axes = if rank > 0 { vec![axis] } else { Vec::new() };
                let size: usize = axes.iter().map(|&axis| dims[axis]).product();
                let folded = self.builder.push1(Reduce { kind, axes: axes.into_iter().collect() }, &[value]);
                let by = if kind == ReduceKind::Sum { 1.0 / size.max(1) as f64 } else { 1.0 };
                folded.and_then(|folded| self.scaled(folded, by))
            }
            7 => {
                let mut permutation: Vec<usize> = (0..rank).collect();
                self.random.shuffle(&mut permutation);
                self.builder.push1(Transpose { permutation: permutation.into_iter().collect() }, &[value])
            }
            8 => {
                // Two neighbouring dimensions become one, or one becomes two.
                let mut dims = dims;
                if rank > 1 && self.random.below(2) == 0 {
                    let at = self.random.below(rank - 1);
                    let inner = dims.remove(at + 1);
                    dims[at] *= inner;
                } else if rank > 0 {
                    let divisors: Vec<usize> =
                        (2..dims[axis]).filter(|size| dims[axis].is_multiple_of(*size)).collect();
                    let Some(&inner) = divisors.get(self.random.below(divisors.len().max(1))) else { return };
                    dims[axis] /= inner;
                    dims.insert(axis + 1, inner);
                }
                self.builder.push1(Reshape { dims }, &[value])
            }
            9 => {
                let mut wide = dims;
                let at = self.random.below(rank + 1);
                wide.insert(at, SIZES[self.random.below(SIZES.len())]);
                let mapping: Vec<usize> = (0..=rank).filter(|&dim| dim != at).collect();
                self.builder.push1(BroadcastInDim { dims: wide, mapping: mapping.into_iter().collect() }, &[value])
            }
            10 => {
                let other = self.like(value);
                self.builder.push1(Concatenate { axis }, &[value, other])
            }
            11 => {
                let range = |(dim, &size): (usize, &usize)| {
                    if dim == axis && size > 2 {
                        SliceDim { start: 1, limit: size, stride: 1 + size % 2 }
                    } else {
                        SliceDim { start: 0, limit: size, stride: 1 }
                    }
                };
                let ranges = dims.iter().enumerate().map(range).collect();
                self.builder.push1(Slice { ranges }, &[value])
            }
            12 => {
                let Ok(zero) = self.splat(TensorType::scalar(DType::F32), 0.5) else { return };
                let pad =
                    |dim: usize| PadDim { low: i64::from(dim == axis), high: 2 * i64::from(dim == axis), interior: 0 };
                self.builder.push1(Pad { padding: (0..rank).map(pad).collect() }, &[value, zero])
            }
            13 => self.builder.push1(Roll { axis, shift: 1 + self.random.below(5) as i64 }, &[value]),
            14 if self.random.below(2) == 0 => {
                self.builder.push1(Sort { axis, key_count: 1, descending: false }, &[value])
            }
            14 => self.builder.push1(Reverse { axes: [axis].into_iter().collect() }, &[value]),
            15 => {
                let kind = [CumulativeKind::Sum, CumulativeKind::Max][self.random.below(2)];
                let folded = self.builder.push1(Cumulative { kind, axis, reverse: false }, &[value]);
                let by = if kind == CumulativeKind::Sum { 0.1 } else { 1.0 };
                folded.and_then(|folded| self.scaled(folded, by))
            }
            16 if rank > 0 => self.masked(value, axis),
            16 | 17 if rank > 0 && self.random.below(2) == 0 => self.looped(value),
            _ => {
                let spec = self.spec(&dims);
                self.builder.push1(Reshard::new(spec), &[value])
            }
        };
        if let Ok(value) = made
            && (1..=2048).contains(&self.builder.ty(value).element_count())
        {
            self.values.push(value);
        }
    }

    /// The value in its first half along an axis, and its opposite in the other.
    fn masked(&mut self, value: Value, axis: usize) -> Result<Value, OpError> {
        let ty = self.builder.ty(value).with_dtype(DType::S32);
        let half = (ty.dims[axis] / 2) as f64;
        let places = self.builder.push1(Iota { ty: ty.clone(), axis }, &[])?;
        let border = self.splat(ty, half)?;
        let first = self.builder.push1(Compare(Direction::Lt), &[places, border])?;
        let opposite = self.builder.push1(Unary(UnaryKind::Negate), &[value])?;
        self.builder.push1(Select, &[first, value, opposite])
    }

    /// Three iterations that change a value by another one, which adds up a sum on the way.
    fn looped(&mut self, value: Value) -> Result<Value, OpError> {
        let other = self.like(value);
        let ty = self.builder.ty(value).clone();
        let mut body = GraphBuilder::new("body");
        let [unchanged, carry] = [0, 1].map(|_| body.input(ty.clone(), PortInfo::default()));
        let total = body.input(TensorType::scalar(DType::F32), PortInfo::default());
        let product = body.push1(Binary(BinaryKind::Multiply), &[unchanged, carry])?;
        let next = body.push1(Unary(UnaryKind::Sine), &[product])?;
        let all: Vec<usize> = (0..ty.rank()).collect();
        let sum = body.push1(Reduce { kind: ReduceKind::Sum, axes: all.into_iter().collect() }, &[next])?;
        let part = body.push1(Splat::new(TensorType::scalar(DType::F32), 1.0 / ty.element_count() as f64), &[])?;
        let mean = body.push1(Binary(BinaryKind::Multiply), &[sum, part])?;
        let total = body.push1(Binary(BinaryKind::Add), &[total, mean])?;
        let body = body.finish(vec![next, total], vec![PortInfo::default(); 2]);
        let scan = Scan {
            body: Arc::new(body),
            length: 3,
            invariant_count: 1,
            carry_count: 2,
            reverse: false,
            parallel: false,
            unroll: 1,
        };
        let zero = self.splat(TensorType::scalar(DType::F32), 0.0)?;
        let results = self.builder.push(scan, &[other, value, zero])?;
        let total = self.builder.push1(Unary(UnaryKind::Tanh), &[results[1]])?;
        let total = self.builder.push1(BroadcastInDim { dims: ty.dims, mapping: Default::default() }, &[total])?;
        self.builder.push1(Binary(BinaryKind::Add), &[results[0], total])
    }
}

/// The program of a number.
fn program(random: &mut Random, mesh: &Mesh) -> Graph {
    let builder = GraphBuilder::new("random");
    let mut program = Program { random, mesh, builder, values: Vec::new() };
    for _ in 0..2 + program.random.below(2) {
        let rank = 1 + program.random.below(3);
        let dims: Vec<usize> = (0..rank).map(|_| SIZES[program.random.below(if rank == 3 { 3 } else { 6 })]).collect();
        let spec = program.spec(&dims);
        let info = PortInfo { spec: Some(spec), ..PortInfo::default() };
        let input = program.builder.input(TensorType::new(DType::F32, &dims), info);
        program.values.push(input);
    }
    for _ in 0..30 {
        program.grow();
    }
    let outputs: Vec<Value> = program.values.iter().rev().take(3).copied().collect();
    let ports = outputs.iter().map(|&output| {
        let dims = program.dims(output);
        PortInfo { spec: Some(program.spec(&dims)), ..PortInfo::default() }
    });
    let ports = ports.collect();
    program.builder.finish(outputs, ports)
}

#[test]
fn programs_are_what_they_were() {
    let (mut programs, mut nodes) = (0, 0);
    for number in cases("spmd random programs", 50, 0..1000) {
        let mut random = Random((seed(57) << 32) + number);
        let (mesh, devices) = MESHES[random.below(MESHES.len())];
        let mesh = Mesh::parse(mesh, devices).expect("a mesh");
        let graph = program(&mut random, &mesh);
        nodes += graph.node_count();
        let annotation = ANNOTATIONS[random.below(ANNOTATIONS.len())];
        let options = EmitOptions { mesh: Some(&mesh), annotation, ..EmitOptions::default() };
        let module = emit(&graph, options).expect("a module").decode().expect("a module");
        let lowered = lower_module(&module, &LowerOptions::default());
        let lowered = lowered.unwrap_or_else(|error| panic!("{number}: {error}\n{graph}"));
        // A program that splits nothing is one for any number of devices.
        let Some(partitioned) = lowered.program.partitioned() else { continue };
        programs += 1;
        let input = |(at, ty): (usize, &TensorType)| {
            let values = numbers(ty.element_count(), at as u64);
            Literal::from_fn(ty.clone(), |index| values[index])
        };
        let inputs: Vec<Literal> = graph.input_types().enumerate().map(input).collect();
        let found = run_local(&partitioned.graph, &partitioned.mesh, &inputs);
        let found = found.unwrap_or_else(|error| panic!("{number}: {error}\n{graph}"));
        for (output, (found, expected)) in found.iter().zip(interpret(&graph, &inputs)).enumerate() {
            let (found, expected) = (found.to_f64_vec(), expected.to_f64_vec());
            let error = relative_error(&found, &expected);
            // A sum whose terms cancel has few digits that mean something, or none.
            let is_zero = found.iter().chain(&expected).all(|number| number.abs() <= 1e-5);
            let is_close = error <= 1e-5 || is_zero || error <= 4.0 * spread(&graph, &inputs, output, &expected);
            assert!(
                is_close,
                "{number}: output {output} over {mesh} differs by {error}\n{graph}\n{}",
                partitioned.graph
            );
        }
    }
    println!("{programs} programs of several devices, {nodes} nodes");
    assert!(programs > 40);
}
