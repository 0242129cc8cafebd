//! Named values: plugin attributes and client options.
// The C API's own names, in patterns.
#![allow(non_upper_case_globals, unsafe_code)]

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::api::{sized, slice, string};
use super::sys::*;

/// The value of a plugin's attribute or of a client option.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NamedValue {
    /// Text.
    Text(String),
    /// An integer.
    Int(i64),
    /// A list of integers.
    Ints(Vec<i64>),
    /// A number.
    Float(f32),
    /// Yes or no.
    Bool(bool),
}

impl NamedValue {
    /// Values by name; those of a kind not known here are left out.
    ///
    /// # Safety
    /// `raw` must be values that a plugin made.
    pub(super) unsafe fn map_from_raw(raw: &[PJRT_NamedValue]) -> BTreeMap<String, NamedValue> {
        // SAFETY: the caller's promise.
        let read =
            |raw: &PJRT_NamedValue| unsafe { Some((string(raw.name, raw.name_size), NamedValue::from_raw(raw)?)) };
        raw.iter().filter_map(read).collect()
    }

    /// # Safety
    /// `raw` must be a value that a plugin made.
    unsafe fn from_raw(raw: &PJRT_NamedValue) -> Option<NamedValue> {
        let value = &raw.__bindgen_anon_1;
        // SAFETY: the tag says which field of the union is set.
        unsafe {
            Some(match raw.type_ {
                PJRT_NamedValue_kString => NamedValue::Text(string(value.string_value, raw.value_size)),
                PJRT_NamedValue_kInt64 => NamedValue::Int(value.int64_value),
                PJRT_NamedValue_kInt64List => NamedValue::Ints(slice(value.int64_array_value, raw.value_size).to_vec()),
                PJRT_NamedValue_kFloat => NamedValue::Float(value.float_value),
                PJRT_NamedValue_kBool => NamedValue::Bool(value.bool_value),
                _ => return None,
            })
        }
    }

    /// The C form, which borrows from `name` and from the value.
    pub(super) fn to_raw(&self, name: &str) -> PJRT_NamedValue {
        let (tag, value, count) = match self {
            NamedValue::Text(text) => (
                PJRT_NamedValue_kString,
                PJRT_NamedValue__bindgen_ty_1 { string_value: text.as_ptr().cast() },
                text.len(),
            ),
            NamedValue::Int(int) => (PJRT_NamedValue_kInt64, PJRT_NamedValue__bindgen_ty_1 { int64_value: *int }, 1),
            NamedValue::Ints(ints) => (
                PJRT_NamedValue_kInt64List,
                PJRT_NamedValue__bindgen_ty_1 { int64_array_value: ints.as_ptr() },
                ints.len(),
            ),
            NamedValue::Float(float) => {
                (PJRT_NamedValue_kFloat, PJRT_NamedValue__bindgen_ty_1 { float_value: *float }, 1)
            }
            NamedValue::Bool(bool) => (PJRT_NamedValue_kBool, PJRT_NamedValue__bindgen_ty_1 { bool_value: *bool }, 1),
        };
        sized!(
            PJRT_NamedValue,
            PJRT_NamedValue_STRUCT_SIZE {
                name: name.as_ptr().cast(),
                name_size: name.len(),
                type_: tag,
                __bindgen_anon_1: value,
                value_size: count,
            }
        )
    }
}

impl fmt::Display for NamedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedValue::Text(text) => f.write_str(text),
            NamedValue::Int(int) => write!(f, "{int}"),
            NamedValue::Ints(ints) => write!(f, "{ints:?}"),
            NamedValue::Float(float) => write!(f, "{float}"),
            NamedValue::Bool(bool) => write!(f, "{bool}"),
        }
    }
}
