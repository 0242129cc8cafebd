//! The table of NVIDIA's libraries that the CUDA plugin opens.

use super::super::wheels::{Package, package};

/// One library. Each row stands after the rows that it needs.
pub(crate) struct Library {
    /// The short name, without prefix and version.
    pub(crate) name: &'static str,
    /// The library in CUDA 12: its name for the loader, its folder below `nvidia` in an installation of Python
    /// packages, and the package.
    pub(crate) cu12: OfCuda12,
    /// The library in CUDA 13: the same, but only the name of the package, as these are found but not fetched.
    pub(crate) cu13: OfCuda13,
}

macro_rules! packages {
    ($($package:ident $name:literal $version:literal $bytes:literal $sha256:literal $record_sha256:literal;)*) => {
        $(const $package: Package = package!($name $version $bytes $sha256 $record_sha256);)*
    };
}

packages! {
    CUDART "nvidia-cuda-runtime-cu12" "12.9.79" 3_493_179
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3"
        "f3d62dcf8f26b3f336f9d435f67fb7aac618b5f3bec4e236571897db1b69fa57";
    NVJITLINK "nvidia-nvjitlink-cu12" "12.9.86" 39_748_338
        "e3f1171dbdc83c5932a45f0f4c99180a70de9bd2718c1ab77d14104f6d7147f9"
        "0afff8803f0149eb5828034631d0a74115dc1d533693e0d5c1f5586004d0f3d9";
    NVRTC "nvidia-cuda-nvrtc-cu12" "12.9.86" 89_568_129
        "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4"
        "8e4e747451dd5fb2779e79735e3223a468839818a9e2cbc94951ef9302d86b18";
    CUBLAS "nvidia-cublas-cu12" "12.9.3.13" 581_217_458
        "d7d51055f161b317c7105ddaae90e71eda059026074ffef93cf7cde2886bfe72"
        "fb11b9a4556b8369b27a5d5b13961a90112f9b438aaab8336f4a06f6514142ac";
    CUSPARSE "nvidia-cusparse-cu12" "12.5.10.65" 366_465_088
        "73060ce019ac064a057267c585bf1fd5a353734151f87472ff02b2c5c9984e78"
        "cd5faf5127722d602d31d6716fcd90c9dcbcdc0241422d69ad1e87133f072b34";
    CUSOLVER "nvidia-cusolver-cu12" "11.7.5.82" 338_117_415
        "15da72d1340d29b5b3cf3fd100e3cd53421dde36002eda6ed93811af63c40d88"
        "9c50b5b126ec21a0098ca680a3e94e7aebecfa233c11021aa13e3d66a6b465a2";
    CUFFT "nvidia-cufft-cu12" "11.4.1.4" 200_877_592
        "c67884f2a7d276b4b80eb56a79322a95df592ae5e765cf1243693365ccab4e28"
        "9f20df263f43fd5e94ef2a27380e2c40cb479dea128a2ea85f8eb324455c20f6";
    CUPTI "nvidia-cuda-cupti-cu12" "12.9.79" 10_814_997
        "096bcf334f13e1984ba36685ad4c1d6347db214de03dbb6eebb237b41d9d934f"
        "b887a904314efaa9ae8e9c809a94c2c20e48a0835cd18d0cbf8ad183e9657bca";
    CUDNN "nvidia-cudnn-cu12" "9.28.0.42" 716_538_495
        "9ff58b7f36dacd0a93e89f8f2957b52466889217963701daa15e577317cfa375"
        "613bbe5a5483bdc07794fd5640fbee0661cfa8ea88e4c337261d6f48b24b7994";
    NCCL "nvidia-nccl-cu12" "2.32.3" 351_526_311
        "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c"
        "02fe89f9619e2ae2129efaabdaba0e7dbf1191fe93d7008d64b0ad79edd4bac9";
}

type OfCuda12 = (&'static str, &'static str, &'static Package);
type OfCuda13 = (&'static str, &'static str, &'static str);

const fn row(name: &'static str, cu12: OfCuda12, cu13: OfCuda13) -> Library {
    Library { name, cu12, cu13 }
}

/// The libraries, in the order in which they are loaded.
pub(crate) const LIBRARIES: [Library; 11] = [
    row("cudart", ("libcudart.so.12", "cuda_runtime", &CUDART), ("libcudart.so.13", "cu13", "nvidia-cuda-runtime")),
    row(
        "nvjitlink",
        ("libnvJitLink.so.12", "nvjitlink", &NVJITLINK),
        ("libnvJitLink.so.13", "cu13", "nvidia-nvjitlink"),
    ),
    row("nvrtc", ("libnvrtc.so.12", "cuda_nvrtc", &NVRTC), ("libnvrtc.so.13", "cu13", "nvidia-cuda-nvrtc")),
    row("cublasLt", ("libcublasLt.so.12", "cublas", &CUBLAS), ("libcublasLt.so.13", "cu13", "nvidia-cublas")),
    row("cublas", ("libcublas.so.12", "cublas", &CUBLAS), ("libcublas.so.13", "cu13", "nvidia-cublas")),
    row("cusparse", ("libcusparse.so.12", "cusparse", &CUSPARSE), ("libcusparse.so.12", "cu13", "nvidia-cusparse")),
    row("cusolver", ("libcusolver.so.11", "cusolver", &CUSOLVER), ("libcusolver.so.12", "cu13", "nvidia-cusolver")),
    row("cufft", ("libcufft.so.11", "cufft", &CUFFT), ("libcufft.so.12", "cu13", "nvidia-cufft")),
    row("cupti", ("libcupti.so.12", "cuda_cupti", &CUPTI), ("libcupti.so.13", "cu13", "nvidia-cuda-cupti")),
    row("cudnn", ("libcudnn.so.9", "cudnn", &CUDNN), ("libcudnn.so.9", "cudnn", "nvidia-cudnn-cu13")),
    row("nccl", ("libnccl.so.2", "nccl", &NCCL), ("libnccl.so.2", "nccl", "nvidia-nccl-cu13")),
];
