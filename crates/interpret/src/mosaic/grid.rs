//! The grid: which blocks the body sees at each step, and when blocks of results are written back.

use std::cell::RefCell;
use std::rc::Rc;

use meshloom::hlo::{DType, Dims, TensorType};
use meshloom_mosaic::text::{Element, Space, Type};

use super::ops::Frame;
use super::parse::Function;
use super::value::{Array, Memory, Tensor, Value};
use crate::moves::{positions, strides};
use crate::windows::index_of;

/// A block of an array, as it moves over the array.
struct Window<'f> {
    index: &'f Function<'f>,
    block: Memory,
    array: Array,
    /// The places of the block's elements in the array; none before the first step.
    at: Vec<isize>,
    is_result: bool,
}

impl Window<'_> {
    /// Moves to the block of a step.
    fn go(&mut self, arguments: &[Value]) {
        let index = |value| match value {
            Value::Data(tensor) if tensor.dims.is_empty() => tensor.data[0],
            _ => panic!("{} returns no scalars", self.index.name),
        };
        let to: Vec<f64> = Frame::new(self.index, arguments).run(&self.index.ops).into_iter().map(index).collect();
        let block = self.block.borrow().dims.clone();
        let dims = &self.array.ty().dims;
        let is_within =
            |(axis, &index): (usize, &f64)| index >= 0.0 && (index as usize + 1) * block[axis] <= dims[axis];
        let fits = to.len() == dims.len() && to.iter().enumerate().all(is_within);
        assert!(fits, "{} gives block {to:?} of {dims:?} in blocks of {block:?}", self.index.name);
        let strides = strides(dims);
        let base = (0..to.len()).map(|axis| to[axis] as isize * block[axis] as isize * strides[axis]).sum();
        // The first place says which block it is.
        if self.at.first() == Some(&base) {
            return;
        }
        self.write_back();
        self.at = positions(base, &block, &strides);
        let mut block = self.block.borrow_mut();
        for (number, &place) in block.data.iter_mut().zip(&self.at) {
            *number = if self.is_result { f64::NAN } else { self.array.data[place as usize] };
        }
    }

    fn write_back(&mut self) {
        if self.is_result {
            let block = self.block.borrow();
            self.at.iter().zip(&block.data).for_each(|(&place, &number)| self.array.data[place as usize] = number);
        }
    }
}

fn memory(tensor: Tensor) -> Memory {
    Rc::new(RefCell::new(tensor))
}

/// Runs a kernel on whole arrays.
pub(super) fn run(functions: &[Function<'_>], operands: &[Array], results: &[TensorType]) -> Vec<Array> {
    let kernel = functions.iter().find(|function| !function.attributes.text("iteration_bounds").is_empty());
    let kernel = kernel.expect("a function with a grid");
    let (bounds, operands) = grid(kernel, operands);
    assert!(!bounds.contains(&0), "a grid without steps");
    let [scalar_count, scratch_count] = ["scalar_prefetch", "scratch_operands"]
        .map(|name| kernel.attributes.number(name).expect("counts of operands") as usize);
    let types: Vec<&Type> = kernel.arguments.iter().map(|(_, ty)| ty).collect();
    let window_count = operands.len().saturating_sub(scalar_count) + results.len();
    let fits = types.len() == bounds.len() + scalar_count + window_count + scratch_count;
    let fits = fits && operands.len() >= scalar_count;
    assert!(fits, "{} operands and {} results do not fit the kernel", operands.len(), results.len());
    let (_, rest) = types.split_at(bounds.len());
    let (scalar_types, rest) = rest.split_at(scalar_count);
    let (window_types, scratch_types) = rest.split_at(window_count);
    let scalars: Vec<Value> = scalar_types.iter().zip(operands).map(|(ty, array)| scalars(ty, array)).collect();
    let given = operands[scalar_count..].iter().map(|array| (array.clone(), false));
    let arrays = given.chain(results.iter().map(|ty| (Array::unwritten(ty), true))).collect();
    let mut windows = windows(functions, kernel, window_types, arrays);
    let scratch: Vec<Memory> =
        scratch_types.iter().map(|ty| memory(Tensor::unwritten(ty.element(), ty.dims()))).collect();
    let semantics: Vec<&str> = kernel.attributes.text("dimension_semantics").split(',').collect();
    let mut core = None;
    for step in 0..bounds.iter().product() {
        let position = index_of(step, &bounds);
        let of_core = position.iter().zip(&semantics).filter(|(_, semantics)| semantics.contains("<parallel>"));
        let now: Vec<usize> = of_core.map(|(&index, _)| index).collect();
        if core.replace(now.clone()) != Some(now) {
            scratch.iter().for_each(|memory| memory.borrow_mut().data.fill(f64::NAN));
        }
        let index = |&index: &usize| {
            let tensor = Tensor { element: Element::I32, dims: Dims::new(), data: vec![index as f64] };
            Value::Data(Rc::new(tensor))
        };
        let mut arguments: Vec<Value> = position.iter().map(index).chain(scalars.iter().cloned()).collect();
        windows.iter_mut().for_each(|window| window.go(&arguments));
        let blocks = windows.iter().map(|window| &window.block).chain(&scratch);
        arguments.extend(blocks.map(|block| Value::Memory(block.clone())));
        Frame::new(kernel, &arguments).run(&kernel.ops);
    }
    windows.iter_mut().for_each(Window::write_back);
    windows.into_iter().filter(|window| window.is_result).map(|window| window.array).collect()
}

/// The sizes of the grid, and the other operands. Operands give the sizes that the text leaves open.
fn grid<'o>(kernel: &Function<'_>, operands: &'o [Array]) -> (Vec<usize>, &'o [Array]) {
    let mut rest = operands;
    let bound = |bound: i64| match bound {
        i64::MIN => {
            let (count, others) = rest.split_first().expect("a count of the grid");
            assert_eq!(*count.ty(), TensorType::scalar(DType::S32), "the type of a count");
            rest = others;
            count.data()[0] as usize
        }
        bound => bound as usize,
    };
    (kernel.attributes.numbers("iteration_bounds").into_iter().map(bound).collect(), rest)
}

fn scalars(ty: &Type, array: &Array) -> Value {
    let Type::Memref(Element::I32, dims, Space::Smem) = ty else { panic!("{ty} for scalars") };
    assert_eq!(array.ty().dims, *dims, "scalars");
    Value::Memory(memory(Tensor { element: Element::I32, dims: dims.clone(), data: array.data().to_vec() }))
}

fn windows<'f>(
    functions: &'f [Function<'f>],
    kernel: &Function<'_>,
    types: &[&Type],
    arrays: Vec<(Array, bool)>,
) -> Vec<Window<'f>> {
    let params = kernel.attributes.dictionaries("window_params");
    assert_eq!(params.len(), types.len(), "windows of the kernel");
    let window = |((ty, param), (array, is_result)): ((&&Type, _), (Array, bool))| {
        let param: super::parse::Attributes<'_> = param;
        let name = param.text("transform_indices").trim_start_matches('@');
        let index = functions.iter().find(|function| function.name == name);
        let fits =
            param.numbers::<usize>("window_bounds") == ty.dims() && ty.element().dtype() == Some(array.ty().dtype);
        let (Some(index), true) = (index, fits && array.ty().rank() == ty.dims().len()) else {
            panic!("a window of {ty} on {:?}{:?}", array.ty().dtype, array.ty().dims);
        };
        let block = memory(Tensor::unwritten(ty.element(), ty.dims()));
        Window { index, block, array, at: Vec::new(), is_result }
    };
    types.iter().zip(params).zip(arrays).map(window).collect()
}
