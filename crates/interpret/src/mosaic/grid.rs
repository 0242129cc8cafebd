//! The grid: which blocks the body sees at each step, and when blocks of results are written back.

use std::cell::RefCell;
use std::rc::Rc;

use meshloom::hlo::{DType, TensorType};
use meshloom_mosaic::text::{Element, Space, Type};

use super::InterpretError;
use super::ops::Frame;
use super::parse::{Attribute, Function, Module};
use super::value::{Array, Tensor, Value, advance};

/// A block of an array, as it moves over the array.
struct Window<'a> {
    index: &'a Function,
    block: Rc<RefCell<Tensor>>,
    array: Array,
    /// The indices of the block; `None` before the first step.
    at: Option<Vec<usize>>,
    is_result: bool,
}

fn call(problem: impl Into<String>) -> InterpretError {
    InterpretError::Call(problem.into())
}

impl Window<'_> {
    /// Moves to the block of a step.
    fn go(&mut self, arguments: &[Value]) -> Result<(), InterpretError> {
        let name = &self.index.name;
        let mut to = Vec::new();
        for value in Frame::new(self.index, arguments).run(&self.index.ops)? {
            match value {
                Value::Data(tensor) if tensor.dims.is_empty() => to.push(tensor.data[0]),
                _ => return Err(call(format!("{name} returns no scalars"))),
            }
        }
        let block = self.block.borrow().dims.clone();
        let dims = &self.array.ty().dims;
        let is_within =
            |(axis, &index): (usize, &f64)| index >= 0.0 && (index as usize + 1) * block[axis] <= dims[axis];
        if to.len() != dims.len() || !to.iter().enumerate().all(is_within) {
            return Err(call(format!("{name} gives block {to:?} of {dims:?} in blocks of {block:?}")));
        }
        let to: Vec<usize> = to.into_iter().map(|index| index as usize).collect();
        if self.at.as_ref() != Some(&to) {
            self.write_back();
            let mut block = self.block.borrow_mut();
            if self.is_result {
                block.data.fill(f64::NAN);
            } else {
                self.array.copy_block(&mut block, &to, false);
            }
            self.at = Some(to);
        }
        Ok(())
    }

    fn write_back(&mut self) {
        if let (Some(at), true) = (&self.at, self.is_result) {
            self.array.copy_block(&mut self.block.borrow_mut(), at, true);
        }
    }
}

fn attribute<'a>(function: &'a Function, name: &str) -> Result<&'a Attribute, InterpretError> {
    function.attributes.get(name).ok_or_else(|| call(format!("the kernel has no {name}")))
}

fn count(function: &Function, name: &str) -> Result<usize, InterpretError> {
    match attribute(function, name)? {
        Attribute::Number(number) => Ok(*number as usize),
        _ => Err(call(format!("{name} is no number"))),
    }
}

/// Runs a kernel on whole arrays.
pub(super) fn run(module: &Module, operands: &[Array], results: &[TensorType]) -> Result<Vec<Array>, InterpretError> {
    let kernel = module.functions.iter().find(|function| function.attributes.contains_key("iteration_bounds"));
    let kernel = kernel.ok_or_else(|| call("no function has a grid"))?;
    let (bounds, operands) = grid(attribute(kernel, "iteration_bounds")?, operands)?;
    if bounds.contains(&0) {
        return Err(call("a grid without steps"));
    }
    let (scalar_count, scratch_count) = (count(kernel, "scalar_prefetch")?, count(kernel, "scratch_operands")?);
    let types: Vec<&Type> = kernel.arguments.iter().map(|(_, ty)| ty).collect();
    let window_count = operands.len().saturating_sub(scalar_count) + results.len();
    if types.len() != bounds.len() + scalar_count + window_count + scratch_count || operands.len() < scalar_count {
        return Err(call(format!("{} operands and {} results do not fit the kernel", operands.len(), results.len())));
    }
    let (_, rest) = types.split_at(bounds.len());
    let (scalar_types, rest) = rest.split_at(scalar_count);
    let (window_types, scratch_types) = rest.split_at(window_count);
    let scalars =
        scalar_types.iter().zip(operands).map(|(ty, array)| scalars(ty, array)).collect::<Result<Vec<_>, _>>()?;
    let given = operands[scalar_count..].iter().map(|array| (array.clone(), false));
    let arrays = given.chain(results.iter().map(|ty| (Array::unwritten(ty), true))).collect();
    let (values, mut windows) = windows(module, kernel, window_types, arrays)?;
    let (scratch_values, scratch): (Vec<_>, Vec<_>) =
        scratch_types.iter().map(|ty| Value::memory(Tensor::unwritten(ty.element(), ty.dims()))).unzip();
    let parallel = parallel_axes(kernel)?;
    let mut position = vec![0; bounds.len()];
    let mut core = None;
    loop {
        let now: Vec<usize> = parallel.iter().map(|&axis| position[axis]).collect();
        if core.replace(now.clone()) != Some(now) {
            scratch.iter().for_each(|memory| memory.borrow_mut().data.fill(f64::NAN));
        }
        let indices = position.iter().map(|&index| Value::of(Tensor::scalar(Element::I32, index as f64)));
        let mut arguments: Vec<Value> = indices.chain(scalars.iter().cloned()).collect();
        windows.iter_mut().try_for_each(|window| window.go(&arguments))?;
        arguments.extend(values.iter().chain(&scratch_values).cloned());
        Frame::new(kernel, &arguments).run(&kernel.ops)?;
        if !advance(&mut position, &bounds) {
            break;
        }
    }
    windows.iter_mut().for_each(Window::write_back);
    Ok(windows.into_iter().filter(|window| window.is_result).map(|window| window.array).collect())
}

/// The sizes of the grid, and the other operands. Operands give the sizes that the text leaves open.
fn grid<'a>(bounds: &Attribute, operands: &'a [Array]) -> Result<(Vec<usize>, &'a [Array]), InterpretError> {
    let bounds = bounds.bounds().ok_or_else(|| call("the bounds of the grid are no numbers"))?;
    let unknown = bounds.iter().filter(|bound| bound.is_none()).count();
    let (counts, rest) = operands.split_at_checked(unknown).ok_or_else(|| call("the grid needs more counts"))?;
    let count = |array: &Array| match array.data() {
        &[number] if array.ty().rank() == 0 && array.ty().dtype == DType::S32 && number >= 0.0 => Ok(number as usize),
        _ => Err(call(format!("{:?}{:?} {:?} for a count", array.ty().dtype, array.ty().dims, array.data()))),
    };
    let mut counts = counts.iter();
    let known = |bound: Option<usize>| match bound {
        Some(size) => Ok(size),
        None => counts.next().map_or_else(|| Err(call("the grid needs more counts")), count),
    };
    Ok((bounds.into_iter().map(known).collect::<Result<_, _>>()?, rest))
}

fn scalars(ty: &Type, array: &Array) -> Result<Value, InterpretError> {
    let Type::Memref(Element::I32, dims, Space::Smem) = ty else { return Err(call(format!("{ty} for scalars"))) };
    if array.ty().dims != *dims {
        return Err(call(format!("{} scalars, expected {dims:?}", array.data().len())));
    }
    Ok(Value::memory(Tensor { element: Element::I32, dims: dims.clone(), data: array.data().to_vec() }).0)
}

/// The axes that cores may divide.
fn parallel_axes(kernel: &Function) -> Result<Vec<usize>, InterpretError> {
    let semantics = attribute(kernel, "dimension_semantics")?.list().ok_or_else(|| call("no semantics of the grid"))?;
    let parallel = Attribute::Other("#tpu.dimension_semantics<parallel>".into());
    Ok((0..semantics.len()).filter(|&axis| semantics[axis] == parallel).collect())
}

/// The windows of a kernel, with the values by which the body knows them.
fn windows<'a>(
    module: &'a Module,
    kernel: &Function,
    types: &[&Type],
    arrays: Vec<(Array, bool)>,
) -> Result<(Vec<Value>, Vec<Window<'a>>), InterpretError> {
    let params = attribute(kernel, "window_params")?.list().unwrap_or_default();
    if params.len() != types.len() {
        return Err(call(format!("{} windows for {} arrays", params.len(), types.len())));
    }
    let (mut values, mut windows) = (Vec::new(), Vec::new());
    for ((ty, param), (array, is_result)) in types.iter().zip(params).zip(arrays) {
        let Attribute::Dictionary(param) = param else { return Err(call("a window without parameters")) };
        let name = param.get("transform_indices");
        let index = module.functions.iter().find(|function| name == Some(&Attribute::Name(function.name.clone())));
        let block = param.get("window_bounds").and_then(Attribute::counts);
        let fits = block.as_deref() == Some(ty.dims()) && ty.element().dtype() == Some(array.ty().dtype);
        let (Some(index), true) = (index, fits && array.ty().rank() == ty.dims().len()) else {
            return Err(call(format!("a window of {ty} on {:?}{:?}", array.ty().dtype, array.ty().dims)));
        };
        let (value, block) = Value::memory(Tensor::unwritten(ty.element(), ty.dims()));
        values.push(value);
        windows.push(Window { index, block, array, at: None, is_result });
    }
    Ok((values, windows))
}
