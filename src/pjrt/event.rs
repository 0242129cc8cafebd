//! Completion of asynchronous work.
#![allow(unsafe_code)]

use std::ffi::c_void;

use super::api::{Api, Arguments};
use super::error::PjrtError;
use super::sys::*;

/// An owned `PJRT_Event`.
pub(super) struct Event {
    raw: *mut PJRT_Event,
    api: Api,
}

// SAFETY: PJRT events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// # Safety
    /// `raw` must be a live event of this plugin that nobody else frees, or null (which is an event that has happened).
    pub(super) unsafe fn from_raw(api: Api, raw: *mut PJRT_Event) -> Event {
        Event { raw, api }
    }

    pub(super) fn is_ready(&self) -> Result<bool, PjrtError> {
        if self.raw.is_null() {
            return Ok(true);
        }
        let mut arguments = PJRT_Event_IsReady_Args { event: self.raw, ..Arguments::new() };
        // SAFETY: the event is live.
        unsafe { self.api.call(&mut arguments)? };
        Ok(arguments.is_ready)
    }

    /// Waits, and returns the error that the work ended with.
    pub(super) fn wait(&self) -> Result<(), PjrtError> {
        if self.raw.is_null() {
            return Ok(());
        }
        let mut arguments = PJRT_Event_Await_Args { event: self.raw, ..Arguments::new() };
        // SAFETY: the event is live.
        unsafe { self.api.call(&mut arguments) }
    }

    /// Keeps `held` alive until the event has happened. Should the plugin refuse, waits here instead.
    pub(super) fn hold_until_ready<T: Send + 'static>(self, held: T) {
        struct Held<T> {
            api: Api,
            _held: T,
        }
        unsafe extern "C" fn release<T>(error: *mut PJRT_Error, user: *mut c_void) {
            // SAFETY: `user` is the box made below, and PJRT calls a callback once.
            let held = unsafe { Box::from_raw(user.cast::<Held<T>>()) };
            // SAFETY: the callback owns the error. What went wrong with the transfer also reaches the buffer's own event.
            let _ = unsafe { held.api.check("PJRT_Event_OnReady", error) };
        }
        if self.raw.is_null() {
            return;
        }
        let user = Box::into_raw(Box::new(Held { api: self.api, _held: held }));
        let mut arguments = PJRT_Event_OnReady_Args {
            event: self.raw,
            callback: Some(release::<T>),
            user_arg: user.cast(),
            ..Arguments::new()
        };
        // SAFETY: the event is live, and the callback matches its argument.
        if unsafe { self.api.call(&mut arguments) }.is_err() {
            let _ = self.wait();
            // SAFETY: the callback was not registered, so the box is still ours.
            drop(unsafe { Box::from_raw(user) });
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the event is live and ours, and not used again.
            unsafe { self.api.destroy(PJRT_Event_Destroy_Args { event: self.raw, ..Arguments::new() }) };
        }
    }
}
