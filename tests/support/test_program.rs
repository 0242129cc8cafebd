//! The work of every test program before and after its tests.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{env, fs};

use meshloom::pjrt::user_cache_directory;

use crate::counts::{self, Budget};

/// Makes a test program: `test_program!(Budget { steps: 20, modules: 100, processes: 30 });` in its `main.rs`. Programs
/// compile quickly, compilations and processes are counted and held to the budget, and the user's caches have no
/// influence. With `usual_compiles` after the budget, programs compile with the usual options: libtpu ends a process
/// whose flags it does not know.
#[macro_export]
macro_rules! test_program {
    ($budget:expr) => {
        $crate::test_program!($budget, $crate::quick_compiles::compile_quickly());
    };
    ($budget:expr, usual_compiles) => {
        $crate::test_program!($budget, ());
    };
    ($budget:expr, $first:expr) => {
        #[ctor::ctor(unsafe)]
        fn before_the_tests() {
            $first;
            $crate::test_program::begin();
        }

        #[dtor::dtor(unsafe)]
        fn after_the_tests() {
            $crate::test_program::end(env!("CARGO_CRATE_NAME"), $budget);
        }
    };
}

/// The folder that serves as the user's cache for this process and those that it starts.
static CACHE: OnceLock<PathBuf> = OnceLock::new();

/// Prepares the process; runs before `main`.
pub fn begin() {
    counts::count_compilations();
    if let Some(usual) = user_cache_directory() {
        use_own_cache(&usual);
    }
}

/// Makes the caches of programs and tokens begin empty, so that no earlier run decides whether a test compiles. Plugins
/// stay where the user has them. A process that a test starts shares the caches of its parent.
#[allow(unsafe_code)]
fn use_own_cache(usual: &Path) {
    const OWN: &str = "MESHLOOM_TEST_HAS_OWN_CACHE";
    if env::var_os(OWN).is_some() {
        return;
    }
    let folder = env::temp_dir().join(format!("meshloom-tests-{}", std::process::id()));
    let plugins = usual.join("plugins");
    let made = fs::create_dir_all(&plugins).and_then(|()| fs::create_dir_all(folder.join("meshloom")));
    made.and_then(|()| link(&plugins, &folder.join("meshloom/plugins"))).expect("a folder for caches");
    // SAFETY: before `main` there is one thread.
    unsafe {
        env::set_var("XDG_CACHE_HOME", &folder);
        env::set_var(OWN, "1");
    }
    let _ = CACHE.set(folder);
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, at)
}

#[cfg(not(unix))]
fn link(to: &Path, at: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_dir(to, at)
}

/// Removes the caches and reports the counts; runs when the process exits.
pub fn end(program: &str, budget: Budget) {
    if let Some(folder) = CACHE.get() {
        let _ = fs::remove_dir_all(folder);
    }
    counts::report(program, budget);
}
