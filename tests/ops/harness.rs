//! The parts of the table: host tensors with plain loops for reference, and one entry of cases for each op.

use meshloom::ir::{DType, Graph, GraphBuilder, Literal, PortInfo, TensorType, Value};
use meshloom::ops::{Op, Splat};

pub use support::random::Random;

/// A host tensor. Its values are what the element type can hold.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub ty: TensorType,
    pub values: Vec<f64>,
}

/// All index tuples of a shape, in row-major order.
pub fn indices(dims: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &size in dims {
        all = all.iter().flat_map(|prefix| (0..size).map(|last| [&prefix[..], &[last]].concat())).collect();
    }
    all
}

impl Tensor {
    /// The values, each rounded to the element type (integers out of range saturate).
    pub fn new(dtype: DType, dims: &[usize], values: &[f64]) -> Tensor {
        let ty = TensorType::new(dtype, dims);
        assert_eq!(ty.element_count(), values.len(), "{ty}");
        let rounded = bytes(dtype, values);
        let literal = Literal::from_bytes(ty.clone(), rounded).expect("as many bytes as the type has");
        Tensor { ty, values: literal.to_f64_vec() }
    }

    pub fn from_fn(dtype: DType, dims: &[usize], f: impl FnMut(&Vec<usize>) -> f64) -> Tensor {
        Tensor::new(dtype, dims, &indices(dims).iter().map(f).collect::<Vec<_>>())
    }

    /// The same values in another type.
    pub fn with_dtype(&self, dtype: DType) -> Tensor {
        Tensor::new(dtype, self.dims(), &self.values)
    }

    pub fn scalar(dtype: DType, value: f64) -> Tensor {
        Tensor::new(dtype, &[], &[value])
    }

    pub fn literal(&self) -> Literal {
        Literal::from_bytes(self.ty.clone(), bytes(self.ty.dtype, &self.values)).expect("as many bytes as the type has")
    }

    pub fn dims(&self) -> &[usize] {
        &self.ty.dims
    }

    pub fn at(&self, index: &[usize]) -> f64 {
        let position = index.iter().zip(self.dims()).fold(0, |position, (&i, &size)| position * size + i);
        self.values[position]
    }
}

fn bytes(dtype: DType, values: &[f64]) -> Vec<u8> {
    let element = |&value: &f64| {
        let (bytes, count) = Splat::new(TensorType::scalar(dtype), value).element_bytes();
        bytes[..count].to_vec()
    };
    values.iter().flat_map(element).collect()
}

/// Random numbers between two bounds; of an integer type, whole ones.
pub fn random(dtype: DType, dims: &[usize], low: f64, high: f64) -> Tensor {
    // By name, so that a new type leaves the numbers of the others as they are.
    let name = dtype.name().bytes().fold(0, |seed: u64, byte| seed * 31 + u64::from(byte));
    let seed = dims.iter().fold(name, |seed, &size| seed.wrapping_mul(31) + size as u64);
    let mut random = Random(seed ^ low.to_bits().rotate_left(7) ^ high.to_bits());
    Tensor::from_fn(dtype, dims, |_| {
        let number = low + (high - low) * random.unit();
        if dtype.is_float() { number } else { number.floor() }
    })
}

/// Different numbers in no particular order, from about -half to half of their count; `pred` gets both values.
pub fn distinct(dtype: DType, dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    let mut values: Vec<f64> = (0..count).map(|index| index as f64).collect();
    let mut random = Random(count as u64);
    for index in (1..count).rev() {
        values.swap(index, (random.unit() * (index + 1) as f64) as usize);
    }
    let shift = if dtype.is_float() || dtype.is_signed_integer() { (count / 2) as f64 } else { 0.0 };
    let values: Vec<f64> =
        values.iter().map(|&value| if dtype == DType::Pred { value % 2.0 } else { value - shift }).collect();
    Tensor::new(dtype, dims, &values)
}

/// Several shapes for one element type, and one for all others.
pub fn shapes(dtype: DType, several: &[&'static [usize]], one: &'static [usize]) -> Vec<&'static [usize]> {
    if dtype == DType::F32 { several.to_vec() } else { vec![one] }
}

/// f64 numbers without ties, for gradients.
pub fn f64s(dims: &[usize]) -> Tensor {
    random(DType::F64, dims, -2.0, 2.0)
}

/// Reads `f32[2,3]`.
pub fn ty(text: &str) -> TensorType {
    let (dtype, dims) = text.split_once('[').expect("a type with brackets");
    let dims: Vec<usize> = dims
        .trim_end_matches(']')
        .split(',')
        .filter(|size| !size.is_empty())
        .map(|size| size.parse().unwrap())
        .collect();
    TensorType::new(DType::from_name(dtype).expect("an element type"), &dims)
}

/// Reads types separated by spaces.
pub fn types(text: &str) -> Vec<TensorType> {
    text.split_whitespace().map(ty).collect()
}

/// Operand and result types that an op takes and gives.
pub struct Accept {
    pub op: Op,
    pub operands: Vec<TensorType>,
    pub results: Vec<TensorType>,
}

/// Operand types that an op refuses, and part of the error.
pub struct Reject {
    pub op: Op,
    pub operands: Vec<TensorType>,
    pub message: String,
}

/// Operands and what the op makes of them.
pub struct Run {
    pub op: Op,
    pub operands: Vec<Tensor>,
    pub expected: Vec<Tensor>,
    /// Allowed error relative to the larger of the value and 1; 0 asks for equal values.
    pub tolerance: f64,
}

/// The gradient that is expected.
#[derive(Clone, Copy, PartialEq)]
pub enum Expected {
    Differences,
    Zero,
}

/// An op whose gradient is compared with central differences of f64 operands.
pub struct Gradient {
    pub op: Op,
    pub operands: Vec<Tensor>,
    /// Operands that get a gradient.
    pub active: Vec<usize>,
    /// Half the distance of the two points.
    pub step: f64,
    pub expected: Expected,
    /// Whether the gradient's own gradient is compared too.
    pub second: bool,
}

/// An op that cannot be differentiated in one operand, and part of the error.
pub struct Refusal {
    pub op: Op,
    pub operands: Vec<TensorType>,
    pub active: usize,
    pub message: String,
}

/// All that is checked of one op.
pub struct Entry {
    pub name: String,
    pub accepts: Vec<Accept>,
    pub rejects: Vec<Reject>,
    pub runs: Vec<Run>,
    pub gradients: Vec<Gradient>,
    /// The cases in which differentiation must fail, each with part of its error.
    pub refusals: Vec<Refusal>,
    /// The reason why there is nothing to differentiate.
    pub no_gradient: Option<&'static str>,
    pub vjp_snapshot: bool,
    /// Part of the error with which batching must fail.
    pub no_batch: Option<&'static str>,
}

impl Entry {
    pub fn new(name: impl Into<String>) -> Entry {
        Entry {
            name: name.into(),
            accepts: Vec::new(),
            rejects: Vec::new(),
            runs: Vec::new(),
            gradients: Vec::new(),
            refusals: Vec::new(),
            no_gradient: None,
            vjp_snapshot: false,
            no_batch: None,
        }
    }

    /// `signature` is `operands -> results`. The first accepted signature is the one in the snapshot.
    pub fn accept(mut self, op: impl Into<Op>, signature: &str) -> Entry {
        let (operands, results) = signature.split_once("->").expect("an arrow");
        self.accepts.push(Accept { op: op.into(), operands: types(operands), results: types(results) });
        self
    }

    pub fn reject(mut self, op: impl Into<Op>, operands: &str, message: &str) -> Entry {
        self.rejects.push(Reject { op: op.into(), operands: types(operands), message: message.to_owned() });
        self
    }

    pub fn run(
        mut self,
        op: impl Into<Op>,
        operands: &[Tensor],
        expected: impl IntoIterator<Item = Tensor>,
        tolerance: f64,
    ) -> Entry {
        let expected = expected.into_iter().collect();
        self.runs.push(Run { op: op.into(), operands: operands.to_vec(), expected, tolerance });
        self
    }

    /// The gradient in all f64 operands, and its gradient.
    pub fn gradient(self, op: impl Into<Op>, operands: &[Tensor]) -> Entry {
        let active: Vec<usize> = (0..operands.len()).filter(|&i| operands[i].ty.dtype == DType::F64).collect();
        let mut entry = self.gradient_in(op, operands, &active);
        entry.gradients.last_mut().expect("a gradient case").second = true;
        entry
    }

    /// The gradient in some operands.
    pub fn gradient_in(mut self, op: impl Into<Op>, operands: &[Tensor], active: &[usize]) -> Entry {
        self.gradients.push(Gradient {
            op: op.into(),
            operands: operands.to_vec(),
            active: active.to_vec(),
            step: 1e-5,
            expected: Expected::Differences,
            second: false,
        });
        self
    }

    /// Changes the gradient case added last: a linear op may take steps that its element types represent.
    pub fn with_step(mut self, step: f64) -> Entry {
        self.gradients.last_mut().expect("a gradient case").step = step;
        self
    }

    /// Changes the gradient case added last: there is no gradient, whatever the differences are.
    pub fn expect_zero(mut self) -> Entry {
        self.gradients.last_mut().expect("a gradient case").expected = Expected::Zero;
        self
    }

    pub fn refuse_gradient(self, op: impl Into<Op>, operands: &str, message: &str) -> Entry {
        self.refuse_gradient_in(op, operands, 0, message)
    }

    pub fn refuse_gradient_in(mut self, op: impl Into<Op>, operands: &str, active: usize, message: &str) -> Entry {
        let message = message.to_owned();
        self.refusals.push(Refusal { op: op.into(), operands: types(operands), active, message });
        self
    }

    pub fn without_gradient(mut self, reason: &'static str) -> Entry {
        self.no_gradient = Some(reason);
        self
    }

    /// Batching fails with this message.
    pub fn without_batching(mut self, message: &'static str) -> Entry {
        self.no_batch = Some(message);
        self
    }

    /// The vector-Jacobian product of the first accepted signature has a snapshot too.
    pub fn with_vjp_snapshot(mut self) -> Entry {
        self.vjp_snapshot = true;
        self
    }
}

/// A graph made by a closure, with inputs of the given types.
pub fn graph(name: &str, inputs: &[TensorType], f: impl FnOnce(&mut GraphBuilder, &[Value]) -> Vec<Value>) -> Graph {
    let mut builder = GraphBuilder::new(name);
    let inputs: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, ty)| builder.input(ty.clone(), PortInfo::named(format!("x{index}"))))
        .collect();
    let outputs = f(&mut builder, &inputs);
    let info = vec![PortInfo::default(); outputs.len()];
    builder.finish(outputs, info)
}

/// A node with one result.
#[track_caller]
pub fn push(builder: &mut GraphBuilder, op: impl Into<Op>, operands: &[Value]) -> Value {
    builder.push1(op, operands).unwrap_or_else(|error| panic!("{error}"))
}
