//! Objects of JSON whose keys are the names of tensors.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// The key beside the names of tensors, for free text.
pub(crate) const METADATA: &str = "__metadata__";

pub(crate) struct Entries<V>(pub(crate) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Entries<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Entries<V>, D::Error> {
        deserializer.deserialize_map(EntriesVisitor(PhantomData))
    }
}

struct EntriesVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = Entries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object whose keys are the names of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<V>, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            // serde names the position of the fault, but not the tensor. JSON leaves it open which of two equal keys
            // counts, so that two readers of such a file may see different weights.
            let value = map.next_value().map_err(|error| A::Error::custom(format!("tensor {name:?}: {error}")))?;
            if entries.contains_key(&name) {
                return Err(A::Error::custom(format!("tensor {name:?} occurs twice")));
            }
            entries.insert(name, value);
        }
        Ok(Entries(entries))
    }
}
