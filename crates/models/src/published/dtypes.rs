//! The types of a published model's tensors, kept so that it is exported in the same types.

use std::collections::{BTreeMap, HashMap};

use meshloom::ir::DType;
use serde::{Deserialize, Serialize};

use super::ModelFiles;

/// The file that records the types, among the files of a model. It is not a file of the published model, and it is not
/// exported.
pub(super) const DTYPES: &str = "meshloom-dtypes.json";

/// The types of a published model's tensors, as they are read: `bf16` of quantized ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Dtypes {
    most: String,
    others: BTreeMap<String, String>,
}

impl Dtypes {
    /// Returns the types of the given tensors.
    pub(super) fn of(tensors: &HashMap<String, DType>) -> Dtypes {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        tensors.values().for_each(|dtype| *counts.entry(dtype.name()).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map_or("", |(name, _)| name);
        let others = tensors.iter().filter(|(_, dtype)| dtype.name() != most);
        let others = others.map(|(name, dtype)| (name.clone(), dtype.name().to_owned())).collect();
        Dtypes { most: most.to_owned(), others }
    }

    /// Reads the types that are recorded in a model's files, if they are.
    pub(super) fn read(files: &ModelFiles) -> Option<Dtypes> {
        let file = files.iter().find(|file| file.name == DTYPES)?;
        serde_json::from_slice(&file.bytes).ok()
    }

    /// The file.
    pub(super) fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    pub(super) fn get(&self, tensor: &str) -> Option<DType> {
        DType::from_name(self.others.get(tensor).unwrap_or(&self.most))
    }
}
