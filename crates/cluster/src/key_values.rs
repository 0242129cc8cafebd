//! The store of a run, in the form that PJRT asks for.

use std::sync::Arc;
use std::time::Duration;

use meshloom_pjrt::{ErrorCode, KeyValueFailure, KeyValues};

use crate::store::{Store, StoreError};

/// A store behind PJRT's callbacks. Its keys are apart from meshloom's own.
#[derive(Clone, Debug)]
pub struct StoreForClients(pub Arc<Store>);

impl StoreForClients {
    fn key(key: &str) -> String {
        format!("pjrt/{key}")
    }
}

impl KeyValues for StoreForClients {
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueFailure> {
        self.0.put(&Self::key(key), value).map_err(failure)
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, KeyValueFailure> {
        self.0.get(&Self::key(key), limit).map_err(failure)
    }

    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueFailure> {
        self.0.try_get(&Self::key(key)).map_err(failure)
    }
}

fn failure(error: StoreError) -> KeyValueFailure {
    let code = match &error {
        StoreError::AlreadyExists { .. } => ErrorCode::AlreadyExists,
        StoreError::NotFound { .. } => ErrorCode::NotFound,
        StoreError::DeadlineExceeded { .. } | StoreError::Missing { .. } => ErrorCode::DeadlineExceeded,
        StoreError::Unreachable { .. }
        | StoreError::Died { .. }
        | StoreError::Failed { .. }
        | StoreError::LeaseEnded(_) => ErrorCode::Unavailable,
        StoreError::Denied { .. } => ErrorCode::PermissionDenied,
        StoreError::Address { .. } | StoreError::InClear { .. } => ErrorCode::InvalidArgument,
        StoreError::Other { .. } => ErrorCode::Internal,
    };
    KeyValueFailure { code, message: error.to_string() }
}
