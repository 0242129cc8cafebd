//! Functions of this process that programs call: typed FFI custom calls (`XLA_FFI_Handler`, xla/ffi/api/c_api.h), which
//! a plugin takes by its FFI extension (`PJRT_FFI_Register_Handler`, pjrt_c_api_ffi_extension.h).
//!
//! A handler is called by the threads of the plugin, for each device, with the buffers of the call. Handlers stay
//! registered until the process ends, as plugins do.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::error::{ErrorCode, PjrtError};
use super::plugin::Plugin;
use super::sys::*;

const FEATURE: &str = "custom calls of this process' functions";

/// An operand or a result of a call: its bytes, row by row, and what they are.
#[derive(Debug)]
pub struct CallBuffer<'a> {
    /// XLA's number of the type (`PrimitiveType`).
    pub element_type: i32,
    /// The sizes of its dimensions.
    pub dims: &'a [i64],
    data: *mut u8,
    bytes: usize,
}

impl CallBuffer<'_> {
    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the plugin's buffer has as many bytes as its shape says, and lives for the call.
        if self.bytes == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.data, self.bytes) } }
    }

    /// What is to be in it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; a result is written by its call alone.
        if self.bytes == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(self.data, self.bytes) } }
    }
}

/// A call that a program makes.
#[derive(Debug)]
pub struct ForeignCall<'a> {
    /// What it is given.
    pub operands: Vec<CallBuffer<'a>>,
    /// Where its results go.
    pub results: Vec<CallBuffer<'a>>,
}

/// Why a call has failed: the program that made it fails with that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// What kind of failure it is.
    pub code: ErrorCode,
    /// What happened.
    pub message: String,
}

/// A function that programs call by its name.
pub trait ForeignFunction {
    /// The target of the custom call.
    const NAME: &'static str;

    /// Does it, on a thread of the plugin.
    ///
    /// # Errors
    /// Whatever kept it from that.
    fn call(call: &mut ForeignCall<'_>) -> Result<(), CallFailure>;
}

impl Plugin {
    /// Has programs of this plugin's CPU client call a function.
    ///
    /// # Errors
    /// The plugin takes no functions, or not this one.
    pub fn register<F: ForeignFunction>(&self) -> Result<(), PjrtError> {
        let missing = |reason: &str| PjrtError::Unimplemented {
            feature: FEATURE.into(),
            plugin: self.describe(),
            reason: reason.into(),
        };
        let extension = self.api().extension(PJRT_Extension_Type_FFI);
        let extension = extension.ok_or_else(|| missing("it has no FFI extension"))?.cast::<FfiExtension>();
        // SAFETY: extensions live as long as the plugin. The size is looked at before what it covers is.
        let register = unsafe {
            if (&raw const (*extension).base.struct_size).read() < size_of::<FfiExtension>() {
                return Err(missing("its FFI extension is too short"));
            }
            (&raw const (*extension).register_handler).read()
        };
        let register = register.ok_or_else(|| missing("its FFI extension registers no handlers"))?;
        const PLATFORM: &str = "Host";
        let mut arguments = RegisterArguments {
            struct_size: size_of::<RegisterArguments>(),
            name: F::NAME.as_ptr().cast(),
            name_size: F::NAME.len(),
            handler: handle::<F> as *mut c_void,
            platform: PLATFORM.as_ptr().cast(),
            platform_size: PLATFORM.len(),
            traits: 0,
        };
        // SAFETY: the plugin copies the names; the function lives as long as the process.
        let error = unsafe { register(&raw mut arguments) };
        // SAFETY: what it returns is an error of this plugin, or null.
        unsafe { self.api().check("PJRT_FFI_Register_Handler", error) }
    }
}

/// `PJRT_FFI_Extension`, as far as all plugins have it.
#[repr(C)]
struct FfiExtension {
    base: PJRT_Extension_Base,
    register_type: *const c_void,
    add_user_data: *const c_void,
    register_handler: Option<unsafe extern "C" fn(*mut RegisterArguments) -> *mut PJRT_Error>,
}

/// `PJRT_FFI_Register_Handler_Args`, as plugins read it: a published header has a version in the middle, with which
/// they abort.
#[repr(C)]
struct RegisterArguments {
    struct_size: usize,
    name: *const c_char,
    name_size: usize,
    handler: *mut c_void,
    platform: *const c_char,
    platform_size: usize,
    traits: u32,
}

/// `XLA_FFI_Extension_Base`.
#[repr(C)]
struct Extension {
    struct_size: usize,
    kind: c_int,
    next: *mut Extension,
}

const METADATA: c_int = 1;

/// `XLA_FFI_Metadata_Extension`.
#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

/// `XLA_FFI_Metadata`, as far as all have it.
#[repr(C)]
struct Metadata {
    struct_size: usize,
    version: ApiVersion,
    traits: u32,
}

/// `XLA_FFI_Api_Version`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ApiVersion {
    struct_size: usize,
    extension_start: *mut Extension,
    major: c_int,
    minor: c_int,
}

/// `XLA_FFI_Api`, as far as it is used.
#[repr(C)]
struct FfiApi {
    struct_size: usize,
    extension_start: *mut Extension,
    version: ApiVersion,
    internal: *const c_void,
    make_error: Option<unsafe extern "C" fn(*mut ErrorArguments) -> *mut c_void>,
}

/// `XLA_FFI_Error_Create_Args`.
#[repr(C)]
struct ErrorArguments {
    struct_size: usize,
    extension_start: *mut Extension,
    /// Ends with a zero.
    message: *const c_char,
    code: c_int,
}

/// `XLA_FFI_Args`; `XLA_FFI_Rets` is alike.
#[repr(C)]
struct RawBuffers {
    struct_size: usize,
    extension_start: *mut Extension,
    count: i64,
    kinds: *const c_int,
    buffers: *const *const RawBuffer,
}

/// `XLA_FFI_Buffer`.
#[repr(C)]
struct RawBuffer {
    struct_size: usize,
    extension_start: *mut Extension,
    element_type: c_int,
    data: *mut c_void,
    rank: i64,
    dims: *const i64,
}

/// `XLA_FFI_CallFrame`, as far as it is used.
#[repr(C)]
struct CallFrame {
    struct_size: usize,
    extension_start: *mut Extension,
    api: *const FfiApi,
    context: *const c_void,
    stage: c_int,
    operands: RawBuffers,
    results: RawBuffers,
}

/// The handler that a plugin calls.
///
/// # Safety
/// The frame is one of the plugin's, and lives for the call.
unsafe extern "C" fn handle<F: ForeignFunction>(frame: *mut CallFrame) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe {
        let frame = &mut *frame;
        let mut extension = frame.extension_start;
        while !extension.is_null() {
            if (*extension).kind == METADATA {
                // It asks for which version of the API this is written: the plugin's own. Only what all versions have
                // is used here.
                let metadata = &mut *(*extension.cast::<MetadataExtension>()).metadata;
                let (major, minor) = match frame.api.as_ref() {
                    Some(api) => (api.version.major, api.version.minor),
                    None => (0, 1),
                };
                metadata.version.major = major;
                metadata.version.minor = minor;
                metadata.traits = 0;
                return std::ptr::null_mut();
            }
            extension = (*extension).next;
        }
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut call = ForeignCall { operands: buffers(&frame.operands)?, results: buffers(&frame.results)? };
            F::call(&mut call)
        }));
        let failure = match done {
            Ok(Ok(())) => return std::ptr::null_mut(),
            Ok(Err(failure)) => failure,
            Err(_) => CallFailure { code: ErrorCode::Internal, message: format!("{} has panicked", F::NAME) },
        };
        let mut message = failure.message.replace('\0', " ").into_bytes();
        message.push(0);
        let mut arguments = ErrorArguments {
            struct_size: size_of::<ErrorArguments>(),
            extension_start: std::ptr::null_mut(),
            message: message.as_ptr().cast(),
            code: failure.code.raw().cast_signed(),
        };
        match frame.api.as_ref().and_then(|api| api.make_error) {
            Some(make) => make(&raw mut arguments),
            None => std::ptr::null_mut(),
        }
    }
}

/// # Safety
/// They are buffers of a call that is under way.
unsafe fn buffers<'a>(raw: &RawBuffers) -> Result<Vec<CallBuffer<'a>>, CallFailure> {
    let count = usize::try_from(raw.count).unwrap_or(0);
    let invalid = |message: String| CallFailure { code: ErrorCode::InvalidArgument, message };
    let one = |index: usize| {
        // SAFETY: there are so many, and each has as many dimensions as it says.
        let (buffer, dims) = unsafe {
            let buffer = &**raw.buffers.add(index);
            let rank = usize::try_from(buffer.rank).unwrap_or(0);
            let dims: &[i64] = if rank == 0 { &[] } else { std::slice::from_raw_parts(buffer.dims, rank) };
            (buffer, dims)
        };
        let width = byte_width(buffer.element_type)
            .ok_or_else(|| invalid(format!("a buffer is of a type that is not known, {}", buffer.element_type)))?;
        let elements = dims.iter().try_fold(1usize, |all, &size| all.checked_mul(usize::try_from(size).ok()?));
        let bytes = elements.and_then(|elements| elements.checked_mul(width));
        let bytes = bytes.ok_or_else(|| invalid(format!("a buffer has impossible dimensions, {dims:?}")))?;
        Ok(CallBuffer { element_type: buffer.element_type, dims, data: buffer.data.cast(), bytes })
    };
    (0..count).map(one).collect()
}

/// Bytes of an element of a type of XLA's; none for what is smaller than a byte, or no array.
fn byte_width(element_type: c_int) -> Option<usize> {
    Some(match element_type {
        1 | 2 | 6 | 19 | 20 | 23 | 24 | 25 | 28 | 29 => 1,
        3 | 7 | 10 | 16 => 2,
        4 | 8 | 11 => 4,
        5 | 9 | 12 | 15 => 8,
        18 => 16,
        _ => return None,
    })
}
