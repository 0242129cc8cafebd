//! JSON Schemas of the types that serialize as something simpler.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{Amount, AxisPart, Communication};

/// States the schema of each type, which stands wherever the type is used.
macro_rules! schemas {
    ($($name:ident: $schema:tt),*) => {
        $(impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        })*
    };
}

schemas! {
    Amount: { "type": ["integer", "null"], "minimum": 0 },
    AxisPart: { "type": "string" },
    Communication: { "type": "string" }
}
