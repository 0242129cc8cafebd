//! The plugin's side of the callbacks, for tests of stores.
#![allow(unsafe_code)]

use std::os::raw::c_char;
use std::sync::Arc;
use std::time::Duration;

use super::{Callbacks, KeyValueFailure, KeyValues, bytes};
use crate::error::ErrorCode;
use crate::sys::*;

/// A store that is asked through the C functions a client is created with, as plugins ask: what crosses is keys, values
/// and codes in C's types.
#[derive(Debug)]
pub struct ThroughCallbacks {
    arguments: PJRT_Client_Create_Args,
    _callbacks: Callbacks,
}

// SAFETY: the arguments point to the store that is held with them, which may be asked from any thread.
unsafe impl Send for ThroughCallbacks {}
// SAFETY: as above.
unsafe impl Sync for ThroughCallbacks {}

/// Makes an error as a plugin does, from a message that is gone when the callback returns.
unsafe extern "C" fn make_error(code: u32, message: *const c_char, size: usize) -> *mut PJRT_Error {
    // SAFETY: the callback passes a message of this size.
    let message = String::from_utf8_lossy(unsafe { bytes(message, size) }).into_owned();
    Box::into_raw(Box::new(KeyValueFailure { code: ErrorCode::from_raw(code), message })).cast()
}

/// # Safety
/// The error is null, or one of [`make_error`] that no other code has taken.
unsafe fn result(error: *mut PJRT_Error) -> Result<(), KeyValueFailure> {
    // SAFETY: the caller's promise.
    if error.is_null() { Ok(()) } else { Err(*unsafe { Box::from_raw(error.cast::<KeyValueFailure>()) }) }
}

/// A copy of a value that the store is then told to end.
///
/// # Safety
/// The value and its deleter are what a callback has returned.
unsafe fn copy(value: *mut c_char, size: usize, delete: Option<unsafe extern "C" fn(*mut c_char)>) -> Vec<u8> {
    // SAFETY: the caller's promise.
    unsafe {
        let copied = bytes(value, size).to_vec();
        if let Some(delete) = delete {
            delete(value);
        }
        copied
    }
}

fn missing() -> KeyValueFailure {
    KeyValueFailure { code: ErrorCode::Unimplemented, message: "there is no such callback".to_owned() }
}

impl ThroughCallbacks {
    /// The store behind its callbacks.
    pub fn new(store: Arc<dyn KeyValues>) -> ThroughCallbacks {
        let callbacks = Callbacks::new(store);
        let mut arguments = PJRT_Client_Create_Args::default();
        callbacks.give(&mut arguments);
        ThroughCallbacks { arguments, _callbacks: callbacks }
    }
}

impl KeyValues for ThroughCallbacks {
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueFailure> {
        let call = self.arguments.kv_put_callback.ok_or_else(missing)?;
        let mut error: PJRT_CallbackError = Some(make_error);
        let mut args = PJRT_KeyValuePutCallback_Args {
            key: key.as_ptr().cast(),
            key_size: key.len(),
            value: value.as_ptr().cast(),
            value_size: value.len(),
            callback_error: &raw mut error,
            user_arg: self.arguments.kv_put_user_arg,
            ..Default::default()
        };
        // SAFETY: the arguments live for the call.
        unsafe { result(call(&raw mut args)) }
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, KeyValueFailure> {
        let call = self.arguments.kv_get_callback.ok_or_else(missing)?;
        let mut error: PJRT_CallbackError = Some(make_error);
        let mut args = PJRT_KeyValueGetCallback_Args {
            key: key.as_ptr().cast(),
            key_size: key.len(),
            timeout_in_ms: i32::try_from(limit.as_millis()).unwrap_or(i32::MAX),
            callback_error: &raw mut error,
            user_arg: self.arguments.kv_get_user_arg,
            ..Default::default()
        };
        // SAFETY: the arguments live for the call.
        unsafe {
            result(call(&raw mut args))?;
            Ok(copy(args.value, args.value_size, args.value_deleter_callback))
        }
    }

    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueFailure> {
        let call = self.arguments.kv_try_get_callback.ok_or_else(missing)?;
        let mut error: PJRT_CallbackError = Some(make_error);
        let mut args = PJRT_KeyValueTryGetCallback_Args {
            key: key.as_ptr().cast(),
            key_size: key.len(),
            callback_error: &raw mut error,
            user_arg: self.arguments.kv_try_get_user_arg,
            ..Default::default()
        };
        // SAFETY: as above.
        unsafe {
            result(call(&raw mut args))?;
            Ok(copy(args.value, args.value_size, args.value_deleter_callback))
        }
    }
}
