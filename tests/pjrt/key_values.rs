//! The store of a run, as a plugin calls it.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use meshloom::pjrt::internals::ThroughCallbacks;
use meshloom::pjrt::{ErrorCode, KeyValueFailure, KeyValues};

#[derive(Debug, Default)]
pub struct InMemory(Mutex<HashMap<String, Vec<u8>>>, Condvar);

fn failure(code: ErrorCode, key: &str) -> KeyValueFailure {
    KeyValueFailure { code, message: format!("{code}: {key}") }
}

impl KeyValues for InMemory {
    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueFailure> {
        assert!(key != "panic", "a store that panics");
        let mut all = self.0.lock().expect("no thread has panicked with it");
        if all.contains_key(key) {
            return Err(failure(ErrorCode::AlreadyExists, key));
        }
        all.insert(key.to_owned(), value.to_vec());
        self.1.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, KeyValueFailure> {
        let deadline = Instant::now() + limit;
        let mut all = self.0.lock().expect("no thread has panicked with it");
        loop {
            if let Some(value) = all.get(key) {
                return Ok(value.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failure(ErrorCode::DeadlineExceeded, key));
            }
            all = self.1.wait_timeout(all, left).expect("no thread has panicked with it").0;
        }
    }

    fn try_get(&self, key: &str) -> Result<Vec<u8>, KeyValueFailure> {
        let all = self.0.lock().expect("no thread has panicked with it");
        all.get(key).cloned().ok_or_else(|| failure(ErrorCode::NotFound, key))
    }
}

#[test]
fn as_the_plugin_calls() {
    let caller = ThroughCallbacks::new(Arc::new(InMemory::default()));
    assert_eq!(caller.try_get("a"), Err(failure(ErrorCode::NotFound, "a")));
    assert_eq!(caller.get("a", Duration::from_millis(10)), Err(failure(ErrorCode::DeadlineExceeded, "a")));
    assert_eq!(caller.put("a", b"\0bytes\xff"), Ok(()));
    assert_eq!(caller.put("a", b""), Err(failure(ErrorCode::AlreadyExists, "a")));
    assert_eq!(caller.get("a", Duration::ZERO), Ok(b"\0bytes\xff".to_vec()));
    assert_eq!(caller.put("empty", b""), Ok(()));
    assert_eq!(caller.try_get("empty"), Ok(Vec::new()));
    let message = "the store has panicked".to_owned();
    assert_eq!(caller.put("panic", b""), Err(KeyValueFailure { code: ErrorCode::Internal, message }));
}

#[test]
fn from_many_threads() {
    let caller = ThroughCallbacks::new(Arc::new(InMemory::default()));
    thread::scope(|scope| {
        for number in 0..8 {
            let caller = &caller;
            scope.spawn(move || {
                for key in 0..125 {
                    let own = format!("{number}/{key}");
                    assert_eq!(caller.put(&own, own.as_bytes()), Ok(()));
                    let others = format!("{}/{key}", (number + 1) % 8);
                    assert_eq!(caller.get(&others, Duration::from_secs(20)), Ok(others.clone().into_bytes()));
                }
            });
        }
    });
}
