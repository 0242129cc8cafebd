//! The suspects that are switched off: settings and passes of XLA's. The compiler lists meshloom's own passes.

use meshloom::pjrt::DebugValue;

/// A setting of XLA's CPU compiler, and the value at which it does least to a program.
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) value: &'static str,
}

impl Flag {
    pub(super) fn value(&self) -> DebugValue {
        DebugValue::parse(self.value)
    }
}

/// The settings of XLA that are tried. A setting that a plugin does not know is left out.
pub(super) const FLAGS: &[Flag] = &[
    Flag { name: "xla_cpu_enable_fast_math", value: "false" },
    Flag { name: "xla_cpu_enable_fast_min_max", value: "false" },
    Flag { name: "xla_cpu_fast_math_honor_nans", value: "true" },
    Flag { name: "xla_cpu_fast_math_honor_infs", value: "true" },
    Flag { name: "xla_cpu_fast_math_honor_division", value: "true" },
    Flag { name: "xla_cpu_fast_math_honor_functions", value: "true" },
    Flag { name: "xla_allow_excess_precision", value: "false" },
    Flag { name: "xla_backend_optimization_level", value: "0" },
    Flag { name: "xla_llvm_disable_expensive_passes", value: "true" },
    Flag { name: "xla_cpu_multi_thread_eigen", value: "false" },
    Flag { name: "xla_cpu_use_onednn", value: "false" },
    Flag { name: "xla_cpu_use_xnnpack", value: "false" },
    Flag { name: "xla_cpu_use_fusion_emitters", value: "false" },
    Flag { name: "xla_cpu_enable_concurrency_optimized_scheduler", value: "false" },
    Flag { name: "xla_cpu_copy_insertion_use_region_analysis", value: "false" },
    Flag { name: "xla_cpu_enable_platform_dependent_math", value: "false" },
];

/// XLA's setting that names the passes it leaves out, with commas between them.
pub(super) const DISABLED_PASSES: &str = "xla_disable_hlo_passes";

/// Passes of XLA's that a program can do without, by the names that [`DISABLED_PASSES`] takes. A name that a plugin
/// does not know does nothing.
pub(super) const XLA_PASSES: &[&str] = &[
    "algsimp",
    "constant_folding",
    "fusion",
    "cse",
    "dce",
    "reshape-mover",
    "transpose-folding",
    "tuple-simplifier",
    "simplify-while-loops",
    "while-loop-invariant-code-motion",
    "while-loop-expensive-invariant-code-motion",
    "while-loop-constant-sinking",
    "while-loop-all-reduce-code-motion",
    "while-loop-trip-count-annotator",
    "while-loop-unroller",
    "simplify-conditional",
    "conditional-to-select",
    "simplify-sorts",
    "gather_simplifier",
    "scatter_simplifier",
    "simplify-fp-conversions",
    "convert-mover",
    "broadcast_canonicalizer",
    "slice-sinker",
    "zero_sized_hlo_elimination",
    "map-inline",
    "CallInliner",
    "all-reduce-simp",
    "all-reduce-reassociate",
    "ar-crs-combiner",
    "reduce-scatter-reassociate",
    "all-gather-combiner",
    "all-reduce-combiner",
    "reduce-scatter-combiner",
    "collective-quantizer",
    "indexed-array-analysis",
    "dynamic_dimension_simplifier",
    "reduce-window-rewriter",
    "element-type-converter",
    "convolution-canonicalization",
];
