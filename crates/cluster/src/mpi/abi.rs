//! The functions of MPI that meshloom uses, by the standard ABI of MPI 5.0 (chapter 20, `mpi_abi.h`): handles are
//! pointers with fixed values.
#![allow(unsafe_code)]

use std::error::Error;
use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;

use super::MpiError;

/// A communicator, a type or an error handler, in the form of the ABI.
pub(crate) type Handle = *mut c_void;

pub(crate) const COMM_WORLD: usize = 0x101;
pub(crate) const COMM_SELF: usize = 0x102;
pub(crate) const ERRORS_RETURN: usize = 0x143;
pub(crate) const REQUEST_NULL: usize = 0x180;
pub(crate) const BYTE: usize = 0x247;
pub(crate) const THREAD_MULTIPLE: c_int = 4096;
pub(crate) const LONGEST_ERROR: usize = 512;

pub(crate) fn handle(number: usize) -> Handle {
    std::ptr::without_provenance_mut(number)
}

macro_rules! functions {
    ($($field:ident $symbol:literal ($($argument:ty),*);)*) => {
        /// The functions.
        pub(crate) struct Functions {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            /// The library is never unloaded: MPI's libraries do not support that, and a call may still be at work.
            _library: ManuallyDrop<Library>,
        }

        impl Functions {
            /// Loads a library.
            pub(crate) fn load(path: &Path) -> Result<Functions, MpiError> {
                // The loader's own message is in the source; the error itself only names the function that failed.
                let unloadable = |error: libloading::Error| MpiError::Library {
                    path: path.to_owned(),
                    reason: error.source().map_or_else(|| error.to_string(), ToString::to_string),
                };
                // SAFETY: loading an MPI library runs its initializers, as intended.
                let library = unsafe { Library::new(path) }.map_err(unloadable)?;
                // SAFETY: these are the types of the standard ABI.
                unsafe {
                    $(let $field = *library
                        .get($symbol)
                        .map_err(unloadable)?;)*
                    Ok(Functions { $($field,)* _library: ManuallyDrop::new(library) })
                }
            }
        }
    };
}

functions! {
    init_thread b"MPI_Init_thread\0" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize b"MPI_Finalize\0" ();
    comm_rank b"MPI_Comm_rank\0" (Handle, *mut c_int);
    comm_size b"MPI_Comm_size\0" (Handle, *mut c_int);
    comm_dup b"MPI_Comm_dup\0" (Handle, *mut Handle);
    comm_free b"MPI_Comm_free\0" (*mut Handle);
    comm_set_errhandler b"MPI_Comm_set_errhandler\0" (Handle, Handle);
    error_string b"MPI_Error_string\0" (c_int, *mut c_char, *mut c_int);
    send b"MPI_Isend_c\0" (*const c_void, i64, Handle, c_int, c_int, Handle, *mut Handle);
    receive b"MPI_Irecv_c\0" (*mut c_void, i64, Handle, c_int, c_int, Handle, *mut Handle);
    test b"MPI_Test\0" (*mut Handle, *mut c_int, *mut c_void);
    test_all b"MPI_Testall\0" (c_int, *mut Handle, *mut c_int, *mut c_void);
    cancel b"MPI_Cancel\0" (*mut Handle);
}
