//! Profiles of a plugin's devices, through its profiler extension.
//!
//! The extension is not part of the main header that `sys` is made from. Its structs are written here by hand, after
//! XLA's `xla/pjrt/c/pjrt_c_api_profiler_extension.h` and `xla/backends/profiler/plugin/profiler_c_api.h`.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use prost::Message;

use super::api::{ErrorFunctions, Function, slice};
use super::error::PjrtError;
use super::files::write_atomically;
use super::plugin::Plugin;
use super::sys::*;

const FEATURE: &str = "profiler";

/// The choice of what is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfilerOptions {
    /// How much of the host: 0 nothing, 1 what matters most, 2 information, 3 everything.
    pub host_level: u32,
    /// How much of the devices: 0 nothing, 1 all kernels; some plugins know more.
    pub device_level: u32,
    /// Whether the programs that ran are part of the profile.
    pub programs: bool,
}

impl Default for ProfilerOptions {
    fn default() -> ProfilerOptions {
        ProfilerOptions { host_level: 2, device_level: 1, programs: true }
    }
}

/// `tensorflow.ProfileOptions`, as far as it is set here.
#[derive(Message)]
struct ProfileOptionsProto {
    #[prost(uint32, tag = "2")]
    host_tracer_level: u32,
    #[prost(uint32, tag = "3")]
    device_tracer_level: u32,
    #[prost(uint32, tag = "5")]
    version: u32,
    #[prost(bool, tag = "7")]
    enable_hlo_proto: bool,
}

/// A recorded profile: a serialized `tensorflow.profiler.XSpace`, as TensorBoard and XProf read it (`*.xplane.pb`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The message.
    pub bytes: Vec<u8>,
}

impl Profile {
    /// Writes it to a file, all or nothing.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), PjrtError> {
        write_atomically(path.as_ref(), &[&self.bytes])
    }
}

/// A profiler that is recording. Dropping it throws away what it recorded.
pub struct Profiler {
    raw: *mut PluginProfiler,
    functions: Functions,
    is_running: bool,
}

// SAFETY: nothing of the profiler is bound to a thread, and it is used through `&mut` alone.
unsafe impl Send for Profiler {}

impl Profiler {
    /// Starts recording.
    ///
    /// # Errors
    /// [`PjrtError::Unimplemented`] when the plugin has no profiler (the CPU plugins have none); or it cannot start.
    pub fn start(plugin: &Arc<Plugin>, options: &ProfilerOptions) -> Result<Profiler, PjrtError> {
        let functions = Functions::of(plugin)?;
        let options = ProfileOptionsProto {
            host_tracer_level: options.host_level,
            device_tracer_level: options.device_level,
            // Without a version all levels but these have older defaults.
            version: 1,
            enable_hlo_proto: options.programs,
        }
        .encode_to_vec();
        let mut create = CreateArguments {
            struct_size: size_of::<CreateArguments>(),
            options: options.as_ptr().cast(),
            options_size: options.len(),
            profiler: ptr::null_mut(),
        };
        // SAFETY: the options outlive the call. The profiler is then ours.
        unsafe { functions.errors.call("PLUGIN_Profiler_Create", functions.create, &mut create)? };
        let mut profiler = Profiler { raw: create.profiler, functions, is_running: false };
        profiler.call("PLUGIN_Profiler_Start", functions.start)?;
        profiler.is_running = true;
        Ok(profiler)
    }

    /// Stops recording and collects the records. First wait for the work that they should contain.
    pub fn stop(mut self) -> Result<Profile, PjrtError> {
        self.is_running = false;
        self.call("PLUGIN_Profiler_Stop", self.functions.stop)?;
        let mut collect = CollectArguments {
            struct_size: size_of::<CollectArguments>(),
            profiler: self.raw,
            buffer: ptr::null_mut(),
            buffer_size: 0,
        };
        let (name, function) = ("PLUGIN_Profiler_CollectData", self.functions.collect_data);
        // SAFETY: the profiler is live. It keeps the records until it is destroyed, and says where they are and how
        // many bytes; the last of these is a zero behind them (`plugin_tracer_impl.cc`).
        unsafe {
            self.functions.errors.call(name, function, &mut collect)?;
            let length = collect.buffer_size.saturating_sub(1);
            Ok(Profile { bytes: slice(collect.buffer, length).to_vec() })
        }
    }

    fn call(&self, name: &'static str, function: Option<Function<ProfilerArguments>>) -> Result<(), PjrtError> {
        let mut arguments = ProfilerArguments { struct_size: size_of::<ProfilerArguments>(), profiler: self.raw };
        // SAFETY: the profiler is live.
        unsafe { self.functions.errors.call(name, function, &mut arguments) }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if self.is_running
            && let Err(error) = self.call("PLUGIN_Profiler_Stop", self.functions.stop)
        {
            tracing::warn!("{error}");
        }
        if let Err(error) = self.call("PLUGIN_Profiler_Destroy", self.functions.destroy) {
            tracing::warn!("{error}");
        }
    }
}

/// Opaque.
#[repr(C)]
struct PluginProfiler {
    _private: [u8; 0],
}

#[repr(C)]
struct ProfilerExtension {
    base: PJRT_Extension_Base,
    functions: *const Functions,
    traceme_context_id: i64,
}

/// `PLUGIN_Profiler_Api`. Its errors are not PJRT's, but the functions for them take the same arguments.
#[repr(C)]
#[derive(Clone, Copy)]
struct Functions {
    struct_size: usize,
    private: *mut std::ffi::c_void,
    errors: ErrorFunctions,
    create: Option<Function<CreateArguments>>,
    destroy: Option<Function<ProfilerArguments>>,
    start: Option<Function<ProfilerArguments>>,
    stop: Option<Function<ProfilerArguments>>,
    collect_data: Option<Function<CollectArguments>>,
}

#[repr(C)]
struct CreateArguments {
    struct_size: usize,
    options: *const c_char,
    options_size: usize,
    profiler: *mut PluginProfiler,
}

/// The arguments of the functions that take nothing but the profiler.
#[repr(C)]
struct ProfilerArguments {
    struct_size: usize,
    profiler: *mut PluginProfiler,
}

#[repr(C)]
struct CollectArguments {
    struct_size: usize,
    profiler: *mut PluginProfiler,
    buffer: *mut u8,
    buffer_size: usize,
}

impl Functions {
    fn of(plugin: &Plugin) -> Result<Functions, PjrtError> {
        // SAFETY: this is the extension's struct. Extensions live as long as the plugin. Size and pointer are looked at
        // before what they lead to is.
        unsafe {
            let extension = plugin.extension::<ProfilerExtension>(PJRT_Extension_Type_Profiler, FEATURE, FEATURE)?;
            let functions = (&raw const (*extension).functions).read();
            if functions.is_null() {
                return Err(plugin.lacks(FEATURE, "its profiler extension is empty"));
            }
            if (&raw const (*functions).struct_size).read() < size_of::<Functions>() {
                return Err(plugin.lacks(FEATURE, "its profiler's function table is too short"));
            }
            Ok(functions.read())
        }
    }
}
