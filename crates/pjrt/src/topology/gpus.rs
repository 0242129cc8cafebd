//! The GPUs that XLA can compile for without having one: what `GpuTargetConfigProto` needs to know about each.
//!
//! The figures are those of the device descriptions that OpenXLA checks in as
//! `xla/backends/gpu/target_config/specs/*.txtpb` (`a100_sxm_40`, `a100_sxm_80`, `h100_sxm`, `h200`, `b200`), which are
//! what the CUDA driver reports on such a card. Rates of each element type, which only refine XLA's cost model, are
//! left out.

use std::fmt::Write;

/// One kind of GPU. All have warps of 32 threads, blocks of 1024, and 64 K registers in each multiprocessor.
pub(super) struct Gpu {
    /// Its name in topologies.
    pub(super) name: &'static str,
    /// The driver's name for it.
    device: &'static str,
    /// Major compute capability; the minor one is 0.
    compute_capability: u32,
    /// Whether code for just this capability (`sm_90a`) is wanted: the tensor cores' newest instructions need it.
    accelerated_features: bool,
    multiprocessors: u32,
    f32_units_per_multiprocessor: u32,
    shared_memory_per_multiprocessor: u32,
    shared_memory_per_block_opt_in: u32,
    l2_cache: u64,
    memory: u64,
    /// Bytes per second.
    memory_bandwidth: u64,
    clock_ghz: f32,
    pcie_bandwidth: u64,
}

pub(super) const GPUS: &[Gpu] = &[
    Gpu {
        name: "a100-40g",
        device: "NVIDIA A100-SXM4-40GB",
        memory: 42_331_013_120,
        memory_bandwidth: 1_555_200_000_000,
        ..A100
    },
    A100,
    Gpu {
        name: "h100",
        device: "NVIDIA H100 80GB HBM3",
        memory: 84_942_979_072,
        memory_bandwidth: 3_352_320_000_000,
        ..H200
    },
    H200,
    Gpu {
        name: "b200",
        device: "NVIDIA B200",
        compute_capability: 10,
        accelerated_features: true,
        multiprocessors: 148,
        f32_units_per_multiprocessor: 128,
        shared_memory_per_multiprocessor: 233_472,
        shared_memory_per_block_opt_in: 232_448,
        l2_cache: 132_644_864,
        memory: 191_514_411_008,
        memory_bandwidth: 7_672_320_000_000,
        clock_ghz: 1.965,
        pcie_bandwidth: 68_719_476_736,
    },
];

const A100: Gpu = Gpu {
    name: "a100",
    device: "NVIDIA A100-SXM4-80GB",
    compute_capability: 8,
    accelerated_features: false,
    multiprocessors: 108,
    f32_units_per_multiprocessor: 64,
    shared_memory_per_multiprocessor: 167_936,
    shared_memory_per_block_opt_in: 166_912,
    l2_cache: 41_943_040,
    memory: 85_100_068_864,
    memory_bandwidth: 2_039_040_000_000,
    clock_ghz: 1.41,
    pcie_bandwidth: 34_359_738_368,
};

const H200: Gpu = Gpu {
    name: "h200",
    device: "NVIDIA H200 141GB HBM3e",
    compute_capability: 9,
    accelerated_features: true,
    multiprocessors: 132,
    f32_units_per_multiprocessor: 128,
    shared_memory_per_multiprocessor: 233_472,
    shared_memory_per_block_opt_in: 232_448,
    l2_cache: 52_428_800,
    memory: 151_397_597_184,
    memory_bandwidth: 4_800_000_000_000,
    clock_ghz: 1.98,
    pcie_bandwidth: 34_359_738_368,
};

impl Gpu {
    /// A `stream_executor.GpuTargetConfigProto` as protobuf text.
    pub(super) fn target_config(&self) -> String {
        let features = if self.accelerated_features { "ACCELERATED_FEATURES" } else { "NONE" };
        let fields: &[(&str, &dyn std::fmt::Display)] = &[
            ("threads_per_block_limit", &1024),
            ("threads_per_warp", &32),
            ("shared_memory_per_block", &49_152),
            ("shared_memory_per_core", &self.shared_memory_per_multiprocessor),
            ("threads_per_core_limit", &2048),
            ("core_count", &self.multiprocessors),
            ("fpus_per_core", &self.f32_units_per_multiprocessor),
            ("block_dim_limit_x", &i32::MAX),
            ("block_dim_limit_y", &65_535),
            ("block_dim_limit_z", &65_535),
            ("memory_bandwidth", &self.memory_bandwidth),
            ("l2_cache_size", &self.l2_cache),
            ("clock_rate_ghz", &self.clock_ghz),
            ("device_memory_size", &self.memory),
            ("shared_memory_per_block_optin", &self.shared_memory_per_block_opt_in),
            ("registers_per_core_limit", &65_536),
            ("registers_per_block_limit", &65_536),
            ("thread_dim_limit_x", &1024),
            ("thread_dim_limit_y", &1024),
            ("thread_dim_limit_z", &64),
            ("device_address_bits", &64),
            ("pcie_bandwidth", &self.pcie_bandwidth),
        ];
        // XLA's features depend on the versions of driver and libraries; these are the ones that the plugin was built
        // for.
        let texts = [
            ("device_vendor", "NVIDIA Corporation"),
            ("name", self.device),
            ("driver_version", "13.0.0"),
            ("runtime_version", "12.8.0"),
            ("compile_time_toolkit_version", "12.8.0"),
            ("dnn_version", "9.10.0"),
        ];
        let mut text = String::from("gpu_device_info {\n");
        for (name, value) in fields {
            let _ = writeln!(text, "  {name}: {value}");
        }
        for (name, value) in texts {
            let _ = writeln!(text, "  {name}: \"{value}\"");
        }
        let capability = self.compute_capability;
        let _ = writeln!(text, "  cuda_compute_capability {{ major: {capability} feature_extension: {features} }}");
        text.push_str("}\nplatform_name: \"CUDA\"\ndnn_version_info { major: 9 minor: 10 patch: 0 }\n");
        let _ = writeln!(text, "device_description_str: \"{}\"", self.device);
        text
    }
}
