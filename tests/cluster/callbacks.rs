//! The store behind PJRT's key-value callbacks, asked as a plugin asks: through C, from several threads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use meshloom::pjrt::internals::ThroughCallbacks;
use meshloom::pjrt::{ErrorCode, KeyValueFailure, KeyValues};
use meshloom_cluster::StoreForClients;
use meshloom_cluster::store::{Store, StoreOptions};
use support::cases::every_case;

use super::etcd::{Etcd, LONG, shared};

fn through_callbacks(store: Store) -> ThroughCallbacks {
    ThroughCallbacks::new(Arc::new(StoreForClients(Arc::new(store))))
}

fn code<T: std::fmt::Debug>(result: Result<T, KeyValueFailure>) -> ErrorCode {
    result.expect_err("it fails").code
}

/// XLA goes by these.
#[test]
fn codes_are_those_that_xla_knows() {
    let etcd = shared();
    let store = through_callbacks(etcd.connect("codes", 0, 1));
    assert_eq!(code(store.try_get("a")), ErrorCode::NotFound);
    let (start, limit) = (Instant::now(), Duration::from_millis(300));
    assert_eq!(code(store.get("a", limit)), ErrorCode::DeadlineExceeded);
    assert!(start.elapsed() >= limit && start.elapsed() < LONG / 4, "{:?}", start.elapsed());
    assert_eq!(store.put("a", b"\0bytes\xff"), Ok(()));
    assert_eq!(code(store.put("a", b"\0bytes\xff")), ErrorCode::AlreadyExists);
    assert_eq!(store.try_get("a"), Ok(b"\0bytes\xff".to_vec()));
    assert_eq!(store.put("empty", b""), Ok(()));
    assert_eq!(store.get("empty", Duration::ZERO), Ok(Vec::new()));
    // The topology of a large machine.
    let large: Vec<u8> = (0..1 << 20).map(|byte| (byte % 251) as u8).collect();
    assert_eq!(store.put("local_topology/cuda/0", &large), Ok(()));
    assert_eq!(store.get("local_topology/cuda/0", LONG), Ok(large));
}

/// Eight threads of two processes each put and get all of 200 keys, or of 1,000 in the full tier. For each key exactly
/// one writer succeeds.
#[test]
fn many_threads() {
    let count = if every_case("cluster keys") { 1000 } else { 200 };
    let etcd = shared();
    let stores = [0, 1].map(|process| through_callbacks(etcd.connect("many threads", process, 2)));
    let written = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..8 {
            let (store, written) = (&stores[number % 2], &written);
            scope.spawn(move || {
                for key in 0..count {
                    let key = format!("key/{}", (key + count / 8 * number) % count);
                    match store.put(&key, key.as_bytes()) {
                        Ok(()) => drop(written.fetch_add(1, Ordering::Relaxed)),
                        Err(failure) => assert_eq!(failure.code, ErrorCode::AlreadyExists, "{failure:?}"),
                    }
                    assert_eq!(store.get(&key, LONG).expect("it is there"), key.as_bytes());
                }
            });
        }
    });
    assert_eq!(written.load(Ordering::Relaxed), count);
}

/// etcd is killed in the middle of puts and gets, and started again with its data, twice: calls wait for it, each key
/// is written once and has one writer who is told so, and leases go on. A single etcd before 3.5.5 may lose what it has
/// acknowledged just before it is killed (etcd issue 14370), so what was put then may be gone.
#[test]
fn etcd_may_be_away() {
    let mut etcd = Etcd::start();
    let stores = [0, 1].map(|process| {
        // Longer than etcd is away.
        let options = StoreOptions { lease: Duration::from_secs(15), ..etcd.options("job", process, 2) };
        Store::connect(options).map(Arc::new).unwrap_or_else(|error| panic!("{error}"))
    });
    let callers = stores.each_ref().map(|store| ThroughCallbacks::new(Arc::new(StoreForClients(store.clone()))));
    let (is_over, rounds, kills) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..8 {
            let (store, other) = (&callers[number % 2], &callers[1 - number % 2]);
            let (is_over, rounds, kills) = (&is_over, &rounds, &kills);
            scope.spawn(move || {
                let mut kills_before_put = kills.load(Ordering::SeqCst);
                for round in 0.. {
                    // It waits for the next one before that is written.
                    let keys = [round, round + 1].map(|round| format!("{number}/{round}"));
                    if round == 0 {
                        assert_eq!(store.put(&keys[0], keys[0].as_bytes()), Ok(()));
                    }
                    let kills_before_next = kills.load(Ordering::SeqCst);
                    // Since the first of the two was put.
                    let killed = || kills.load(Ordering::SeqCst) > kills_before_put;
                    thread::scope(|scope| {
                        let waiting = scope.spawn(|| other.get(&keys[1], LONG));
                        assert_eq!(store.put(&keys[1], keys[1].as_bytes()), Ok(()), "{keys:?}");
                        match waiting.join().expect("a thread") {
                            Err(failure) if killed() => assert_eq!(failure.code, ErrorCode::DeadlineExceeded),
                            found => assert_eq!(found, Ok(keys[1].clone().into_bytes())),
                        }
                    });
                    match other.try_get(&keys[0]) {
                        Err(failure) if killed() => assert_eq!(failure.code, ErrorCode::NotFound),
                        found => assert_eq!(found, Ok(keys[0].clone().into_bytes())),
                    }
                    match other.put(&keys[0], b"") {
                        Ok(()) if killed() => (),
                        put => assert_eq!(code(put), ErrorCode::AlreadyExists),
                    }
                    kills_before_put = kills_before_next;
                    rounds.fetch_add(1, Ordering::Relaxed);
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    // Even so, calls are under way at any time.
                    thread::sleep(Duration::from_millis(3));
                }
            });
        }
        // Some rounds, however long they take on this machine; the last assertion fails where they do not come.
        let go_on = || {
            let (start, before) = (Instant::now(), rounds.load(Ordering::Relaxed));
            thread::sleep(Duration::from_millis(700));
            while rounds.load(Ordering::Relaxed) < before + 20 && start.elapsed() < LONG {
                thread::sleep(Duration::from_millis(10));
            }
        };
        for away in [100, 1000] {
            go_on();
            kills.fetch_add(1, Ordering::SeqCst);
            etcd.kill();
            let before = rounds.load(Ordering::Relaxed);
            thread::sleep(Duration::from_millis(away));
            // Each thread may have been in between two calls.
            assert!(rounds.load(Ordering::Relaxed) <= before + 8, "there are puts without etcd");
            etcd.start_again();
        }
        go_on();
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(rounds.load(Ordering::Relaxed) > 50, "{rounds:?}");
    assert_eq!(stores.map(|store| store.dead()), [Ok(vec![]), Ok(vec![])]);
}
