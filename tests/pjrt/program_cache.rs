//! Compiled programs on disk: which are taken, which are compiled again, and which go.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use meshloom::pjrt::internals::Key;
use meshloom::pjrt::{CacheUse, Client, ClientOptions, CompileCache, CompileOptions};
use sha2::{Digest, Sha256};
use support::cases::cases;
use support::pjrt_modules as modules;
use support::plugins;

use super::runtime::{client, f32s, plugin, put, run_alone};

/// The programs in a cache. Beside them lies the plugin's digest, and nothing else.
fn entries(folder: &tempfile::TempDir) -> Vec<PathBuf> {
    let all = fs::read_dir(folder.path()).expect("folder").map(|entry| entry.expect("entry").path());
    let (programs, others): (Vec<_>, Vec<_>) = all.partition(|path| path.extension().is_some_and(|end| end == "pjrt"));
    assert!(others.iter().all(|path| path.extension().is_some_and(|end| end == "digest")), "{others:?}");
    assert!(others.len() <= 1, "{others:?}");
    programs
}

fn check_cached(cache: &CompileCache) {
    let (executable, _) = cache.compile(&client(), &modules::add(&[4]), &CompileOptions::default()).expect("compile");
    let argument = put(&f32s(&[4], 1.0), 1);
    let outputs = executable.run(&[&argument, &argument], &[argument.spec()]).expect("run");
    assert_eq!(outputs[0].get().expect("get").to_vec::<f32>().expect("f32"), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn cache_keeps_programs_and_replaces_damaged_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = CompileCache::at(folder.path()).expect("cache");
    check_cached(&cache);
    let entry = match entries(&folder).as_slice() {
        [entry] => entry.clone(),
        other => panic!("expected one entry: {other:?}"),
    };
    let good = fs::read(&entry).expect("entry");
    check_cached(&cache);
    assert_eq!(entries(&folder).len(), 1);
    let used = |module: &[u8], devices: usize| {
        cache.compile(&client(), module, &CompileOptions::partitioned(devices)).expect("a program").1
    };
    // Whole, and by another's key; or by no key at all, as entries once were. Either would be run.
    let program = &good[32..];
    let name = entry.file_name().expect("a name").to_string_lossy().into_owned();
    let elsewhere = tempfile::tempdir().expect("a folder");
    let others = Key::at(&elsewhere.path().join("key")).expect("a key").sign(&name, program);
    let unsigned: [u8; 32] = Sha256::digest(program).into();
    let [others, unsigned] = [others, unsigned].map(|sum| [&sum[..], program].concat());
    for damaged in [b"garbage", &others[..], &unsigned] {
        fs::write(&entry, damaged).expect("damage");
        assert_eq!(used(&modules::add(&[4]), 1), CacheUse::Miss);
        assert_eq!(used(&modules::add(&[4]), 1), CacheUse::Hit);
    }
    assert_eq!(used(&modules::add(&[8]), 1), CacheUse::Miss);
    assert_eq!(entries(&folder).len(), 2);
    assert_eq!(used(&modules::add(&[8]), 1), CacheUse::Hit);
    // An entry is of its own name alone.
    let of_eight = entries(&folder).into_iter().find(|path| *path != entry).expect("the other entry");
    fs::copy(&entry, of_eight).expect("copy");
    assert_eq!(used(&modules::add(&[8]), 1), CacheUse::Miss);
    // A loaded program for several CPU devices would lose the order of its collectives.
    assert_eq!([(); 2].map(|()| used(&modules::sharded_dot(), 8)), [CacheUse::Bypassed; 2]);
    assert_eq!(entries(&folder).len(), 2);
}

/// Makes a file look as if it had been used so many hours ago.
fn age(path: &PathBuf, hours: u64) {
    let then = SystemTime::now() - Duration::from_secs(hours * 3600);
    fs::File::open(path).expect("open").set_modified(then).expect("set the time");
}

#[test]
fn cache_throws_out_what_was_not_used_for_longest() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = CompileCache::at(folder.path()).expect("cache");
    let compile = |cache: &CompileCache, size: usize| {
        let before = entries(&folder);
        cache.compile(&client(), &modules::add(&[size]), &CompileOptions::default()).expect("compile");
        entries(&folder).into_iter().find(|path| !before.contains(path))
    };
    let (first, second) = (compile(&cache, 1).expect("new"), compile(&cache, 2).expect("new"));
    let size = fs::metadata(&first).expect("entry").len();
    age(&first, 5);
    age(&second, 3);
    // Used again, the older one is now the younger.
    assert_eq!(compile(&cache, 1), None);
    let room_for_two = cache.clone().with_limit(5 * size / 2);
    let third = compile(&room_for_two, 3).expect("new");
    assert!(first.exists() && !second.exists() && third.exists());
    let abandoned = folder.path().join(".partial-of-a-dead-process");
    fs::write(&abandoned, "half").expect("write");
    age(&abandoned, 48);
    room_for_two.compile(&client(), &modules::add(&[5]), &CompileOptions::default()).expect("compile");
    assert!(!abandoned.exists(), "what dead processes left goes too");
    let room_for_none = cache.with_limit(0);
    let fourth = compile(&room_for_none, 4).expect("new");
    assert_eq!(entries(&folder), [fourth], "the newest stays");
}

#[test]
fn cache_knows_a_plugin_by_what_is_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = CompileCache::at(folder.path()).expect("cache");
    check_cached(&cache);
    let copy = folder.path().join("copy.digest");
    fs::copy(plugin().path(), &copy).expect("a copy of the plugin");
    let path = folder.path().display().to_string();
    let copied = copy.display().to_string();
    let variables = [("MESHLOOM_TEST_CACHE", path.as_str()), ("MESHLOOM_CPU_PLUGIN", copied.as_str())];
    let (ok, text) = run_alone(module_path!(), "child_cached_compile", &variables);
    assert!(ok, "{text}");
    let programs = fs::read_dir(folder.path()).expect("folder").flatten().map(|entry| entry.path());
    let programs = programs.filter(|path| path.extension().is_some_and(|end| end == "pjrt")).count();
    assert_eq!(programs, 1, "the copy took the program that the original had compiled");
    // Another plugin compiles anew.
    let other = &plugins::cpu_plugins()[1];
    let other = Client::new(other, &ClientOptions { device_count: Some(8), ..Default::default() }).expect("a client");
    cache.compile(&other, &modules::add(&[4]), &CompileOptions::default()).expect("compile");
    let programs = fs::read_dir(folder.path()).expect("folder").flatten().map(|entry| entry.path());
    assert_eq!(programs.filter(|path| path.extension().is_some_and(|end| end == "pjrt")).count(), 2);
}

#[test]
fn cache_is_shared_by_threads_and_processes() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = CompileCache::at(folder.path()).expect("cache");
    let path = folder.path().display().to_string();
    let plugin = plugin().path().display().to_string();
    thread::scope(|scope| {
        for _ in cases("pjrt processes that share a cache", 1, 0..2) {
            scope.spawn(|| {
                let variables = [("MESHLOOM_TEST_CACHE", path.as_str()), ("MESHLOOM_CPU_PLUGIN", &plugin)];
                let (ok, text) = run_alone(module_path!(), "child_cached_compile", &variables);
                assert!(ok, "{text}");
            });
        }
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| check_cached(&cache)));
        }
    });
    assert_eq!(entries(&folder).len(), 1, "one entry, and no temporary file left");
}

#[test]
#[ignore = "run by the test of the cache, in a process of its own"]
fn child_cached_compile() {
    let Some(folder) = env::var_os("MESHLOOM_TEST_CACHE") else { return };
    check_cached(&CompileCache::at(folder).expect("cache"));
}
