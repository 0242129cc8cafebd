//! Search paths of programs and libraries.
#![cfg(unix)]

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::{env, fs};

use meshloom_cluster::internals::{in_path, libraries_of};

fn write(path: &Path, mode: u32) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("create");
    fs::write(path, "").expect("write");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("change");
}

/// The first program in the order of PATH that can be run is found. Relative folders of PATH are not searched.
#[test]
fn programs_are_looked_for_in_path() {
    let root = tempfile::tempdir().expect("a folder");
    let folders = ["text", "first", "second"].map(|name| root.path().join(name));
    let path = env::join_paths(folders.iter().cloned().chain([PathBuf::from(".")])).expect("a path");
    assert_eq!(in_path(None, "etcd").count(), 0);
    assert_eq!(in_path(Some(path.clone()), "etcd").count(), 0);
    for (folder, mode) in folders.iter().zip([0o644, 0o755, 0o755]) {
        write(&folder.join("etcd"), mode);
    }
    let found: Vec<_> = in_path(Some(path), "etcd").collect();
    assert_eq!(found, [folders[1].join("etcd"), folders[2].join("etcd")]);
}

#[test]
fn libraries_are_looked_for_beside_their_launcher() {
    let root = tempfile::tempdir().expect("a folder");
    let real = root.path().canonicalize().expect("it is there").join("mpich");
    let link = root.path().join("usr/bin/mpiexec");
    write(&real.join("bin/mpiexec"), 0o755);
    fs::create_dir_all(link.parent().expect("a folder")).expect("create");
    symlink(real.join("bin/mpiexec"), &link).expect("link");
    assert_eq!(libraries_of(&link), Vec::<PathBuf>::new());
    write(&real.join("lib/libmpi_abi.so.1"), 0o755);
    write(&real.join("lib/libmpi_abi.so"), 0o644);
    assert_eq!(libraries_of(&link), [real.join("lib/libmpi_abi.so.1")]);
    assert_eq!(libraries_of(&real.join("bin/mpiexec")), [real.join("lib/libmpi_abi.so.1")]);
    let beside = root.path().join("usr/lib/libmpi_abi.so.0");
    write(&beside, 0o755);
    assert_eq!(libraries_of(&link), [beside, real.join("lib/libmpi_abi.so.1")]);
}
