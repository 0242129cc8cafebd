//! A row of the table of shardings: plain data, whoever fills it.

/// A value that says how it is sharded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardingRow {
    /// Its name in the program, or the path of an argument.
    pub value: String,
    /// Type and dimensions.
    pub shape: String,
    /// Axes of each dimension, as the program says it.
    pub sharding: String,
    /// What a device holds of it.
    pub device_bytes: Option<u64>,
    /// What the whole value has, where that is another number.
    pub whole_bytes: Option<u64>,
    /// Why: a rule, an annotation, an op; or where it is written.
    pub origin: String,
}
