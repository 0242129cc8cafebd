//! Calls through a plugin's function table: argument structs, presence checks and errors, in one place.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::mem::offset_of;
use std::ptr;

use super::error::{ErrorCode, PjrtError};
use super::sys::*;

/// The `*_Args` struct of one function of the API.
///
/// # Safety
/// `OFFSET` must be that of the function's field in [`PJRT_Api`], and the function must take `*mut Self`.
pub(super) unsafe trait Arguments: Default {
    const NAME: &'static str;
    const OFFSET: usize;
    const STRUCT_SIZE: usize;

    fn set_struct_size(&mut self);

    /// Zeroes, and the struct's size as the API wants it.
    fn new() -> Self {
        let mut arguments = Self::default();
        arguments.set_struct_size();
        arguments
    }
}

/// A C struct with its own size set and zeroes elsewhere, for those that are not arguments of a function.
macro_rules! sized {
    ($type:ident, $size:ident { $($field:ident $(: $value:expr)?),* $(,)? }) => {
        $type { struct_size: $size as usize, $($field $(: $value)?,)* ..Default::default() }
    };
}
pub(super) use sized;

/// The functions we call: each is its name, its argument struct and that struct's size.
macro_rules! functions {
    ($($function:ident $arguments:ident $size:ident),* $(,)?) => {
        $(
            // SAFETY: the offset is that of the field of the same name, whose type in `sys` is a function over this
            // struct (the constant below would not compile otherwise).
            unsafe impl Arguments for $arguments {
                const NAME: &'static str = stringify!($function);
                const OFFSET: usize = offset_of!(PJRT_Api, $function);
                const STRUCT_SIZE: usize = $size as usize;

                fn set_struct_size(&mut self) {
                    self.struct_size = Self::STRUCT_SIZE;
                }
            }

            const _: fn(&PJRT_Api) -> Option<Function<$arguments>> = |api| api.$function;
            const _: () = assert!(
                $size as usize <= size_of::<$arguments>() && $size as usize + 8 > size_of::<$arguments>(),
                "the struct has fields after the last one that the header counts"
            );
        )*
    };
}

/// A function of the API.
pub(super) type Function<A> = unsafe extern "C" fn(*mut A) -> *mut PJRT_Error;

functions! {
    PJRT_Plugin_Initialize PJRT_Plugin_Initialize_Args PJRT_Plugin_Initialize_Args_STRUCT_SIZE,
    PJRT_Plugin_Attributes PJRT_Plugin_Attributes_Args PJRT_Plugin_Attributes_Args_STRUCT_SIZE,
    PJRT_Event_Destroy PJRT_Event_Destroy_Args PJRT_Event_Destroy_Args_STRUCT_SIZE,
    PJRT_Event_IsReady PJRT_Event_IsReady_Args PJRT_Event_IsReady_Args_STRUCT_SIZE,
    PJRT_Event_Await PJRT_Event_Await_Args PJRT_Event_Await_Args_STRUCT_SIZE,
    PJRT_Event_OnReady PJRT_Event_OnReady_Args PJRT_Event_OnReady_Args_STRUCT_SIZE,
    PJRT_Client_Create PJRT_Client_Create_Args PJRT_Client_Create_Args_STRUCT_SIZE,
    PJRT_Client_Destroy PJRT_Client_Destroy_Args PJRT_Client_Destroy_Args_STRUCT_SIZE,
    PJRT_Client_PlatformName PJRT_Client_PlatformName_Args PJRT_Client_PlatformName_Args_STRUCT_SIZE,
    PJRT_Client_PlatformVersion PJRT_Client_PlatformVersion_Args PJRT_Client_PlatformVersion_Args_STRUCT_SIZE,
    PJRT_Client_Devices PJRT_Client_Devices_Args PJRT_Client_Devices_Args_STRUCT_SIZE,
    PJRT_Client_Compile PJRT_Client_Compile_Args PJRT_Client_Compile_Args_STRUCT_SIZE,
    PJRT_Client_BufferFromHostBuffer PJRT_Client_BufferFromHostBuffer_Args PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE,
    PJRT_DeviceDescription_Id PJRT_DeviceDescription_Id_Args PJRT_DeviceDescription_Id_Args_STRUCT_SIZE,
    PJRT_DeviceDescription_Attributes PJRT_DeviceDescription_Attributes_Args PJRT_DeviceDescription_Attributes_Args_STRUCT_SIZE,
    PJRT_DeviceDescription_Kind PJRT_DeviceDescription_Kind_Args PJRT_DeviceDescription_Kind_Args_STRUCT_SIZE,
    PJRT_DeviceDescription_DebugString PJRT_DeviceDescription_DebugString_Args PJRT_DeviceDescription_DebugString_Args_STRUCT_SIZE,
    PJRT_Device_GetDescription PJRT_Device_GetDescription_Args PJRT_Device_GetDescription_Args_STRUCT_SIZE,
    PJRT_Device_IsAddressable PJRT_Device_IsAddressable_Args PJRT_Device_IsAddressable_Args_STRUCT_SIZE,
    PJRT_Device_MemoryStats PJRT_Device_MemoryStats_Args PJRT_Device_MemoryStats_Args_STRUCT_SIZE,
    PJRT_Executable_Destroy PJRT_Executable_Destroy_Args PJRT_Executable_Destroy_Args_STRUCT_SIZE,
    PJRT_Executable_NumOutputs PJRT_Executable_NumOutputs_Args PJRT_Executable_NumOutputs_Args_STRUCT_SIZE,
    PJRT_Executable_OptimizedProgram PJRT_Executable_OptimizedProgram_Args PJRT_Executable_OptimizedProgram_Args_STRUCT_SIZE,
    PJRT_Executable_Serialize PJRT_Executable_Serialize_Args PJRT_Executable_Serialize_Args_STRUCT_SIZE,
    PJRT_Executable_DeserializeAndLoad PJRT_Executable_DeserializeAndLoad_Args PJRT_Executable_DeserializeAndLoad_Args_STRUCT_SIZE,
    PJRT_Executable_OutputElementTypes PJRT_Executable_OutputElementTypes_Args PJRT_Executable_OutputElementTypes_Args_STRUCT_SIZE,
    PJRT_Executable_OutputDimensions PJRT_Executable_OutputDimensions_Args PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE,
    PJRT_Executable_GetCompiledMemoryStats PJRT_Executable_GetCompiledMemoryStats_Args PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE,
    PJRT_Executable_GetCostAnalysis PJRT_Executable_GetCostAnalysis_Args PJRT_Executable_GetCostAnalysis_Args_STRUCT_SIZE,
    PJRT_LoadedExecutable_Destroy PJRT_LoadedExecutable_Destroy_Args PJRT_LoadedExecutable_Destroy_Args_STRUCT_SIZE,
    PJRT_LoadedExecutable_GetExecutable PJRT_LoadedExecutable_GetExecutable_Args PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE,
    PJRT_LoadedExecutable_AddressableDevices PJRT_LoadedExecutable_AddressableDevices_Args PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE,
    PJRT_LoadedExecutable_Execute PJRT_LoadedExecutable_Execute_Args PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE,
    PJRT_Buffer_Destroy PJRT_Buffer_Destroy_Args PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
    PJRT_Buffer_ElementType PJRT_Buffer_ElementType_Args PJRT_Buffer_ElementType_Args_STRUCT_SIZE,
    PJRT_Buffer_Dimensions PJRT_Buffer_Dimensions_Args PJRT_Buffer_Dimensions_Args_STRUCT_SIZE,
    PJRT_Buffer_IsDeleted PJRT_Buffer_IsDeleted_Args PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE,
    PJRT_Buffer_ReadyEvent PJRT_Buffer_ReadyEvent_Args PJRT_Buffer_ReadyEvent_Args_STRUCT_SIZE,
    PJRT_Buffer_ToHostBuffer PJRT_Buffer_ToHostBuffer_Args PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE,
    PJRT_TopologyDescription_Create PJRT_TopologyDescription_Create_Args PJRT_TopologyDescription_Create_Args_STRUCT_SIZE,
    PJRT_TopologyDescription_Destroy PJRT_TopologyDescription_Destroy_Args PJRT_TopologyDescription_Destroy_Args_STRUCT_SIZE,
    PJRT_TopologyDescription_GetDeviceDescriptions PJRT_TopologyDescription_GetDeviceDescriptions_Args PJRT_TopologyDescription_GetDeviceDescriptions_Args_STRUCT_SIZE,
    PJRT_Compile PJRT_Compile_Args PJRT_Compile_Args_STRUCT_SIZE,
}

/// A plugin's function table. It lives as long as the process, because plugins are never unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Api {
    raw: *const PJRT_Api,
}

// SAFETY: the table is constant, and PJRT's functions may be called from any thread.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

impl Api {
    /// # Safety
    /// `raw` must be what a plugin's `GetPjrtApi` returned, not null, and the plugin must stay loaded for ever.
    pub(super) unsafe fn from_raw(raw: *const PJRT_Api) -> Api {
        Api { raw }
    }

    /// Major and minor version; `None` when the table is too short to have one.
    pub(super) fn version(self) -> Option<(i32, i32)> {
        let end = offset_of!(PJRT_Api, pjrt_api_version) + size_of::<PJRT_Api_Version>();
        // SAFETY: each table begins with its own size, and the version is read only when the table reaches past it.
        unsafe {
            if (*self.raw).struct_size < end {
                return None;
            }
            let version = &(*self.raw).pjrt_api_version;
            Some((version.major_version, version.minor_version))
        }
    }

    /// An extension of the plugin's table, by its type.
    pub(super) fn extension(self, kind: PJRT_Extension_Type) -> Option<*const PJRT_Extension_Base> {
        // SAFETY: the list's start is in every table that has a version, which is looked at when the plugin is loaded.
        // The extensions live as long as the table, and each begins with a base.
        unsafe {
            let mut next = (&raw const (*self.raw).extension_start).read();
            while !next.is_null() {
                if (&raw const (*next).type_).read() == kind {
                    return Some(next);
                }
                next = (&raw const (*next).next).read();
            }
        }
        None
    }

    /// The function, if the plugin's table reaches it and has it.
    pub(super) fn function<F: Copy>(self, offset: usize) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        // SAFETY: the field is read only when the table reaches past it; all callers ask for the type of that field. No
        // reference to the whole table is made, for the plugin's may be shorter than ours.
        unsafe {
            if (&raw const (*self.raw).struct_size).read() < offset + size_of::<F>() {
                return None;
            }
            self.raw.byte_add(offset).cast::<Option<F>>().read()
        }
    }

    /// Calls the function that takes `A`; returns the arguments with what it wrote into them.
    ///
    /// # Safety
    /// The arguments must be what the header asks of this function: live handles, valid pointers and lengths.
    pub(super) unsafe fn call<A: Arguments>(self, mut arguments: A) -> Result<A, PjrtError> {
        // SAFETY: the caller's promise, and the offset is that of a function over these arguments.
        unsafe { self.errors().call(A::NAME, self.function(A::OFFSET), &mut arguments)? };
        Ok(arguments)
    }

    /// Turns a `PJRT_Error*` into ours and frees it.
    ///
    /// # Safety
    /// `error` must be null or an error of this plugin that no other code frees.
    pub(super) unsafe fn check(self, function: &'static str, error: *mut PJRT_Error) -> Result<(), PjrtError> {
        // SAFETY: the caller's promise.
        unsafe { self.errors().check(function, error) }
    }

    fn errors(self) -> ErrorFunctions {
        ErrorFunctions {
            destroy: self.function(offset_of!(PJRT_Api, PJRT_Error_Destroy)),
            message: self.function(offset_of!(PJRT_Api, PJRT_Error_Message)),
            code: self.function(offset_of!(PJRT_Api, PJRT_Error_GetCode)),
        }
    }
}

/// The functions that read and free errors. An extension has such functions of its own for its errors, with arguments
/// of the same form.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ErrorFunctions {
    destroy: PJRT_Error_Destroy,
    message: PJRT_Error_Message,
    code: PJRT_Error_GetCode,
}

impl ErrorFunctions {
    /// Calls a function whose errors are of this kind.
    ///
    /// # Safety
    /// The arguments must be what the header asks of the function.
    pub(super) unsafe fn call<A>(
        self,
        name: &'static str,
        function: Option<Function<A>>,
        arguments: &mut A,
    ) -> Result<(), PjrtError> {
        let function = function.ok_or(PjrtError::Unsupported { function: name })?;
        // SAFETY: the caller's promise; what such a function returns is null or an error that is ours to free.
        unsafe { self.check(name, function(arguments)) }
    }

    /// Turns an error into ours and frees it.
    ///
    /// # Safety
    /// `error` must be null or an error of this kind that no other code frees.
    unsafe fn check(self, function: &'static str, error: *mut PJRT_Error) -> Result<(), PjrtError> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = sized!(PJRT_Error_Message_Args, PJRT_Error_Message_Args_STRUCT_SIZE { error });
        let mut code = sized!(PJRT_Error_GetCode_Args, PJRT_Error_GetCode_Args_STRUCT_SIZE { error });
        let mut destroy = sized!(PJRT_Error_Destroy_Args, PJRT_Error_Destroy_Args_STRUCT_SIZE { error });
        // SAFETY: `error` is live until it is destroyed last; the message is copied before that. `GetCode` cannot
        // itself fail on a live error, so its result is not looked at.
        unsafe {
            if let Some(get) = self.message {
                get(&mut message);
            }
            if let Some(get) = self.code {
                get(&mut code);
            }
            let text = string(message.message, message.message_size);
            if let Some(free) = self.destroy {
                free(&mut destroy);
            }
            Err(PjrtError::Plugin { function: function.into(), code: ErrorCode::from_raw(code.code), message: text })
        }
    }
}

/// A C object that the plugin makes and frees.
///
/// # Safety
/// [`Handle::destroy`] must give the arguments of the function that frees the object. PJRT must allow any thread to use
/// it.
pub(super) unsafe trait Handle: Sized {
    type Destroy: Arguments;

    fn destroy(raw: *mut Self) -> Self::Destroy;
}

/// The objects that we own: each is its name, the arguments of its destructor, and the field that it is in them.
macro_rules! handles {
    ($($handle:ident $arguments:ident $field:ident),* $(,)?) => {$(
        // SAFETY: these are its destructor's arguments, and the header says of each that any thread may use it.
        unsafe impl Handle for $handle {
            type Destroy = $arguments;

            fn destroy(raw: *mut Self) -> $arguments {
                $arguments { $field: raw, ..Arguments::new() }
            }
        }
    )*};
}

handles! {
    PJRT_Buffer PJRT_Buffer_Destroy_Args buffer,
    PJRT_Client PJRT_Client_Destroy_Args client,
    PJRT_Event PJRT_Event_Destroy_Args event,
    PJRT_Executable PJRT_Executable_Destroy_Args executable,
    PJRT_LoadedExecutable PJRT_LoadedExecutable_Destroy_Args executable,
    PJRT_TopologyDescription PJRT_TopologyDescription_Destroy_Args topology,
}

/// A C object that is ours, or null: freed when this is dropped. The object that it points into must be dropped later.
pub(super) struct Owned<T: Handle> {
    raw: *mut T,
    api: Api,
}

// SAFETY: any thread may use a `Handle`.
unsafe impl<T: Handle> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Handle> Sync for Owned<T> {}

impl<T: Handle> Owned<T> {
    /// # Safety
    /// `raw` must be null or a live object of this plugin that no other code frees.
    pub(super) unsafe fn new(api: Api, raw: *mut T) -> Owned<T> {
        Owned { raw, api }
    }

    /// The object, which is live as long as this is.
    pub(super) fn raw(&self) -> *mut T {
        self.raw
    }

    pub(super) fn api(&self) -> Api {
        self.api
    }
}

impl<T: Handle> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: the object is live and ours, and not used again.
        if let Err(error) = unsafe { self.api.call(T::destroy(self.raw)) } {
            // Nothing can be done about it.
            tracing::warn!("{error}");
        }
    }
}

/// Copies a plugin's string.
///
/// # Safety
/// `data` must be null or point to `size` readable bytes.
pub(super) unsafe fn string(data: *const c_char, size: usize) -> String {
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(data.cast::<u8>(), size) };
    String::from_utf8_lossy(bytes).into_owned()
}

/// A plugin's array as a slice; empty when the pointer is null, which C allows and Rust does not.
///
/// # Safety
/// `data` must be null or point to `size` initialised elements that live for `'a`.
pub(super) unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if data.is_null() || size == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { ptr::slice_from_raw_parts(data, size).as_ref().unwrap_or(&[]) }
}
