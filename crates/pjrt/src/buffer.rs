//! A value in one device's memory.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::api::{Api, Arguments, Owned, sized, slice};
use super::client::Client;
use super::element_type::{dtype_from_raw, raw_dtype};
use super::error::PjrtError;
use super::event::Event;
use super::sys::*;
use meshloom_hlo::{Literal, TensorType};

/// A dense value in one device's memory. It may still be on its way there, or not yet computed: reading it waits.
/// Cloning gives another handle to the same memory.
#[derive(Clone)]
pub struct Buffer(Arc<BufferInner>);

struct BufferInner {
    /// Its memory is the client's, so it goes first: fields are dropped in this order. PJRT itself keeps the memory of
    /// a buffer that an execution still reads.
    raw: Owned<PJRT_Buffer>,
    client: Client,
    device: usize,
    ty: TensorType,
    /// The program that computes it, if one does.
    program: Option<Arc<str>>,
    /// Whether an execution was given the memory. PJRT knows too, but its errors do not say which value it was.
    donated: AtomicBool,
}

impl Buffer {
    /// Starts copying a literal to the device with an index. The literal's bytes are kept until that is done.
    pub fn from_literal(client: &Client, literal: &Literal, device: usize) -> Result<Buffer, PjrtError> {
        let raw_device = client.raw_device(device)?;
        let ty = literal.ty().clone();
        let dims: Vec<i64> = ty.dims.iter().map(|&size| size as i64).collect();
        let literal = literal.clone();
        let arguments = PJRT_Client_BufferFromHostBuffer_Args {
            client: client.raw(),
            data: literal.bytes().as_ptr().cast(),
            type_: raw_dtype(ty.dtype),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes,
            device: raw_device,
            ..Arguments::new()
        };
        // SAFETY: client and device are live, type and dimensions agree with the bytes (`Literal` checks), and the
        // bytes are immutable and kept until the event says that the plugin has done with them. Buffer and event are
        // then ours.
        unsafe {
            let started = client.api().call(arguments)?;
            let buffer = Owned::new(client.api(), started.buffer);
            Event::from_raw(client.api(), started.done_with_host_buffer).hold_until_ready(literal);
            Ok(Buffer::new(client, device, ty, None, buffer))
        }
    }

    /// A handle to a buffer of this client, device and type.
    pub(super) fn new(
        client: &Client,
        device: usize,
        ty: TensorType,
        program: Option<Arc<str>>,
        raw: Owned<PJRT_Buffer>,
    ) -> Buffer {
        Buffer(Arc::new(BufferInner {
            raw,
            client: client.clone(),
            device,
            ty,
            program,
            donated: AtomicBool::new(false),
        }))
    }

    /// Element type and dimensions.
    pub fn ty(&self) -> &TensorType {
        &self.0.ty
    }

    /// The index of its device in [`Client::devices`].
    pub fn device(&self) -> usize {
        self.0.device
    }

    /// The client it belongs to.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Whether an execution took its memory, so that it can no longer be used.
    pub fn is_donated(&self) -> bool {
        self.0.donated.load(Ordering::Acquire)
    }

    /// Whether the value is there (or failed to be computed).
    pub fn is_ready(&self) -> Result<bool, PjrtError> {
        self.ready_event()?.is_ready()
    }

    /// Waits until the value is there; returns the error of the execution or transfer that should have made it.
    pub fn block_until_ready(&self) -> Result<(), PjrtError> {
        self.ready_event()?.wait()
    }

    /// As [`Buffer::block_until_ready`], but no longer than `limit`.
    ///
    /// # Errors
    /// [`PjrtError::TimedOut`] names the program and the device. The program runs on: PJRT has no way to end it. The
    /// buffer can be waited for again, and it, the executable and the client can be dropped; but a client's last handle
    /// waits for what still runs on its devices. [`ExecuteOptions::time_limit`](super::ExecuteOptions::time_limit) is
    /// for programs that a plugin may run before `execute` returns.
    pub fn block_until_ready_within(&self, limit: Duration) -> Result<(), PjrtError> {
        self.wait_since(Instant::now(), limit)
    }

    /// As [`Buffer::block_until_ready_within`], where the time has run since `start`.
    pub(super) fn wait_since(&self, start: Instant, limit: Duration) -> Result<(), PjrtError> {
        if self.ready_event()?.wait_within(limit.saturating_sub(start.elapsed()))? {
            return Ok(());
        }
        let device = &self.client().devices()[self.device()];
        Err(PjrtError::TimedOut {
            program: self.0.program.as_deref().map(str::to_owned),
            device: device.description.clone(),
            limit,
        })
    }

    /// Waits for the value and copies it to the host.
    pub fn to_literal(&self) -> Result<Literal, PjrtError> {
        self.start_copy()?.finish()
    }

    /// Starts copying to the host.
    pub(super) fn start_copy(&self) -> Result<HostCopy, PjrtError> {
        self.check_usable("the buffer")?;
        let ty = self.ty();
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, ty.byte_count()).collect();
        let Some(target) = Arc::get_mut(&mut bytes).filter(|bytes| !bytes.is_empty()) else {
            // There is nothing to copy, and a call with a null target would only ask for the size.
            return Ok(HostCopy { event: None, ty: ty.clone(), bytes });
        };
        // The plugin may have laid the value out in another order: ask for row-major.
        let minor_to_major: Vec<i64> = (0..ty.rank() as i64).rev().collect();
        let tiled = sized!(
            PJRT_Buffer_MemoryLayout_Tiled,
            PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE {
                minor_to_major: minor_to_major.as_ptr(),
                minor_to_major_size: minor_to_major.len(),
            }
        );
        let mut layout = sized!(
            PJRT_Buffer_MemoryLayout,
            PJRT_Buffer_MemoryLayout_STRUCT_SIZE {
                type_: PJRT_Buffer_MemoryLayout_Type_Tiled,
                __bindgen_anon_1: PJRT_Buffer_MemoryLayout__bindgen_ty_1 { tiled },
            }
        );
        let arguments = PJRT_Buffer_ToHostBuffer_Args {
            src: self.raw(),
            host_layout: &mut layout,
            dst: target.as_mut_ptr().cast(),
            dst_size: target.len(),
            ..Arguments::new()
        };
        // SAFETY: the buffer is live, the layout outlives the call, and the target is kept, unread, until the event
        // (see `HostCopy`), which is then ours.
        let event = unsafe { Event::from_raw(self.api(), self.api().call(arguments)?.event) };
        Ok(HostCopy { event: Some(event), ty: ty.clone(), bytes })
    }

    fn ready_event(&self) -> Result<Event, PjrtError> {
        self.check_usable("the buffer")?;
        let arguments = PJRT_Buffer_ReadyEvent_Args { buffer: self.raw(), ..Arguments::new() };
        // SAFETY: the buffer is live; the event is then ours.
        unsafe { Ok(Event::from_raw(self.api(), self.api().call(arguments)?.event)) }
    }

    /// An error that names the value when its memory is gone.
    pub(super) fn check_usable(&self, what: &str) -> Result<(), PjrtError> {
        if self.is_donated() {
            return Err(PjrtError::Donated { what: what.into(), ty: self.ty().clone() });
        }
        Ok(())
    }

    /// Marks the memory as given away; false when it already was.
    pub(super) fn donate(&self) -> bool {
        !self.0.donated.swap(true, Ordering::AcqRel)
    }

    /// Takes a donation back, after an execution that did not start, if the plugin has not consumed the memory.
    pub(super) fn take_back(&self) {
        let arguments = PJRT_Buffer_IsDeleted_Args { buffer: self.raw(), ..Arguments::new() };
        // SAFETY: the buffer is live.
        if unsafe { self.api().call(arguments) }.is_ok_and(|answer| !answer.is_deleted) {
            self.0.donated.store(false, Ordering::Release);
        }
    }

    pub(super) fn raw(&self) -> *mut PJRT_Buffer {
        self.0.raw.raw()
    }

    fn api(&self) -> Api {
        self.0.raw.api()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({}, device {})", self.0.ty, self.0.device)
    }
}

/// A copy to the host under way. The plugin writes into `bytes` until the event; neither read nor free them before.
pub struct HostCopy {
    event: Option<Event>,
    ty: TensorType,
    bytes: Arc<[u8]>,
}

impl HostCopy {
    /// Waits for the copy.
    pub fn finish(mut self) -> Result<Literal, PjrtError> {
        if let Some(event) = self.event.take() {
            event.wait()?;
        }
        let (ty, bytes) = (self.ty.clone(), self.bytes.clone());
        let actual = bytes.len();
        Literal::from_bytes(ty, bytes).map_err(|_| PjrtError::Count {
            what: "bytes read from a device".into(),
            expected: self.ty.byte_count(),
            actual,
        })
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        if let Some(event) = &self.event {
            let _ = event.wait();
        }
    }
}

/// The type that the plugin reports for a buffer.
pub(super) fn type_of(buffer: &Owned<PJRT_Buffer>) -> Result<TensorType, PjrtError> {
    let (api, buffer) = (buffer.api(), buffer.raw());
    // SAFETY: the buffer is live and owns the dimensions.
    unsafe {
        let element = api.call(PJRT_Buffer_ElementType_Args { buffer, ..Arguments::new() })?.type_;
        let dimensions = api.call(PJRT_Buffer_Dimensions_Args { buffer, ..Arguments::new() })?;
        let dtype = dtype_from_raw(element).ok_or_else(|| PjrtError::ElementType {
            what: "an output".into(),
            name: format!("number {element} of PJRT"),
        })?;
        let dims = slice(dimensions.dims, dimensions.num_dims).iter().map(|&size| size.max(0) as usize).collect();
        Ok(TensorType { dtype, dims })
    }
}
