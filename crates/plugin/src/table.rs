//! The function table that we hand out: the inner plugin's, byte for byte, but for the functions that compile.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::ptr;

use meshloom_pjrt::raw::{PJRT_Api, PJRT_Client_Compile, PJRT_Compile};

/// The functions of ours that take the places of the inner plugin's.
#[derive(Clone, Copy)]
pub(crate) struct Replaced {
    pub(crate) client_compile: PJRT_Client_Compile,
    pub(crate) compile: PJRT_Compile,
}

/// Copies a table for ever, with functions of ours in the places of those that the table reaches and has.
///
/// # Safety
/// `inner` must be a table that a plugin's `GetPjrtApi` returned, not null.
pub(crate) unsafe fn copy(inner: *const PJRT_Api, functions: Replaced) -> *const PJRT_Api {
    // SAFETY: each table begins with its size.
    let size = unsafe { (&raw const (*inner).struct_size).read() };
    // Words, so that the copy is aligned as the table is.
    let words = Box::leak(vec![0_u64; size.div_ceil(size_of::<u64>())].into_boxed_slice());
    let table: *mut PJRT_Api = words.as_mut_ptr().cast();
    // SAFETY: the table has `size` bytes, and so has the copy, which no one else knows yet.
    unsafe {
        ptr::copy_nonoverlapping(inner.cast::<u8>(), table.cast::<u8>(), size);
        replace(table, size, offset_of!(PJRT_Api, PJRT_Client_Compile), functions.client_compile);
        replace(table, size, offset_of!(PJRT_Api, PJRT_Compile), functions.compile);
    }
    table
}

/// Puts a function in the place of another. A function that the inner plugin lacks stays away.
///
/// # Safety
/// `table` must have `size` bytes, and `F` be the type of the field at this offset of it.
unsafe fn replace<F>(table: *mut PJRT_Api, size: usize, offset: usize, function: Option<F>) {
    const { assert!(size_of::<Option<F>>() == size_of::<usize>()) };
    if size < offset + size_of::<Option<F>>() {
        return;
    }
    // SAFETY: the field lies in the table; the caller promises its type.
    unsafe {
        let place = table.byte_add(offset).cast::<Option<F>>();
        if (*place).is_some() {
            place.write(function);
        }
    }
}
