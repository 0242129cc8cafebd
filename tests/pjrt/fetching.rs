//! Wheels that are fetched: only the pinned wheel is taken, as a whole or not at all, and once.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use meshloom::pjrt::internals::fetching::{check_sha256, fetch, fetch_with, files_with_parts, unpack};
use meshloom::pjrt::internals::{Key, cached_path, check_cached, make_private, record_path};
use meshloom::pjrt::{Companion, FindOptions, Package, PjrtError, Plugin, Wheel};
use sha2::{Digest, Sha256};
use support::program::test_alone;

const OBJECT: &[u8] = b"an object";
const NAMES: &[&str] = &["some/plugin.so", "tools/run"];

/// A wheel on disk with two files in it, one of them a program, and its row of the table.
fn wheel(folder: &Path) -> (PathBuf, Package) {
    let path = folder.join("some-1.0-py3-none-any.whl");
    let mut archive = zip::ZipWriter::new(File::create(&path).expect("a file"));
    let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(OBJECT));
    let lines = NAMES.iter().map(|name| format!("{name},sha256={digest},{}\n", OBJECT.len()));
    let record = lines.collect::<String>() + "some-1.0.dist-info/RECORD,,\n";
    let entries = NAMES.iter().map(|&name| (name, OBJECT)).chain([("some-1.0.dist-info/RECORD", record.as_bytes())]);
    for ((name, bytes), mode) in entries.zip([0o644, 0o744, 0o644]) {
        let options = zip::write::SimpleFileOptions::default().unix_permissions(mode);
        archive.start_file(name, options).expect("an entry");
        archive.write_all(bytes).expect("its bytes");
    }
    archive.finish().expect("a wheel");
    let sum = |bytes: &[u8]| -> &'static str { Box::leak(support::hex(&Sha256::digest(bytes)).into_boxed_str()) };
    let (sha256, record_sha256) = (sum(&fs::read(&path).expect("the wheel")), sum(record.as_bytes()));
    (
        path,
        Package { name: "some", version: "1.0", sha256, record_sha256, byte_count: 0, pip_arguments: &["--no-index"] },
    )
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
    let unpack = |name: &str| unpack(&row, &path, [folder.path(); 2], vec![(name.to_owned(), target.clone())]);
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
    unpack(&row, &path, [folder.path(); 2], files.clone()).expect("unpack");
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

/// The option `--no-index` makes every download of this test fail.
#[test]
fn a_file_that_is_in_the_cache_is_not_fetched_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, package) = wheel(folder.path());
    let root = package.root(folder.path());
    let files = NAMES.iter().map(|&name| (name.to_owned(), root.join(name))).collect();
    unpack(&package, &path, [folder.path(), &root], files).expect("unpack");
    assert_eq!(fetch_with(folder.path(), &package, NAMES[1], &["some/"]).expect("from the cache"), root.join(NAMES[1]));
    // A part of it is not as it was.
    fs::write(root.join(NAMES[0]), "another object").expect("write");
    let error = fetch_with(folder.path(), &package, NAMES[1], &["some/"]).expect_err("it is fetched again").to_string();
    assert!(error.starts_with("cannot fetch some==1.0"), "{error}");
}

/// The current folder may be a stranger's, and Python runs the files in it unless it is told not to.
#[test]
fn pip_does_not_run_from_the_current_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let [stranger, ran] = ["pip/__main__.py", "ran"].map(|name| folder.path().join(name));
    fs::create_dir(stranger.parent().expect("a folder")).expect("create");
    fs::write(&stranger, format!("open({ran:?}, 'w')\n")).expect("write");
    let mut child = test_alone(module_path!(), "child_fetch");
    // The real one may not ask an index, so it ends at once.
    child.current_dir(folder.path()).env("PIP_NO_INDEX", "1").env("XDG_CACHE_HOME", folder.path());
    let output = child.output().expect("a child process");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("pip download ended with") && !ran.exists(), "{said}");
}

#[test]
#[ignore = "run by the test of the current folder, in a process of its own"]
fn child_fetch() {
    let options = FindOptions { search_python_packages: false, ..FindOptions::default() };
    let wheel = FindOptions { wheel: Some("xla-cpu-pjrt".to_owned()), ..options };
    println!("{}", Plugin::find_with("cpu", &wheel).map(drop).expect_err("nothing can be fetched"));
}

/// Others could put there what runs with the user's rights.
#[test]
#[cfg(unix)]
fn what_others_could_change_is_not_used() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("deep/below/cache");
    make_private(&cache).expect("a new one");
    let found = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o777;
    assert_eq!((found(&cache), found(&folder.path().join("deep"))), (0o700, 0o700));
    // One's own is made private.
    mode(&cache, 0o777);
    make_private(&cache).expect("one's own");
    assert_eq!(found(&cache), 0o700);
    // Only root can give a folder to another user.
    if chown(&cache, Some(12_345), None).is_ok() {
        let error = make_private(&cache).expect_err("another's").to_string();
        assert!(error.contains("it belongs to the user 12345"), "{error}");
    }
    let key = folder.path().join("keys/key");
    let signature = Key::at(&key).expect("a new one").sign("name", b"entry");
    assert_eq!((found(&key), Key::at(&key).expect("the same").sign("name", b"entry")), (0o600, signature));
    mode(&key, 0o640);
    let error = Key::at(&key).expect_err("others can read it").to_string();
    assert!(error.contains("keys/key is not used as the key") && error.contains("chmod 600"), "{error}");
    fs::write(&key, "short").expect("write");
    mode(&key, 0o600);
    let error = Key::at(&key).expect_err("no key").to_string();
    assert!(error.contains("has not the 64 bytes of a key"), "{error}");
}

/// The cache holds native code, so each file must be the pinned wheel's whenever it is used.
#[test]
fn what_is_in_the_cache_is_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, package) = wheel(folder.path());
    let companions = Box::leak(Box::new([Companion { package, files: &["tools/run"] }]));
    for (companions, expected) in [(&[][..], "some-1.0/plugin.so"), (companions, "some-1.0/some/plugin.so")] {
        let row = Wheel { platform: "test", package, object: NAMES[0], companions };
        let (cached, root) = (cached_path(folder.path(), &row), package.root(folder.path()));
        assert_eq!(cached, folder.path().join(expected));
        let files = vec![(NAMES[0].to_owned(), cached.clone()), (NAMES[1].to_owned(), root.join(NAMES[1]))];
        let put = || {
            let _ = fs::remove_dir_all(&root);
            unpack(&package, &path, [folder.path(), &root], files.clone()).expect("unpack");
        };
        let refused = |what: &str| {
            let error = check_cached(folder.path(), &row).expect_err(what).to_string();
            assert!(error.contains(what), "{what}: {error}");
            put();
            assert_eq!(fetch(folder.path(), &row).expect(what), cached);
        };
        put();
        assert_eq!(fetch(folder.path(), &row).expect("from the cache"), cached);
        // As long as the object, and of its time.
        let time = fs::metadata(&cached).and_then(|found| found.modified()).expect("a time");
        fs::write(&cached, b"AN OBJECT").expect("write");
        File::open(&cached).and_then(|file| file.set_modified(time)).expect("its time");
        refused("plugin.so is not used: it has SHA-256 ");
        fs::write(record_path(&package, &root), "some/plugin.so,sha256=,9\n").expect("write");
        refused("it is not the list of files of the pinned wheel");
        fs::remove_file(record_path(&package, &root)).expect("remove");
        refused("some-1.0.RECORD: No such file");
        fs::remove_file(&files[usize::from(!companions.is_empty())].1).expect("remove");
        refused("No such file");
    }
}

/// The others only stand in for the first wheel of a platform. Nothing may be fetched here, so that all that was tried
/// is listed.
#[test]
fn a_damaged_wheel_is_fetched_anew_before_another_is_taken() {
    let folder = tempfile::tempdir().expect("a folder");
    let wheels: Vec<&Wheel> = Wheel::of_platform("cuda").collect();
    let damaged = cached_path(folder.path(), wheels[0]);
    fs::create_dir_all(damaged.parent().expect("a folder")).expect("create");
    fs::write(&damaged, "damaged").expect("write");
    let options = FindOptions {
        allow_fetch: false,
        search_python_packages: false,
        cache_directory: Some(folder.path().to_owned()),
        ..FindOptions::default()
    };
    let PjrtError::NotFound { attempts, .. } = Plugin::locate("cuda", &options).expect_err("there is none") else {
        panic!("another error")
    };
    let places: Vec<&str> = attempts.iter().map(|attempt| attempt.place.as_str()).collect();
    let cache = |wheel: &Wheel| format!("cache {}", cached_path(folder.path(), wheel).display());
    let expected = [
        "environment variable MESHLOOM_CUDA_PLUGIN".to_owned(),
        cache(wheels[0]),
        format!("download of {}", wheels[0].requirements()),
        cache(wheels[1]),
    ];
    assert_eq!(places, expected);
}
