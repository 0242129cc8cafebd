//! The ops of a function's body.

use std::collections::BTreeMap;
use std::fmt::Write;

use meshloom_hlo::Dims;

use super::{Element, Type};

/// The result of an op, or an argument.
#[derive(Clone, Debug)]
pub struct Value {
    id: usize,
    ty: Type,
}

impl Value {
    /// The sizes of the dimensions. A scalar has none.
    pub fn dims(&self) -> &[usize] {
        self.ty.dims()
    }

    /// The type of the elements.
    pub const fn element(&self) -> Element {
        self.ty.element()
    }

    /// The type.
    pub const fn ty(&self) -> &Type {
        &self.ty
    }
}

/// How two numbers compare; the numbers are the predicates of `arith.cmpi` for signed integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Equal = 0,
    /// Not equal.
    Unequal = 1,
    /// The first is less.
    Less = 2,
    /// The first is greater or equal.
    AtLeast = 5,
}

/// The operation of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The greatest.
    Max,
}

/// The dimensions that a matrix product sums over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// `[m,k] [k,n] -> [m,n]`.
    Plain,
    /// `[m,k] [n,k] -> [m,n]`.
    RightTransposed,
    /// `[k,m] [k,n] -> [m,n]`.
    LeftTransposed,
}

impl Product {
    /// The dimension of each operand that is summed over.
    pub const fn contracted(self) -> [usize; 2] {
        match self {
            Product::Plain => [1, 0],
            Product::RightTransposed => [1, 1],
            Product::LeftTransposed => [0, 0],
        }
    }
}

/// The body of a function while it is written.
#[derive(Debug, Default)]
pub struct Body {
    text: String,
    depth: usize,
    count: usize,
    /// The index 0, once the body is that of a kernel.
    zero: Option<Value>,
    /// The aliases in use, with their types.
    pub(super) types: BTreeMap<String, String>,
    /// The first thing that was wrong.
    pub(super) problem: Option<String>,
}

impl Body {
    pub(super) fn argument(&mut self, ty: Type) -> Value {
        self.count += 1;
        Value { id: self.count - 1, ty }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// The name of a type, whose alias is then declared.
    pub(super) fn type_name(&mut self, ty: &Type) -> String {
        let name = ty.reference();
        if name.starts_with('!') {
            self.types.entry(name.clone()).or_insert_with(|| ty.to_string());
        }
        name
    }

    /// Notes the problem unless the condition holds.
    fn check(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds && self.problem.is_none() {
            self.problem = Some(problem());
        }
    }

    /// Writes an op on a line of its own. `attributes` are without braces.
    fn write(&mut self, name: &str, operands: &[&Value], attributes: &str, result: Option<&Type>) -> usize {
        let names: Vec<String> = operands.iter().map(|operand| format!("%{}", operand.id)).collect();
        let types: Vec<String> = operands.iter().map(|operand| self.type_name(&operand.ty)).collect();
        let result_type = result.map_or_else(|| "()".to_owned(), |ty| self.type_name(ty));
        let attributes = if attributes.is_empty() { String::new() } else { format!(" {{{attributes}}}") };
        let id = self.count;
        self.text.push_str(&"  ".repeat(self.depth + 2));
        if result.is_some() {
            self.count += 1;
            let _ = write!(self.text, "%{id} = ");
        }
        let (names, types) = (names.join(", "), types.join(", "));
        let _ = writeln!(self.text, "\"stable_mosaic.{name}\"({names}){attributes} : ({types}) -> {result_type}");
        id
    }

    fn op(&mut self, name: &str, operands: &[&Value], attributes: &str, ty: Type) -> Value {
        let id = self.write(name, operands, attributes, Some(&ty));
        Value { id, ty }
    }

    /// Returns values from the function.
    pub(super) fn give_back(&mut self, values: &[&Value]) {
        self.write("func.return", values, "", None);
    }

    /// An `i32` constant.
    pub fn int(&mut self, value: i32) -> Value {
        self.op("arith.constant", &[], &format!("value = {value} : i32"), Type::Scalar(Element::I32))
    }

    /// An `f32` constant.
    pub fn float(&mut self, value: f32) -> Value {
        let number = float_text(value);
        self.check(value.is_finite(), || format!("the constant {value} is not finite"));
        self.op("arith.constant", &[], &format!("value = {number} : f32"), Type::Scalar(Element::F32))
    }

    /// Writes what loads and stores in all regions share.
    pub(super) fn begin(&mut self) {
        self.zero = Some(self.index(0));
    }

    fn index(&mut self, value: usize) -> Value {
        self.op("arith.constant", &[], &format!("value = {value} : index"), Type::Scalar(Element::Index))
    }

    /// A vector of equal `f32`.
    pub fn full(&mut self, value: f32, dims: &[usize]) -> Value {
        let ty = Type::Vector(Element::F32, dims.into());
        let (number, name) =
            (if value == f32::NEG_INFINITY { "0xFF800000".into() } else { float_text(value) }, self.type_name(&ty));
        self.op("arith.constant", &[], &format!("value = dense<{number}> : {name}"), ty)
    }

    /// The index of each element along a dimension, `i32`.
    pub fn iota(&mut self, dims: &[usize], dimension: usize) -> Value {
        self.check(dimension < dims.len(), || format!("iota along dimension {dimension} of {dims:?}"));
        let attributes = format!("dimensions = array<i32: {dimension}>");
        self.op("tpu.iota", &[], &attributes, Type::Vector(Element::I32, dims.into()))
    }

    /// One number of scalar memory, at an `i32` index.
    pub fn scalar(&mut self, memory: &Value, index: &Value) -> Value {
        self.check(memory.dims().len() == 1, || format!("a scalar of {}", memory.ty));
        let index = self.op("arith.index_cast", &[index], "", Type::Scalar(Element::Index));
        self.op("memref.load", &[memory, &index], "", Type::Scalar(memory.element()))
    }

    /// A whole block, as a matrix of its last two dimensions; those before have size 1.
    pub fn load(&mut self, memory: &Value) -> Value {
        let dims = Dims::from_slice(memory.dims());
        let split = dims.len().saturating_sub(2);
        self.check(dims.len() >= 2 && dims[..split].iter().all(|&size| size == 1), || {
            format!("no matrix: {}", memory.ty)
        });
        let indices = self.zeros(dims.len());
        let operands: Vec<&Value> = std::iter::once(memory).chain(&indices).collect();
        let loaded = self.op("vector.load", &operands, "", Type::Vector(memory.element(), dims.clone()));
        self.reshape(&loaded, &dims[split..])
    }

    /// Overwrites a whole block by a vector of the same number of elements.
    pub fn store(&mut self, value: &Value, memory: &Value) {
        let dims = Dims::from_slice(memory.dims());
        self.check(value.element() == memory.element(), || format!("{} is stored into {}", value.ty, memory.ty));
        let value = self.reshape(value, &dims);
        let indices = self.zeros(dims.len());
        let operands: Vec<&Value> = [&value, memory].into_iter().chain(&indices).collect();
        let sizes =
            format!("add = false, operandSegmentSizes = array<i32: 1, 1, {}, 0>, strides = array<i32>", dims.len());
        self.write("tpu.vector_store", &operands, &sizes, None);
    }

    /// Overwrites a whole block by zeros.
    pub fn clear(&mut self, memory: &Value) {
        let zero = self.full(0.0, memory.dims());
        let zero = self.convert(&zero, memory.element());
        self.store(&zero, memory);
    }

    /// As many indices 0.
    fn zeros(&mut self, count: usize) -> Vec<Value> {
        let zero = match &self.zero {
            Some(zero) => zero.clone(),
            None => self.index(0),
        };
        vec![zero; count]
    }

    /// The same elements in other dimensions.
    pub fn reshape(&mut self, value: &Value, dims: &[usize]) -> Value {
        if value.dims() == dims {
            return value.clone();
        }
        let same = value.dims().iter().product::<usize>() == dims.iter().product::<usize>();
        self.check(same, || format!("{} has not the elements of {dims:?}", value.ty));
        self.op("vector.shape_cast", &[value], "", Type::Vector(value.element(), dims.into()))
    }

    /// A scalar, or a vector whose dimensions of size 1 are repeated, as a vector of these dimensions.
    pub fn broadcast(&mut self, value: &Value, dims: &[usize]) -> Value {
        if value.dims() == dims {
            return value.clone();
        }
        let fits = |own: &[usize]| own.len() == dims.len() && own.iter().zip(dims).all(|(&a, &b)| a == b || a == 1);
        self.check(value.dims().is_empty() || fits(value.dims()), || {
            format!("{} does not broadcast to {dims:?}", value.ty)
        });
        self.op("vector.broadcast", &[value], "", Type::Vector(value.element(), dims.into()))
    }

    /// Both values, broadcast to the dimensions that they have together.
    fn level(&mut self, a: &Value, b: &Value) -> (Value, Value) {
        let dims: Dims = match (a.dims(), b.dims()) {
            (own, []) | ([], own) => own.into(),
            (left, right) => left.iter().zip(right).map(|(&x, &y)| x.max(y)).collect(),
        };
        (self.broadcast(a, &dims), self.broadcast(b, &dims))
    }

    fn binary(&mut self, names: [&str; 2], a: &Value, b: &Value) -> Value {
        let (a, b) = self.level(a, b);
        self.check(a.ty == b.ty, || format!("{} of {} and {}", names[0], a.ty, b.ty));
        let name = if a.element().is_float() { names[0] } else { names[1] };
        self.op(&format!("arith.{name}"), &[&a, &b], "", a.ty.clone())
    }

    /// `a + b`; as in all functions of two values, each is broadcast to the other.
    pub fn add(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(["addf", "addi"], a, b)
    }

    /// `a - b`.
    pub fn sub(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(["subf", "subi"], a, b)
    }

    /// `a * b`.
    pub fn mul(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(["mulf", "muli"], a, b)
    }

    /// `a / b`.
    pub fn div(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(["divf", "divsi"], a, b)
    }

    /// The greater one.
    pub fn max(&mut self, a: &Value, b: &Value) -> Value {
        self.binary(["maximumf", "maxsi"], a, b)
    }

    /// Both bits; both truth values.
    pub fn and(&mut self, a: &Value, b: &Value) -> Value {
        self.check(!a.element().is_float(), || format!("bits of {}", a.ty));
        self.binary(["andi", "andi"], a, b)
    }

    /// Compares `i32`.
    pub fn compare(&mut self, comparison: Comparison, a: &Value, b: &Value) -> Value {
        let (a, b) = self.level(a, b);
        self.check(a.ty == b.ty && a.element() == Element::I32, || format!("comparison of {} and {}", a.ty, b.ty));
        let ty = match &a.ty {
            Type::Vector(_, dims) => Type::Vector(Element::I1, dims.clone()),
            _ => Type::Scalar(Element::I1),
        };
        self.op("arith.cmpi", &[&a, &b], &format!("predicate = {} : i64", comparison as i32), ty)
    }

    /// `a` where `condition` holds, else `b`; all are broadcast to the condition.
    pub fn select(&mut self, condition: &Value, a: &Value, b: &Value) -> Value {
        let dims = Dims::from_slice(condition.dims());
        let (a, b) = (self.broadcast(a, &dims), self.broadcast(b, &dims));
        self.check(a.ty == b.ty && condition.element() == Element::I1, || format!("choice of {} and {}", a.ty, b.ty));
        self.op("arith.select", &[condition, &a, &b], "", a.ty.clone())
    }

    fn unary(&mut self, name: &str, a: &Value) -> Value {
        self.check(a.element() == Element::F32, || format!("{name} of {}", a.ty));
        self.op(&format!("math.{name}"), &[a], "", a.ty.clone())
    }

    /// The exponential.
    pub fn exp(&mut self, a: &Value) -> Value {
        self.unary("exp", a)
    }

    /// The natural logarithm.
    pub fn log(&mut self, a: &Value) -> Value {
        self.unary("log", a)
    }

    /// The hyperbolic tangent.
    pub fn tanh(&mut self, a: &Value) -> Value {
        self.unary("tanh", a)
    }

    /// The elements in another floating-point type.
    pub fn convert(&mut self, value: &Value, element: Element) -> Value {
        if value.element() == element {
            return value.clone();
        }
        let name = if element == Element::F32 { "extf" } else { "truncf" };
        self.check(value.element().is_float() && element.is_float(), || format!("{} as {element:?}", value.ty));
        self.op(&format!("arith.{name}"), &[value], "", Type::Vector(element, value.dims().into()))
    }

    /// Computes the sum or the greatest element of each column of a matrix: `[m,n] -> [1,n]`, `f32`.
    pub fn reduce_rows(&mut self, reduction: Reduction, value: &Value) -> Value {
        let &[_, columns] = value.dims() else {
            self.check(false, || format!("rows of {}", value.ty));
            return value.clone();
        };
        let (kind, start) = match reduction {
            Reduction::Sum => ("add", 0.0),
            Reduction::Max => ("maximumf", f32::NEG_INFINITY),
        };
        let start = self.full(start, &[columns]);
        let attributes = format!("kind = #vector.kind<{kind}>, reduction_dims = array<i64: 0>");
        let reduced = self.op("vector.multi_reduction", &[value, &start], &attributes, start.ty.clone());
        self.reshape(&reduced, &[1, columns])
    }

    /// A matrix with its dimensions exchanged.
    pub fn transpose(&mut self, value: &Value) -> Value {
        let &[rows, columns] = value.dims() else {
            self.check(false, || format!("transpose of {}", value.ty));
            return value.clone();
        };
        let ty = Type::Vector(value.element(), [columns, rows].as_slice().into());
        self.op("tpu.transpose", &[value], "permutation = array<i64: 1, 0>", ty)
    }

    /// A product of matrices added to `start`, `f32`. Operands are `bf16`, or `f32` multiplied as such.
    pub fn product(&mut self, product: Product, a: &Value, b: &Value, start: &Value) -> Value {
        let [left, right] = product.contracted();
        let fits = match (a.dims(), b.dims(), start.dims()) {
            (a, b, [m, n]) if a.len() == 2 && b.len() == 2 => {
                a[left] == b[right] && a[1 - left] == *m && b[1 - right] == *n
            }
            _ => false,
        };
        let types = [a.element(), start.element()] == [b.element(), Element::F32];
        self.check(fits && types, || format!("{product:?} product of {} and {} on {}", a.ty, b.ty, start.ty));
        let (free_left, free_right) = (1 - left, 1 - right);
        let precision = if a.element() == Element::F32 { ", precision = #tpu.contract_precision<fp32>" } else { "" };
        let attributes = format!(
            "dimension_numbers = #tpu.dot_dimension_numbers<[{left}], [{right}], [{free_left}], [{free_right}], \
             [0, {free_left}, 1, {free_right}], [], []>, transpose_lhs = false, transpose_rhs = false{precision}"
        );
        self.op("tpu.matmul", &[a, b, start], &attributes, start.ty.clone())
    }

    /// Whether some of these bits of an `i32` are set.
    pub fn has_bits(&mut self, flags: &Value, bits: i32) -> Value {
        let (bits, none) = (self.int(bits), self.int(0));
        let both = self.and(flags, &bits);
        self.compare(Comparison::Unequal, &both, &none)
    }

    /// Does something only if a truth value holds.
    pub fn when(&mut self, condition: &Value, then: impl FnOnce(&mut Body)) {
        self.check(condition.ty == Type::Scalar(Element::I1), || format!("a condition of {}", condition.ty));
        let margin = "  ".repeat(self.depth + 2);
        let _ = writeln!(self.text, "{margin}\"stable_mosaic.scf.if\"(%{}) ({{", condition.id);
        self.depth += 1;
        then(self);
        self.write("scf.yield", &[], "", None);
        self.depth -= 1;
        let _ = writeln!(self.text, "{margin}}}, {{");
        let _ = writeln!(self.text, "{margin}}}) : (i1) -> ()");
    }
}

/// A finite number as MLIR reads it: with a point, and as many digits as tell it from all others.
fn float_text(value: f32) -> String {
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}
