//! From a module to a program that runs.

use meshloom_hlo::mesh::{DevicePlace, Mesh};

use super::stages::{Lowered, Ports};
use super::{ArgumentError, Error};
use crate::ir::{Literal, PortInfo, TensorType};
use crate::partition::Ledger;
use crate::pjrt::{
    Array, ArraySpec, CacheUse, Client, CompileCache, CompileOptions, Executable, ExecuteOptions, ShardLayout, Span,
};
use crate::trace::{MapTree, Tree};

impl Lowered {
    /// The layouts of inputs or outputs over the devices: for their padded types, and for the types that the user
    /// knows. `own` are the devices of this process.
    fn array_specs<'t>(
        &self,
        padded: impl Iterator<Item = &'t TensorType>,
        types: impl Iterator<Item = &'t TensorType>,
        info: &[PortInfo],
        own: &[usize],
    ) -> Result<Vec<ArraySpec>, Error> {
        let one = |((padded, ty), info): ((&TensorType, &TensorType), &PortInfo)| {
            let layout = match (self.emitted_mesh(), &info.spec) {
                (Some(mesh), Some(spec)) => ShardLayout::from_boxes(&padded.dims, spec.boxes(mesh, &padded.dims)?)?,
                (mesh, _) => ShardLayout::replicated(&padded.dims, mesh.map_or(1, Mesh::device_count)),
            };
            Ok(ArraySpec { ty: ty.clone(), layout: layout.with_value_dims(&ty.dims)?.with_own(own)? })
        };
        padded.zip(types).zip(info).map(one).collect()
    }

    /// Compiles the module on a client.
    ///
    /// # Errors
    /// The client has too few devices, or the plugin refuses the module.
    pub fn compile(&self, client: &Client) -> Result<Program, Error> {
        self.compile_with(client, &self.compile_options(client)?)
    }

    /// The options that the module needs from a compiler for a client's devices.
    ///
    /// # Errors
    /// The client has too few devices.
    pub fn compile_options(&self, client: &Client) -> Result<CompileOptions, Error> {
        let shares = client.process().is_some() && self.processes <= 1 && self.mesh().is_some();
        let usable = client.devices().iter().filter(|device| device.addressable || shares);
        let options = self.options_on(&usable.map(|device| device.place()).collect::<Vec<_>>())?;
        Ok(if shares { CompileOptions { span: Span::Clients, ..options } } else { options })
    }

    /// The options that the module needs from a compiler: as many partitions as the mesh has devices, or the part of it
    /// that a process has, in the order that suits the mesh.
    ///
    /// # Errors
    /// There are too few devices.
    pub fn options_on(&self, devices: &[DevicePlace]) -> Result<CompileOptions, Error> {
        let Some(mesh) = self.mesh() else { return Ok(CompileOptions::default()) };
        if self.processes > 1 {
            let own = self.emitted_mesh().unwrap_or(mesh).within_process(self.processes);
            let options = CompileOptions::over_mesh(&own, devices)?.with_shardy(self.needs_shardy());
            return Ok(CompileOptions { span: Span::Each(self.processes), ..options });
        }
        Ok(CompileOptions::over_mesh(mesh, devices)?.with_shardy(self.needs_shardy()))
    }

    /// Compiles the module on a client, with options that start from [`Lowered::compile_options`].
    ///
    /// # Errors
    /// As [`Lowered::compile`]; or the plugin does not know an option.
    pub fn compile_with(&self, client: &Client, options: &CompileOptions) -> Result<Program, Error> {
        self.program(client.compile(&self.module.bytes, options)?)
    }

    /// As [`Lowered::compile_with`], but takes the program from a cache if it is there. Also returns whether it was
    /// there.
    ///
    /// # Errors
    /// The errors of [`Lowered::compile_with`].
    pub fn compile_cached(
        &self,
        client: &Client,
        options: &CompileOptions,
        cache: &CompileCache,
    ) -> Result<(Program, CacheUse), Error> {
        let (executable, found) = cache.compile(client, &self.module.bytes, options)?;
        Ok((self.program(executable)?, found))
    }

    /// Type and layout of each input, and of each output, over all devices of the program.
    ///
    /// # Errors
    /// A spec does not fit its type, which is a defect.
    pub fn port_specs(&self) -> Result<(Vec<ArraySpec>, Vec<ArraySpec>), Error> {
        let own: Vec<usize> = (0..self.emitted_mesh().map_or(1, Mesh::device_count)).collect();
        self.specs_of(&own)
    }

    fn specs_of(&self, own: &[usize]) -> Result<(Vec<ArraySpec>, Vec<ArraySpec>), Error> {
        let graph = self.graph();
        let unpadded = self.sharded().and_then(|sharded| sharded.unpadded.clone());
        let ports = unpadded.unwrap_or_else(|| Ports::of(graph));
        // Only the local program knows where it leaves an output that no spec asks for elsewhere.
        let emitted = self.emitted();
        let inputs = self.array_specs(graph.input_types(), ports.inputs.iter(), emitted.input_info(), own)?;
        let outputs = self.array_specs(graph.output_types(), ports.outputs.iter(), emitted.output_info(), own)?;
        Ok((inputs, outputs))
    }

    fn program(&self, executable: Executable) -> Result<Program, Error> {
        let (inputs, outputs) = self.specs_of(executable.places())?;
        let place = self.module.takes_place.then(|| places(&executable).map(Box::new)).transpose()?;
        Ok(Program {
            executable,
            place,
            inputs,
            outputs,
            collectives: self.collectives(),
            warnings: self.warnings().collect(),
        })
    }
}

/// A compiled function of arrays.
#[derive(Clone)]
pub struct Program {
    executable: Executable,
    /// Each device's number, where the module takes it as its last argument.
    place: Option<Box<Array>>,
    inputs: Vec<ArraySpec>,
    outputs: Vec<ArraySpec>,
    collectives: Ledger,
    warnings: Vec<String>,
}

impl Program {
    /// The executable.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// Type and layout of each input.
    pub fn inputs(&self) -> &[ArraySpec] {
        &self.inputs
    }

    /// Type and layout of each output.
    pub fn outputs(&self) -> &[ArraySpec] {
        &self.outputs
    }

    /// Every collective of the program, as [`Lowered::collectives`] returns them.
    pub fn collectives(&self) -> &Ledger {
        &self.collectives
    }

    /// The warnings of the rules and the partitioner, such as a rule for an axis that no tensor has: see
    /// [`Lowered::warnings`](super::LoweredProgram::warnings).
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Copies a tree of literals to the devices, laid out as the inputs from index `first` on.
    ///
    /// # Errors
    /// A literal has another type than its input, there are more literals than inputs, or the plugin is out of memory.
    pub fn put<L>(&self, first: usize, literals: &L) -> Result<L::Mapped, Error>
    where
        L: Tree<Leaf = Literal> + MapTree<Array>,
    {
        Ok(literals.fill(self.put_leaves("input", first, literals)?)?)
    }

    /// As [`Program::put`]; messages say `what` the literals are.
    pub(super) fn put_leaves(
        &self,
        what: &'static str,
        first: usize,
        literals: &impl Tree<Leaf = Literal>,
    ) -> Result<Vec<Array>, Error> {
        let (leaves, paths) = (literals.leaves(), literals.paths());
        let inputs = self.inputs.get(first..).unwrap_or_default();
        if leaves.len() > inputs.len() {
            return Err(ArgumentError::Count { inputs: self.inputs.len(), given: first + leaves.len() }.into());
        }
        let (client, devices) = (self.executable.client(), self.executable.devices());
        let mut arrays = Vec::with_capacity(leaves.len());
        for ((literal, path), spec) in leaves.iter().zip(paths).zip(inputs) {
            if literal.ty() != &spec.ty {
                let (expected, found) = (spec.ty.clone(), literal.ty().clone());
                return Err(ArgumentError::Type { what, path, expected, found }.into());
            }
            arrays.push(Array::put_on(client, literal, &spec.layout, devices)?);
        }
        Ok(arrays)
    }

    /// Starts an execution; results are ready when read. Donated arguments cannot be used again.
    ///
    /// # Errors
    /// An argument has another type or layout than the program's input, or has been donated.
    pub fn run(&self, arguments: &[&Array]) -> Result<Vec<Array>, Error> {
        self.run_with(arguments, &ExecuteOptions::default())
    }

    /// As [`Program::run`], with options.
    ///
    /// # Errors
    /// Also: the time limit of the options is over.
    pub fn run_with(&self, arguments: &[&Array], options: &ExecuteOptions) -> Result<Vec<Array>, Error> {
        let Some(place) = self.place.as_deref() else {
            return Ok(self.executable.run_with(arguments, &self.outputs, options)?);
        };
        if arguments.len() != self.inputs.len() {
            return Err(ArgumentError::Count { inputs: self.inputs.len(), given: arguments.len() }.into());
        }
        let arguments: Vec<&Array> = arguments.iter().copied().chain([place]).collect();
        Ok(self.executable.run_with(&arguments, &self.outputs, options)?)
    }
}

/// The number of each device in the mesh, on that device: `u32`, split into parts of one element.
fn places(executable: &Executable) -> Result<Array, Error> {
    let count = executable.device_count();
    let numbers: Vec<u32> = (0..count as u32).collect();
    let parts = (0..count).map(|device| std::iter::once(device..device + 1).collect()).collect();
    let layout = ShardLayout::from_boxes(&[count], parts)?.with_own(executable.places())?;
    Ok(Array::put_on(executable.client(), &Literal::vector(&numbers), &layout, executable.devices())?)
}
