//! Runs the beginning of a run with many processes, each a client in this process: they connect, meet, compare digests,
//! and meet again. Usage: `store_start ETCD COUNT..` starts an etcd for each number of processes, and prints a table.
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use meshloom_cluster::store::{Server, Store, StoreOptions};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Does what `meshloom train --processes` does with the store until the first step, for a run of four programs. Records
/// the longest time of each part, in microseconds.
fn begin(address: &str, (number, count): (usize, usize), times: &[AtomicU64; 4]) -> Result<Store, Failure> {
    let limit = Duration::from_secs(300);
    let mut last = Instant::now();
    let mut done = |step: usize| {
        let now = Instant::now();
        times[step].fetch_max((now - last).as_micros() as u64, Ordering::Relaxed);
        last = now;
    };
    let store = Store::connect(StoreOptions { limit, ..StoreOptions::new(address, "start", (number, count)) })?;
    done(0);
    store.barrier("joined", limit)?;
    done(1);
    // The six values are the config, the text and four programs.
    for what in 0..6 {
        let (key, decision) = (|process: usize| format!("agree/{what}/{process}"), format!("agreed/{what}"));
        if number > 0 {
            store.put(&key(number), &[b'0'; 64])?;
            store.get(&decision, limit)?;
        } else {
            for process in 1..count {
                store.get(&key(process), limit)?;
            }
            store.put(&decision, b"")?;
        }
    }
    done(2);
    store.barrier("the checkpoint of step 100 is written", limit)?;
    done(3);
    Ok(store)
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let program = arguments.next().ok_or("which etcd?")?;
    println!("| processes | connect | first barrier | six agreements | a barrier | memory of etcd |");
    println!("|---|---|---|---|---|---|");
    for count in arguments {
        let count: usize = count.parse()?;
        let folder = std::env::temp_dir().join(format!("meshloom-start-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let server = Server::start(Path::new(&program), &folder)?;
        let times: [AtomicU64; 4] = Default::default();
        let address = server.address().to_owned();
        let stores = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..count)
                .map(|number| {
                    let (address, times) = (&address, &times);
                    scope.spawn(move || begin(address, (number, count), times))
                })
                .collect();
            clients
                .into_iter()
                .map(|client| client.join().map_err(|_| Failure::from("a client has panicked"))?)
                .collect::<Result<Vec<_>, _>>()
        })?;
        let milliseconds = times.map(|time| time.into_inner() as f64 / 1e3);
        let [connect, barrier, agreements, later] = milliseconds.map(|time| format!("{time:.0} ms"));
        let memory = server.memory().map_or("?".to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        println!("| {count} | {connect} | {barrier} | {agreements} | {later} | {memory} |");
        drop(stores);
        drop(server);
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(())
}
