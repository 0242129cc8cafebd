//! Collectives between processes of MPICH, and exchanges that fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use meshloom_cluster::mpi::{Incoming, MpiError, Outgoing, World};
use support::counts::process;
use support::program::test_alone;

/// Starts so many processes of a program, which gets the path of the library of MPI, and returns their output. One such
/// start at a time: a process of MPICH that waits takes all of a core.
pub fn start(count: usize, program: &Path, variables: &[(&str, &Path)]) -> String {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let found = |it: Result<_, meshloom_cluster::ProgramError>| it.unwrap_or_else(|error| panic!("{error}"));
    let (library, mpiexec) = (found(meshloom_cluster::mpi_library()), found(meshloom_cluster::mpiexec_program()));
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = process(mpiexec);
    // A process that waits for ever is a failure, too.
    command.env("MPIEXEC_TIMEOUT", "60").envs(variables.iter().copied());
    let output = command.args(["-n", &count.to_string()]).arg(program).arg(library).output().expect("mpiexec runs");
    let [said, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{count} processes of {}: {}\n{said}\n{errors}", program.display(), output.status);
    said
}

/// A library of MPI with one process that ends no request: of a message that has begun to come, from a process that is
/// gone. Each call of `MPI_Testall` writes on into what was to be received, and reads what was to be sent.
const STUCK: &str = r#"
#include <stdint.h>
#include <string.h>
static struct { char *bytes; int64_t count; int receives; } all[64];
static int known;
static int post(void *bytes, int64_t count, int receives, void **request) {
    all[known].bytes = bytes; all[known].count = count; all[known].receives = receives;
    *request = &all[known++];
    return 0;
}
int MPI_Init_thread(int *a, char ***b, int required, int *provided) { *provided = required; return 0; }
int MPI_Finalize(void) { return 1; }
int MPI_Comm_rank(void *c, int *rank) { *rank = 0; return 0; }
int MPI_Comm_size(void *c, int *size) { *size = 1; return 0; }
int MPI_Comm_dup(void *c, void **new) { *new = c; return 0; }
int MPI_Comm_free(void **c) { return 0; }
int MPI_Comm_set_errhandler(void *c, void *e) { return 0; }
int MPI_Error_string(int code, char *text, int *length) { *length = 0; return 0; }
int MPI_Isend_c(const void *bytes, int64_t count, void *t, int to, int tag, void *c, void **request) {
    return tag == 9 ? 1 : post((void *)bytes, count, 0, request);
}
int MPI_Irecv_c(void *bytes, int64_t count, void *t, int from, int tag, void *c, void **request) {
    return post(bytes, count, 1, request);
}
int MPI_Test(void **request, int *done, void *status) { *done = 0; return 0; }
int MPI_Testall(int count, void **requests, int *done, void *statuses) {
    static volatile char last;
    for (int at = 0; at < known; at++) {
        if (all[at].receives) memset(all[at].bytes, 1, all[at].count);
        else for (int64_t byte = 0; byte < all[at].count; byte += 4096) last = all[at].bytes[byte];
    }
    *done = 0;
    return 0;
}
int MPI_Cancel(void **request) { return 0; }
int MPI_Request_free(void **request) { *request = (void *)0x180; return 0; }
"#;

/// A size that the allocator gives back to the system when it is freed (glibc always does above 32 MiB): a process that
/// touches it then is ended.
const LARGE: usize = 33 << 20;

/// Bytes that count how often they were freed.
struct Counted(Vec<u8>);

static FREED: AtomicUsize = AtomicUsize::new(0);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        FREED.fetch_add(1, Ordering::Relaxed);
    }
}

fn outgoing(tag: u16) -> Vec<Outgoing> {
    vec![Outgoing { to: 0, tag, bytes: Bytes::from_owner(Counted(vec![7; LARGE])) }]
}

fn incoming(tag: u16) -> Vec<Incoming> {
    vec![Incoming { from: 0, tag, bytes: vec![0; LARGE] }]
}

fn give_up(_: Duration) -> Option<String> {
    Some("nobody is there".to_owned())
}

fn is_given_up(found: Result<Vec<Vec<u8>>, MpiError>) {
    assert_eq!(found.map(drop), Err(MpiError::GivenUp { reason: "nobody is there".to_owned() }));
}

/// MPI may write into the buffers of receives, and read those of sends, until it reports their end: that memory stays,
/// however the exchange ends.
#[test]
fn what_mpi_holds_is_never_freed() {
    let folder = tempfile::tempdir().expect("a folder");
    let [source, library] = ["stuck.c", "stuck.so"].map(|name| folder.path().join(name));
    std::fs::write(&source, STUCK).expect("written");
    let compiled = process("cc").args(["-shared", "-fPIC", "-w", "-o"]).args([&library, &source]).status();
    assert!(compiled.expect("the tests need a C compiler").success());
    let output = test_alone(module_path!(), "exchanges_that_fail").env("MESHLOOM_TEST_STUCK", &library).output();
    let output = output.expect("it runs");
    let [said, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && said.contains("both worlds"), "{}\n{said}\n{errors}", output.status);
}

#[test]
#[ignore = "it is started by another test"]
fn exchanges_that_fail() {
    let freed = || FREED.load(Ordering::Relaxed);
    let world = World::start(&meshloom_cluster::mpi_library().expect("MPI")).expect("a world of one process");
    // There is no sender: the receives are cancelled, also where the exchange ends by a panic. Otherwise the next
    // message would go to them.
    is_given_up(world.exchange(vec![], incoming(1), &give_up));
    catch_unwind(AssertUnwindSafe(|| world.exchange(vec![], incoming(1), &|_| panic!("on purpose"))))
        .expect_err("it is");
    assert!(world.has_failed());
    // There is no receiver.
    is_given_up(world.exchange(outgoing(1), vec![], &give_up));
    assert_eq!(freed(), 0, "MPI still holds it");
    // A late receiver gets the message.
    let received = world.exchange(vec![], incoming(1), &|_| None).expect("it was sent");
    assert!(received.len() == 1 && received[0] == vec![7; LARGE], "another message");
    // The message that was received in the meantime is freed.
    let received = world.exchange(outgoing(2), incoming(2), &|_| None).expect("both");
    assert!(received[0] == vec![7; LARGE] && freed() == 1, "{}", freed());
    drop(world);

    let stuck = std::env::var_os("MESHLOOM_TEST_STUCK").expect("the test that starts this sets it");
    let world = World::start(Path::new(&stuck)).expect("a world of one process");
    is_given_up(world.exchange(outgoing(1), incoming(1), &give_up));
    // One message is refused when another is under way already.
    let refused = world.exchange(outgoing(9), incoming(1), &give_up).map(drop);
    assert!(matches!(refused, Err(MpiError::Call { call: "MPI_Isend", .. })), "{refused:?}");
    assert_eq!(freed(), 2, "MPI holds nothing of a message that it has refused");
    // The library goes on with the messages before.
    is_given_up(world.exchange(vec![], incoming(1), &give_up));
    assert_eq!(freed(), 2);
    drop(world);
    println!("\nboth worlds are right");
}
