//! A compiled program, loaded on devices or not: what XLA knows about it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::Arc;

use prost::Message;
use serde::{Deserialize, Serialize};

use super::api::{Arguments, Owned, sized, slice, string};
use super::element_type::dtype_from_raw;
use super::error::{ErrorCode, PjrtError};
use super::plugin::Plugin;
use super::sys::*;
use super::value::NamedValue;
use meshloom_hlo::TensorType;
use meshloom_hlo::proto::{HloModuleProto, HloModuleProtoWithConfig};

/// The memory that a program needs on each device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

impl MemoryStats {
    /// All but the program itself. The plugin's own [`peak`](MemoryStats::peak) may leave out what others allocate.
    pub fn total(&self) -> i64 {
        self.arguments + self.outputs - self.aliased + self.temporary
    }
}

/// XLA's own estimate of what a program costs on each device. It counts the body of a loop once, whatever its trip
/// count.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CostAnalysis {
    /// Every figure, by XLA's name for it.
    pub properties: BTreeMap<String, f64>,
}

impl CostAnalysis {
    /// Floating-point operations.
    pub fn flops(&self) -> Option<f64> {
        self.properties.get("flops").copied()
    }

    /// Bytes that all instructions read and write.
    pub fn bytes_accessed(&self) -> Option<f64> {
        self.properties.get("bytes accessed").copied()
    }

    /// The time it would take at the chip's peak rates.
    pub fn optimal_seconds(&self) -> Option<f64> {
        self.properties.get("optimal_seconds").copied()
    }
}

/// The program after XLA's passes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// A compiled program. One that came from a loaded program points into it and must go before it.
pub(super) struct Compiled {
    raw: Owned<PJRT_Executable>,
    plugin: Arc<Plugin>,
}

impl Compiled {
    /// # Safety
    /// `raw` must be a live executable of this plugin that no other code frees.
    pub(super) unsafe fn owned(plugin: &Arc<Plugin>, raw: *mut PJRT_Executable) -> Compiled {
        // SAFETY: the caller's promise.
        Compiled { raw: unsafe { Owned::new(plugin.api(), raw) }, plugin: plugin.clone() }
    }

    /// The number of outputs of each device.
    pub(super) fn output_count(&self) -> Result<usize, PjrtError> {
        let executable = self.raw.raw();
        // SAFETY: the executable is live.
        Ok(unsafe { self.raw.api().call(PJRT_Executable_NumOutputs_Args { executable, ..Arguments::new() })? }
            .num_outputs)
    }

    /// The type of each output on one device; `None` for an element type that has no host form here.
    pub(super) fn output_types(&self) -> Result<Vec<Option<TensorType>>, PjrtError> {
        let (api, executable) = (self.raw.api(), self.raw.raw());
        // SAFETY: the executable is live and owns the lists; there are as many dimensions as the ranks add up to.
        unsafe {
            let elements = api.call(PJRT_Executable_OutputElementTypes_Args { executable, ..Arguments::new() })?;
            let dimensions = api.call(PJRT_Executable_OutputDimensions_Args { executable, ..Arguments::new() })?;
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

    pub(super) fn memory_stats(&self) -> Result<MemoryStats, PjrtError> {
        let arguments = PJRT_Executable_GetCompiledMemoryStats_Args { executable: self.raw.raw(), ..Arguments::new() };
        // SAFETY: the executable is live.
        let stats = unsafe { self.ask("memory statistics", arguments)? };
        Ok(MemoryStats {
            generated_code: stats.generated_code_size_in_bytes,
            arguments: stats.argument_size_in_bytes,
            outputs: stats.output_size_in_bytes,
            aliased: stats.alias_size_in_bytes,
            temporary: stats.temp_size_in_bytes,
            peak: stats.peak_memory_in_bytes,
        })
    }

    pub(super) fn cost_analysis(&self) -> Result<CostAnalysis, PjrtError> {
        let arguments = PJRT_Executable_GetCostAnalysis_Args { executable: self.raw.raw(), ..Arguments::new() };
        // SAFETY: the executable is live, and owns the properties.
        let properties = unsafe {
            let costs = self.ask("cost analysis", arguments)?;
            NamedValue::map_from_raw(slice(costs.properties, costs.num_properties))
        };
        let number = |(name, value)| match value {
            NamedValue::Float(value) => Some((name, f64::from(value))),
            NamedValue::Int(value) => Some((name, value as f64)),
            _ => None,
        };
        Ok(CostAnalysis { properties: properties.into_iter().filter_map(number).collect() })
    }

    pub(super) fn optimized_hlo(&self) -> Result<OptimizedProgram, PjrtError> {
        let mut program = sized!(PJRT_Program, PJRT_Program_STRUCT_SIZE {});
        let executable = self.raw.raw();
        let arguments = PJRT_Executable_OptimizedProgram_Args { executable, program: &mut program, ..Arguments::new() };
        // SAFETY: the executable is live. The first call sets the size, the second fills a buffer of that size; the
        // format string is the plugin's and is copied.
        unsafe {
            let arguments = self.ask("the optimized program", arguments)?;
            let mut bytes = vec![0u8; (*arguments.program).code_size];
            (*arguments.program).code = bytes.as_mut_ptr().cast::<c_char>();
            let arguments = self.raw.api().call(arguments)?;
            let format = string((*arguments.program).format, (*arguments.program).format_size);
            Ok(OptimizedProgram { format, bytes })
        }
    }

    pub(super) fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let arguments = PJRT_Executable_Serialize_Args { executable: self.raw.raw(), ..Arguments::new() };
        // SAFETY: the executable is live. The bytes are copied before what holds them is freed, once.
        unsafe {
            let serialized = self.ask("serialized programs", arguments)?;
            let bytes = slice(serialized.serialized_bytes.cast::<u8>(), serialized.serialized_bytes_size).to_vec();
            if let Some(free) = serialized.serialized_executable_deleter {
                free(serialized.serialized_executable);
            }
            Ok(bytes)
        }
    }

    /// Calls a function that some plugins have not got.
    ///
    /// # Safety
    /// As for [`Api::call`](super::api::Api::call).
    unsafe fn ask<A: Arguments>(&self, feature: &'static str, arguments: A) -> Result<A, PjrtError> {
        // SAFETY: the caller's promise.
        unsafe { self.raw.api().call(arguments) }.map_err(|error| unimplemented(&self.plugin, feature, error))
    }
}

/// Puts a plugin's error that it lacks a part of the API into our words; any other error stays.
pub(super) fn unimplemented(plugin: &Plugin, feature: &'static str, error: PjrtError) -> PjrtError {
    let reason = match &error {
        PjrtError::Plugin { code: ErrorCode::Unimplemented, message, .. } => message.clone(),
        PjrtError::Unsupported { function } => format!("it has no {function}"),
        _ => return error,
    };
    plugin.lacks(feature, reason)
}
