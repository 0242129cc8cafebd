//! The computations of ops.

use std::rc::Rc;

use meshloom::hlo::Dims;
use meshloom_mosaic::text::{Element, Type};

use super::InterpretError;
use super::parse::{Attribute, Function, Op};
use super::rounded;
use super::value::{Tensor, Value, advance};

/// The values of a function while it runs.
pub(super) struct Frame {
    values: Vec<Option<Value>>,
}

impl Frame {
    /// A call of a function.
    pub fn new(function: &Function, arguments: &[Value]) -> Frame {
        let mut values = vec![None; function.value_count];
        for ((value, _), argument) in function.arguments.iter().zip(arguments) {
            values[*value] = Some(argument.clone());
        }
        Frame { values }
    }

    /// Runs ops in order, and gives what the function returns.
    pub fn run(&mut self, ops: &[Op]) -> Result<Vec<Value>, InterpretError> {
        for op in ops {
            match op.name.as_str() {
                "func.return" | "scf.yield" => return op.operands.iter().map(|&value| self.get(op, value)).collect(),
                "scf.if" => {
                    let condition = self.scalar(op, 0)?;
                    if let Some(region) = op.regions.get(usize::from(condition == 0.0)) {
                        self.run(&region.ops)?;
                    }
                }
                _ => {
                    let result = self.compute(op)?;
                    self.keep(op, result)?;
                }
            }
        }
        Ok(Vec::new())
    }

    fn get(&self, op: &Op, value: usize) -> Result<Value, InterpretError> {
        self.values.get(value).cloned().flatten().ok_or_else(|| wrong(op, "a value that is not computed yet"))
    }

    fn operand(&self, op: &Op, index: usize) -> Result<Value, InterpretError> {
        let value = op.operands.get(index).ok_or_else(|| wrong(op, "an operand is missing"))?;
        self.get(op, *value)
    }

    fn data(&self, op: &Op, index: usize) -> Result<Rc<Tensor>, InterpretError> {
        match self.operand(op, index)? {
            Value::Data(tensor) => Ok(tensor),
            Value::Memory(_) => Err(wrong(op, "memory where a vector is expected")),
        }
    }

    fn scalar(&self, op: &Op, index: usize) -> Result<f64, InterpretError> {
        match &self.data(op, index)?.data[..] {
            [number] => Ok(*number),
            _ => Err(wrong(op, "a vector where a scalar is expected")),
        }
    }

    /// Keeps a result, if it is what the op says it has.
    fn keep(&mut self, op: &Op, result: Option<Tensor>) -> Result<(), InterpretError> {
        match (&op.result, result) {
            (Some((value, ty)), Some(tensor)) => {
                if !tensor.is(ty.element(), ty.dims()) {
                    let actual = (tensor.element, tensor.dims);
                    return Err(wrong(op, &format!("the result is {actual:?}, declared as {ty}")));
                }
                self.values[*value] = Some(Value::of(tensor));
                Ok(())
            }
            (None, None) => Ok(()),
            _ => Err(wrong(op, "a result that is not declared, or none where one is")),
        }
    }

    fn compute(&self, op: &Op) -> Result<Option<Tensor>, InterpretError> {
        let (dialect, name) = op.name.split_once('.').unwrap_or_default();
        let result = match (dialect, name) {
            ("arith", "constant") => constant(op)?,
            ("arith", "cmpi" | "cmpf") => compare(op, &*self.data(op, 0)?, &*self.data(op, 1)?)?,
            ("arith", "select") => select(op, &*self.data(op, 0)?, &*self.data(op, 1)?, &*self.data(op, 2)?)?,
            ("arith", "truncf" | "extf" | "index_cast") => convert(op, &*self.data(op, 0)?)?,
            ("arith", _) => binary(op, name, &*self.data(op, 0)?, &*self.data(op, 1)?)?,
            ("math", _) => unary(op, name, &*self.data(op, 0)?)?,
            ("tpu", "iota") => iota(op)?,
            ("tpu", "transpose") => transpose(op, &*self.data(op, 0)?)?,
            ("tpu", "matmul") => matmul(op, &*self.data(op, 0)?, &*self.data(op, 1)?, &*self.data(op, 2)?)?,
            ("tpu", "vector_store") => {
                self.store(op)?;
                return Ok(None);
            }
            ("vector" | "memref", "load") => self.load(op)?,
            ("vector", "shape_cast") => reshape(op, &*self.data(op, 0)?)?,
            ("vector", "broadcast") => broadcast(op, &*self.data(op, 0)?)?,
            ("vector", "multi_reduction") => reduce(op, &*self.data(op, 0)?, &*self.data(op, 1)?)?,
            _ => return Err(wrong(op, "an op that is not interpreted")),
        };
        Ok(Some(result))
    }

    /// The start of an access to memory, as a place in it. Vectors are whole blocks.
    fn place(&self, op: &Op, first: usize, dims: &[usize]) -> Result<usize, InterpretError> {
        let mut place = 0;
        for (axis, &size) in dims.iter().enumerate() {
            let index = self.scalar(op, first + axis)?;
            if !(index >= 0.0 && (index as usize) < size) {
                return Err(wrong(op, &format!("index {index} of a dimension of size {size}")));
            }
            place = place * size + index as usize;
        }
        Ok(place)
    }

    fn load(&self, op: &Op) -> Result<Tensor, InterpretError> {
        let Value::Memory(memory) = self.operand(op, 0)? else { return Err(wrong(op, "no memory")) };
        let memory = memory.borrow();
        let place = self.place(op, 1, &memory.dims)?;
        match &declared(op)? {
            Type::Scalar(element) => Ok(Tensor::scalar(*element, memory.data[place])),
            ty if place == 0 && memory.is(ty.element(), ty.dims()) => Ok(memory.clone()),
            ty => Err(wrong(op, &format!("{ty} of {:?}", memory.dims))),
        }
    }

    fn store(&self, op: &Op) -> Result<(), InterpretError> {
        let (value, Value::Memory(memory)) = (self.data(op, 0)?, self.operand(op, 1)?) else {
            return Err(wrong(op, "no memory"));
        };
        let mut memory = memory.borrow_mut();
        let place = self.place(op, 2, &memory.dims)?;
        if place != 0 || !memory.is(value.element, &value.dims) {
            return Err(wrong(op, &format!("{:?} into {:?}", value.dims, memory.dims)));
        }
        memory.data.copy_from_slice(&value.data);
        Ok(())
    }
}

fn wrong(op: &Op, problem: &str) -> InterpretError {
    InterpretError::Op { line: op.line, op: op.name.clone(), problem: problem.to_owned() }
}

fn declared(op: &Op) -> Result<Type, InterpretError> {
    op.result.as_ref().map(|(_, ty)| ty.clone()).ok_or_else(|| wrong(op, "no result is declared"))
}

/// A tensor of the numbers, rounded to the type. An integer that does not fit is an error.
fn tensor(op: &Op, element: Element, dims: &[usize], mut data: Vec<f64>) -> Result<Tensor, InterpretError> {
    match element.dtype() {
        Some(dtype) if element.is_float() => data.iter_mut().for_each(|number| *number = rounded(dtype, *number)),
        _ => {
            if let Some(number) = data.iter().find(|&&number| f64::from(number as i32) != number) {
                return Err(wrong(op, &format!("{number} is no integer of 32 bits")));
            }
        }
    }
    Ok(Tensor { element, dims: dims.into(), data })
}

fn constant(op: &Op) -> Result<Tensor, InterpretError> {
    let ty = declared(op)?;
    let count = ty.dims().iter().product();
    match op.attributes.get("value") {
        Some(Attribute::Number(number) | Attribute::Dense(number)) => {
            tensor(op, ty.element(), ty.dims(), vec![*number; count])
        }
        _ => Err(wrong(op, "no number")),
    }
}

fn same(op: &Op, a: &Tensor, b: &Tensor) -> Result<(), InterpretError> {
    if b.is(a.element, &a.dims) { Ok(()) } else { Err(wrong(op, &format!("{:?} and {:?}", a.dims, b.dims))) }
}

/// The greater one, or NaN.
fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

fn binary(op: &Op, name: &str, a: &Tensor, b: &Tensor) -> Result<Tensor, InterpretError> {
    same(op, a, b)?;
    let apply: fn(f64, f64) -> f64 = match name {
        "addf" | "addi" => |a, b| a + b,
        "subf" | "subi" => |a, b| a - b,
        "mulf" | "muli" => |a, b| a * b,
        "divf" => |a, b| a / b,
        "divsi" => |a, b| (a / b).trunc(),
        "maximumf" | "maxsi" => maximum,
        "andi" => |a, b| f64::from(a as i32 & b as i32),
        _ => return Err(wrong(op, "an op that is not interpreted")),
    };
    // Results of NaN must stay NaN, and only floats have it.
    if name.ends_with('f') != a.element.is_float() {
        return Err(wrong(op, &format!("an operand of {:?}", a.element)));
    }
    tensor(op, a.element, &a.dims, a.data.iter().zip(&b.data).map(|(&a, &b)| apply(a, b)).collect())
}

fn unary(op: &Op, name: &str, a: &Tensor) -> Result<Tensor, InterpretError> {
    let apply: fn(f64) -> f64 = match name {
        "exp" => f64::exp,
        "log" => f64::ln,
        "tanh" => f64::tanh,
        _ => return Err(wrong(op, "an op that is not interpreted")),
    };
    tensor(op, a.element, &a.dims, a.data.iter().map(|&a| apply(a)).collect())
}

fn compare(op: &Op, a: &Tensor, b: &Tensor) -> Result<Tensor, InterpretError> {
    same(op, a, b)?;
    let Some(Attribute::Number(predicate)) = op.attributes.get("predicate") else {
        return Err(wrong(op, "no predicate"));
    };
    let apply: fn(f64, f64) -> bool = match (op.name.as_str(), *predicate as i64) {
        ("arith.cmpi", 0) => |a, b| a == b,
        ("arith.cmpi", 1) => |a, b| a != b,
        ("arith.cmpi", 2) => |a, b| a < b,
        ("arith.cmpi", 3) => |a, b| a <= b,
        ("arith.cmpi", 5) => |a, b| a >= b,
        ("arith.cmpi", 4) | ("arith.cmpf", 2) => |a, b| a > b,
        _ => return Err(wrong(op, &format!("predicate {predicate} is not interpreted"))),
    };
    let data = a.data.iter().zip(&b.data).map(|(&a, &b)| f64::from(u8::from(apply(a, b)))).collect();
    tensor(op, Element::I1, &a.dims, data)
}

fn select(op: &Op, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor, InterpretError> {
    same(op, a, b)?;
    if !condition.is(Element::I1, &a.dims) {
        return Err(wrong(op, &format!("a condition of {:?} for {:?}", condition.dims, a.dims)));
    }
    let both = a.data.iter().zip(&b.data);
    let data = condition.data.iter().zip(both).map(|(&holds, (&a, &b))| if holds != 0.0 { a } else { b });
    tensor(op, a.element, &a.dims, data.collect())
}

fn convert(op: &Op, a: &Tensor) -> Result<Tensor, InterpretError> {
    tensor(op, declared(op)?.element(), &a.dims, a.data.clone())
}

fn iota(op: &Op) -> Result<Tensor, InterpretError> {
    let ty = declared(op)?;
    let axis = op.attributes.get("dimensions").and_then(Attribute::counts);
    let Some(&[axis]) = axis.as_deref() else { return Err(wrong(op, "no dimension")) };
    let (dims, mut position, mut data) = (ty.dims(), vec![0; ty.dims().len()], Vec::new());
    if axis >= dims.len() {
        return Err(wrong(op, &format!("dimension {axis} of {ty}")));
    }
    loop {
        data.push(position[axis] as f64);
        if !advance(&mut position, dims) {
            return tensor(op, ty.element(), dims, data);
        }
    }
}

fn reshape(op: &Op, a: &Tensor) -> Result<Tensor, InterpretError> {
    let ty = declared(op)?;
    if ty.dims().iter().product::<usize>() != a.data.len() {
        return Err(wrong(op, &format!("{:?} as {ty}", a.dims)));
    }
    tensor(op, a.element, ty.dims(), a.data.clone())
}

fn broadcast(op: &Op, a: &Tensor) -> Result<Tensor, InterpretError> {
    let ty = declared(op)?;
    let (dims, mut position, mut data) = (ty.dims(), vec![0; ty.dims().len()], Vec::new());
    let fits = a.dims.len() == dims.len() && a.dims.iter().zip(dims).all(|(&own, &size)| own == size || own == 1);
    if !fits && !a.dims.is_empty() {
        return Err(wrong(op, &format!("{:?} to {ty}", a.dims)));
    }
    loop {
        let along = a.dims.iter().zip(&position);
        data.push(a.data[along.fold(0, |place, (&size, &index)| place * size + if size == 1 { 0 } else { index })]);
        if !advance(&mut position, dims) {
            return tensor(op, a.element, dims, data);
        }
    }
}

fn transpose(op: &Op, a: &Tensor) -> Result<Tensor, InterpretError> {
    let permutation = op.attributes.get("permutation").and_then(Attribute::counts);
    if permutation.as_deref() != Some(&[1, 0]) || a.dims.len() != 2 {
        return Err(wrong(op, "not of a matrix"));
    }
    let (rows, columns, data) = a.matrix(true);
    tensor(op, a.element, &[rows, columns], data)
}

fn reduce(op: &Op, a: &Tensor, start: &Tensor) -> Result<Tensor, InterpretError> {
    let dims = op.attributes.get("reduction_dims").and_then(Attribute::counts);
    if dims.as_deref() != Some(&[0]) || a.dims.len() != 2 || !start.is(a.element, &a.dims[1..]) {
        return Err(wrong(op, "not over the rows of a matrix"));
    }
    let apply: fn(f64, f64) -> f64 = match op.attributes.get("kind") {
        Some(Attribute::Other(kind)) if kind == "#vector.kind<add>" => |a, b| a + b,
        Some(Attribute::Other(kind)) if kind == "#vector.kind<maximumf>" => maximum,
        _ => return Err(wrong(op, "a kind that is not interpreted")),
    };
    let mut data = start.data.clone();
    for row in a.data.chunks(a.dims[1]) {
        data.iter_mut().zip(row).for_each(|(sum, &number)| *sum = apply(*sum, number));
    }
    tensor(op, a.element, &start.dims, data)
}

/// The summed dimension of each operand, as `#tpu.dot_dimension_numbers` says.
fn contracted(op: &Op) -> Option<[usize; 2]> {
    let Some(Attribute::Other(text)) = op.attributes.get("dimension_numbers") else { return None };
    let known = [[1, 0], [1, 1], [0, 0]];
    known.into_iter().find(|&[left, right]| {
        let (a, b) = (1 - left, 1 - right);
        let lists = format!("<[{left}], [{right}], [{a}], [{b}], [0, {a}, 1, {b}], [], []>");
        *text == format!("#tpu.dot_dimension_numbers{lists}")
    })
}

fn matmul(op: &Op, a: &Tensor, b: &Tensor, start: &Tensor) -> Result<Tensor, InterpretError> {
    let Some([left, right]) = contracted(op) else { return Err(wrong(op, "dimensions that are not interpreted")) };
    if [a.dims.len(), b.dims.len()] != [2, 2] || a.element != b.element || start.element != Element::F32 {
        return Err(wrong(op, "operands that are no matrices of one type"));
    }
    let (m, k, a) = a.matrix(left == 0);
    let (inner, n, b) = b.matrix(right == 1);
    if inner != k || start.dims != Dims::from_slice(&[m, n]) {
        return Err(wrong(op, &format!("[{m},{k}] times [{inner},{n}] on {:?}", start.dims)));
    }
    let mut data = start.data.clone();
    for (row, sums) in data.chunks_mut(n).enumerate() {
        for (&factor, others) in a[row * k..(row + 1) * k].iter().zip(b.chunks(n)) {
            sums.iter_mut().zip(others).for_each(|(sum, &other)| *sum += factor * other);
        }
    }
    tensor(op, Element::F32, &start.dims, data)
}
