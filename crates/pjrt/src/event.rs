//! Completion of asynchronous work.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::api::{Api, Arguments, Owned};
use super::error::PjrtError;
use super::sys::*;

/// The end of some work. Null is an event that has happened.
pub(super) struct Event(Owned<PJRT_Event>);

impl Event {
    /// # Safety
    /// As for [`Owned::new`].
    pub(super) unsafe fn from_raw(api: Api, raw: *mut PJRT_Event) -> Event {
        // SAFETY: the caller's promise.
        Event(unsafe { Owned::new(api, raw) })
    }

    pub(super) fn is_ready(&self) -> Result<bool, PjrtError> {
        let event = self.0.raw();
        // SAFETY: the event is live.
        Ok(event.is_null()
            || unsafe { self.0.api().call(PJRT_Event_IsReady_Args { event, ..Arguments::new() })?.is_ready })
    }

    /// Waits, and returns the error that the work ended with.
    pub(super) fn wait(&self) -> Result<(), PjrtError> {
        let event = self.0.raw();
        if event.is_null() {
            return Ok(());
        }
        // SAFETY: the event is live.
        unsafe { self.0.api().call(PJRT_Event_Await_Args { event, ..Arguments::new() }).map(drop) }
    }

    /// As [`Event::wait`], but no longer than `limit`: false when it has not happened by then.
    pub(super) fn wait_within(&self, limit: Duration) -> Result<bool, PjrtError> {
        if self.is_ready()? {
            return self.wait().map(|()| true);
        }
        let (sender, receiver) = mpsc::channel();
        let api = self.0.api();
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
        if self.0.raw().is_null() {
            return;
        }
        // Twice, so that it is still there to wait with when the plugin refuses the callback.
        let held = Arc::new(held);
        let (api, kept) = (self.0.api(), held.clone());
        let registered = self.on_ready(move |error| {
            // SAFETY: the callback owns the error. An error of the transfer also reaches the buffer's own event.
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
        let arguments = PJRT_Event_OnReady_Args {
            event: self.0.raw(),
            callback: Some(run::<F>),
            user_arg: user.cast(),
            ..Arguments::new()
        };
        // SAFETY: the event is live, and the callback matches its argument.
        unsafe { self.0.api().call(arguments) }.map(drop).inspect_err(|_| {
            // SAFETY: the callback was not registered, so the box is still ours.
            drop(unsafe { Box::from_raw(user) });
        })
    }
}
