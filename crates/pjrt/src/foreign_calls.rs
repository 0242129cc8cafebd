//! Functions of this process that programs call: typed FFI custom calls (`XLA_FFI_Handler`, xla/ffi/api/c_api.h), which
//! a plugin takes by its FFI extension (`PJRT_FFI_Register_Handler`, pjrt_c_api_ffi_extension.h).
//!
//! A handler is called by the threads of the plugin, for each device, with the buffers of the call. A function need not
//! be done when it returns: the call is over when its [`ForeignCall`] is [finished](ForeignCall::finish), from any
//! thread (`XLA_FFI_Future`). Meanwhile the plugin's thread does other things. Handlers stay registered until the
//! process ends, as plugins do.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::api::slice;
use super::error::{ErrorCode, PjrtError};
use super::plugin::Plugin;
use super::sys::*;
use meshloom_hlo::proto::PrimitiveType;

const FEATURE: &str = "custom calls of this process' functions";

/// An operand of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallOperand<'c> {
    /// XLA's number of the type (`PrimitiveType`).
    pub element_type: i32,
    /// The sizes of its dimensions.
    pub dims: &'c [i64],
    /// The operand's bytes, row by row.
    pub bytes: &'c [u8],
}

/// A result of a call.
#[derive(Debug)]
pub struct CallResult<'c> {
    /// XLA's number of the type (`PrimitiveType`).
    pub element_type: i32,
    /// The sizes of its dimensions.
    pub dims: &'c [i64],
    /// The bytes that the call writes, row by row.
    pub bytes: &'c mut [u8],
}

/// A buffer of the plugin's. It never leaves its call, with which its memory goes.
#[derive(Debug)]
struct CallBuffer {
    element_type: i32,
    dims: Vec<i64>,
    data: *mut u8,
    bytes: usize,
}

// SAFETY: it is a part of a call, and no other code touches the call's buffers until the call is finished.
unsafe impl Send for CallBuffer {}

impl CallBuffer {
    fn operand(&self) -> CallOperand<'_> {
        // SAFETY: the plugin's buffer has as many bytes as its shape says, and lives until the call is finished, which
        // ends the borrow.
        let bytes = unsafe { slice(self.data, self.bytes) };
        CallOperand { element_type: self.element_type, dims: &self.dims, bytes }
    }

    fn result(&mut self) -> CallResult<'_> {
        let bytes: &mut [u8] = match self.bytes {
            0 => &mut [],
            // SAFETY: as above; a result is written by its call alone.
            count => unsafe { std::slice::from_raw_parts_mut(self.data, count) },
        };
        CallResult { element_type: self.element_type, dims: &self.dims, bytes }
    }
}

/// A call that a program makes. It is under way until it is [finished](ForeignCall::finish) or dropped, which fails it.
#[derive(Debug)]
pub struct ForeignCall {
    operands: Vec<CallBuffer>,
    results: Vec<CallBuffer>,
    /// The strings of its backend configuration, by their names.
    pub attributes: Vec<(String, String)>,
    completion: Completion,
}

impl ForeignCall {
    /// A string of the backend configuration.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Lends the operands and the results of the call. Both are memory of the plugin, which frees it when the call is
    /// finished.
    pub fn buffers(&mut self) -> (Vec<CallOperand<'_>>, Vec<CallResult<'_>>) {
        let operands = self.operands.iter().map(CallBuffer::operand).collect();
        (operands, self.results.iter_mut().map(CallBuffer::result).collect())
    }

    /// Ends the call: its results are there, or it has failed.
    pub fn finish(mut self, done: Result<(), CallFailure>) {
        self.completion.complete(done);
    }
}

/// The failure of a call. The program that made the call fails with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// The kind of failure.
    pub code: ErrorCode,
    /// The description of the failure.
    pub message: String,
}

/// A function that programs call by its name.
pub trait ForeignFunction {
    /// The target of the custom call.
    const NAME: &'static str;

    /// Does it, or has it done by another thread. This one is of the plugin, and should not wait for anything.
    fn call(call: ForeignCall);
}

impl Plugin {
    /// Has programs of this plugin's CPU client call a function.
    ///
    /// # Errors
    /// The plugin takes no functions, or not this one.
    pub fn register<F: ForeignFunction>(&self) -> Result<(), PjrtError> {
        // SAFETY: this is the extension's struct, as far as all have it. Extensions live as long as the plugin.
        let register = unsafe {
            let extension = self.extension::<FfiExtension>(PJRT_Extension_Type_FFI, FEATURE, "FFI")?;
            (&raw const (*extension).register_handler).read()
        };
        let register = register.ok_or_else(|| self.lacks(FEATURE, "its FFI extension registers no handlers"))?;
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
    /// From `XLA_FFI_Error_GetMessage` to `XLA_FFI_ThreadPool_NumThreads`.
    others: [*const c_void; 12],
    make_future: Option<unsafe extern "C" fn(*mut FutureArguments) -> *mut c_void>,
    set_available: Option<unsafe extern "C" fn(*mut FutureArguments) -> *mut c_void>,
    set_error: Option<unsafe extern "C" fn(*mut FutureErrorArguments) -> *mut c_void>,
}

/// `XLA_FFI_Future_Create_Args`; `XLA_FFI_Future_SetAvailable_Args` is alike.
#[repr(C)]
struct FutureArguments {
    struct_size: usize,
    extension_start: *mut Extension,
    future: *mut c_void,
}

/// `XLA_FFI_Future_SetError_Args`.
#[repr(C)]
struct FutureErrorArguments {
    struct_size: usize,
    extension_start: *mut Extension,
    future: *mut c_void,
    error: *mut c_void,
}

/// The means by which a plugin learns that a call is over.
#[derive(Debug)]
struct Completion {
    api: *const FfiApi,
    /// The future of the call; `None` once the plugin knows.
    future: Option<*mut c_void>,
}

// SAFETY: a future is completed from any thread, and the table of functions is the plugin's, which stays.
unsafe impl Send for Completion {}

impl Completion {
    /// A future of the plugin.
    ///
    /// # Safety
    /// The table is the plugin's.
    unsafe fn new(api: *const FfiApi) -> Result<Completion, CallFailure> {
        let missing = |message: &str| CallFailure { code: ErrorCode::Unimplemented, message: message.to_owned() };
        // SAFETY: the size is looked at before what it covers is.
        unsafe {
            let table = api.as_ref().filter(|table| table.struct_size >= size_of::<FfiApi>());
            let make = table.and_then(|table| table.make_future);
            let make =
                make.ok_or_else(|| missing("this plugin's custom calls cannot go on when they have returned"))?;
            let mut arguments = FutureArguments {
                struct_size: size_of::<FutureArguments>(),
                extension_start: std::ptr::null_mut(),
                future: std::ptr::null_mut(),
            };
            if !make(&raw mut arguments).is_null() || arguments.future.is_null() {
                return Err(missing("the plugin makes no future for a custom call"));
            }
            Ok(Completion { api, future: Some(arguments.future) })
        }
    }

    fn complete(&mut self, done: Result<(), CallFailure>) {
        let Some(future) = self.future.take() else { return };
        let (struct_size, extension_start) = (size_of::<FutureArguments>(), std::ptr::null_mut());
        // SAFETY: the future is not completed yet, and the table has these functions. They return errors of their own,
        // which could not be passed to anyone.
        unsafe {
            let table = &*self.api;
            match done {
                Ok(()) => {
                    let mut arguments = FutureArguments { struct_size, extension_start, future };
                    table.set_available.map(|set| set(&raw mut arguments));
                }
                Err(failure) => {
                    let struct_size = size_of::<FutureErrorArguments>();
                    let error = make_error(table, &failure);
                    let mut arguments = FutureErrorArguments { struct_size, extension_start, future, error };
                    table.set_error.map(|set| set(&raw mut arguments));
                }
            }
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        let message = "the function that a program called was not finished".to_owned();
        self.complete(Err(CallFailure { code: ErrorCode::Internal, message }));
    }
}

/// An error of the plugin's.
///
/// # Safety
/// The table is the plugin's.
unsafe fn make_error(table: &FfiApi, failure: &CallFailure) -> *mut c_void {
    let mut message = failure.message.replace('\0', " ").into_bytes();
    message.push(0);
    let mut arguments = ErrorArguments {
        struct_size: size_of::<ErrorArguments>(),
        extension_start: std::ptr::null_mut(),
        message: message.as_ptr().cast(),
        code: failure.code.raw().cast_signed(),
    };
    match table.make_error {
        // SAFETY: the message outlives the call, which copies it.
        Some(make) => unsafe { make(&raw mut arguments) },
        None => std::ptr::null_mut(),
    }
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

/// `XLA_FFI_Attrs`.
#[repr(C)]
struct RawAttributes {
    struct_size: usize,
    extension_start: *mut Extension,
    count: i64,
    kinds: *const c_int,
    names: *const *const ByteSpan,
    values: *const *const c_void,
}

/// `XLA_FFI_ByteSpan`: also the value of an attribute of kind [`STRING`].
#[repr(C)]
struct ByteSpan {
    bytes: *const u8,
    length: usize,
}

/// `XLA_FFI_AttrType_STRING`.
const STRING: c_int = 4;

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
    attributes: RawAttributes,
    /// The future that the handler sets where the call goes on.
    future: *mut c_void,
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
        let started = catch_unwind(AssertUnwindSafe(|| {
            let (operands, results) = (buffers(&frame.operands)?, buffers(&frame.results)?);
            let attributes = strings(&frame.attributes);
            let completion = Completion::new(frame.api)?;
            frame.future = completion.future.unwrap_or(std::ptr::null_mut());
            F::call(ForeignCall { operands, results, attributes, completion });
            Ok(())
        }));
        let failure = match started {
            Ok(Ok(())) => return std::ptr::null_mut(),
            Ok(Err(failure)) => failure,
            // The call was dropped, which has failed it.
            Err(_) if !frame.future.is_null() => return std::ptr::null_mut(),
            Err(_) => CallFailure { code: ErrorCode::Internal, message: format!("{} has panicked", F::NAME) },
        };
        frame.api.as_ref().map_or(std::ptr::null_mut(), |table| make_error(table, &failure))
    }
}

/// # Safety
/// They are buffers of a call that is under way.
unsafe fn buffers(raw: &RawBuffers) -> Result<Vec<CallBuffer>, CallFailure> {
    let count = usize::try_from(raw.count).unwrap_or(0);
    let invalid = |message: String| CallFailure { code: ErrorCode::InvalidArgument, message };
    let one = |index: usize| {
        // SAFETY: the list has this number of buffers, and each has as many dimensions as it says.
        let (buffer, dims) = unsafe {
            let buffer = &**raw.buffers.add(index);
            (buffer, slice(buffer.dims, usize::try_from(buffer.rank).unwrap_or(0)))
        };
        let width = byte_width(buffer.element_type)
            .ok_or_else(|| invalid(format!("a buffer is of a type that is not known, {}", buffer.element_type)))?;
        let elements = dims.iter().try_fold(1usize, |all, &size| all.checked_mul(usize::try_from(size).ok()?));
        let bytes = elements.and_then(|elements| elements.checked_mul(width));
        let bytes = bytes.ok_or_else(|| invalid(format!("a buffer has impossible dimensions, {dims:?}")))?;
        Ok(CallBuffer { element_type: buffer.element_type, dims: dims.to_vec(), data: buffer.data.cast(), bytes })
    };
    (0..count).map(one).collect()
}

/// The attributes that are strings of UTF-8.
///
/// # Safety
/// They are attributes of a call that is under way.
unsafe fn strings(raw: &RawAttributes) -> Vec<(String, String)> {
    // SAFETY: a span has this number of bytes, which live for the call.
    let text = |span: &ByteSpan| unsafe { std::str::from_utf8(slice(span.bytes, span.length)).ok().map(str::to_owned) };
    let count = usize::try_from(raw.count).unwrap_or(0);
    // SAFETY: the lists have this number of kinds, names and values, and the value of a string is a span.
    let one = |index: usize| unsafe {
        if *raw.kinds.add(index) != STRING {
            return None;
        }
        let value = (*raw.values.add(index)).cast::<ByteSpan>();
        Some((text(&**raw.names.add(index))?, text(&*value)?))
    };
    (0..count).filter_map(one).collect()
}

/// Bytes of an element of a type of XLA's; `None` for a type that is smaller than a byte, or not an array.
fn byte_width(element_type: c_int) -> Option<usize> {
    let bits = PrimitiveType::try_from(element_type).ok()?.bits()?;
    (bits >= 8).then_some(bits as usize / 8)
}
