//! Collectives between processes of MPICH.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use support::counts::process;

/// Starts so many processes of a program, which gets the path of the library of MPI, and returns what they print. One
/// such start at a time: a process of MPICH that waits takes all of a core.
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
