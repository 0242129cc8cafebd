//! Wheels that are fetched: only the pinned wheel is taken, as a whole or not at all, and once.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use meshloom::pjrt::internals::fetching::{check_sha256, fetch, fetch_with, files_with_parts, unpack};
use meshloom::pjrt::internals::{cached_path, missing_companion};
use meshloom::pjrt::{Companion, Package, Wheel};
use sha2::{Digest, Sha256};

const OBJECT: &[u8] = b"an object";
const NAMES: &[&str] = &["some/plugin.so", "tools/run"];

/// A wheel on disk with two files in it, one of which can be run, and its row of the table.
fn wheel(folder: &Path) -> (PathBuf, Package) {
    let path = folder.join("some-1.0-py3-none-any.whl");
    let mut archive = zip::ZipWriter::new(File::create(&path).expect("a file"));
    for (name, mode) in NAMES.iter().zip([0o644, 0o744]) {
        let options = zip::write::SimpleFileOptions::default().unix_permissions(mode);
        archive.start_file(*name, options).expect("an entry");
        archive.write_all(OBJECT).expect("its bytes");
    }
    archive.finish().expect("a wheel");
    let sum = support::hex(&Sha256::digest(fs::read(&path).expect("the wheel")));
    let sha256 = Box::leak(sum.into_boxed_str());
    (path, Package { name: "some", version: "1.0", sha256, byte_count: 0, pip_arguments: &[] })
}

#[test]
fn only_the_pinned_wheel_passes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, row) = wheel(folder.path());
    check_sha256(&row, &path).expect("it is the pinned one");
    fs::write(&path, "something else").expect("a change");
    let error = check_sha256(&row, &path).expect_err("it is not the pinned one").to_string();
    assert!(error.starts_with("cannot fetch some==1.0: some-1.0-py3-none-any.whl has SHA-256 "), "{error}");
}

#[test]
fn unpacking_is_all_or_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let target = folder.path().join("deep/below/target.so");
    let (path, row) = wheel(folder.path());
    let unpack = |name: &str| unpack(&row, &path, folder.path(), vec![(name.to_owned(), target.clone())]);
    let error = unpack("some/absent.so").expect_err("no such entry");
    assert!(error.to_string().contains("the wheel has no usable some/absent.so"), "{error}");
    assert!(!target.exists());
    unpack(NAMES[0]).expect("unpack");
    assert_eq!(fs::read(&target).expect("the object"), OBJECT);
}

#[test]
#[cfg(unix)]
fn run_bits_are_kept() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let (path, row) = wheel(folder.path());
    let files: Vec<_> = NAMES.iter().map(|&name| (name.to_owned(), folder.path().join(name))).collect();
    unpack(&row, &path, folder.path(), files.clone()).expect("unpack");
    let runs = |(_, path): &(String, PathBuf)| fs::metadata(path).expect("unpacked").permissions().mode() & 0o100 != 0;
    assert_eq!(files.iter().map(runs).collect::<Vec<_>>(), [false, true]);
}

/// A library may open others beside it, and a program starts others: they are there when it is.
#[test]
fn a_file_comes_after_the_parts_that_it_needs() {
    let names =
        ["n/lib/libx.so.1", "n/lib/deep/y.so", "n/lib/", "n/include/x.h", "n/lib/z.so", "n/bin/other", "n/bin/run"];
    let root = Path::new("/root");
    let files = files_with_parts(&names, "n/lib/libx.so.1", &["n/lib/", "n/bin/run"], root);
    let expected = ["n/lib/deep/y.so", "n/lib/z.so", "n/bin/run", "n/lib/libx.so.1"];
    assert_eq!(files, expected.map(|name| (name.to_owned(), root.join(name))));
}

#[test]
fn a_file_that_is_in_the_cache_is_not_fetched_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, package) = wheel(folder.path());
    let file = package.root(folder.path()).join(NAMES[1]);
    fs::create_dir_all(file.parent().expect("a folder")).expect("create");
    fs::write(&file, OBJECT).expect("write");
    // The parts that it needs came before it.
    assert_eq!(fetch_with(folder.path(), &package, NAMES[1], &["some/"]).expect("from the cache"), file);
}

#[test]
fn what_is_in_the_cache_is_not_fetched_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, package) = wheel(folder.path());
    let companions = Box::leak(Box::new([Companion { package, files: &["tools/run"] }]));
    for (companions, expected) in [(&[][..], "some-1.0/plugin.so"), (companions, "some-1.0/some/plugin.so")] {
        let row = Wheel { platform: "test", package, object: NAMES[0], companions };
        let cached = cached_path(folder.path(), &row);
        assert_eq!(cached, folder.path().join(expected));
        for path in [&cached, &folder.path().join("some-1.0/tools/run")] {
            fs::create_dir_all(path.parent().expect("a folder")).expect("create");
            fs::write(path, OBJECT).expect("write");
        }
        assert_eq!(missing_companion(folder.path(), &row), None);
        assert_eq!(fetch(folder.path(), &row, false).expect("from the cache"), cached);
    }
    let run = folder.path().join("some-1.0/tools/run");
    fs::remove_file(&run).expect("remove");
    let row = Wheel { platform: "test", package, object: NAMES[0], companions };
    assert_eq!(missing_companion(folder.path(), &row), Some(run));
}
