//! Programs that a client keeps and returns again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::error::PjrtError;
use super::loaded::Loaded;

/// The slot of one program. It is locked while the program is compiled, so that no other thread compiles it too.
type Slot = Arc<Mutex<Option<Arc<Loaded>>>>;

/// Loaded programs by the SHA-256 of their module, format and options.
#[derive(Default)]
pub(super) struct KeptPrograms(Mutex<HashMap<[u8; 32], Slot>>);

impl KeptPrograms {
    /// Returns the program of a module in a format with these options. Calls `compile` if there is none yet; an error
    /// is not kept.
    pub(super) fn get(
        &self,
        module: &[u8],
        format: &str,
        options: &[u8],
        compile: impl FnOnce() -> Result<Arc<Loaded>, PjrtError>,
    ) -> Result<Arc<Loaded>, PjrtError> {
        let key = Sha256::new().chain_update((module.len() as u64).to_le_bytes()).chain_update(module);
        let key = key.chain_update(format).chain_update([0]).chain_update(options).finalize().into();
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = &*slot {
            return Ok(loaded.clone());
        }
        Ok(slot.insert(compile()?).clone())
    }
}

impl fmt::Debug for KeptPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.lock().unwrap_or_else(PoisonError::into_inner).len();
        write!(f, "KeptPrograms({count})")
    }
}
