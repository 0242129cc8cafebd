//! Answers, from the store, the questions that MPICH asks its launcher when it is initialized. So no launcher of MPI is
//! needed, on one host or several.
//!
//! The questions are those of PMI 1, one line each, over a socket whose number stands in the environment (MPICH,
//! `src/pmi/src/pmi_v1.c`): the number of this process, the processes that share a host, and a table in which each
//! process puts the address where it can be reached.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use crate::error::JoinError;
use crate::mpi::set_variables;
use crate::network::this_host;
use crate::store::{Store, StoreError};

/// The end of a socket at which MPI's questions arrive.
pub(crate) struct Questions(UnixStream);

impl Questions {
    /// Makes MPI ask here when it is initialized as process `number` of `count`. The caller does so before any other
    /// thread of this process runs.
    pub(crate) fn expect(number: usize, count: usize) -> Result<Questions, JoinError> {
        let pair = UnixStream::pair().map_err(|error| JoinError::Socket { reason: error.to_string() });
        let (own, theirs) = pair?;
        // MPI owns the socket until the process ends.
        let socket = theirs.into_raw_fd();
        let own_place =
            [("PMI_FD", socket.to_string()), ("PMI_RANK", number.to_string()), ("PMI_SIZE", count.to_string())];
        let own_place = own_place.map(|(name, value)| (name, Some(value)));
        set_variables(own_place.into_iter().chain([("PMI_PORT", None), ("PMI_ID", None)]));
        Ok(Questions(own))
    }

    /// Answers the questions in a thread, until MPI is finalized.
    pub(crate) fn answer(
        self,
        store: Arc<Store>,
        number: usize,
        count: usize,
        limit: Duration,
    ) -> Result<(), JoinError> {
        let table = Table::of(&store, number, count, limit)?;
        let answers = move || {
            let mut barriers = 0;
            let Ok(mut out) = self.0.try_clone() else { return };
            for question in BufReader::new(self.0).lines().map_while(Result::ok) {
                let answer = answer(&question, &store, (count, &table), &mut barriers, limit);
                if writeln!(out, "{answer}").is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("pmi".to_owned()).spawn(answers);
        thread.map(drop).map_err(|error| JoinError::Socket { reason: error.to_string() })
    }
}

/// The answers that are the same for all processes.
struct Table {
    /// A name that no other run on these hosts has. MPI uses it to name the memory that processes of a host share.
    name: String,
    /// The processes that share a host, in PMI's form: each host with the number of consecutive processes on it.
    hosts: String,
}

impl Table {
    /// Process 0 makes the table from the host names that all processes write.
    fn of(store: &Store, number: usize, count: usize, limit: Duration) -> Result<Table, JoinError> {
        const TABLE: &str = "pmi/hosts";
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let own = this_host();
        if number > 0 {
            store.put(&format!("pmi/host/{number}"), own.as_bytes())?;
            let said = text(store.get_from_others(TABLE, limit)?);
            let (name, hosts) = said.split_once(' ').unwrap_or(("", &said));
            return Ok(Table { name: name.to_owned(), hosts: hosts.to_owned() });
        }
        let mut known: Vec<String> = Vec::new();
        let mut blocks: Vec<(usize, usize)> = Vec::new();
        for process in 0..count {
            let host = if process == 0 {
                own.clone()
            } else {
                text(store.get_from_others(&format!("pmi/host/{process}"), limit)?)
            };
            let index = known.iter().position(|other| *other == host).unwrap_or_else(|| {
                known.push(host);
                known.len() - 1
            });
            match blocks.last_mut() {
                Some((last, count)) if *last == index => *count += 1,
                _ => blocks.push((index, 1)),
            }
        }
        let blocks: Vec<String> = blocks.iter().map(|(host, count)| format!("({host},1,{count})")).collect();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("meshloom_{}_{}", std::process::id(), since.as_nanos());
        let table = Table { name, hosts: format!("(vector,{})", blocks.join(",")) };
        store.put(TABLE, format!("{} {}", table.name, table.hosts).as_bytes())?;
        Ok(table)
    }
}

fn answer(
    question: &str,
    store: &Store,
    (count, table): (usize, &Table),
    barriers: &mut usize,
    limit: Duration,
) -> String {
    let value = |name: &str| {
        let found = question.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_default()
    };
    let result = |done: Result<Vec<u8>, StoreError>| match done {
        Ok(found) => format!("rc=0 msg=success value={}", String::from_utf8_lossy(&found)),
        // A message may have no blanks.
        Err(error) => format!("rc=-1 msg={} value=unknown", error.to_string().replace(' ', "_")),
    };
    match value("cmd") {
        "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
        "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096".to_owned(),
        "get_appnum" => "cmd=appnum appnum=0".to_owned(),
        "get_my_kvsname" => format!("cmd=my_kvsname kvsname={}", table.name),
        "get_universe_size" => format!("cmd=universe_size size={count}"),
        "put" => {
            // The value may have blanks.
            let said = question.split_once(" value=").map_or("", |(_, said)| said);
            let done = store.put(&format!("pmi/table/{}", value("key")), said.as_bytes());
            format!("cmd=put_result {}", result(done.map(|()| Vec::new())))
        }
        "get" if value("key") == "PMI_process_mapping" => {
            format!("cmd=get_result {}", result(Ok(table.hosts.as_bytes().to_vec())))
        }
        "get" => format!("cmd=get_result {}", result(store.try_get(&format!("pmi/table/{}", value("key"))))),
        "barrier_in" => {
            *barriers += 1;
            match store.barrier(&format!("pmi/{barriers}"), limit) {
                Ok(()) => "cmd=barrier_out rc=0".to_owned(),
                Err(error) => format!("cmd=barrier_out rc=-1 msg={}", error.to_string().replace(' ', "_")),
            }
        }
        "finalize" => "cmd=finalize_ack".to_owned(),
        other => format!("cmd=unknown rc=-1 msg=no_such_question_{other}"),
    }
}
