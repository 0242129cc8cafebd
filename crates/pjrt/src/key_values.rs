//! The exchange between the clients of several processes: the three callbacks of PJRT's key-value store
//! (`PJRT_KeyValueGetCallback` and so on, pjrt_c_api.h).
//!
//! XLA puts each process' devices under a key when a client is created, and what NCCL needs when devices first
//! communicate. It calls from several threads at once, and for as long as the client lives.
#![allow(unsafe_code)]

mod caller;

use std::fmt;
use std::os::raw::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::error::ErrorCode;
use super::sys::*;
pub use caller::ThroughCallbacks;

/// A store of keys that several processes share.
pub trait KeyValues: fmt::Debug + Send + Sync {
    /// Writes a key.
    ///
    /// # Errors
    /// [`ErrorCode::AlreadyExists`] if it has been written: XLA goes by that.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueFailure>;

    /// The value of a key, as soon as it is written.
    ///
    /// # Errors
    /// [`ErrorCode::DeadlineExceeded`] if it is not written in time.
    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, KeyValueFailure>;

    /// The value of a key that has been written.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] if it has not.
    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueFailure>;
}

/// The failure of a store to do what XLA asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValueFailure {
    /// The kind of failure.
    pub code: ErrorCode,
    /// The description of the failure.
    pub message: String,
}

/// The store as a plugin gets it. Its address is what the callbacks are called with, so it stays where it is.
#[derive(Debug)]
pub(super) struct Callbacks(Box<Arc<dyn KeyValues>>);

impl Callbacks {
    pub(super) fn new(store: Arc<dyn KeyValues>) -> Callbacks {
        Callbacks(Box::new(store))
    }

    /// Adds the callbacks to what a client is created with. They may be called until the client is gone.
    pub(super) fn give(&self, arguments: &mut PJRT_Client_Create_Args) {
        let store: *const Arc<dyn KeyValues> = &raw const *self.0;
        let user = store.cast_mut().cast::<c_void>();
        arguments.kv_get_callback = Some(get);
        arguments.kv_get_user_arg = user;
        arguments.kv_put_callback = Some(put);
        arguments.kv_put_user_arg = user;
        arguments.kv_try_get_callback = Some(try_get);
        arguments.kv_try_get_user_arg = user;
    }
}

/// Runs what a callback does, and makes the plugin's error of a failure.
///
/// # Safety
/// `user` is what [`Callbacks::give`] has given, `key` has `size` bytes, `error` is the plugin's.
unsafe fn run(
    (user, key, size): (*mut c_void, *const c_char, usize),
    error: *mut PJRT_CallbackError,
    act: impl FnOnce(&dyn KeyValues, &str) -> Result<(), KeyValueFailure>,
) -> *mut PJRT_Error {
    let internal = |message: &str| KeyValueFailure { code: ErrorCode::Internal, message: message.to_owned() };
    // A panic must not go through the plugin's frames.
    let done = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (&*user.cast::<Arc<dyn KeyValues>>(), bytes(key, size)) };
        let key = std::str::from_utf8(key).map_err(|_| internal("a key is no UTF-8"))?;
        act(&**store, key)
    }));
    let failure = match done {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(failure)) => failure,
        Err(_) => internal("the store has panicked"),
    };
    // SAFETY: the plugin's function, which copies the message.
    unsafe {
        match error.as_ref().copied().flatten() {
            Some(make) => make(failure.code.raw(), failure.message.as_ptr().cast(), failure.message.len()),
            None => std::ptr::null_mut(),
        }
    }
}

/// # Safety
/// The pointer has this number of bytes behind it; without bytes it may be any pointer.
unsafe fn bytes<'a>(start: *const c_char, count: usize) -> &'a [u8] {
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(start.cast(), count) } }
}

unsafe extern "C" fn put(args: *mut PJRT_KeyValuePutCallback_Args) -> *mut PJRT_Error {
    // SAFETY: the plugin passes arguments that live for the call.
    unsafe {
        let args = &*args;
        let value = bytes(args.value, args.value_size);
        run((args.user_arg, args.key, args.key_size), args.callback_error, |store, key| store.put(key, value))
    }
}

unsafe extern "C" fn get(args: *mut PJRT_KeyValueGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as above.
    unsafe {
        let args = &mut *args;
        let limit = Duration::from_millis(u64::try_from(args.timeout_in_ms).unwrap_or(0));
        run((args.user_arg, args.key, args.key_size), args.callback_error, |store, key| {
            (args.value, args.value_size) = leak(store.get(key, limit)?);
            args.value_deleter_callback = Some(delete);
            Ok(())
        })
    }
}

unsafe extern "C" fn try_get(args: *mut PJRT_KeyValueTryGetCallback_Args) -> *mut PJRT_Error {
    // SAFETY: as above.
    unsafe {
        let args = &mut *args;
        run((args.user_arg, args.key, args.key_size), args.callback_error, |store, key| {
            (args.value, args.value_size) = leak(store.try_get(key)?);
            args.value_deleter_callback = Some(delete);
            Ok(())
        })
    }
}

/// Bytes in front of a value that is handed out: they hold the length of the value. The plugin gives back the value's
/// address alone.
const HEADER: usize = size_of::<usize>();

/// A value that [`delete`] ends.
fn leak(value: Vec<u8>) -> (*mut c_char, usize) {
    let size = value.len();
    let mut whole = Vec::with_capacity(HEADER + size);
    whole.extend(size.to_ne_bytes());
    whole.extend(value);
    let start = Box::into_raw(whole.into_boxed_slice()).cast::<u8>();
    // SAFETY: the header is within the allocation.
    (unsafe { start.add(HEADER) }.cast(), size)
}

unsafe extern "C" fn delete(value: *mut c_char) {
    // SAFETY: the value is one of [`leak`], which has this number of bytes behind its header.
    unsafe {
        let start = value.cast::<u8>().sub(HEADER);
        let size = usize::from_ne_bytes(start.cast::<[u8; HEADER]>().read());
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, HEADER + size)));
    }
}
