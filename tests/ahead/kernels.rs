//! The kernels of `meshloom-mosaic`, compiled for every kind of TPU.

use meshloom::hlo::DType;
use meshloom::hlo::parse::parse;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{CompileOptions, OptimizedProgram};
use meshloom_mosaic::attention::{self, Attention, Order};
use meshloom_mosaic::grouped::{self, Grouped};
use meshloom_mosaic::{CALL_TARGET, Kernel};
use prost::Message;
use support::ahead_of_time::topology;
use support::by_number;

fn compiles(target: &str, what: &str, kernel: &Kernel) {
    let parsed = parse(&kernel.module("kernel")).unwrap_or_else(|error| panic!("{what}: {error}"));
    let module = parsed.hlo_module.expect("a module").encode_to_vec();
    let settings = Settings::default();
    let compiled = ahead_of_time::compile(&topology(target), &module, &CompileOptions::default(), &settings);
    let compiled = compiled.unwrap_or_else(|error| panic!("{what}: {error}"));
    let optimized = compiled.optimized_hlo().and_then(OptimizedProgram::decode);
    let optimized = optimized.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut instructions = optimized.computations.iter().flat_map(|computation| &computation.instructions);
    assert!(instructions.any(|instruction| instruction.custom_call_target == CALL_TARGET), "{what} is gone");
}

/// The forward pass and the gradient of attention.
fn attention(target: &str, what: &str, of: &Attention) {
    let [query, key] = of.starts();
    let pairs = |order| of.pairs(&query, &key, order).unwrap_or_else(|error| panic!("{what}: {error}")).len();
    let (by_queries, by_keys) = (pairs(Order::Queries), pairs(Order::Keys));
    for kernel in [of.forward(by_queries), of.backward_queries(by_queries), of.backward_keys(by_keys)] {
        compiles(target, what, &kernel.unwrap_or_else(|error| panic!("{what}: {error}")));
    }
}

/// Attention with the blocks that its widths get, and all options or none.
fn of_widths(dtype: DType, width: usize, value_width: usize, has_options: bool) -> Attention {
    let length = 2048;
    Attention {
        dtype,
        batch: 2,
        heads: 8,
        kv_heads: 2,
        queries: length,
        keys: length,
        width,
        value_width,
        blocks: attention::Blocks::new(dtype, width, value_width, length, length),
        scale: 0.1,
        causal: true,
        window: has_options.then_some(700),
        softcap: has_options.then_some(30.0),
        segments: has_options,
        places: false,
        sinks: has_options,
    }
}

/// Attention without options, with the places of rows, and with all options for the widths that models have; and the
/// products of groups. By default one of each kind, which the number of the target decides.
pub fn compile(number: usize, target: &str) {
    let plain = of_widths(DType::BF16, 128, 128, false);
    let placed = Attention { places: true, sinks: false, ..of_widths(DType::BF16, 128, 128, true) };
    for (what, of) in by_number([("without options", plain), ("with places", placed)], 2, number) {
        attention(target, &format!("attention {what}"), &of);
    }
    let widths = [
        (DType::BF16, 192, 128),
        (DType::BF16, 64, 64),
        (DType::BF16, 128, 128),
        (DType::BF16, 512, 512),
        (DType::F32, 256, 256),
        (DType::F32, 128, 128),
        (DType::BF16, 256, 256),
        (DType::F32, 512, 512),
    ];
    for (dtype, width, value_width) in by_number(widths, widths.len(), number) {
        let what = format!("attention of {dtype:?}, {width} and {value_width} wide");
        attention(target, &what, &of_widths(dtype, width, value_width, true));
    }
    let sizes = [(DType::BF16, 2048, 1024), (DType::F32, 1024, 512), (DType::BF16, 64, 96)];
    for (dtype, inner, columns) in by_number(sizes, sizes.len(), number) {
        let blocks = grouped::Blocks::new(dtype, 65_536, inner, columns, 8).expect("widths that can be cut");
        let of = Grouped { dtype, rows: 65_536, inner, columns, groups: 8, blocks };
        let count = of.visit_count();
        for kernel in [of.by_rows(count, false), of.by_rows(count, true), of.by_groups(count)] {
            compiles(target, &format!("{of:?}"), &kernel.unwrap_or_else(|error| panic!("{error}")));
        }
    }
}
