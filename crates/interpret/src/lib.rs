//! A reference interpreter: graphs run on host values, op by op, every result rounded to its element type.
//!
//! Nothing is fused, so two graphs that say the same give the same bits. Integer arithmetic goes through [`evaluate`];
//! moves of elements and floating-point arithmetic are done here, apart from the library's own code.
//!
//! The local graph of a mesh runs on all devices in lockstep: node by node, and iteration by iteration in loops. A
//! value of a graph is one value for each device ([`Lanes`]); a graph without collectives runs on a mesh of one device.
//! Devices may take different branches, but those of a collective's group must come to it together.
//!
//! The kernels that a graph calls on TPUs are interpreted too, from their text ([`mosaic`]).
//!
//! The crate is for tests and for finding faults: it panics where a graph or its inputs make no sense.
//!
//! [`evaluate`]: meshloom::passes::evaluate

mod apply;
mod cudnn;
pub mod mosaic;
pub mod moves;
mod noise;
mod number;
mod opaque;
mod ragged;
pub mod spmd;
mod windows;

use std::cell::RefCell;
use std::fmt::Display;

use meshloom::ir::{Graph, Literal, TensorType};
use meshloom::ops::{Cond, Op, Scan, While};
use meshloom::sharding::Mesh;

pub use apply::apply;
pub use noise::interpret_with_noise;
pub use number::literal;

/// One value on each device.
pub type Lanes = Vec<Literal>;

/// The outputs of a graph.
pub fn interpret(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    let lanes = inputs.iter().map(|literal| vec![literal.clone()]).collect();
    lockstep(graph, lanes, &Mesh::default()).into_iter().flatten().collect()
}

/// The outputs of a local graph on every device of a mesh.
pub fn lockstep(graph: &Graph, inputs: Vec<Lanes>, mesh: &Mesh) -> Vec<Lanes> {
    let mut values: Vec<Option<Lanes>> = vec![None; graph.value_count()];
    graph.inputs().iter().zip(inputs).for_each(|(value, lanes)| values[value.index()] = Some(lanes));
    for node in graph.nodes() {
        let operands: Vec<&Lanes> =
            node.operands().iter().map(|value| values[value.index()].as_ref().expect("an earlier value")).collect();
        let types: Vec<&TensorType> = node.results().map(|value| graph.ty(value)).collect();
        let results = step(node.op(), &operands, &types, mesh);
        for ((value, lanes), ty) in node.results().zip(results).zip(types) {
            assert!(lanes.iter().all(|literal| literal.ty() == ty), "{}: {:?}", node.op().name(), lanes[0].ty());
            values[value.index()] = Some(lanes);
        }
    }
    graph.outputs().iter().map(|value| values[value.index()].clone().expect("an earlier value")).collect()
}

fn step(op: &Op, operands: &[&Lanes], types: &[&TensorType], mesh: &Mesh) -> Vec<Lanes> {
    let inputs = || operands.iter().map(|&lanes| lanes.clone()).collect::<Vec<_>>();
    match op {
        Op::Call(op) => lockstep(&op.function, inputs(), mesh),
        Op::Checkpoint(op) => lockstep(&op.body, inputs(), mesh),
        Op::CustomVjp(op) => lockstep(&op.primal, inputs(), mesh),
        Op::Scan(op) => scan(op, inputs(), types, mesh),
        Op::Cond(op) => cond(op, inputs(), mesh),
        Op::While(op) => run_while(op, inputs(), mesh),
        op => match spmd::group(op) {
            Some(group) => spmd::collective(op, group, operands, mesh),
            None => shared(mesh.device_count(), operands, |operands| noise::added(op, apply(op, operands, types))),
        },
    }
}

/// Results for each device. Devices whose operands are one and the same share theirs, as replicas do.
pub fn shared(devices: usize, operands: &[&Lanes], compute: impl Fn(&[&Literal]) -> Vec<Literal>) -> Vec<Lanes> {
    let mut known = Known::default();
    let mut results: Vec<Lanes> = Vec::new();
    for device in 0..devices {
        let own: Vec<&Literal> = operands.iter().map(|lanes| &lanes[device]).collect();
        let of_device = known.of(&own, || compute(&own));
        results.resize(of_device.len(), Lanes::with_capacity(devices));
        results.iter_mut().zip(of_device).for_each(|(lanes, literal)| lanes.push(literal.clone()));
    }
    results
}

/// Results by operands: those that are one and the same literals have the same results.
#[derive(Default)]
struct Known(Vec<(Vec<*const u8>, Vec<Literal>)>);

impl Known {
    fn of(&mut self, operands: &[&Literal], compute: impl FnOnce() -> Vec<Literal>) -> &[Literal] {
        let key: Vec<*const u8> = operands.iter().map(|literal| literal.bytes().as_ptr()).collect();
        let at = self.0.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
            self.0.push((key, compute()));
            self.0.len() - 1
        });
        &self.0[at].1
    }
}

fn scan(scan: &Scan, operands: Vec<Lanes>, types: &[&TensorType], mesh: &Mesh) -> Vec<Lanes> {
    let devices = mesh.device_count();
    let first_slice = scan.invariant_count + scan.carry_count;
    let mut carries = operands[scan.invariant_count..first_slice].to_vec();
    let mut rows: Vec<Vec<Lanes>> = vec![vec![Lanes::new(); scan.length]; types.len() - scan.carry_count];
    for step in 0..scan.length {
        let row = if scan.reverse { scan.length - 1 - step } else { step };
        let slice = |stacked: &Lanes| shared(devices, &[stacked], |stacked| vec![row_of(stacked[0], row)]);
        let mut inputs = operands[..scan.invariant_count].to_vec();
        inputs.append(&mut carries);
        inputs.extend(operands[first_slice..].iter().flat_map(slice));
        carries = lockstep(&scan.body, inputs, mesh);
        let stacked = carries.split_off(scan.carry_count);
        rows.iter_mut().zip(stacked).for_each(|(rows, output)| rows[row] = output);
    }
    let stack = |(rows, ty): (Vec<Lanes>, &&TensorType)| {
        let join = |rows: &[&Literal]| {
            let bytes: Vec<&[u8]> = rows.iter().map(|row| row.bytes()).collect();
            vec![Literal::from_bytes((*ty).clone(), bytes.concat()).expect("as many bytes as the type has")]
        };
        shared(devices, &rows.iter().collect::<Vec<_>>(), join).swap_remove(0)
    };
    carries.into_iter().chain(rows.into_iter().zip(&types[scan.carry_count..]).map(stack)).collect()
}

fn row_of(stacked: &Literal, row: usize) -> Literal {
    let ty = TensorType::new(stacked.ty().dtype, &stacked.ty().dims[1..]);
    let start = row * ty.byte_count();
    Literal::from_bytes(ty.clone(), &stacked.bytes()[start..start + ty.byte_count()]).expect("a row")
}

thread_local! {
    /// The devices that take the branch that is being run; all of them outside of branches.
    static PRESENT: RefCell<Option<Vec<bool>>> = const { RefCell::new(None) };
}

/// Whether each device takes the branch that is being run.
pub fn present(devices: usize) -> Vec<bool> {
    PRESENT.with_borrow(|present| present.clone().unwrap_or_else(|| vec![true; devices]))
}

/// Runs a branch that some devices take. The others compute on what they have; nothing of it is used.
fn run_for(present: &[bool], graph: &Graph, operands: Vec<Lanes>, mesh: &Mesh) -> Vec<Lanes> {
    let outer = PRESENT.replace(Some(present.to_vec()));
    let results = lockstep(graph, operands, mesh);
    PRESENT.set(outer);
    results
}

/// For each device, a scalar as a number.
fn numbers_of(lanes: &Lanes) -> Vec<i64> {
    lanes.iter().map(|literal| literal.to_f64_vec()[0] as i64).collect()
}

/// Takes the values of some devices over.
fn take(into: &mut [Lanes], from: Vec<Lanes>, which: &[bool]) {
    for (into, from) in into.iter_mut().zip(from) {
        let chosen = into.iter_mut().zip(from).zip(which).filter(|(_, chosen)| **chosen);
        chosen.for_each(|((into, from), _)| *into = from);
    }
}

fn cond(cond: &Cond, mut operands: Vec<Lanes>, mesh: &Mesh) -> Vec<Lanes> {
    let present = present(mesh.device_count());
    let chosen: Vec<usize> =
        numbers_of(&operands.remove(0)).iter().map(|&selector| cond.chosen(selector as i32)).collect();
    let mut results: Option<Vec<Lanes>> = None;
    for (index, branch) in cond.branches.iter().enumerate() {
        let takes: Vec<bool> = present.iter().zip(&chosen).map(|(&present, &own)| present && own == index).collect();
        if takes.contains(&true) {
            let found = run_for(&takes, branch, operands.clone(), mesh);
            match &mut results {
                None => results = Some(found),
                Some(results) => take(results, found, &takes),
            }
        }
    }
    results.expect("a device that is present")
}

fn run_while(op: &While, mut operands: Vec<Lanes>, mesh: &Mesh) -> Vec<Lanes> {
    let mut going = present(mesh.device_count());
    loop {
        let condition = run_for(&going, &op.condition, operands.clone(), mesh).swap_remove(0);
        going.iter_mut().zip(numbers_of(&condition)).for_each(|(going, holds)| *going &= holds != 0);
        if !going.contains(&true) {
            return operands.split_off(op.invariant_count);
        }
        let carries = run_for(&going, &op.body, operands.clone(), mesh);
        take(&mut operands[op.invariant_count..], carries, &going);
    }
}

/// Asserts that results are [equal in every bit](same_bits).
pub fn assert_same_bits(what: impl Display, found: &[Literal], expected: &[Literal]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!(same_bits(found, expected), "{what}: result {index} is {found:?} instead of {expected:?}");
    }
}

/// Whether two literals are equal in every bit; one NaN is as good as another.
pub fn same_bits(a: &Literal, b: &Literal) -> bool {
    let width = a.ty().dtype.byte_count();
    let equal = |(index, (x, y)): (usize, (f64, f64))| {
        let bits = |literal: &Literal| literal.bytes()[index * width..][..width].to_vec();
        (x.is_nan() && y.is_nan()) || bits(a) == bits(b)
    };
    a.ty() == b.ty() && a.to_f64_vec().into_iter().zip(b.to_f64_vec()).enumerate().all(equal)
}
