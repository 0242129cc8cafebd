//! The computations of ops.

use std::collections::HashMap;
use std::rc::Rc;

use meshloom::hlo::Dims;
use meshloom_mosaic::text::{Element, Type};

use super::parse::{Function, Op};
use super::value::{Memory, Tensor, Value};
use crate::moves::{positions, positions_along, strides};
use crate::number::round;

/// The values of a function while it runs.
pub(super) struct Frame<'f>(HashMap<&'f str, Value>);

impl<'f> Frame<'f> {
    /// A call of a function.
    pub fn new(function: &Function<'f>, arguments: &[Value]) -> Frame<'f> {
        let names = function.arguments.iter().map(|(name, _)| *name);
        Frame(names.zip(arguments.iter().cloned()).collect())
    }

    /// Runs ops in order, and gives what the function returns.
    pub fn run(&mut self, ops: &[Op<'f>]) -> Vec<Value> {
        for op in ops {
            match op.name {
                "func.return" | "scf.yield" => return (0..op.operands.len()).map(|at| self.operand(op, at)).collect(),
                "scf.if" => {
                    if let Some(region) = op.regions.get(usize::from(self.scalar(op, 0) == 0.0)) {
                        self.run(&region.ops);
                    }
                }
                "tpu.vector_store" => self.store(op),
                _ => {
                    let (tensor, ty) = (self.compute(op), declared(op));
                    if !tensor.is(ty.element(), ty.dims()) {
                        let actual = (tensor.element, tensor.dims);
                        wrong(op, format!("the result is {actual:?}, declared as {ty}"));
                    }
                    self.0.extend(op.result.as_ref().map(|(name, _)| (*name, Value::Data(Rc::new(tensor)))));
                }
            }
        }
        Vec::new()
    }

    fn operand(&self, op: &Op<'_>, index: usize) -> Value {
        let Some(name) = op.operands.get(index) else { wrong(op, "an operand is missing") };
        self.0.get(name).cloned().unwrap_or_else(|| wrong(op, "a value that is not computed yet"))
    }

    fn data(&self, op: &Op<'_>, index: usize) -> Rc<Tensor> {
        match self.operand(op, index) {
            Value::Data(tensor) => tensor,
            Value::Memory(_) => wrong(op, "memory where a vector is expected"),
        }
    }

    fn scalar(&self, op: &Op<'_>, index: usize) -> f64 {
        match self.data(op, index).data[..] {
            [number] => number,
            _ => wrong(op, "a vector where a scalar is expected"),
        }
    }

    fn compute(&self, op: &Op<'_>) -> Tensor {
        let data = |index| self.data(op, index);
        match op.name.split_once('.').unwrap_or_default() {
            ("arith", "constant") => constant(op),
            ("arith", "cmpi") => compare(op, &data(0), &data(1)),
            ("arith", "select") => select(op, &data(0), &data(1), &data(2)),
            ("arith", "truncf" | "extf" | "index_cast") => {
                tensor(op, declared(op).element(), &data(0).dims, data(0).data.clone())
            }
            ("arith", name) => binary(op, name, &data(0), &data(1)),
            ("math", name) => unary(op, name, &data(0)),
            ("tpu", "iota") => iota(op),
            ("tpu", "transpose") => transpose(op, &data(0)),
            ("tpu", "matmul") => matmul(op, &data(0), &data(1), &data(2)),
            ("vector" | "memref", "load") => self.load(op),
            ("vector", "shape_cast") => reshape(op, &data(0)),
            ("vector", "broadcast") => broadcast(op, &data(0)),
            ("vector", "multi_reduction") => reduce(op, &data(0), &data(1)),
            _ => wrong(op, UNKNOWN),
        }
    }

    /// The memory that an op accesses, and the start of the access as a place in it. Vectors are whole blocks.
    fn place(&self, op: &Op<'_>, first: usize) -> (Memory, usize) {
        let Value::Memory(memory) = self.operand(op, first) else { wrong(op, "no memory") };
        let along = |place, (axis, &size): (usize, &usize)| {
            let index = self.scalar(op, first + 1 + axis);
            if !(index >= 0.0 && (index as usize) < size) {
                wrong(op, format!("index {index} of a dimension of size {size}"));
            }
            place * size + index as usize
        };
        let place = memory.borrow().dims.iter().enumerate().fold(0, along);
        (memory, place)
    }

    fn load(&self, op: &Op<'_>) -> Tensor {
        let (memory, place) = self.place(op, 0);
        let memory = memory.borrow();
        match declared(op) {
            &Type::Scalar(element) => tensor(op, element, &[], vec![memory.data[place]]),
            ty if place == 0 && memory.is(ty.element(), ty.dims()) => memory.clone(),
            ty => wrong(op, format!("{ty} of {:?}", memory.dims)),
        }
    }

    fn store(&self, op: &Op<'_>) {
        let (value, (memory, place)) = (self.data(op, 0), self.place(op, 1));
        let mut memory = memory.borrow_mut();
        if place != 0 || !memory.is(value.element, &value.dims) {
            wrong(op, format!("{:?} into {:?}", value.dims, memory.dims));
        }
        memory.data.copy_from_slice(&value.data);
    }
}

const UNKNOWN: &str = "an op that is not interpreted";

fn wrong(op: &Op<'_>, problem: impl std::fmt::Display) -> ! {
    panic!("line {}: {}: {problem}", op.line, op.name);
}

fn declared<'o>(op: &'o Op<'_>) -> &'o Type {
    op.result.as_ref().map_or_else(|| wrong(op, "no result is declared"), |(_, ty)| ty)
}

/// A tensor of the numbers, rounded to the type.
fn tensor(op: &Op<'_>, element: Element, dims: &[usize], mut data: Vec<f64>) -> Tensor {
    match element.dtype() {
        Some(dtype) if element.is_float() => data.iter_mut().for_each(|number| *number = round(dtype, *number)),
        _ => {
            if let Some(number) = data.iter().find(|&&number| f64::from(number as i32) != number) {
                wrong(op, format!("{number} is no integer of 32 bits"));
            }
        }
    }
    Tensor { element, dims: dims.into(), data }
}

fn constant(op: &Op<'_>) -> Tensor {
    let ty = declared(op);
    let number = op.attributes.number("value").unwrap_or_else(|| wrong(op, "no number"));
    tensor(op, ty.element(), ty.dims(), vec![number; ty.dims().iter().product()])
}

fn same(op: &Op<'_>, a: &Tensor, b: &Tensor) {
    if !b.is(a.element, &a.dims) {
        wrong(op, format!("{:?} and {:?}", a.dims, b.dims));
    }
}

/// The greater one, or NaN.
fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn binary(op: &Op<'_>, name: &str, a: &Tensor, b: &Tensor) -> Tensor {
    same(op, a, b);
    let apply: fn(f64, f64) -> f64 = match name {
        "addf" | "addi" => |a, b| a + b,
        "subf" | "subi" => |a, b| a - b,
        "mulf" | "muli" => |a, b| a * b,
        "divf" => |a, b| a / b,
        "divsi" => |a, b| (a / b).trunc(),
        "maximumf" | "maxsi" => maximum,
        "andi" => |a, b| f64::from(a as i32 & b as i32),
        _ => wrong(op, UNKNOWN),
    };
    // Results of NaN must stay NaN, and only floats have it.
    if name.ends_with('f') != a.element.is_float() {
        wrong(op, format!("an operand of {:?}", a.element));
    }
    tensor(op, a.element, &a.dims, a.data.iter().zip(&b.data).map(|(&a, &b)| apply(a, b)).collect())
}

fn unary(op: &Op<'_>, name: &str, a: &Tensor) -> Tensor {
    let apply: fn(f64) -> f64 = match name {
        "exp" => f64::exp,
        "log" => f64::ln,
        "tanh" => f64::tanh,
        _ => wrong(op, UNKNOWN),
    };
    tensor(op, a.element, &a.dims, a.data.iter().map(|&a| apply(a)).collect())
}

fn compare(op: &Op<'_>, a: &Tensor, b: &Tensor) -> Tensor {
    same(op, a, b);
    let predicate = op.attributes.number("predicate").unwrap_or_else(|| wrong(op, "no predicate"));
    let apply: fn(f64, f64) -> bool = match predicate as i64 {
        0 => |a, b| a == b,
        1 => |a, b| a != b,
        2 => |a, b| a < b,
        4 => |a, b| a > b,
        5 => |a, b| a >= b,
        _ => wrong(op, format!("predicate {predicate} is not interpreted")),
    };
    let data = a.data.iter().zip(&b.data).map(|(&a, &b)| f64::from(u8::from(apply(a, b)))).collect();
    tensor(op, Element::I1, &a.dims, data)
}

fn select(op: &Op<'_>, condition: &Tensor, a: &Tensor, b: &Tensor) -> Tensor {
    same(op, a, b);
    if !condition.is(Element::I1, &a.dims) {
        wrong(op, format!("a condition of {:?} for {:?}", condition.dims, a.dims));
    }
    let both = a.data.iter().zip(&b.data);
    let data = condition.data.iter().zip(both).map(|(&holds, (&a, &b))| if holds != 0.0 { a } else { b });
    tensor(op, a.element, &a.dims, data.collect())
}

fn iota(op: &Op<'_>) -> Tensor {
    let (ty, axes) = (declared(op), op.attributes.numbers::<usize>("dimensions"));
    if axes.len() != 1 || axes[0] >= ty.dims().len() {
        wrong(op, format!("dimensions {axes:?} of {ty}"));
    }
    let positions = positions_along(ty.dims(), &axes, &[1]);
    tensor(op, ty.element(), ty.dims(), positions.into_iter().map(|position| position as f64).collect())
}

fn reshape(op: &Op<'_>, a: &Tensor) -> Tensor {
    let ty = declared(op);
    if ty.dims().iter().product::<usize>() != a.data.len() {
        wrong(op, format!("{:?} as {ty}", a.dims));
    }
    tensor(op, a.element, ty.dims(), a.data.clone())
}

fn broadcast(op: &Op<'_>, a: &Tensor) -> Tensor {
    let ty = declared(op);
    let dims = ty.dims();
    let fits = a.dims.len() == dims.len() && a.dims.iter().zip(dims).all(|(&own, &size)| own == size || own == 1);
    if !fits && !a.dims.is_empty() {
        wrong(op, format!("{:?} to {ty}", a.dims));
    }
    let mut along = strides(&a.dims);
    along.iter_mut().zip(&a.dims).filter(|(_, size)| **size == 1).for_each(|(stride, _)| *stride = 0);
    along.resize(dims.len(), 0);
    let data = positions(0, dims, &along).into_iter().map(|place| a.data[place as usize]);
    tensor(op, a.element, dims, data.collect())
}

fn transpose(op: &Op<'_>, a: &Tensor) -> Tensor {
    if op.attributes.numbers::<usize>("permutation") != [1, 0] || a.dims.len() != 2 {
        wrong(op, "not of a matrix");
    }
    let (rows, columns, data) = a.matrix(true);
    tensor(op, a.element, &[rows, columns], data)
}

fn reduce(op: &Op<'_>, a: &Tensor, start: &Tensor) -> Tensor {
    if op.attributes.numbers::<usize>("reduction_dims") != [0]
        || a.dims.len() != 2
        || !start.is(a.element, &a.dims[1..])
    {
        wrong(op, "not over the rows of a matrix");
    }
    let apply: fn(f64, f64) -> f64 = match op.attributes.text("kind") {
        "#vector.kind<add>" => |a, b| a + b,
        "#vector.kind<maximumf>" => maximum,
        _ => wrong(op, "a kind that is not interpreted"),
    };
    let mut data = start.data.clone();
    for row in a.data.chunks(a.dims[1]) {
        data.iter_mut().zip(row).for_each(|(sum, &number)| *sum = apply(*sum, number));
    }
    tensor(op, a.element, &start.dims, data)
}

/// The summed dimension of each operand, as `#tpu.dot_dimension_numbers` says.
fn contracted(op: &Op<'_>) -> Option<[usize; 2]> {
    let known = [[1, 0], [1, 1], [0, 0]];
    known.into_iter().find(|&[left, right]| {
        let (a, b) = (1 - left, 1 - right);
        let lists = format!("<[{left}], [{right}], [{a}], [{b}], [0, {a}, 1, {b}], [], []>");
        op.attributes.text("dimension_numbers") == format!("#tpu.dot_dimension_numbers{lists}")
    })
}

fn matmul(op: &Op<'_>, a: &Tensor, b: &Tensor, start: &Tensor) -> Tensor {
    let Some([left, right]) = contracted(op) else { wrong(op, "dimensions that are not interpreted") };
    if [a.dims.len(), b.dims.len()] != [2, 2] || a.element != b.element || start.element != Element::F32 {
        wrong(op, "operands that are no matrices of one type");
    }
    let (m, k, a) = a.matrix(left == 0);
    let (inner, n, b) = b.matrix(right == 1);
    if inner != k || start.dims != Dims::from_slice(&[m, n]) {
        wrong(op, format!("[{m},{k}] times [{inner},{n}] on {:?}", start.dims));
    }
    let mut data = start.data.clone();
    for (row, sums) in data.chunks_mut(n).enumerate() {
        for (&factor, others) in a[row * k..(row + 1) * k].iter().zip(b.chunks(n)) {
            sums.iter_mut().zip(others).for_each(|(sum, &other)| *sum += factor * other);
        }
    }
    tensor(op, Element::F32, &start.dims, data)
}
