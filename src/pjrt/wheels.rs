//! The pinned table: which wheels on PyPI carry a PJRT plugin, and what exactly is in them.

/// One wheel that carries a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Wheel {
    /// Platform it drives: `cpu`, `cuda`, `tpu`.
    pub platform: &'static str,
    /// Its name on PyPI.
    pub name: &'static str,
    /// The pinned version.
    pub version: &'static str,
    /// The plugin's shared object inside the wheel, and below the site-packages folder of an installed one.
    pub object: &'static str,
    /// SHA-256 of the wheel's file.
    pub sha256: &'static str,
    /// Bytes of the wheel's file, for the progress bar.
    pub byte_count: u64,
    /// What pip must be told besides name and version, for a wheel that is bound to one Python version.
    pub pip_arguments: &'static [&'static str],
}

impl Wheel {
    /// `name==version`, as pip takes it.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }

    /// The wheels of a platform, preferred first.
    pub fn of_platform(platform: &str) -> impl Iterator<Item = &'static Wheel> {
        WHEELS.iter().filter(move |wheel| wheel.platform == platform)
    }
}

/// Every wheel known, the preferred one of a platform first.
pub const WHEELS: &[Wheel] = &[
    Wheel {
        platform: "cpu",
        name: "lammps-jax-pjrt-cpu",
        version: "0.11.2",
        object: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
        sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
        byte_count: 62_711_338,
        pip_arguments: &[],
    },
    Wheel {
        platform: "cpu",
        name: "fastatomstruct-xla-cpu",
        version: "2026.6.23",
        object: "fastatomstruct_xla_cpu/libpjrt_cpu.so",
        sha256: "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9",
        byte_count: 63_200_622,
        pip_arguments: &[],
    },
    Wheel {
        platform: "cpu",
        name: "xla-cpu-pjrt",
        version: "0.0.1",
        object: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        sha256: "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc",
        byte_count: 63_461_052,
        pip_arguments: &[],
    },
    Wheel {
        platform: "cuda",
        name: "jax-cuda12-pjrt",
        version: "0.12.0.1",
        object: "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
        sha256: "5ec28e06198d094031c37590b4ea753ae8cde4879ab4b60baf40f0dffb673286",
        byte_count: 192_000_000,
        pip_arguments: &[],
    },
    Wheel {
        platform: "tpu",
        name: "libtpu",
        version: "0.0.51",
        object: "libtpu/libtpu.so",
        sha256: "ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34",
        byte_count: 205_000_000,
        pip_arguments: &["--platform", "manylinux_2_31_x86_64", "--python-version", "311", "--abi", "cp311"],
    },
];
