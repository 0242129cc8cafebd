//! Compiling programs and running them.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::c_char;
use std::sync::Arc;
use std::{fmt, ptr};

use prost::Message;

use super::api::{Arguments, sized, slice};
use super::array::{Array, ArraySpec};
use super::buffer::{Buffer, dtype_from_raw, type_of};
use super::client::Client;
use super::error::PjrtError;
use super::options::CompileOptions;
use super::program::{self, Parameter};
use super::sys::*;
use crate::hlo::proto::{HloModuleProto, HloModuleProtoWithConfig};
use crate::ir::TensorType;

/// A compiled program on its devices. Cloning gives another handle.
#[derive(Clone)]
pub struct Executable(Arc<Inner>);

struct Inner {
    loaded: *mut PJRT_LoadedExecutable,
    executable: *mut PJRT_Executable,
    client: Client,
    /// Indices of the devices it runs on, in the order of the argument lists.
    devices: Vec<usize>,
    parameters: Vec<Parameter>,
    output_count: usize,
    /// Per output; `None` when the type has no host form here. Empty when the plugin does not say.
    output_types: Vec<Option<TensorType>>,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// How to execute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecuteOptions {
    /// Parameters whose arguments stay usable although the program declares their donation. The plugin copies them.
    pub non_donatable: Vec<usize>,
}

/// What a program needs of each device's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// The program itself.
    pub generated_code: i64,
    /// All arguments.
    pub arguments: i64,
    /// All outputs.
    pub outputs: i64,
    /// The part of the outputs that lies in donated arguments.
    pub aliased: i64,
    /// Scratch memory.
    pub temporary: i64,
    /// The most at any time; 0 when the plugin does not say.
    pub peak: i64,
}

/// The program after XLA's passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizedProgram {
    /// `hlo` (`HloModuleProto`) or `hlo_with_config` (`HloModuleProtoWithConfig`).
    pub format: String,
    /// The serialized message.
    pub bytes: Vec<u8>,
}

impl OptimizedProgram {
    /// The module, decoded.
    ///
    /// # Errors
    /// The bytes are not a message of that format.
    pub fn decode(&self) -> Result<HloModuleProto, PjrtError> {
        let invalid = |reason: String| PjrtError::InvalidModule { reason };
        let wrong = |error: prost::DecodeError| invalid(error.to_string());
        match self.format.as_str() {
            "hlo" => HloModuleProto::decode(&*self.bytes).map_err(wrong),
            "hlo_with_config" => {
                let module = HloModuleProtoWithConfig::decode(&*self.bytes).map_err(wrong)?;
                module.hlo_module.ok_or_else(|| invalid("it has a config, but no module".into()))
            }
            format => Err(invalid(format!("unknown format \"{format}\", expected hlo or hlo_with_config"))),
        }
    }
}

impl Client {
    /// Compiles a serialized `HloModuleProto`.
    ///
    /// Donation is what the module's `input_output_alias` and `buffer_donor` declare.
    pub fn compile(&self, module: &[u8], options: &CompileOptions) -> Result<Executable, PjrtError> {
        let prepared = Prepared::new(self, module, options)?;
        prepared.compile(self, module)
    }
}

/// Module and options after our own checks.
pub(super) struct Prepared {
    pub(super) options: Vec<u8>,
    parameters: Vec<Parameter>,
}

impl Prepared {
    pub(super) fn new(client: &Client, module: &[u8], options: &CompileOptions) -> Result<Prepared, PjrtError> {
        let devices: Vec<i32> = client.devices().iter().filter(|d| d.addressable).map(|d| d.id).collect();
        let assignment = options.assignment(&devices)?;
        let options = options.for_platform(client.platform_name());
        let parameters = program::parameters(module, options.num_partitions > 1)?;
        Ok(Prepared { options: options.encode(&assignment), parameters })
    }

    pub(super) fn compile(&self, client: &Client, module: &[u8]) -> Result<Executable, PjrtError> {
        let format = "hlo";
        let program = sized!(
            PJRT_Program,
            PJRT_Program_STRUCT_SIZE {
                // The plugin only reads it.
                code: module.as_ptr().cast_mut().cast(),
                code_size: module.len(),
                format: format.as_ptr().cast(),
                format_size: format.len(),
            }
        );
        let mut arguments = PJRT_Client_Compile_Args {
            client: client.raw(),
            program: &program,
            compile_options: self.options.as_ptr().cast(),
            compile_options_size: self.options.len(),
            ..Arguments::new()
        };
        // SAFETY: the client is live, and program and options outlive the call. The executable is then ours.
        unsafe {
            client.api().call(&mut arguments)?;
            Executable::owned(client, self.parameters.clone(), arguments.executable)
        }
    }

    /// Loads what [`Executable::serialize`] gave.
    pub(super) fn deserialize(&self, client: &Client, bytes: &[u8]) -> Result<Executable, PjrtError> {
        let mut arguments = PJRT_Executable_DeserializeAndLoad_Args {
            client: client.raw(),
            serialized_executable: bytes.as_ptr().cast(),
            serialized_executable_size: bytes.len(),
            overridden_serialized_compile_options: self.options.as_ptr().cast(),
            overridden_serialized_compile_options_size: self.options.len(),
            ..Arguments::new()
        };
        // SAFETY: the client is live, and the bytes outlive the call. The executable is then ours.
        unsafe {
            client.api().call(&mut arguments)?;
            Executable::owned(client, self.parameters.clone(), arguments.loaded_executable)
        }
    }
}

impl Executable {
    /// # Safety
    /// `loaded` must be a live executable of this client that nobody else frees.
    unsafe fn owned(
        client: &Client,
        parameters: Vec<Parameter>,
        loaded: *mut PJRT_LoadedExecutable,
    ) -> Result<Executable, PjrtError> {
        let api = client.api();
        let mut inner = Inner {
            loaded,
            executable: ptr::null_mut(),
            client: client.clone(),
            devices: Vec::new(),
            parameters,
            output_count: 0,
            output_types: Vec::new(),
        };
        let mut executable = PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: loaded, ..Arguments::new() };
        let mut devices = PJRT_LoadedExecutable_AddressableDevices_Args { executable: loaded, ..Arguments::new() };
        // SAFETY: both handles are live and `inner` frees them; it is the executable that owns the lists.
        unsafe {
            api.call(&mut executable)?;
            inner.executable = executable.executable;
            api.call(&mut devices)?;
            let list = slice(devices.addressable_devices, devices.num_addressable_devices);
            inner.devices = list.iter().filter_map(|&device| client.index_of(device)).collect();
            let mut outputs = PJRT_Executable_NumOutputs_Args { executable: inner.executable, ..Arguments::new() };
            api.call(&mut outputs)?;
            inner.output_count = outputs.num_outputs;
            inner.output_types = inner.read_output_types().unwrap_or_default();
        }
        Ok(Executable(Arc::new(inner)))
    }

    /// The client it runs on.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Indices ([`Client::devices`]) of the devices it runs on, in the order of the argument lists.
    pub fn devices(&self) -> &[usize] {
        &self.0.devices
    }

    /// Its parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.0.parameters
    }

    /// How many outputs each device gives.
    pub fn output_count(&self) -> usize {
        self.0.output_count
    }

    /// The type of each output on one device; `None` for an element type that has no host form here.
    ///
    /// # Errors
    /// When the plugin does not say.
    pub fn output_types(&self) -> Result<&[Option<TensorType>], PjrtError> {
        if self.0.output_types.len() != self.0.output_count {
            return Err(PjrtError::Unsupported { function: "PJRT_Executable_OutputDimensions" });
        }
        Ok(&self.0.output_types)
    }

    /// Starts an execution. `arguments` has one list for each device of [`Executable::devices`], in the order of the
    /// parameters; so has the result for the outputs. Returns before they are computed: reading one waits for it.
    ///
    /// Buffers given for donated parameters cannot be used any more.
    pub fn execute(&self, arguments: &[Vec<Buffer>], options: &ExecuteOptions) -> Result<Vec<Vec<Buffer>>, PjrtError> {
        let inner = &*self.0;
        self.check_arguments(arguments)?;
        if let Some(index) = inner.output_types.iter().position(Option::is_none) {
            // Found out before the execution, so that it consumes nothing.
            return Err(PjrtError::ElementType {
                what: format!("output {index}"),
                name: "a type other than pred, integers and floats of 8 to 64 bits".into(),
            });
        }
        let taken = self.take_donated(arguments, options)?;
        let launched = inner.launch(arguments, options);
        if launched.is_err() {
            taken.iter().for_each(|buffer| buffer.take_back());
        }
        launched
    }

    /// Executes on global arrays: checks each against its parameter, and gives the outputs as arrays with the types and
    /// layouts stated.
    pub fn run(&self, arguments: &[&Array], outputs: &[ArraySpec]) -> Result<Vec<Array>, PjrtError> {
        self.run_with(arguments, outputs, &ExecuteOptions::default())
    }

    /// As [`Executable::run`], with options.
    pub fn run_with(
        &self,
        arguments: &[&Array],
        outputs: &[ArraySpec],
        options: &ExecuteOptions,
    ) -> Result<Vec<Array>, PjrtError> {
        let device_count = self.devices().len();
        check_count(|| "outputs", self.output_count(), outputs.len())?;
        for (index, argument) in arguments.iter().enumerate() {
            check_count(|| format!("shards of {}", self.describe(index)), device_count, argument.shards().len())?;
            let global = self.parameters().get(index).and_then(|parameter| parameter.global_type.as_ref());
            check_type(|| format!("{} as a whole", self.describe(index)), global, argument.ty())?;
        }
        for (index, spec) in outputs.iter().enumerate() {
            check_count(|| format!("shards of output {index}"), device_count, spec.layout.device_count())?;
            for device in 0..device_count {
                let stated = spec.layout.local_type(spec.ty.dtype, device);
                let Some(Some(actual)) = self.0.output_types.get(index) else { continue };
                if let Some(stated) = stated {
                    check_type(|| format!("output {index} as stated, on device {device}"), Some(actual), &stated)?;
                }
            }
        }
        let lists: Vec<Vec<Buffer>> = (0..device_count)
            .map(|device| arguments.iter().map(|argument| argument.shards()[device].clone()).collect())
            .collect();
        let results = self.execute(&lists, options)?;
        let mut by_device: Vec<_> = results.into_iter().map(Vec::into_iter).collect();
        outputs
            .iter()
            .map(|spec| {
                let shards = by_device.iter_mut().filter_map(Iterator::next).collect();
                Array::from_shards(spec.ty.clone(), spec.layout.clone(), shards)
            })
            .collect()
    }

    /// What it needs of each device's memory.
    pub fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        let mut stats =
            PJRT_Executable_GetCompiledMemoryStats_Args { executable: self.0.executable, ..Arguments::new() };
        // SAFETY: the executable is live.
        unsafe { self.client().api().call(&mut stats)? };
        Ok(MemoryStats {
            generated_code: stats.generated_code_size_in_bytes,
            arguments: stats.argument_size_in_bytes,
            outputs: stats.output_size_in_bytes,
            aliased: stats.alias_size_in_bytes,
            temporary: stats.temp_size_in_bytes,
            peak: stats.peak_memory_in_bytes,
        })
    }

    /// The program after XLA's passes, partitioned and optimized.
    pub fn optimized_hlo(&self) -> Result<OptimizedProgram, PjrtError> {
        let mut program = sized!(PJRT_Program, PJRT_Program_STRUCT_SIZE {});
        let mut arguments = PJRT_Executable_OptimizedProgram_Args {
            executable: self.0.executable,
            program: &mut program,
            ..Arguments::new()
        };
        let api = self.client().api();
        // SAFETY: the executable is live. The first call sets the size, the second fills a buffer of that size; the format
        // string is the plugin's and is copied.
        unsafe {
            api.call(&mut arguments)?;
            let mut bytes = vec![0u8; (*arguments.program).code_size];
            (*arguments.program).code = bytes.as_mut_ptr().cast::<c_char>();
            api.call(&mut arguments)?;
            let format = super::api::string((*arguments.program).format, (*arguments.program).format_size);
            Ok(OptimizedProgram { format, bytes })
        }
    }

    /// The compiled program as bytes that the same plugin on the same kind of machine can load.
    pub fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let mut arguments = PJRT_Executable_Serialize_Args { executable: self.0.executable, ..Arguments::new() };
        // SAFETY: the executable is live. The bytes are copied before what holds them is freed, once.
        unsafe {
            self.client().api().call(&mut arguments)?;
            let bytes = slice(arguments.serialized_bytes.cast::<u8>(), arguments.serialized_bytes_size).to_vec();
            if let Some(free) = arguments.serialized_executable_deleter {
                free(arguments.serialized_executable);
            }
            Ok(bytes)
        }
    }

    fn describe(&self, index: usize) -> String {
        self.parameters().get(index).map_or_else(|| format!("argument {index}"), |parameter| parameter.describe(index))
    }

    fn check_arguments(&self, arguments: &[Vec<Buffer>]) -> Result<(), PjrtError> {
        let inner = &*self.0;
        check_count(|| "argument lists, one for each device", inner.devices.len(), arguments.len())?;
        for (position, (list, &device)) in arguments.iter().zip(&inner.devices).enumerate() {
            check_count(|| format!("arguments for device {position}"), inner.parameters.len(), list.len())?;
            for (index, (buffer, parameter)) in list.iter().zip(&inner.parameters).enumerate() {
                let what = || format!("{} for device {position}", parameter.describe(index));
                if !buffer.client().is_same(&inner.client) {
                    return Err(PjrtError::Placement {
                        what: what(),
                        expected: "the executable's client".into(),
                        actual: "another client".into(),
                    });
                }
                if buffer.device() != device {
                    return Err(PjrtError::Placement {
                        what: what(),
                        expected: format!("device {device}"),
                        actual: format!("device {}", buffer.device()),
                    });
                }
                check_type(what, parameter.local_type.as_ref(), buffer.ty())?;
                if !parameter.row_major {
                    return Err(PjrtError::InvalidOption {
                        option: format!("layout of {}", parameter.describe(index)),
                        value: "not row-major".into(),
                        expected: "a module whose parameters are row-major, the only layout buffers have here".into(),
                    });
                }
                if buffer.is_donated() {
                    buffer.check_usable(&what())?;
                }
            }
        }
        Ok(())
    }

    /// Marks the buffers that the execution takes over; none is marked when there is an error.
    fn take_donated<'a>(
        &self,
        arguments: &'a [Vec<Buffer>],
        options: &ExecuteOptions,
    ) -> Result<Vec<&'a Buffer>, PjrtError> {
        let parameters = self.parameters();
        if let Some(&index) = options.non_donatable.iter().find(|&&index| index >= parameters.len()) {
            return Err(PjrtError::InvalidOption {
                option: "non_donatable".into(),
                value: index.to_string(),
                expected: format!("numbers of the program's {} parameters", parameters.len()),
            });
        }
        let mut is_taken: Vec<bool> = parameters.iter().map(|parameter| parameter.donated).collect();
        for &index in &options.non_donatable {
            is_taken[index] = false;
        }
        if !is_taken.contains(&true) {
            return Ok(Vec::new());
        }
        // Buffers of different devices are never the same, so each list is looked at by itself.
        for list in arguments {
            let mut first_use = HashMap::new();
            for (index, buffer) in list.iter().enumerate() {
                if let Some(first) = first_use.insert(buffer.raw(), index)
                    && (is_taken[first] || is_taken[index])
                {
                    let (first, second) = if is_taken[index] { (first, index) } else { (index, first) };
                    return Err(PjrtError::DonatedTwice { first: self.describe(first), second: self.describe(second) });
                }
            }
        }
        let mut taken: Vec<&Buffer> = Vec::new();
        for list in arguments {
            for (index, buffer) in list.iter().enumerate().filter(|&(index, _)| is_taken[index]) {
                if !buffer.donate() {
                    // Another thread was faster.
                    taken.iter().for_each(|buffer| buffer.take_back());
                    return Err(PjrtError::Donated { what: self.describe(index), ty: buffer.ty().clone() });
                }
                taken.push(buffer);
            }
        }
        Ok(taken)
    }
}

impl Inner {
    fn launch(&self, arguments: &[Vec<Buffer>], options: &ExecuteOptions) -> Result<Vec<Vec<Buffer>>, PjrtError> {
        let lists: Vec<Vec<*mut PJRT_Buffer>> =
            arguments.iter().map(|list| list.iter().map(Buffer::raw).collect()).collect();
        let list_pointers: Vec<*const *mut PJRT_Buffer> = lists.iter().map(|list| list.as_ptr()).collect();
        let mut outputs: Vec<Vec<*mut PJRT_Buffer>> =
            vec![vec![ptr::null_mut(); self.output_count]; self.devices.len()];
        let output_pointers: Vec<*mut *mut PJRT_Buffer> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let non_donatable: Vec<i64> = options.non_donatable.iter().map(|&index| index as i64).collect();
        let mut execute_options = sized!(
            PJRT_ExecuteOptions,
            PJRT_ExecuteOptions_STRUCT_SIZE {
                non_donatable_input_indices: non_donatable.as_ptr(),
                num_non_donatable_input_indices: non_donatable.len(),
            }
        );
        let mut call = PJRT_LoadedExecutable_Execute_Args {
            executable: self.loaded,
            options: &mut execute_options,
            argument_lists: list_pointers.as_ptr(),
            num_devices: lists.len(),
            num_args: self.parameters.len(),
            output_lists: output_pointers.as_ptr(),
            ..Arguments::new()
        };
        let api = self.client.api();
        // SAFETY: executable and buffers are live; there is one list for each device, of as many arguments and room for as
        // many outputs as the program has. The output buffers are then ours.
        unsafe {
            api.call(&mut call)?;
            // The types first: should one be unknown, there are no handles yet that would free the buffers.
            let types = outputs.first().map(|list| self.types_of(list)).transpose();
            let types = types.inspect_err(|_| {
                for &buffer in outputs.iter().flatten() {
                    api.destroy(PJRT_Buffer_Destroy_Args { buffer, ..Arguments::new() });
                }
            })?;
            let own = |(list, &device): (&Vec<*mut PJRT_Buffer>, &usize)| {
                let typed = list.iter().zip(types.iter().flatten());
                typed.map(|(&raw, ty)| Buffer::owned(&self.client, device, ty.clone(), raw)).collect()
            };
            Ok(outputs.iter().zip(&self.devices).map(own).collect())
        }
    }

    /// The types of one device's outputs; those of all devices are equal.
    ///
    /// # Safety
    /// The buffers must be live.
    unsafe fn types_of(&self, outputs: &[*mut PJRT_Buffer]) -> Result<Vec<TensorType>, PjrtError> {
        let api = self.client.api();
        let known = |(index, &raw): (usize, &*mut PJRT_Buffer)| match self.output_types.get(index) {
            Some(Some(ty)) => Ok(ty.clone()),
            // SAFETY: the caller's promise.
            _ => unsafe { type_of(api, raw) },
        };
        outputs.iter().enumerate().map(known).collect()
    }

    /// # Safety
    /// The executable must be live.
    unsafe fn read_output_types(&self) -> Result<Vec<Option<TensorType>>, PjrtError> {
        let api = self.client.api();
        let mut elements = PJRT_Executable_OutputElementTypes_Args { executable: self.executable, ..Arguments::new() };
        let mut dimensions = PJRT_Executable_OutputDimensions_Args { executable: self.executable, ..Arguments::new() };
        // SAFETY: the executable is live and owns the lists; there are as many dimensions as the ranks add up to.
        unsafe {
            api.call(&mut elements)?;
            api.call(&mut dimensions)?;
            let ranks = slice(dimensions.dim_sizes, dimensions.num_outputs);
            let mut dims = slice(dimensions.dims, ranks.iter().sum());
            let mut types = Vec::with_capacity(ranks.len());
            for (&element, &rank) in slice(elements.output_types, elements.num_output_types).iter().zip(ranks) {
                let (own, rest) = dims.split_at_checked(rank).unwrap_or_default();
                dims = rest;
                let own = own.iter().map(|&size| size.max(0) as usize).collect();
                types.push(dtype_from_raw(element).map(|dtype| TensorType { dtype, dims: own }));
            }
            Ok(types)
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let api = self.client.api();
        // SAFETY: the last handle is going, and the client is still there. Running executions keep what they need.
        unsafe {
            if !self.executable.is_null() {
                api.destroy(PJRT_Executable_Destroy_Args { executable: self.executable, ..Arguments::new() });
            }
            api.destroy(PJRT_LoadedExecutable_Destroy_Args { executable: self.loaded, ..Arguments::new() });
        }
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parameters, devices) = (self.0.parameters.len(), self.0.devices.len());
        write!(f, "Executable({parameters} parameters, {} outputs, {devices} devices)", self.0.output_count)
    }
}

pub(super) fn check_count<S: Into<String>>(
    what: impl FnOnce() -> S,
    expected: usize,
    actual: usize,
) -> Result<(), PjrtError> {
    if expected == actual { Ok(()) } else { Err(PjrtError::Count { what: what().into(), expected, actual }) }
}

fn check_type(
    what: impl FnOnce() -> String,
    expected: Option<&TensorType>,
    actual: &TensorType,
) -> Result<(), PjrtError> {
    match expected {
        Some(expected) if expected != actual => {
            Err(PjrtError::Type { what: what(), expected: expected.clone().into(), actual: actual.clone().into() })
        }
        _ => Ok(()),
    }
}
