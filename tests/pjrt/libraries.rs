//! NVIDIA's libraries, which are found and loaded before a plugin is.

use std::fs;
use std::path::{Path, PathBuf};

use meshloom::pjrt::internals::{library_names, load_libraries};
use meshloom::pjrt::{FindOptions, FoundLibrary};

/// A shared object that this process has loaded, to stand for NVIDIA's.
fn some_library() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("maps");
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    PathBuf::from(files.into_iter().find(|file| file.contains("/libgcc_s")).expect("Rust's unwinder"))
}

#[test]
fn libraries_of_both_toolkits_are_found_beside_the_plugin() {
    let cases = [
        (
            "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
            "nvidia/cuda_runtime/lib/libcudart.so.12",
            "nvidia-cuda-runtime-cu12",
        ),
        ("jax_plugins/xla_cuda13/xla_cuda_plugin.so", "nvidia/cu13/lib/libcudart.so.13", "nvidia-cuda-runtime"),
        // The library lies in the plugin's own folder, so it belongs to no package.
        ("own/plugin.so", "own/libcudart.so.12", "nvidia-cuda-runtime-cu12"),
    ];
    for (plugin, library, package) in cases {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(library);
        fs::create_dir_all(path.parent().expect("a folder")).expect("create");
        fs::copy(some_library(), &path).expect("copy");
        let options = FindOptions {
            allow_fetch: false,
            search_python_packages: false,
            cache_directory: Some(folder.path().join("cache")),
            ..FindOptions::default()
        };
        let found = load_libraries(&folder.path().join(plugin), &options);
        assert!(found.iter().map(|it| it.name).eq(library_names()), "{found:?}");
        let cudart = &found[0];
        assert_eq!((cudart.path(), cudart.package, cudart.problem()), (Some::<&Path>(path.as_path()), package, None));
        // A library that is nowhere is reported in the loader's words.
        let missing = found.iter().filter_map(FoundLibrary::problem).all(|reason| reason.contains("lib"));
        assert!(missing, "{found:?}");
    }
}
