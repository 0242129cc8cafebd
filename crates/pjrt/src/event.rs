//! Completion of asynchronous work.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, mpsc};
use std::time::Duration;

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

    /// As [`Event::wait`], but no longer than `limit`: false when it has not happened by then.
    pub(super) fn wait_within(&self, limit: Duration) -> Result<bool, PjrtError> {
        if self.is_ready()? {
            return self.wait().map(|()| true);
        }
        let (sender, receiver) = mpsc::channel();
        let api = self.api;
        // The callback may come long after the last waiter left, so it owns what it needs.
        let registered = self.on_ready(move |error| {
            // SAFETY: the callback owns the error.
            let _ = sender.send(unsafe { api.check("PJRT_Event_OnReady", error) });
        });
        registered?;
        match receiver.recv_timeout(limit) {
            Ok(result) => result.map(|()| true),
            Err(mpsc::RecvTimeoutError::Timeout) => Ok(false),
            // The plugin dropped the callback, against the contract; waiting is the only way left.
            Err(mpsc::RecvTimeoutError::Disconnected) => self.wait().map(|()| true),
        }
    }

    /// Keeps `held` alive until the event has happened. Should the plugin refuse, waits here instead.
    pub(super) fn hold_until_ready<T: Send + Sync + 'static>(self, held: T) {
        if self.raw.is_null() {
            return;
        }
        // Twice, so that it is still there to wait with when the plugin refuses the callback.
        let held = Arc::new(held);
        let (api, kept) = (self.api, held.clone());
        let registered = self.on_ready(move |error| {
            // SAFETY: the callback owns the error. What went wrong with the transfer also reaches the buffer's own
            // event.
            let _ = unsafe { api.check("PJRT_Event_OnReady", error) };
            drop(kept);
        });
        if registered.is_err() {
            let _ = self.wait();
        }
    }

    /// Has the plugin call `callback`, from any thread, when the event has happened; it then owns the error. When the
    /// plugin refuses, the callback is dropped.
    fn on_ready<F: FnOnce(*mut PJRT_Error) + Send + 'static>(&self, callback: F) -> Result<(), PjrtError> {
        unsafe extern "C" fn run<F: FnOnce(*mut PJRT_Error)>(error: *mut PJRT_Error, user: *mut c_void) {
            // SAFETY: `user` is the box made below, and PJRT calls a callback once.
            let callback = unsafe { Box::from_raw(user.cast::<F>()) };
            callback(error);
        }
        let user = Box::into_raw(Box::new(callback));
        let mut arguments = PJRT_Event_OnReady_Args {
            event: self.raw,
            callback: Some(run::<F>),
            user_arg: user.cast(),
            ..Arguments::new()
        };
        // SAFETY: the event is live, and the callback matches its argument.
        unsafe { self.api.call(&mut arguments) }.inspect_err(|_| {
            // SAFETY: the callback was not registered, so the box is still ours.
            drop(unsafe { Box::from_raw(user) });
        })
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
