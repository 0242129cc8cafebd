//! The kernels of `meshloom-mosaic`, compiled for every kind of TPU.

use std::fmt::Write as _;

use meshloom::hlo::DType;
use meshloom::hlo::parse::parse;
use meshloom::ir::TensorType;
use meshloom::pjrt::{CompileOptions, OptimizedProgram};
use meshloom_mosaic::attention::{self, Attention, Order};
use meshloom_mosaic::grouped::{self, Grouped};
use meshloom_mosaic::{CALL_TARGET, Kernel};
use prost::Message;

use crate::workers;

/// A module that calls each of the kernels once, with its own operands. One module has them all because a worker takes
/// longer to load libtpu than to compile a kernel.
fn module(kernels: &[Kernel]) -> String {
    let join = |parts: Vec<String>| parts.join(", ");
    let (mut text, mut parameters, mut results) = ("HloModule kernels\n\nENTRY main {\n".to_owned(), 0, Vec::new());
    for (number, kernel) in kernels.iter().enumerate() {
        let shapes: Vec<String> = kernel.operands.iter().map(|operand| shape(&operand.ty)).collect();
        let name = |operand: usize| format!("k{number}.operand{operand}");
        for (operand, shape) in shapes.iter().enumerate() {
            writeln!(text, "  {} = {shape} parameter({parameters})", name(operand)).expect("text");
            parameters += 1;
        }
        let own: Vec<String> = kernel.results.iter().map(shape).collect();
        let result = if let [one] = &own[..] { one.clone() } else { format!("({})", join(own.clone())) };
        writeln!(
            text,
            "  k{number} = {result} custom-call({}), custom_call_target=\"{CALL_TARGET}\", \
             operand_layout_constraints={{{}}}, backend_config={}",
            join((0..shapes.len()).map(name).collect()),
            join(shapes),
            kernel.config()
        )
        .expect("text");
        if own.len() == 1 {
            results.push((own[0].clone(), format!("k{number}")));
            continue;
        }
        for (index, shape) in own.into_iter().enumerate() {
            let name = format!("k{number}.result{index}");
            writeln!(text, "  {name} = {shape} get-tuple-element(k{number}), index={index}").expect("text");
            results.push((shape, name));
        }
    }
    let (shapes, names) = results.into_iter().unzip();
    writeln!(text, "  ROOT all = ({}) tuple({})\n}}", join(shapes), join(names)).expect("text");
    text
}

/// A row-major shape in HLO text.
fn shape(ty: &TensorType) -> String {
    let join = |numbers: &mut dyn Iterator<Item = usize>| numbers.map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    format!("{}[{}]{{{}}}", ty.dtype.name(), join(&mut ty.dims.iter().copied()), join(&mut (0..ty.dims.len()).rev()))
}

/// The forward pass and the gradient of attention.
fn attention(what: &str, of: &Attention) -> [Kernel; 3] {
    let [query, key] = of.starts();
    let pairs = |order| of.pairs(&query, &key, order).unwrap_or_else(|error| panic!("{what}: {error}")).len();
    let (by_queries, by_keys) = (pairs(Order::Queries), pairs(Order::Keys));
    [of.forward(by_queries), of.backward_queries(by_queries), of.backward_keys(by_keys)]
        .map(|kernel| kernel.unwrap_or_else(|error| panic!("{what}: {error}")))
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

/// Compiles attention without options, with the places of rows, and with all options for the widths that models have;
/// and the products of groups. One module has them all.
pub fn compile(target: &str) {
    let plain = of_widths(DType::BF16, 128, 128, false);
    let placed = Attention { places: true, sinks: false, ..of_widths(DType::BF16, 128, 128, true) };
    let mut kernels = [attention("without options", &plain), attention("with places", &placed)].concat();
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
    for (dtype, width, value_width) in widths {
        let what = format!("{dtype:?}, {width} and {value_width} wide");
        kernels.extend(attention(&what, &of_widths(dtype, width, value_width, true)));
    }
    for (dtype, inner, columns) in [(DType::BF16, 2048, 1024), (DType::F32, 1024, 512), (DType::BF16, 64, 96)] {
        let blocks = grouped::GroupedBlocks::new(dtype, 65_536, inner, columns, 8).expect("widths that can be cut");
        let of = Grouped { dtype, rows: 65_536, inner, columns, groups: 8, blocks };
        let count = of.visit_count();
        let products = [of.by_rows(count, false), of.by_rows(count, true), of.by_groups(count)];
        kernels.extend(products.map(|kernel| kernel.unwrap_or_else(|error| panic!("{of:?}: {error}"))));
    }
    let parsed = parse(&module(&kernels)).unwrap_or_else(|error| panic!("{error}"));
    let module = parsed.hlo_module.expect("a module").encode_to_vec();
    let compiled = workers::compile(target, &module, &CompileOptions::default());
    let compiled = compiled.unwrap_or_else(|error| panic!("{target}: {error}"));
    let optimized = compiled.optimized_hlo().and_then(OptimizedProgram::decode);
    let optimized = optimized.unwrap_or_else(|error| panic!("{target}: {error}"));
    let instructions = optimized.computations.iter().flat_map(|computation| &computation.instructions);
    let calls = instructions.filter(|instruction| instruction.custom_call_target == CALL_TARGET);
    let names: Vec<&str> = calls.map(|call| call.name.as_str()).collect();
    assert_eq!(names.len(), kernels.len(), "{target}: {names:?}");
}
