//! The store of the processes of a run, against an etcd of the test's own.
//!
//! `MESHLOOM_ETCD` names the program; without it, the one on the path. Where there is none, the tests are left out with a
//! word, unless `MESHLOOM_TEST_ETCD` is set.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use meshloom_store::{Server, Store, StoreError, StoreOptions};

fn program() -> PathBuf {
    std::env::var_os("MESHLOOM_ETCD").map_or_else(|| PathBuf::from("etcd"), PathBuf::from)
}

struct Etcd {
    server: Server,
    _folder: tempfile::TempDir,
}

fn etcd() -> Etcd {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&program(), folder.path()).unwrap_or_else(|error| panic!("{error}"));
    Etcd { server, _folder: folder }
}

impl Etcd {
    fn options(&self, job: &str, process: usize, count: usize) -> StoreOptions {
        let lease = Duration::from_secs(2);
        StoreOptions {
            lease,
            limit: Duration::from_secs(20),
            ..StoreOptions::new(self.server.address(), job, (process, count))
        }
    }

    fn connect(&self, job: &str, process: usize, count: usize) -> Store {
        Store::connect(self.options(job, process, count)).unwrap_or_else(|error| panic!("{error}"))
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn keys_are_written_once() {
    let etcd = etcd();
    let store = etcd.connect("job", 0, 2);
    assert_eq!(store.try_get("a"), Err(StoreError::NotFound { key: "a".to_owned() }));
    store.put("a", b"one").expect("it is new");
    assert_eq!(store.put("a", b"one"), Err(StoreError::AlreadyExists { key: "a".to_owned() }));
    assert_eq!(store.try_get("a").expect("it is there"), b"one");
    store.put("empty", b"").expect("it is new");
    assert_eq!(store.get("empty", SECOND).expect("it is there"), b"");
    // Any bytes, and many of them.
    let large: Vec<u8> = (0..1 << 20).map(|byte| (byte % 251) as u8).collect();
    store.put("local_topology/cuda/0", &large).expect("it fits");
    assert_eq!(etcd.connect("job", 1, 2).try_get("local_topology/cuda/0").expect("it is there"), large);
    // Another job, and another attempt of this one, see nothing of it.
    assert_eq!(etcd.connect("job2", 0, 1).try_get("a"), Err(StoreError::NotFound { key: "a".to_owned() }));
    let again = Store::connect(StoreOptions { attempt: 1, ..etcd.options("job", 0, 2) }).expect("another attempt");
    assert_eq!(again.try_get("a"), Err(StoreError::NotFound { key: "a".to_owned() }));
    // A second process of this number is refused.
    let twice = Store::connect(etcd.options("job", 1, 2)).map(drop);
    assert_eq!(twice, Err(StoreError::AlreadyExists { key: "members/1".to_owned() }));
}

#[test]
fn reads_wait() {
    let etcd = etcd();
    let store = Arc::new(etcd.connect("job", 0, 2));
    let start = Instant::now();
    let late = store.get("never", Duration::from_millis(300));
    assert_eq!(late, Err(StoreError::DeadlineExceeded { key: "never".to_owned(), waited: Duration::from_millis(300) }));
    assert!(start.elapsed() >= Duration::from_millis(300) && start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            thread::spawn(move || store.get("later", 20 * SECOND))
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    etcd.connect("job", 1, 2).put("later", b"here").expect("it is new");
    waiting.into_iter().for_each(|it| assert_eq!(it.join().expect("a thread").expect("a value"), b"here"));
}

/// 1,000 puts and gets by 8 threads of two processes; each key has one writer who succeeds.
#[test]
fn many_threads() {
    let etcd = etcd();
    let stores = [Arc::new(etcd.connect("job", 0, 2)), Arc::new(etcd.connect("job", 1, 2))];
    let written = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..8)
        .map(|number| {
            let (store, written) = (stores[number % 2].clone(), written.clone());
            thread::spawn(move || {
                for key in 0..1000 {
                    let key = format!("key/{}", (key + 125 * number) % 1000);
                    match store.put(&key, key.as_bytes()) {
                        Ok(()) => drop(written.fetch_add(1, Ordering::Relaxed)),
                        Err(StoreError::AlreadyExists { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    assert_eq!(store.get(&key, 20 * SECOND).expect("it is there"), key.as_bytes());
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a thread"));
    assert_eq!(written.load(Ordering::Relaxed), 1000);
}

#[test]
fn barriers_name_who_is_missing() {
    let etcd = etcd();
    let stores: Vec<_> = (0..4).map(|process| Arc::new(etcd.connect("job", process, 4))).collect();
    let meet = |name: &'static str, who: &[usize], limit| {
        let threads: Vec<_> = who
            .iter()
            .map(|&process| {
                let store = stores[process].clone();
                thread::spawn(move || store.barrier(name, limit))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect::<Vec<_>>()
    };
    for name in ["first", "second"] {
        assert_eq!(meet(name, &[0, 1, 2, 3], 20 * SECOND), vec![Ok(()); 4]);
    }
    let waited = Duration::from_millis(700);
    let missing = StoreError::Missing { barrier: "third".to_owned(), count: 4, missing: vec![1, 3], waited };
    assert_eq!(meet("third", &[0, 2], waited), vec![Err(missing.clone()); 2]);
    assert!(missing.to_string().contains("2 of 4 processes are missing"), "{missing}");
    assert!(missing.to_string().contains("process 1, process 3"), "{missing}");
}

/// Who leaves is seen at once, who dies after its lease; those who wait at a barrier are told.
#[test]
fn deaths_are_seen() {
    let etcd = etcd();
    let store = etcd.connect("job", 0, 3);
    let (other, third) = (etcd.connect("job", 1, 3), etcd.connect("job", 2, 3));
    assert_eq!(store.dead(), Ok(vec![]));
    other.leave().expect("it may");
    assert_eq!(store.dead(), Ok(vec![1]));
    // Dropped without a word, as in a crash.
    drop(third);
    let start = Instant::now();
    while store.dead().expect("etcd is there") != [1, 2] {
        assert!(start.elapsed() < 10 * SECOND, "{:?}", store.dead());
        thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() > SECOND / 2, "{:?}", start.elapsed());
    assert_eq!(store.barrier("all", 20 * SECOND), Err(StoreError::Died { dead: vec![1, 2] }));
}

/// An etcd that is killed and started again with its data: calls wait for it, leases go on.
#[test]
fn etcd_may_be_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let ports = [0, 1].map(|_| {
        let bound = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        bound.expect("a port").port()
    });
    let start = || Server::start_on(&program(), folder.path(), ports).unwrap_or_else(|error| panic!("{error}"));
    let server = start();
    let limit = Duration::from_secs(20);
    let options = StoreOptions { limit, ..StoreOptions::new(server.address(), "job", (0, 1)) };
    let store = Arc::new(Store::connect(options).expect("it is there"));
    store.put("before", b"1").expect("it is new");
    let waiting = {
        let store = store.clone();
        thread::spawn(move || store.get("after", limit))
    };
    thread::sleep(Duration::from_millis(200));
    drop(server);
    let putting = {
        let store = store.clone();
        thread::spawn(move || store.put("after", b"2"))
    };
    thread::sleep(SECOND);
    let server = start();
    assert_eq!(putting.join().expect("a thread"), Ok(()));
    assert_eq!(waiting.join().expect("a thread"), Ok(b"2".to_vec()));
    assert_eq!(store.try_get("before"), Ok(b"1".to_vec()));
    drop(server);
    let gone = Store::connect(StoreOptions {
        limit: SECOND,
        ..StoreOptions::new(format!("http://127.0.0.1:{}", ports[0]), "job", (0, 1))
    });
    assert!(matches!(gone, Err(StoreError::Unreachable { .. })), "{gone:?}");
}

#[test]
fn addresses_that_cannot_be_used() {
    for address in ["127.0.0.1:2379", "ftp://127.0.0.1", "http://", "http://a b"] {
        let found = Store::connect(StoreOptions::new(address, "job", (0, 1))).map(drop);
        assert!(matches!(found, Err(StoreError::Address { .. })), "{address}: {found:?}");
    }
}
