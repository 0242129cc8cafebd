//! The table of NVIDIA's libraries that the CUDA plugin opens.

use super::super::wheels::Package;

/// One library. Each row stands after the rows that it needs.
pub(crate) struct Library {
    /// The short name, without prefix and version.
    pub(crate) name: &'static str,
    /// The library in CUDA 12: its name for the loader, its folder below `nvidia` in an installation of Python
    /// packages, and the package.
    pub(crate) cu12: (&'static str, &'static str, &'static Package),
    /// The library in CUDA 13: the same, but only the name of the package, as these are found but not fetched.
    pub(crate) cu13: (&'static str, &'static str, &'static str),
}

const fn package(
    name: &'static str,
    version: &'static str,
    sha256: &'static str,
    record_sha256: &'static str,
    byte_count: u64,
) -> Package {
    Package { name, version, sha256, record_sha256, byte_count, pip_arguments: &[] }
}

const CUDART: Package = package(
    "nvidia-cuda-runtime-cu12",
    "12.9.79",
    "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
    "f3d62dcf8f26b3f336f9d435f67fb7aac618b5f3bec4e236571897db1b69fa57",
    3_493_179,
);
const NVJITLINK: Package = package(
    "nvidia-nvjitlink-cu12",
    "12.9.86",
    "e3f1171dbdc83c5932a45f0f4c99180a70de9bd2718c1ab77d14104f6d7147f9",
    "0afff8803f0149eb5828034631d0a74115dc1d533693e0d5c1f5586004d0f3d9",
    39_748_338,
);
const NVRTC: Package = package(
    "nvidia-cuda-nvrtc-cu12",
    "12.9.86",
    "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4",
    "8e4e747451dd5fb2779e79735e3223a468839818a9e2cbc94951ef9302d86b18",
    89_568_129,
);
const CUBLAS: Package = package(
    "nvidia-cublas-cu12",
    "12.9.3.13",
    "d7d51055f161b317c7105ddaae90e71eda059026074ffef93cf7cde2886bfe72",
    "fb11b9a4556b8369b27a5d5b13961a90112f9b438aaab8336f4a06f6514142ac",
    581_217_458,
);
const CUSPARSE: Package = package(
    "nvidia-cusparse-cu12",
    "12.5.10.65",
    "73060ce019ac064a057267c585bf1fd5a353734151f87472ff02b2c5c9984e78",
    "cd5faf5127722d602d31d6716fcd90c9dcbcdc0241422d69ad1e87133f072b34",
    366_465_088,
);
const CUSOLVER: Package = package(
    "nvidia-cusolver-cu12",
    "11.7.5.82",
    "15da72d1340d29b5b3cf3fd100e3cd53421dde36002eda6ed93811af63c40d88",
    "9c50b5b126ec21a0098ca680a3e94e7aebecfa233c11021aa13e3d66a6b465a2",
    338_117_415,
);
const CUFFT: Package = package(
    "nvidia-cufft-cu12",
    "11.4.1.4",
    "c67884f2a7d276b4b80eb56a79322a95df592ae5e765cf1243693365ccab4e28",
    "9f20df263f43fd5e94ef2a27380e2c40cb479dea128a2ea85f8eb324455c20f6",
    200_877_592,
);
const CUPTI: Package = package(
    "nvidia-cuda-cupti-cu12",
    "12.9.79",
    "096bcf334f13e1984ba36685ad4c1d6347db214de03dbb6eebb237b41d9d934f",
    "b887a904314efaa9ae8e9c809a94c2c20e48a0835cd18d0cbf8ad183e9657bca",
    10_814_997,
);
const CUDNN: Package = package(
    "nvidia-cudnn-cu12",
    "9.28.0.42",
    "9ff58b7f36dacd0a93e89f8f2957b52466889217963701daa15e577317cfa375",
    "613bbe5a5483bdc07794fd5640fbee0661cfa8ea88e4c337261d6f48b24b7994",
    716_538_495,
);
const NCCL: Package = package(
    "nvidia-nccl-cu12",
    "2.32.3",
    "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c",
    "02fe89f9619e2ae2129efaabdaba0e7dbf1191fe93d7008d64b0ad79edd4bac9",
    351_526_311,
);

/// The libraries, in the order in which they are loaded.
pub(crate) const LIBRARIES: [Library; 11] = [
    Library {
        name: "cudart",
        cu12: ("libcudart.so.12", "cuda_runtime", &CUDART),
        cu13: ("libcudart.so.13", "cu13", "nvidia-cuda-runtime"),
    },
    Library {
        name: "nvjitlink",
        cu12: ("libnvJitLink.so.12", "nvjitlink", &NVJITLINK),
        cu13: ("libnvJitLink.so.13", "cu13", "nvidia-nvjitlink"),
    },
    Library {
        name: "nvrtc",
        cu12: ("libnvrtc.so.12", "cuda_nvrtc", &NVRTC),
        cu13: ("libnvrtc.so.13", "cu13", "nvidia-cuda-nvrtc"),
    },
    Library {
        name: "cublasLt",
        cu12: ("libcublasLt.so.12", "cublas", &CUBLAS),
        cu13: ("libcublasLt.so.13", "cu13", "nvidia-cublas"),
    },
    Library {
        name: "cublas",
        cu12: ("libcublas.so.12", "cublas", &CUBLAS),
        cu13: ("libcublas.so.13", "cu13", "nvidia-cublas"),
    },
    Library {
        name: "cusparse",
        cu12: ("libcusparse.so.12", "cusparse", &CUSPARSE),
        cu13: ("libcusparse.so.12", "cu13", "nvidia-cusparse"),
    },
    Library {
        name: "cusolver",
        cu12: ("libcusolver.so.11", "cusolver", &CUSOLVER),
        cu13: ("libcusolver.so.12", "cu13", "nvidia-cusolver"),
    },
    Library {
        name: "cufft",
        cu12: ("libcufft.so.11", "cufft", &CUFFT),
        cu13: ("libcufft.so.12", "cu13", "nvidia-cufft"),
    },
    Library {
        name: "cupti",
        cu12: ("libcupti.so.12", "cuda_cupti", &CUPTI),
        cu13: ("libcupti.so.13", "cu13", "nvidia-cuda-cupti"),
    },
    Library {
        name: "cudnn",
        cu12: ("libcudnn.so.9", "cudnn", &CUDNN),
        cu13: ("libcudnn.so.9", "cudnn", "nvidia-cudnn-cu13"),
    },
    Library { name: "nccl", cu12: ("libnccl.so.2", "nccl", &NCCL), cu13: ("libnccl.so.2", "nccl", "nvidia-nccl-cu13") },
];
