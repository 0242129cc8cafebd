//! The port of a replica among strangers, and among peers that are wrong: none of them stops a run, and a line says who
//! was refused. All replicas of these tests are in this process.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use meshloom_cli::CertificateFlags;
use meshloom_cluster::internals::{Limits, Port, Present, connect, held_key, present_key};
use meshloom_cluster::store::{Store, StoreOptions};
use meshloom_cluster::{ReplicaError, ReplicaOptions, Replicas, Tls, certificates};
use meshloom_train::peers::{Judge, ReplicaLink};
use support::counts::process;

use super::etcd::{Etcd, LONG, shared};
use super::hostile::{Lines, Piece, Question, answer, ask, channel, runtime};

const SECOND: Duration = Duration::from_secs(1);

/// A replica of two on loopback.
fn options(etcd: &Etcd, job: &str, number: usize) -> ReplicaOptions {
    ReplicaOptions {
        number,
        count: 2,
        least: 2,
        store: etcd.options(job, number, 2),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        advertise: None,
        tls: None,
        insecure: false,
        state_bytes: 0,
        limit: LONG,
        patience: 6 * LONG,
    }
}

/// Two replicas that have begun, the lines that they log, and their addresses.
fn begun(etcd: &Etcd, job: &str, tls: Option<&Tls>) -> ([Arc<Replicas>; 2], Lines, [String; 2]) {
    let lines = Lines::default();
    let start = |number: usize| {
        let options = ReplicaOptions { tls: tls.cloned(), ..options(etcd, job, number) };
        let replicas = connect(options, lines.say()).unwrap_or_else(|error| panic!("{error}"));
        thread::spawn(move || {
            let beginning = replicas.begin("a = 1", 0).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((beginning.step, beginning.taken), (0, None));
            Arc::new(replicas)
        })
    };
    let both = [0, 1].map(start).map(|thread| thread.join().expect("it begins"));
    let (entries, _) = look(etcd, job, |store| store.entries("replicas/").expect("the store answers"));
    let address = |number: usize| {
        let entry = entries.iter().find(|entry| entry.name == number.to_string()).expect("it is there");
        serde_json::from_slice::<Present>(&entry.value).expect("JSON").address
    };
    (both, lines, [0, 1].map(address))
}

/// Returns what a process that is not a replica of the job sees in the job's store.
fn look<T>(etcd: &Etcd, job: &str, at: impl FnOnce(&Store) -> T) -> T {
    let store = etcd.connect(job, 9, 10);
    let seen = at(&store);
    store.leave().expect("it may");
    seen
}

/// The name of the run of a job.
fn run_of(etcd: &Etcd, job: &str) -> String {
    let decision = look(etcd, job, |store| store.get("rounds/0", LONG).expect("it has begun"));
    serde_json::from_slice::<serde_json::Value>(&decision).expect("JSON")["run"].as_str().expect("a name").to_owned()
}

/// The beginning of a message that is to be refused.
const BAD: &[u8] = b"bad";

fn judge() -> Judge {
    Arc::new(|message| if message.starts_with(BAD) { Err("it is bad".to_owned()) } else { Ok(()) })
}

/// Runs a round of both. Each gets the message of the other, except for bad messages, which count for neither.
fn exchange(both: &[Arc<Replicas>; 2], round: u64, messages: [&[u8]; 2]) {
    for (replicas, message) in both.iter().zip(messages) {
        replicas.send(round, round, message.to_vec(), judge()).expect("a thread");
    }
    let messages: Vec<&[u8]> = messages.into_iter().filter(|message| !message.starts_with(BAD)).collect();
    let waiting = both.each_ref().map(|replicas| {
        let replicas = replicas.clone();
        thread::spawn(move || replicas.receive(round).unwrap_or_else(|error| panic!("{error}")).messages)
    });
    for found in waiting.map(|thread| thread.join().expect("it goes on")) {
        assert!(found == messages, "other messages");
    }
}

/// Garbage, questions of another run, a thousand connections and 700 unread streams: a round goes on beside all of
/// them.
#[test]
fn strangers_stop_nobody() {
    const STREAMS: usize = 700;
    let (etcd, job) = (shared(), "strangers_stop_nobody");
    let (both, lines, [address, other]) = begun(&etcd, job, None);
    let run = run_of(&etcd, job);
    let asking = runtime();
    let _inside = asking.enter();
    let large: [Vec<u8>; 2] = [vec![1; 4 << 20], vec![2; 4 << 20]];
    exchange(&both, 1, large.each_ref().map(Vec::as_slice));

    // Bytes that are not HTTP, and messages that are not questions, are refused.
    let garbage: Vec<u8> = (0..1 << 16).map(|byte: u32| (byte.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut stream = TcpStream::connect(&address).expect("it listens");
    let _ = stream.write_all(&garbage);
    stream.set_read_timeout(Some(LONG)).expect("a limit");
    let _ = stream.read_to_end(&mut Vec::new());
    lines.until("it asked for nothing of this run");
    let refused = |run: &str, name: &str| {
        let stream = asking.block_on(ask(channel(&address, None), run, name));
        stream.map(drop).expect_err("it is refused").message().to_owned()
    };
    assert_eq!(refused("another", "message/1/0"), format!("this is the run {run}"));
    lines.until(r#"it asks for "message/1/0" of the run "another""#);
    assert!(refused(&run, &"name".repeat(2000)).contains("limit"), "a question of 8,000 bytes");

    let crowd: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    exchange(&both, 2, [b"one", b"two"]);
    drop(crowd);

    let unread: Vec<_> = (0..STREAMS.div_ceil(8))
        .flat_map(|_| {
            let channel = channel(&other, None);
            (0..8).map(move |_| channel.clone())
        })
        .map(|channel| {
            let run = run.clone();
            asking.spawn(async move { ask(channel, &run, "message/3/1").await })
        })
        .collect();
    exchange(&both, 3, large.each_ref().map(Vec::as_slice));
    // They were answered, and have the beginning of a message each.
    let answered = asking.block_on(async {
        let mut answered = Vec::new();
        for stream in unread {
            answered.extend(stream.await.expect("a task"));
        }
        answered
    });
    assert!(answered.len() >= STREAMS, "{}", answered.len());
    exchange(&both, 4, [b"three", b"four_"]);
    // No round has waited until they were closed.
    assert_eq!(lines.count("it has not read"), 0);
    drop(answered);

    // No replica takes a message that one refuses. Where no message is left, the run goes on all the same.
    exchange(&both, 5, [b"bad__", b"good_"]);
    exchange(&both, 6, [b"bad__", b"bad_2"]);
    exchange(&both, 7, [b"good1", b"good2"]);
    lines.until("the message of replica 0 after step 5 is not taken: it is bad");
    lines.until("the message of replica 1 after step 6 is not taken: it is bad");
}

/// The limits of a port, one by one.
#[test]
fn connections_and_streams_end() {
    let lines = Lines::default();
    let [short, long] = [SECOND / 4, 10 * SECOND];
    let limits = Limits { connections: 4, streams: 2, silence: long, question: short, unread: short, answer: 2 * long };
    let port = Port::listen("run", limits, lines.say()).unwrap_or_else(|error| panic!("{error}"));
    port.offer("large", vec![1; 16 << 20]);
    port.offer("small", b"small".to_vec());
    let (asking, address) = (runtime(), port.address().to_string());
    let _inside = asking.enter();
    let gone = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(LONG)).expect("a limit");
        !matches!(stream.read_to_end(&mut Vec::new()), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
    };
    // A silent connection is closed.
    let mut silent = TcpStream::connect(&address).expect("it listens");
    assert!(gone(&mut silent), "a silent connection stays");
    lines.until("it asked for nothing of this run");
    // A peer that does not read is closed; another reads meanwhile.
    let (mut unread, read) = asking.block_on(async {
        let unread = ask(channel(&address, None), "run", "large").await.expect("an answer");
        let mut small = ask(channel(&address, None), "run", "small").await.expect("an answer");
        (unread, small.message().await.expect("a piece").expect("a piece"))
    });
    assert_eq!((&read.bytes[..], read.total, &*read.name, &*read.run), (&b"small"[..], 5, "small", "run"));
    lines.until("it has not read large for 0.25 s");
    let ended = asking.block_on(async {
        loop {
            match unread.message().await {
                Ok(Some(_)) => {}
                ended => return ended,
            }
        }
    });
    assert!(ended.is_err(), "an unread stream ends well");
    // There are as many connections as there is room for; a stranger makes place for the next, and a peer that reads
    // does not.
    let limits = Limits { question: long, unread: long, ..limits };
    let port = Port::listen("run", limits, lines.say()).unwrap_or_else(|error| panic!("{error}"));
    port.offer("large", vec![1; 4 << 20]);
    let address = port.address().to_string();
    let peer = asking.block_on(ask(channel(&address, None), "run", "large")).expect("an answer");
    let mut crowd: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&address).expect("it listens")).collect();
    assert!(crowd[..30].iter_mut().all(gone), "those who came first stay");
    assert!(port.connections() <= 4, "{} connections", port.connections());
    let mut rest = peer;
    let total = asking.block_on(async {
        let mut total = 0;
        while let Some(piece) = rest.message().await.expect("the peer stays") {
            total += piece.bytes.len();
        }
        total
    });
    assert_eq!(total, 4 << 20);
}

/// A replica whose answers are too large, of another run, of another round, of another length, or none at all is
/// refused each time with a line; when it answers as it should, the round ends.
#[test]
fn wrong_messages_are_refused() {
    let (etcd, job, own) = (shared(), "wrong_messages_are_refused", b"own message");
    let serving = runtime();
    let right = |question: &Question| Piece {
        bytes: b"his message".to_vec().into(),
        total: own.len() as u64,
        name: question.name.clone(),
        run: question.run.clone(),
    };
    type Wrong = (&'static str, fn(Piece) -> Piece);
    let wrong: [Wrong; 6] = [
        ("it would have 6000000000 bytes, and this run's has at most 11", |piece| Piece {
            total: 6_000_000_000,
            ..piece
        }),
        ("of the run \"another\"", |piece| Piece { run: "another".to_owned(), ..piece }),
        ("it is \"message/3/1\"", |piece| Piece { name: "message/3/1".to_owned(), ..piece }),
        ("it has 3 bytes, and this run's have 11", |piece| Piece { bytes: b"his".to_vec().into(), total: 3, ..piece }),
        ("a piece of 11 bytes after 0 of 5 does not fit", |piece| Piece { total: 5, ..piece }),
        ("a piece of 0 bytes after 0 of 11 does not fit", |piece| Piece { bytes: Default::default(), ..piece }),
    ];
    let says = Arc::new(move |number: usize, question: &Question| {
        let piece = right(question);
        vec![wrong.get(number).map_or(piece.clone(), |(_, wrong)| wrong(piece))]
    });
    let address = answer(&serving, says).to_string();
    let peer = etcd.connect(job, 1, 2);
    let present = Present { address, step: 0, form: "a = 1".to_owned() };
    peer.put(&present_key(1), &serde_json::to_vec(&present).expect("JSON")).expect("it is new");
    let lines = Lines::default();
    let replicas = connect(options(&etcd, job, 0), lines.say()).unwrap_or_else(|error| panic!("{error}"));
    replicas.begin("a = 1", 0).unwrap_or_else(|error| panic!("{error}"));
    replicas.send(6, 6, own.to_vec(), judge()).expect("a thread");
    peer.put(&held_key(6, 1), b"[0,1]").expect("it is new");
    let round = replicas.receive(6).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(round.messages, [&own[..], b"his message"]);
    for (line, _) in wrong {
        assert_eq!(lines.count(line), 1, "{line}");
    }
}

fn made(folder: &Path, host: &[&str]) -> (String, Tls) {
    let host = host.iter().map(|&host| host.to_owned()).collect();
    let flags = CertificateFlags { folder: folder.to_owned(), host, days: 1 };
    let said = certificates::make(&flags).unwrap_or_else(|error| panic!("{error}"));
    let read = |name: &str| fs::read(folder.join(name)).expect("a file");
    (said, Tls { authority: Some(read("ca.pem")), identity: Some((read("run.pem"), read("run.key"))) })
}

/// With certificates, replicas read from each other, and no one else does: without a certificate, with that of another
/// authority, without TLS.
#[test]
fn certificates_tell_who_is_a_peer() {
    let (etcd, job, folder) = (shared(), "certificates_tell_who_is_a_peer", tempfile::tempdir().expect("a folder"));
    let [(_, tls), (_, others)] = ["own", "other"].map(|name| made(&folder.path().join(name), &[]));
    let (both, lines, [address, _]) = begun(&etcd, job, Some(&tls));
    exchange(&both, 1, [b"one", b"two"]);
    let (run, asking) = (run_of(&etcd, job), runtime());
    let _inside = asking.enter();
    let authority = tls.authority.as_deref().expect("it has one");
    let other = others.identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
    let own = tls.identity.as_ref().map(|(certificate, key)| (&certificate[..], &key[..]));
    for tls in [None, Some((authority, None)), Some((authority, other))] {
        let refused = asking.block_on(async {
            let mut stream = ask(channel(&address, tls), &run, "message/1/0").await?;
            stream.message().await
        });
        assert!(refused.is_err(), "{refused:?}");
    }
    lines.until("it has no certificate of the run");
    let read = asking.block_on(ask(channel(&address, Some((authority, own))), &run, "message/1/0"));
    assert!(read.is_ok(), "{read:?}");
    exchange(&both, 2, [b"three", b"four_"]);
    // Some of the three files are not enough.
    let some = Tls { identity: None, ..tls };
    let refused = Replicas::connect(ReplicaOptions { tls: Some(some), ..options(&etcd, "some", 0) }, None);
    assert!(matches!(refused, Err(ReplicaError::Certificates)), "{refused:?}");
}

/// `meshloom certificates` prints an etcd's command line, and flags with which a store is reached there, and only so.
#[test]
fn made_certificates_work_as_printed() {
    let folder = tempfile::tempdir().expect("a folder");
    let made_in = folder.path().join("made here");
    let (said, tls) = made(&made_in, &[]);
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&made_in), 0o700);
    for file in ["ca.pem", "ca.key", "run.pem", "run.key"] {
        assert_eq!(mode(&made_in.join(file)), 0o600, "{file}");
    }
    let again = certificates::make(&CertificateFlags { folder: made_in, host: Vec::new(), days: 1 });
    assert!(again.expect_err("it is refused").to_string().contains("is not empty"));
    let host = vec!["a host".to_owned()];
    let wrong = certificates::make(&CertificateFlags { folder: folder.path().join("wrong"), host, days: 1 });
    assert!(wrong.expect_err("it is refused").to_string().contains("neither a host name nor an IP address"));

    // On ports of its own.
    let ports = [0, 1].map(|_| std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port"));
    let [port, peer] = ports.each_ref().map(|bound| bound.local_addr().expect("its port").port());
    drop(ports);
    let said = said.replace(":2379", &format!(":{port}"));
    let line = |start: &str| {
        let found = said.lines().find_map(|line| line.trim().strip_prefix(start));
        found.unwrap_or_else(|| panic!("no {start} in {said}")).to_owned()
    };
    let etcd = meshloom_cluster::etcd_program().unwrap_or_else(|error| panic!("{error}"));
    let peer = format!("http://127.0.0.1:{peer}");
    let more = format!(
        "exec \"$0\" {} --data-dir=\"$1\" --listen-peer-urls={peer} --initial-advertise-peer-urls={peer} --initial-cluster=default={peer}",
        line("etcd ")
    );
    let mut server = process("sh")
        .args(["-c", &more])
        .arg(etcd)
        .arg(folder.path().join("data"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it runs");
    let flags = line("meshloom train ");
    for (flag, file) in [("--store-ca", "ca.pem"), ("--store-cert", "run.pem"), ("--store-key", "run.key")] {
        assert!(
            flags.contains(&format!("{flag} '{}'", folder.path().join("made here").join(file).display())),
            "{flags}"
        );
    }
    let address = flags.split_whitespace().nth(1).expect("an address").to_owned();
    let connect = |tls: Tls, limit| {
        Store::connect(StoreOptions { tls: Some(tls), limit, ..StoreOptions::new(&address, "job", (0, 1)) })
    };
    let connected = connect(tls.clone(), LONG).map(|store| store.put("a", b"b"));
    let without = connect(Tls { identity: None, ..tls }, SECOND).map(drop);
    server.kill().and_then(|()| server.wait()).expect("it is ours");
    assert_eq!(connected, Ok(Ok(())));
    assert!(without.is_err(), "it needs no certificate");
}

/// The keys of a run end with it, at once when its last replica leaves.
#[test]
fn keys_end_with_the_run() {
    let (etcd, job) = (shared(), "keys_end_with_the_run");
    let (both, _, _) = begun(&etcd, job, None);
    exchange(&both, 1, [b"one", b"two"]);
    for replicas in &both {
        replicas.leave().unwrap_or_else(|error| panic!("{error}"));
    }
    let (left, _) = look(&etcd, job, |store| store.entries("").expect("the store answers"));
    let left: Vec<_> = left.into_iter().map(|entry| entry.name).filter(|name| !name.starts_with("members/9")).collect();
    assert!(left.is_empty(), "{left:?}");
}
