//! Compiling programs and running them.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use std::{fmt, ptr, thread};

use super::api::{Arguments, Owned, sized, slice};
use super::buffer::{Buffer, type_of};
use super::client::Client;
use super::compiled::{Compiled, CostAnalysis, MemoryStats, OptimizedProgram, unimplemented};
use super::error::PjrtError;
use super::files::io_error;
use super::loaded::Loaded;
use super::options::{CompileOptions, ProgramFormat, Span};
use super::program::{self, Language, Parameter, ProgramInfo};
use super::sys::*;
use meshloom_hlo::TensorType;

/// The target of the event (level DEBUG) that precedes each compilation by a plugin in this process. Its field `bytes`
/// has the size of the module, and its message is the module's name.
pub const COMPILATION: &str = "meshloom_pjrt::compilation";

/// A compiled program on its devices. Cloning gives another handle.
#[derive(Clone)]
pub struct Executable {
    /// The program must go before its client: fields are dropped in order of declaration.
    loaded: Arc<Loaded>,
    client: Client,
}

/// How to execute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecuteOptions {
    /// Parameters whose arguments stay usable although the program declares their donation. The plugin copies them.
    pub non_donatable: Vec<usize>,
    /// The most time for starting the program and computing all results. With a limit, [`Executable::execute`] waits
    /// for the results; without one, some plugins still compute cheap programs before it returns.
    ///
    /// A program that takes longer gives [`PjrtError::TimedOut`] and runs on, for PJRT has no way to end it: arguments
    /// that it took are gone. All handles can be dropped; but the client's last one waits for what still runs on its
    /// devices. [`end_process`](super::end_process) ends a process that need not wait.
    pub time_limit: Option<Duration>,
}

impl Client {
    /// Compiles a serialized `HloModuleProto`.
    ///
    /// Donation is what the module's `input_output_alias` and `buffer_donor` declare.
    pub fn compile(&self, module: &[u8], options: &CompileOptions) -> Result<Executable, PjrtError> {
        let prepared = Prepared::new(self, module, options)?;
        let Some(programs) = self.kept_programs() else { return prepared.compile(self, module) };
        let compile = || Ok(prepared.compile(self, module)?.loaded);
        let loaded = programs.get(module, prepared.language.format.name(), &prepared.options, compile)?;
        Ok(Executable { loaded, client: self.clone() })
    }

    /// Loads what [`Executable::serialize`] or
    /// [`CompiledAhead::serialized`](super::ahead_of_time::CompiledAhead::serialized) gave for this module and these
    /// options.
    ///
    /// The plugin trusts the bytes, and may end the process over damaged ones: keep a digest with them, as
    /// [`CompileCache`](super::CompileCache) does.
    ///
    /// # Errors
    /// [`PjrtError::Unimplemented`] when the plugin cannot; or the plugin refuses the bytes.
    pub fn deserialize(
        &self,
        serialized: &[u8],
        module: &[u8],
        options: &CompileOptions,
    ) -> Result<Executable, PjrtError> {
        let loaded = Prepared::new(self, module, options)?.deserialize(self, serialized);
        loaded.map_err(|error| unimplemented(self.plugin(), "loading serialized programs", error))
    }
}

/// Module and options after our own checks.
pub(super) struct Prepared {
    pub(super) language: Language,
    pub(super) options: Vec<u8>,
    program: ProgramInfo,
    /// The ids of all devices, in the order of the argument lists.
    order: Vec<i32>,
    /// Whose devices it runs on.
    span: Span,
}

impl Prepared {
    pub(super) fn new(client: &Client, module: &[u8], options: &CompileOptions) -> Result<Prepared, PjrtError> {
        let usable = client.devices().iter().filter(|device| device.addressable || options.span == Span::Clients);
        let devices: Vec<i32> = usable.map(|device| device.id).collect();
        options.check()?;
        let assignment = options.assignment(&devices, "the client")?;
        let program = ProgramInfo::read(module, options.num_partitions > 1)?;
        program.check_plugin(client.plugin())?;
        let options = options.for_platform(client.platform(), &program);
        options.check_propagation(&program)?;
        let (span, order) = (options.span, assignment.concat());
        let language = Language::of(&options);
        Ok(Prepared { language, options: options.encode(&assignment), program, order, span })
    }

    /// This process's devices in the order of the program's devices, their places among those, and the number of those.
    fn places(&self, client: &Client, devices: Vec<usize>) -> (Vec<usize>, Vec<usize>, usize) {
        if let Span::Each(processes) = self.span {
            let number = client.process().map_or(0, |process| process.number);
            let (own, first) = (devices.len(), number * devices.len());
            return (devices, (first..first + own).collect(), own * processes);
        }
        let place = |&device: &usize| {
            let id = client.devices().get(device)?.id;
            self.order.iter().position(|&other| other == id)
        };
        let mut placed: Vec<(usize, usize)> =
            devices.iter().filter_map(|device| Some((place(device)?, *device))).collect();
        placed.sort_unstable();
        let (places, devices) = placed.into_iter().unzip();
        (devices, places, self.order.len())
    }

    pub(super) fn compile(&self, client: &Client, module: &[u8]) -> Result<Executable, PjrtError> {
        tracing::debug!(target: COMPILATION, bytes = module.len() as u64, "{}", self.program.name);
        let module = program::for_platform(module, client.platform());
        let code = self.language.code(&module)?;
        let program = raw_program(&code, self.language.format);
        let arguments = PJRT_Client_Compile_Args {
            client: client.raw(),
            program: &program,
            compile_options: self.options.as_ptr().cast(),
            compile_options_size: self.options.len(),
            ..Arguments::new()
        };
        // SAFETY: the client is live, and program and options outlive the call. The executable is then ours.
        unsafe {
            let executable = client.api().call(arguments)?.executable;
            Executable::owned(client, self, executable)
        }
    }

    /// Loads what [`Executable::serialize`] gave.
    pub(super) fn deserialize(&self, client: &Client, bytes: &[u8]) -> Result<Executable, PjrtError> {
        let arguments = PJRT_Executable_DeserializeAndLoad_Args {
            client: client.raw(),
            serialized_executable: bytes.as_ptr().cast(),
            serialized_executable_size: bytes.len(),
            overridden_serialized_compile_options: self.options.as_ptr().cast(),
            overridden_serialized_compile_options_size: self.options.len(),
            ..Arguments::new()
        };
        // SAFETY: the client is live, and the bytes outlive the call. The executable is then ours.
        unsafe {
            let executable = client.api().call(arguments)?.loaded_executable;
            Executable::owned(client, self, executable)
        }
    }
}

impl Executable {
    /// # Safety
    /// `executable` must be a live executable of this client that no other code frees.
    unsafe fn owned(
        client: &Client,
        prepared: &Prepared,
        executable: *mut PJRT_LoadedExecutable,
    ) -> Result<Executable, PjrtError> {
        let (api, program) = (client.api(), prepared.program.clone());
        let of_loaded = PJRT_LoadedExecutable_GetExecutable_Args { loaded_executable: executable, ..Arguments::new() };
        let devices = PJRT_LoadedExecutable_AddressableDevices_Args { executable, ..Arguments::new() };
        // SAFETY: the loaded executable is live, and owns the list of devices; the executable it gives is ours.
        let (raw, compiled, devices): (_, _, Vec<usize>) = unsafe {
            let raw = Owned::new(api, executable);
            let compiled = Compiled::owned(client.plugin(), api.call(of_loaded)?.executable);
            let devices = api.call(devices)?;
            let list = slice(devices.addressable_devices, devices.num_addressable_devices);
            (raw, compiled, list.iter().filter_map(|&device| client.index_of(device)).collect())
        };
        client.check_threads(&program.name, &compiled, devices.len())?;
        let (devices, places, total) = prepared.places(client, devices);
        let loaded = Loaded {
            output_count: compiled.output_count()?,
            output_types: compiled.output_types().unwrap_or_default(),
            compiled,
            raw,
            name: program.name.into(),
            devices,
            places,
            total,
            parameters: program.parameters,
        };
        Ok(Executable { loaded: Arc::new(loaded), client: client.clone() })
    }

    /// The program's name: that of its module.
    pub fn name(&self) -> &str {
        &self.loaded.name
    }

    /// The client it runs on.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Indices ([`Client::devices`]) of this process's devices that it runs on, in the order of the argument lists.
    pub fn devices(&self) -> &[usize] {
        &self.loaded.devices
    }

    /// Where these stand among all devices that the program runs on, in ascending order.
    pub fn places(&self) -> &[usize] {
        &self.loaded.places
    }

    /// The number of devices that the program runs on, in all processes.
    pub fn device_count(&self) -> usize {
        self.loaded.total
    }

    /// Its parameters, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.loaded.parameters
    }

    /// The number of outputs of each device.
    pub fn output_count(&self) -> usize {
        self.loaded.output_count
    }

    /// The type of each output on one device; `None` for an element type that has no host form here.
    ///
    /// # Errors
    /// When the plugin does not say.
    pub fn output_types(&self) -> Result<&[Option<TensorType>], PjrtError> {
        if self.loaded.output_types.len() != self.loaded.output_count {
            return Err(PjrtError::Unsupported { function: "PJRT_Executable_OutputDimensions" });
        }
        Ok(&self.loaded.output_types)
    }

    /// Starts an execution. `arguments` has one list for each device of [`Executable::devices`], in the order of the
    /// parameters; so has the result for the outputs. Returns before they are computed: reading one waits for it.
    ///
    /// Buffers given for donated parameters cannot be used any more.
    pub fn execute(&self, arguments: &[Vec<Buffer>], options: &ExecuteOptions) -> Result<Vec<Vec<Buffer>>, PjrtError> {
        self.check_arguments(arguments)?;
        if let Some(index) = self.loaded.output_types.iter().position(Option::is_none) {
            // Found out before the execution, so that it consumes nothing.
            return Err(PjrtError::ElementType {
                what: format!("output {index}"),
                name: "a type other than pred, integers and floats of 8 to 64 bits".into(),
            });
        }
        let taken = self.take_donated(arguments, options)?;
        let launched = match options.time_limit {
            Some(limit) => self.launch_within(arguments, options, limit),
            None => self.launch(arguments, options),
        };
        // A program that runs on keeps what it took.
        if launched.as_ref().is_err_and(|error| !matches!(error, PjrtError::TimedOut { .. })) {
            taken.iter().for_each(|buffer| buffer.take_back());
        }
        launched
    }

    /// Launches on a thread of its own, because a plugin may run the program before it returns, and waits for the
    /// results.
    fn launch_within(
        &self,
        arguments: &[Vec<Buffer>],
        options: &ExecuteOptions,
        limit: Duration,
    ) -> Result<Vec<Vec<Buffer>>, PjrtError> {
        let start = Instant::now();
        let (sender, receiver) = mpsc::channel();
        let (executable, arguments, options) = (self.clone(), arguments.to_vec(), options.clone());
        let launch = move || {
            let launched = executable.launch(&arguments, &options);
            // The caller may have stopped waiting: then the results are dropped with the message.
            let _ = sender.send(launched);
        };
        let spawned = thread::Builder::new().name("meshloom-execute".into()).spawn(launch);
        spawned.map_err(io_error("start a thread for", Path::new(self.name())))?;
        let outputs = match receiver.recv_timeout(limit) {
            Ok(launched) => launched?,
            Err(_) => {
                let first = self.devices().first().and_then(|&device| self.client().devices().get(device));
                let device = first.map_or_else(String::new, |device| device.description.clone());
                return Err(PjrtError::TimedOut { program: Some(self.name().into()), device, limit });
            }
        };
        outputs.iter().flatten().try_for_each(|buffer| buffer.wait_since(start, limit))?;
        Ok(outputs)
    }

    /// The program's use of each device's memory.
    ///
    /// # Errors
    /// [`PjrtError::Unimplemented`] when the plugin does not report it. The next three methods have the same error.
    pub fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        self.loaded.compiled.memory_stats()
    }

    /// XLA's estimate of what one execution costs on each device.
    pub fn cost_analysis(&self) -> Result<CostAnalysis, PjrtError> {
        self.loaded.compiled.cost_analysis()
    }

    /// The program after XLA's passes, partitioned and optimized.
    pub fn optimized_hlo(&self) -> Result<OptimizedProgram, PjrtError> {
        self.loaded.compiled.optimized_hlo()
    }

    /// The compiled program as bytes that the same plugin on the same kind of machine can load.
    pub fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        self.loaded.compiled.serialize()
    }

    pub(super) fn compiled(&self) -> &Compiled {
        &self.loaded.compiled
    }

    pub(super) fn describe(&self, index: usize) -> String {
        self.parameters().get(index).map_or_else(|| format!("argument {index}"), |parameter| parameter.describe(index))
    }

    fn check_arguments(&self, arguments: &[Vec<Buffer>]) -> Result<(), PjrtError> {
        let loaded = &*self.loaded;
        check_count(|| "argument lists, one for each device", loaded.devices.len(), arguments.len())?;
        for (position, (list, &device)) in arguments.iter().zip(&loaded.devices).enumerate() {
            check_count(|| format!("arguments for device {position}"), loaded.parameters.len(), list.len())?;
            for (index, (buffer, parameter)) in list.iter().zip(&loaded.parameters).enumerate() {
                let what = || format!("{} for device {position}", parameter.describe(index));
                let misplaced = |expected, actual| Err(PjrtError::Placement { what: what(), expected, actual });
                if !buffer.client().is_same(&self.client) {
                    return misplaced("the executable's client".into(), "another client".into());
                }
                if buffer.device() != device {
                    return misplaced(format!("device {device}"), format!("device {}", buffer.device()));
                }
                check_type(what, parameter.local_type.as_ref(), buffer.ty())?;
                if !parameter.row_major {
                    let option = format!("layout of {}", parameter.describe(index));
                    let expected = "a module whose parameters are row-major, the only layout buffers have here";
                    return Err(PjrtError::option(&option, "not row-major", expected));
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
            let expected = format!("numbers of the program's {} parameters", parameters.len());
            return Err(PjrtError::option("non_donatable", index, expected));
        }
        let mut is_taken: Vec<bool> = parameters.iter().map(|parameter| parameter.donated).collect();
        for &index in &options.non_donatable {
            is_taken[index] = false;
        }
        if !is_taken.contains(&true) {
            return Ok(Vec::new());
        }
        // Buffers of different devices are never the same, so each list is checked on its own.
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

    fn launch(&self, arguments: &[Vec<Buffer>], options: &ExecuteOptions) -> Result<Vec<Vec<Buffer>>, PjrtError> {
        let loaded = &*self.loaded;
        let lists: Vec<Vec<*mut PJRT_Buffer>> =
            arguments.iter().map(|list| list.iter().map(Buffer::raw).collect()).collect();
        let list_pointers: Vec<*const *mut PJRT_Buffer> = lists.iter().map(|list| list.as_ptr()).collect();
        let mut outputs: Vec<Vec<*mut PJRT_Buffer>> =
            vec![vec![ptr::null_mut(); loaded.output_count]; loaded.devices.len()];
        let output_pointers: Vec<*mut *mut PJRT_Buffer> = outputs.iter_mut().map(|list| list.as_mut_ptr()).collect();
        let non_donatable: Vec<i64> = options.non_donatable.iter().map(|&index| index as i64).collect();
        let mut execute_options = sized!(
            PJRT_ExecuteOptions,
            PJRT_ExecuteOptions_STRUCT_SIZE {
                non_donatable_input_indices: non_donatable.as_ptr(),
                num_non_donatable_input_indices: non_donatable.len(),
            }
        );
        let call = PJRT_LoadedExecutable_Execute_Args {
            executable: loaded.raw.raw(),
            options: &mut execute_options,
            argument_lists: list_pointers.as_ptr(),
            num_devices: lists.len(),
            num_args: loaded.parameters.len(),
            output_lists: output_pointers.as_ptr(),
            ..Arguments::new()
        };
        let api = self.client.api();
        // SAFETY: executable and buffers are live; there is one list for each device, of as many arguments and room for
        // as many outputs as the program has. The output buffers are then ours.
        let outputs: Vec<Vec<_>> = unsafe {
            api.call(call)?;
            outputs.into_iter().map(|list| list.into_iter().map(|raw| Owned::new(api, raw)).collect()).collect()
        };
        let buffer = |device: usize, index: usize, raw: Owned<PJRT_Buffer>| {
            let ty = match loaded.output_types.get(index) {
                Some(Some(ty)) => ty.clone(),
                _ => type_of(&raw)?,
            };
            Ok(Buffer::new(&self.client, device, ty, Some(loaded.name.clone()), raw))
        };
        let of_device = |(list, &device): (Vec<_>, &usize)| {
            list.into_iter().enumerate().map(|(index, raw)| buffer(device, index, raw)).collect()
        };
        outputs.into_iter().zip(&loaded.devices).map(of_device).collect()
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (parameters, devices) = (self.loaded.parameters.len(), self.loaded.devices.len());
        write!(f, "Executable({parameters} parameters, {} outputs, {devices} devices)", self.loaded.output_count)
    }
}

/// A program as compilers take it, which only read it.
pub(super) fn raw_program(code: &[u8], format: ProgramFormat) -> PJRT_Program {
    let format = format.name();
    sized!(
        PJRT_Program,
        PJRT_Program_STRUCT_SIZE {
            code: code.as_ptr().cast_mut().cast(),
            code_size: code.len(),
            format: format.as_ptr().cast(),
            format_size: format.len(),
        }
    )
}

pub(super) fn check_count<S: Into<String>>(
    what: impl FnOnce() -> S,
    expected: usize,
    actual: usize,
) -> Result<(), PjrtError> {
    if expected == actual { Ok(()) } else { Err(PjrtError::Count { what: what().into(), expected, actual }) }
}

pub(super) fn check_type(
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
