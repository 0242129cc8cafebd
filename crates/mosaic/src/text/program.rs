//! The module of a kernel: its function, with the functions that say which blocks it works on.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::ops;

use meshloom_hlo::{Dims, TensorType};

use super::{Body, Element, Space, Type, VERSION, Value};
use crate::{Cost, Kernel, KernelError, Operand};

/// The most numbers that scalar memory holds for a kernel: 1 MiB, less what libtpu keeps there.
pub(crate) const SCALAR_LIMIT: usize = 250_000;

/// The size of one dimension of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Steps that share no result: the cores of a chip may divide them.
    Parallel(usize),
    /// Steps that go in order, and may go on with the results of those before.
    Sequential(usize),
    /// As [`Axis::Sequential`], but an operand says how many steps there are: at least one, and at most this number.
    Counted(usize),
}

/// How MLIR writes a bound that is not known.
const DYNAMIC: i64 = i64::MIN;

impl Axis {
    const fn size(self) -> usize {
        match self {
            Axis::Parallel(size) | Axis::Sequential(size) | Axis::Counted(size) => size,
        }
    }

    const fn bound(self) -> i64 {
        match self {
            Axis::Parallel(size) | Axis::Sequential(size) => size as i64,
            Axis::Counted(_) => DYNAMIC,
        }
    }

    const fn semantics(self) -> &'static str {
        match self {
            Axis::Parallel(_) => "#tpu.dimension_semantics<parallel>",
            Axis::Sequential(_) | Axis::Counted(_) => "#tpu.dimension_semantics<arbitrary>",
        }
    }
}

/// An argument of a kernel, as the body refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    role: Role,
    index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Scalars,
    Input,
    Output,
    Scratch,
}

/// The place of a step in the grid, and the prefetched scalars: what the choice of a block may depend on.
#[derive(Debug)]
pub struct GridPosition {
    /// The index along each axis, `i32`.
    pub axes: Vec<Value>,
    scalars: Vec<Value>,
}

/// The arguments of a kernel's body.
#[derive(Debug)]
pub struct Refs {
    /// Where in the grid the step stands.
    pub grid: GridPosition,
    blocks: [Vec<Value>; 3],
}

impl ops::Index<Argument> for GridPosition {
    type Output = Value;

    fn index(&self, argument: Argument) -> &Value {
        &self.scalars[argument.index]
    }
}

impl ops::Index<Argument> for Refs {
    type Output = Value;

    fn index(&self, argument: Argument) -> &Value {
        match argument.role {
            Role::Scalars => &self.grid.scalars[argument.index],
            Role::Input => &self.blocks[0][argument.index],
            Role::Output => &self.blocks[1][argument.index],
            Role::Scratch => &self.blocks[2][argument.index],
        }
    }
}

type BlockIndex = Box<dyn Fn(&mut Body, &GridPosition) -> Vec<Value>>;

/// An array; each step of the grid sees a block of it.
pub struct Window {
    name: &'static str,
    element: Element,
    dims: Dims,
    block: Dims,
    index: BlockIndex,
}

impl Window {
    /// A window on an array of these dimensions. `index` gives the index of the block along each dimension, counted in
    /// blocks.
    pub fn new(
        name: &'static str,
        element: Element,
        dims: &[usize],
        block: &[usize],
        index: impl Fn(&mut Body, &GridPosition) -> Vec<Value> + 'static,
    ) -> Window {
        Window { name, element, dims: dims.into(), block: block.into(), index: Box::new(index) }
    }

    fn memref(&self) -> Type {
        Type::Memref(self.element, self.block.clone(), Space::Vmem)
    }

    /// libtpu takes a grid that does not fit its arrays without an error, so it must be an error here.
    fn check(&self) -> Result<(), KernelError> {
        let (dims, block) = (&self.dims, &self.block);
        let rank = dims.len();
        let fits =
            rank >= 2 && rank == block.len() && dims.iter().zip(block).all(|(&n, &b)| b > 0 && n > 0 && n % b == 0);
        if !fits {
            return Err(KernelError::Blocks { operand: self.name, dims: dims.to_vec(), block: block.to_vec() });
        }
        let tiles = if self.element == Element::Bf16 { [16, 128] } else { [8, 128] };
        for (axis, tile) in [rank - 2, rank - 1].into_iter().zip(tiles) {
            if block[axis] % tile != 0 && block[axis] != dims[axis] {
                return Err(KernelError::Tiles { operand: self.name, axis, size: block[axis], tile });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}{:?} in blocks {:?}", self.name, self.element, self.dims, self.block)
    }
}

/// A kernel without its body. The order of operands is: the counts of [`Axis::Counted`], each `s32[]`, then scalars,
/// then inputs, each in the order in which they were added.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    grid: Vec<Axis>,
    scalars: Vec<(&'static str, usize)>,
    inputs: Vec<Window>,
    outputs: Vec<Window>,
    /// The dimensions of memory that keeps its contents from step to step.
    scratch: Vec<Dims>,
}

impl Program {
    /// A kernel that runs once for each point of the grid, the last axis fastest.
    pub fn new(name: &'static str, grid: &[Axis]) -> Program {
        Program { name, grid: grid.to_vec(), scalars: vec![], inputs: vec![], outputs: vec![], scratch: vec![] }
    }

    /// Adds an operand of numbers that lie in scalar memory before the first step.
    pub fn scalars(&mut self, name: &'static str, count: usize) -> Argument {
        self.scalars.push((name, count));
        Argument { role: Role::Scalars, index: self.scalars.len() - 1 }
    }

    /// Adds an operand.
    pub fn input(&mut self, window: Window) -> Argument {
        self.inputs.push(window);
        Argument { role: Role::Input, index: self.inputs.len() - 1 }
    }

    /// Adds a result.
    pub fn output(&mut self, window: Window) -> Argument {
        self.outputs.push(window);
        Argument { role: Role::Output, index: self.outputs.len() - 1 }
    }

    /// Adds `f32` scratch memory.
    pub fn scratch(&mut self, dims: &[usize]) -> Argument {
        self.scratch.push(dims.into());
        Argument { role: Role::Scratch, index: self.scratch.len() - 1 }
    }

    /// Writes the kernel, whose cost is known.
    ///
    /// # Errors
    /// [`KernelError::Blocks`] and [`KernelError::Tiles`] where blocks do not fit arrays or the chip,
    /// [`KernelError::Scalars`] if scalar memory is too small, [`KernelError::Empty`] for a grid without steps, and
    /// [`KernelError::Body`] for a mistake in a body.
    pub fn write(&self, cost: Cost, body: impl FnOnce(&mut Body, &Refs)) -> Result<Kernel, KernelError> {
        self.check()?;
        let mut types = BTreeMap::new();
        let mut functions = self.kernel(body, &mut types)?;
        for window in self.windows() {
            functions += &self.block_index(window, &mut types)?;
        }
        let mut text = String::new();
        for (name, ty) in types {
            let _ = writeln!(text, "{name} = {ty}");
        }
        let _ = write!(
            text,
            "\"builtin.module\"() ({{\n{functions}}}) {{stable_mosaic.version = {VERSION} : i64}} : () -> ()\n"
        );
        let counted = self.grid.iter().filter(|axis| matches!(axis, Axis::Counted(_)));
        let counts = counted.map(|_| ("count", Element::I32, Dims::new()));
        let scalars = self.scalars.iter().map(|&(name, count)| (name, Element::I32, Dims::from_slice(&[count])));
        let inputs = self.inputs.iter().map(|window| (window.name, window.element, window.dims.clone()));
        let operands = counts
            .chain(scalars)
            .chain(inputs)
            .map(|(name, element, dims)| Ok(Operand { name, ty: tensor(element, dims)? }));
        let results = self.outputs.iter().map(|window| tensor(window.element, window.dims.clone()));
        Ok(Kernel {
            text,
            operands: operands.collect::<Result<_, KernelError>>()?,
            results: results.collect::<Result<_, _>>()?,
            cost,
        })
    }

    fn windows(&self) -> impl Iterator<Item = &Window> {
        self.inputs.iter().chain(&self.outputs)
    }

    fn check(&self) -> Result<(), KernelError> {
        self.windows().try_for_each(Window::check)?;
        if self.grid.iter().any(|axis| axis.size() == 0) {
            return Err(KernelError::Empty { kernel: self.name });
        }
        let count = self.scalars.iter().map(|(_, count)| count).sum();
        if count > SCALAR_LIMIT {
            return Err(KernelError::Scalars { kernel: self.name, count, limit: SCALAR_LIMIT });
        }
        Ok(())
    }

    fn arguments(&self, body: &mut Body) -> GridPosition {
        let axes = self.grid.iter().map(|_| body.argument(Type::Scalar(Element::I32))).collect();
        let memref = |count| Type::Memref(Element::I32, Dims::from_slice(&[count]), Space::Smem);
        let scalars = self.scalars.iter().map(|&(_, count)| body.argument(memref(count))).collect();
        GridPosition { axes, scalars }
    }

    fn kernel(
        &self,
        write: impl FnOnce(&mut Body, &Refs),
        types: &mut BTreeMap<String, String>,
    ) -> Result<String, KernelError> {
        let mut body = Body::default();
        let grid = self.arguments(&mut body);
        let mut blocks = |windows: &[Window]| windows.iter().map(|window| body.argument(window.memref())).collect();
        let (inputs, outputs): (Vec<Value>, Vec<Value>) = (blocks(&self.inputs), blocks(&self.outputs));
        let memref = |dims: &Dims| Type::Memref(Element::F32, dims.clone(), Space::Vmem);
        let scratch = self.scratch.iter().map(|dims| body.argument(memref(dims))).collect();
        let refs = Refs { grid, blocks: [inputs, outputs, scratch] };
        body.begin();
        write(&mut body, &refs);
        body.give_back(&[]);
        let arguments: Vec<&Value> =
            refs.grid.axes.iter().chain(&refs.grid.scalars).chain(refs.blocks.iter().flatten()).collect();
        self.function(self.name, body, &arguments, &[], &self.attributes(), types)
    }

    /// The attributes of the kernel's function.
    fn attributes(&self) -> String {
        let join = |texts: Vec<String>| texts.join(", ");
        let bounds = join(self.grid.iter().map(|axis| axis.bound().to_string()).collect());
        let semantics = join(self.grid.iter().map(|axis| axis.semantics().to_owned()).collect());
        let window = |window: &Window| {
            let block = join(window.block.iter().map(usize::to_string).collect());
            format!("{{transform_indices = @{}_block, window_bounds = array<i64: {block}>}}", window.name)
        };
        let windows = self.windows().map(window).collect::<Vec<_>>().join(",\n      ");
        let (scalars, scratch) = (self.scalars.len(), self.scratch.len());
        format!(
            ",\n    iteration_bounds = array<i64: {bounds}>,\n    dimension_semantics = [{semantics}],\n    \
             scalar_prefetch = {scalars} : i64, scratch_operands = {scratch} : i64,\n    \
             tpu.core_type = #tpu.core_type<tc>,\n    \
             window_params = [\n      {windows}]"
        )
    }

    fn block_index(&self, window: &Window, types: &mut BTreeMap<String, String>) -> Result<String, KernelError> {
        let mut body = Body::default();
        let grid = self.arguments(&mut body);
        let indices = (window.index)(&mut body, &grid);
        if indices.len() != window.dims.len() {
            let problem = format!("{} has {} block indices for {:?}", window.name, indices.len(), window.dims);
            return Err(KernelError::Body { kernel: self.name, problem });
        }
        let indices: Vec<&Value> = indices.iter().collect();
        body.give_back(&indices);
        let arguments: Vec<&Value> = grid.axes.iter().chain(&grid.scalars).collect();
        self.function(&format!("{}_block", window.name), body, &arguments, &indices, "", types)
    }

    /// The text of a function whose body is complete.
    fn function(
        &self,
        name: &str,
        mut body: Body,
        arguments: &[&Value],
        results: &[&Value],
        attributes: &str,
        types: &mut BTreeMap<String, String>,
    ) -> Result<String, KernelError> {
        let type_names = |body: &mut Body, values: &[&Value]| -> Vec<String> {
            values.iter().map(|value| body.type_name(value.ty())).collect()
        };
        let (argument_types, result_types) = (type_names(&mut body, arguments), type_names(&mut body, results));
        if let Some(problem) = body.problem.take() {
            return Err(KernelError::Body { kernel: self.name, problem });
        }
        types.append(&mut body.types);
        // Arguments are the first values of a body.
        let named: Vec<String> = argument_types.iter().enumerate().map(|(id, ty)| format!("%{id}: {ty}")).collect();
        Ok(format!(
            "  \"stable_mosaic.func.func\"() ({{\n  ^bb0({}):\n{}  }}) {{sym_name = \"{name}\", \
             function_type = ({}) -> ({}){attributes}}} : () -> ()\n",
            named.join(", "),
            body.into_text(),
            argument_types.join(", "),
            result_types.join(", "),
        ))
    }
}

fn tensor(element: Element, dims: Dims) -> Result<TensorType, KernelError> {
    let dtype = element.dtype().ok_or(KernelError::Element { element: element.name() })?;
    Ok(TensorType { dtype, dims })
}
