//! The store of the processes of a run, against an etcd of the test's own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use meshloom_cluster::store::{Store, StoreError, StoreOptions, User};
use support::counts::process;
use support::program::test_alone;

use super::etcd::{Etcd, LONG, shared};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn keys_are_written_once() {
    let etcd = shared();
    let store = etcd.connect("keys_are_written_once", 0, 2);
    assert_eq!(store.try_get("a"), Err(StoreError::NotFound { key: "a".to_owned() }));
    store.put("a", b"one").expect("it is new");
    assert_eq!(store.put("a", b"one"), Err(StoreError::AlreadyExists { key: "a".to_owned() }));
    assert_eq!(store.try_get("a").expect("it is there"), b"one");
    store.put("empty", b"").expect("it is new");
    assert_eq!(store.get("empty", LONG).expect("it is there"), b"");
    // Any bytes, and many of them.
    let large: Vec<u8> = (0..1 << 20).map(|byte| (byte % 251) as u8).collect();
    store.put("local_topology/cuda/0", &large).expect("it fits");
    assert_eq!(
        etcd.connect("keys_are_written_once", 1, 2).try_get("local_topology/cuda/0").expect("it is there"),
        large
    );
    // A second process of this number is refused.
    let twice = Store::connect(etcd.options("keys_are_written_once", 1, 2)).map(drop);
    assert_eq!(twice, Err(StoreError::AlreadyExists { key: "members/1".to_owned() }));
}

#[test]
fn reads_wait() {
    let etcd = shared();
    let store = Arc::new(etcd.connect("reads_wait", 0, 2));
    let start = Instant::now();
    let late = store.get("never", Duration::from_millis(300));
    assert_eq!(late, Err(StoreError::DeadlineExceeded { key: "never".to_owned(), waited: Duration::from_millis(300) }));
    assert!(start.elapsed() >= Duration::from_millis(300) && start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            thread::spawn(move || store.get("later", LONG))
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    etcd.connect("reads_wait", 1, 2).put("later", b"here").expect("it is new");
    waiting.into_iter().for_each(|it| assert_eq!(it.join().expect("a thread").expect("a value"), b"here"));
}

/// The keys, members and arrivals at a barrier of a stale attempt are not seen, though its processes still live.
#[test]
fn attempts_do_not_meet() {
    let etcd = shared();
    let attempt = |attempt: u64, process: usize| {
        let options = StoreOptions { attempt, ..etcd.options("attempts_do_not_meet", process, 2) };
        Store::connect(options).unwrap_or_else(|error| panic!("{error}"))
    };
    let stale = [attempt(0, 0), attempt(0, 1)];
    stale[0].put("global_topology/cuda", b"stale").expect("it is new");
    thread::scope(|scope| {
        let waiting = stale.each_ref().map(|store| scope.spawn(|| store.barrier("start", LONG)));
        assert_eq!(waiting.map(|it| it.join().expect("a thread")), [Ok(()), Ok(())]);
    });
    let first = attempt(1, 0);
    let key = "global_topology/cuda".to_owned();
    assert_eq!(first.try_get(&key), Err(StoreError::NotFound { key: key.clone() }));
    // The other process has come to this barrier in the attempt before alone.
    let waited = Duration::from_millis(500);
    let missing = StoreError::Missing { barrier: "start".to_owned(), count: 2, missing: vec![1], waited };
    assert_eq!(first.barrier("start", waited), Err(missing));
    first.put(&key, b"new").expect("it is new here");
    let [_stale, other] = stale;
    other.leave().expect("it may");
    assert_eq!(first.dead(), Ok(vec![]));
    assert_eq!(attempt(1, 1).get(&key, LONG).expect("it is there"), b"new");
}

/// A run that is started again under its name, as the same attempt, waits for its own processes. A barrier that the
/// previous run left open ends by itself.
#[test]
fn barriers_of_a_run_before_are_closed() {
    let etcd = shared();
    let connect_with = |process, lease| {
        let options = etcd.options("barriers_of_a_run_before_are_closed", process, 2);
        Store::connect(StoreOptions { lease, ..options }).unwrap_or_else(|error| panic!("{error}"))
    };
    let connect = |process| connect_with(process, 2 * SECOND);
    let meet = |stores: [Store; 2]| {
        thread::scope(|scope| {
            let waiting = stores.each_ref().map(|store| scope.spawn(|| store.barrier("joined", LONG)));
            assert_eq!(waiting.map(|it| it.join().expect("a thread")), [Ok(()), Ok(())]);
        });
        stores.iter().for_each(|store| store.leave().expect("it may"));
    };
    meet([0, 1].map(|process| connect_with(process, LONG)));
    let first = connect(0);
    let open = || first.entries("open/").expect("etcd is there").0.len();
    assert_eq!(open(), 1, "it outlives those who came");
    let waited = Duration::from_millis(500);
    let missing = StoreError::Missing { barrier: "joined".to_owned(), count: 2, missing: vec![1], waited };
    assert_eq!(first.barrier("joined", waited), Err(missing));
    first.leave().expect("it may");
    meet([connect(0), connect(1)]);
    let watching = connect(0);
    let start = Instant::now();
    while !watching.entries("open/").expect("etcd is there").0.is_empty() {
        assert!(start.elapsed() < LONG, "a barrier's key does not end");
        thread::sleep(SECOND / 4);
    }
}

/// Two jobs at a time in one etcd, one whose name begins with that of the other: each has its own keys, processes and
/// barriers.
#[test]
fn jobs_do_not_meet() {
    let etcd = shared();
    thread::scope(|scope| {
        for (job, count) in [("run", 2), ("run2", 3)] {
            for process in 0..count {
                let store = etcd.connect(job, process, count);
                scope.spawn(move || {
                    let value = format!("{job} {process}").into_bytes();
                    store.put(&format!("{process}"), &value).expect("it is new");
                    for round in 0..5 {
                        assert_eq!(store.barrier(&format!("round {round}"), LONG), Ok(()));
                        let next = (process + 1) % count;
                        let found = store.try_get(&next.to_string()).expect("it came to the barrier");
                        assert_eq!(found, format!("{job} {next}").into_bytes());
                    }
                    if job == "run" {
                        let key = "2".to_owned();
                        assert_eq!(store.try_get(&key), Err(StoreError::NotFound { key }));
                    }
                    assert_eq!(store.dead(), Ok(vec![]));
                    assert_eq!(store.barrier("end", LONG), Ok(()));
                });
            }
        }
    });
}

#[test]
fn barriers_name_who_is_missing() {
    let etcd = shared();
    let stores: Vec<_> =
        (0..4).map(|process| Arc::new(etcd.connect("barriers_name_who_is_missing", process, 4))).collect();
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
        assert_eq!(meet(name, &[0, 1, 2, 3], LONG), vec![Ok(()); 4]);
    }
    let waited = Duration::from_millis(700);
    let missing = StoreError::Missing { barrier: "third".to_owned(), count: 4, missing: vec![1, 3], waited };
    assert_eq!(meet("third", &[0, 2], waited), vec![Err(missing.clone()); 2]);
    assert!(missing.to_string().contains("2 of 4 processes are missing"), "{missing}");
    assert!(missing.to_string().contains("process 1, process 3"), "{missing}");
}

/// A process that leaves is seen at once, and one that dies after its lease; processes that wait at a barrier are told.
#[test]
fn deaths_are_seen() {
    let etcd = shared();
    let store = etcd.connect("deaths_are_seen", 0, 3);
    let (other, third) = (etcd.connect("deaths_are_seen", 1, 3), etcd.connect("deaths_are_seen", 2, 3));
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
    assert_eq!(store.barrier("all", LONG), Err(StoreError::Died { dead: vec![1, 2] }));
}

/// Returns the address of a relay that passes on all bytes to a server and back. It holds up each request that has a
/// part by half a second.
fn slowed(server: &str, part: &'static [u8]) -> String {
    let server = server.trim_start_matches("http://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("its address"));
    let pass = |mut from: TcpStream, mut to: TcpStream, part: &'static [u8]| {
        let mut bytes = [0; 1 << 16];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if bytes[..count].windows(part.len()).any(|window| window == part) {
                thread::sleep(SECOND / 2);
            }
            if to.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    };
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(&server).expect("the server");
            let back = [&server, &client].map(|stream| stream.try_clone().expect("a stream"));
            thread::spawn(move || pass(client, server, part));
            let [server, client] = back;
            thread::spawn(move || pass(server, client, b"no request is like this"));
        }
    });
    address
}

/// A process leaves as soon as a barrier is open. Another one that has yet to read that the barrier is open does not
/// take it for dead.
#[test]
fn who_leaves_behind_a_barrier_is_not_missed() {
    let etcd = shared();
    let options = etcd.options("who_leaves_behind_a_barrier", 0, 2);
    let address = slowed(etcd.address(), b"failed");
    let first = Store::connect(StoreOptions { address, ..options }).unwrap_or_else(|error| panic!("{error}"));
    let second = etcd.connect("who_leaves_behind_a_barrier", 1, 2);
    assert_eq!(first.dead(), Ok(vec![]));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| first.barrier("done", LONG));
        while second.entries("barriers/done/").expect("etcd is there").0.is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(SECOND / 10);
        assert_eq!(second.barrier("done", LONG), Ok(()));
        second.leave().expect("it may");
        assert_eq!(waiting.join().expect("a thread"), Ok(()));
    });
    assert_eq!(first.dead(), Ok(vec![1]));
}

/// Connects to the store that the environment names, and stays there.
#[test]
#[ignore = "it is started by another test"]
fn a_process() {
    let address = std::env::var("MESHLOOM_TEST_STORE").expect("the test that starts this sets it");
    let options = StoreOptions {
        lease: Duration::from_secs(2),
        ..StoreOptions::new(address, "a_killed_process_is_dead", (1, 2))
    };
    let _store = Store::connect(options).unwrap_or_else(|error| panic!("{error}"));
    let mut child = process("sleep");
    child.arg((3 * LONG.as_secs()).to_string());
    let mut child = meshloom_process::spawn(child).expect("it starts");
    println!("\nconnected, with the child {}", child.id());
    child.wait().expect("it is a child");
}

/// A process that is killed is dead when its lease ends, and not before; a process that waits for it at a barrier is
/// told. Its child processes end with it.
#[test]
fn a_killed_process_is_dead() {
    let etcd = shared();
    let store = etcd.connect("a_killed_process_is_dead", 0, 2);
    let mut other = test_alone(module_path!(), "a_process");
    let started = other.env("MESHLOOM_TEST_STORE", etcd.address()).stdout(Stdio::piped()).spawn();
    let mut other = started.expect("it starts");
    let mut said = BufReader::new(other.stdout.take().expect("its output")).lines().map_while(Result::ok);
    let connected = said.find_map(|line| Some(line.strip_prefix("connected, with the child ")?.to_owned()));
    let child = PathBuf::from("/proc").join(connected.expect("it connects")).join("stat");
    // It may run or sleep; of one that has ended, a zombie stays until somebody asks.
    let has_ended = |stat: &str| stat.contains("(sleep) Z") || stat.contains("(sleep) X");
    let lives = || std::fs::read_to_string(&child).is_ok_and(|stat| stat.contains("(sleep)") && !has_ended(&stat));
    // It lives on beyond the length of its lease.
    let start = Instant::now();
    while start.elapsed() < 3 * SECOND {
        assert_eq!(store.dead(), Ok(vec![]));
        assert!(lives(), "it has ended by itself");
        thread::sleep(SECOND / 4);
    }
    other.kill().expect("it runs");
    let start = Instant::now();
    other.wait().expect("it has ended");
    assert_eq!(store.barrier("all", LONG), Err(StoreError::Died { dead: vec![1] }));
    assert!(start.elapsed() > SECOND / 2 && start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
    assert_eq!(store.dead(), Ok(vec![1]));
    assert!(!lives(), "its child lives on");
}

/// A child may be started by a thread that ends, and is not started for a parent that is gone.
#[test]
fn children_are_of_a_process() {
    let sleep = || {
        let mut command = process("sleep");
        command.arg("1000");
        command
    };
    let started = thread::spawn(move || meshloom_process::spawn(sleep())).join().expect("a thread");
    let mut child = started.expect("it starts");
    thread::sleep(SECOND / 4);
    assert_eq!(child.try_wait().expect("it is a child"), None, "it has ended with the thread that started it");
    child.kill().expect("it runs");
    child.wait().expect("it has ended");
    let mut command = sleep();
    meshloom_process::end_with_parent(&mut command, std::os::unix::process::parent_id());
    let error = command.spawn().expect_err("it is the child of another process");
    assert_eq!(error.raw_os_error(), Some(3), "{error}");
}

/// If etcd is gone, the error says so within the time limit.
#[test]
fn etcd_may_be_gone() {
    let mut etcd = Etcd::start();
    let connect = |etcd: &Etcd, job: &str, process| {
        Store::connect(StoreOptions { limit: SECOND, ..etcd.options(job, process, 2) })
    };
    // On a busy machine, the first answers of etcd may take longer than that.
    let attempts = (0..LONG.as_secs()).map(|attempt| connect(&etcd, &format!("job{attempt}"), 0));
    let store = attempts.flatten().next().expect("it is there");
    etcd.kill();
    let connected = connect(&etcd, "job", 1).map(drop);
    let start = Instant::now();
    for found in [connected, store.put("a", b""), store.try_get("a").map(drop), store.dead().map(drop)] {
        assert!(matches!(found, Err(StoreError::Unreachable { .. })), "{found:?}");
    }
    assert!(start.elapsed() < 6 * SECOND, "{:?}", start.elapsed());
}

#[test]
fn addresses_that_cannot_be_used() {
    for address in ["127.0.0.1:2379", "ftp://127.0.0.1", "http://", "http://a b"] {
        let found = Store::connect(StoreOptions::new(address, "job", (0, 1))).map(drop);
        assert!(matches!(found, Err(StoreError::Address { .. })), "{address}: {found:?}");
    }
}

/// Sends a question to etcd in the form of JSON that its gateway takes.
fn post(etcd: &Etcd, method: &str, question: &str) {
    let host = etcd.address().strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(host).expect("it listens");
    let length = question.len();
    let head = format!("POST /v3/auth/{method} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + question).as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.0 200"), "{method}: {answer}");
}

/// A user whose role has the one prefix of a job can do all that the job's processes and replicas do, and nothing
/// beside.
#[test]
fn a_role_for_a_job_is_enough() {
    let etcd = Etcd::start();
    let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    // The first key behind the prefix has the character behind the slash.
    let (prefix, behind) = (base64("meshloom/decoder/"), base64("meshloom/decoder0"));
    let permission = format!(r#"{{"permType":"READWRITE","key":"{prefix}","range_end":"{behind}"}}"#);
    for (method, question) in [
        ("user/add", r#"{"name":"root","password":"of all"}"#.to_owned()),
        ("user/grant", r#"{"user":"root","role":"root"}"#.to_owned()),
        ("user/add", r#"{"name":"me","password":"secret"}"#.to_owned()),
        ("role/add", r#"{"name":"decoder"}"#.to_owned()),
        ("role/grant", format!(r#"{{"name":"decoder","perm":{permission}}}"#)),
        ("user/grant", r#"{"user":"me","role":"decoder"}"#.to_owned()),
        ("enable", "{}".to_owned()),
    ] {
        post(&etcd, method, &question);
    }
    let user = |password: &str| Some(User { name: "me".to_owned(), password: password.to_owned() });
    let options = |job: &str| StoreOptions { user: user("secret"), insecure: true, ..etcd.options(job, 0, 1) };
    for job in ["decoder", "decoder/replica-1"] {
        let store = Store::connect(options(job)).unwrap_or_else(|error| panic!("{job}: {error}"));
        store.put("a", b"b").expect("it may");
        store.put_shared("rounds/0", b"c").expect("it may");
        assert_eq!(store.get_from_others("a", LONG).expect("it may"), b"b");
        store.barrier("all", LONG).expect("it may");
        assert_eq!(store.entries("rounds/").map(|(entries, _)| entries.len()), Ok(1));
        store.delete("a").expect("it may");
        store.leave().expect("it may");
    }
    let denied = |options: StoreOptions| Store::connect(options).map(drop).expect_err("it is refused").to_string();
    let other = denied(options("decoder2"));
    assert!(other.contains(r#"refuses the user "me""#) && other.contains("readwrite meshloom/decoder2/"), "{other}");
    let wrong = denied(StoreOptions { user: user("wrong"), ..options("decoder") });
    assert!(wrong.contains("refuses") && !wrong.contains("wrong"), "{wrong}");
    let clear = denied(StoreOptions { insecure: false, ..options("decoder") });
    assert!(clear.contains("would travel") && !clear.contains("secret"), "{clear}");
}
