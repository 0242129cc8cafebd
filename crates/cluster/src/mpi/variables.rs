//! The environment variables that MPI reads when it starts.
#![allow(unsafe_code)]

use std::env;

/// Sets variables in this process, and removes those without a value. The caller does so before any other thread of
/// this process runs.
pub(crate) fn set_variables<'a>(variables: impl IntoIterator<Item = (&'a str, Option<String>)>) {
    for (name, value) in variables {
        // SAFETY: no other thread reads the environment yet.
        match value {
            Some(value) => unsafe { env::set_var(name, value) },
            None => unsafe { env::remove_var(name) },
        }
    }
}
