//! The profilers of plugins.

use std::{env, fs};

use meshloom::pjrt::{Plugin, Profiler, ProfilerOptions};
use support::counts::process;

/// Says to a process of this program that it is there to profile, and on which platform.
const PROFILED: &str = "MESHLOOM_TEST_PROFILED";

/// Without a device there is little to record, but what comes back is an `XSpace`: a profiler ran.
pub fn records(platform: &str) {
    let own = env::current_exe().expect("own path");
    let output = process(own).env(PROFILED, platform).output().expect("a child process");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("wrote as many bytes as were recorded"), "{said}");
}

/// Runs the part of the process that [`records`] starts, and returns whether this is such a process.
pub fn run_if_asked() -> bool {
    let Ok(platform) = env::var(PROFILED) else { return false };
    let plugin = Plugin::find(&platform).expect("the plugin");
    drop(Profiler::start(&plugin, &ProfilerOptions::default()).expect("started, and thrown away"));
    let profiler = Profiler::start(&plugin, &ProfilerOptions::default()).expect("started");
    let profile = profiler.stop().expect("stopped");
    assert!(!profile.bytes.is_empty());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("host.xplane.pb");
    profile.write(&path).expect("written");
    assert_eq!(fs::read(&path).expect("the file"), profile.bytes);
    println!("{} bytes; wrote as many bytes as were recorded", profile.bytes.len());
    true
}
