//! The interpreter on kernels that are written by hand: what it computes, and what it refuses.

use meshloom::hlo::{DType, TensorType};
use meshloom_mosaic::text::{Axis, Body, Element, GridPosition, Program, Window};
use meshloom_mosaic::{Cost, Kernel, KernelError};
use support::interpret::mosaic::{Array, run, run_kernel};

/// `out = 2 x` for the blocks of 8 rows that a list names, with the index of the list as axis.
const DOUBLE: &str = r#"!block = memref<8x128xf32, #tpu.memory_space<vmem>>
!list = memref<3xi32, #tpu.memory_space<smem>>
!v = vector<8x128xf32>
"builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%i: i32, %list: !list, %x: !block, %o: !block):
    %z = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %two = "stable_mosaic.arith.constant"() {value = dense<0x40000000> : !v} : () -> !v
    %a = "stable_mosaic.vector.load"(%x, %z, %z) : (!block, index, index) -> !v
    %b = "stable_mosaic.arith.mulf"(%a, %two) {fastmath = #arith.fastmath<none>} : (!v, !v) -> !v
    "stable_mosaic.tpu.vector_store"(%b, %o, %z, %z) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (!v, !block, index, index) -> ()
    "stable_mosaic.func.return"() : () -> ()
  }) {sym_name = "double", function_type = (i32, !list, !block, !block) -> (), iteration_bounds = array<i64: 3>,
      dimension_semantics = [#tpu.dimension_semantics<arbitrary>], scalar_prefetch = 1 : i64, scratch_operands = 0 : i64,
      tpu.core_type = #tpu.core_type<tc>,
      window_params = [{transform_indices = @listed, window_bounds = array<i64: 8, 128>}, {transform_indices = @listed, window_bounds = array<i64: 8, 128>}]} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%i: i32, %list: !list):
    %z = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %ix = "stable_mosaic.arith.index_cast"(%i) : (i32) -> index
    %block = "stable_mosaic.memref.load"(%list, %ix) : (!list, index) -> i32
    "stable_mosaic.func.return"(%block, %z) : (i32, i32) -> ()
  }) {sym_name = "listed", function_type = (i32, !list) -> (i32, i32)} : () -> ()
}) {stable_mosaic.version = 11 : i64} : () -> ()
"#;

fn double(text: &str, list: &[i32]) -> Vec<Array> {
    let data: Vec<f64> = (0..32 * 128).map(f64::from).collect();
    let x = Array::new(DType::F32, &[32, 128], &data);
    run(text, &[Array::scalars(list), x], &[TensorType::new(DType::F32, &[32, 128])])
}

/// Elements that no step writes are NaN.
#[test]
fn a_kernel_written_by_hand() {
    let results = double(DOUBLE, &[2, 0, 0]);
    for (index, &number) in results[0].data().iter().enumerate() {
        match index / (8 * 128) {
            0 | 2 => assert_eq!(number, 2.0 * index as f64),
            _ => assert!(number.is_nan(), "block {}", index / (8 * 128)),
        }
    }
}

#[test]
fn what_is_wrong_is_refused() {
    let refused = |text: &str, list: &[i32]| -> String {
        let panic = std::panic::catch_unwind(|| double(text, list)).expect_err("a wrong kernel");
        *panic.downcast().expect("a message")
    };
    let text = |from: &str, to: &str| {
        assert!(DOUBLE.contains(from), "no {from}");
        refused(&DOUBLE.replacen(from, to, 1), &[0, 1, 2])
    };
    assert_eq!(refused(DOUBLE, &[0, 4, 1]), "listed gives block [4.0, 0.0] of [32, 128] in blocks of [8, 128]");
    assert_eq!(text("arith.mulf", "arith.powf"), "line 10: arith.powf: an op that is not interpreted");
    assert_eq!(text("(%a, %two)", "(%a, %three)"), "line 10: arith.mulf: a value that is not computed yet");
    assert_eq!(
        text("version = 11", "version = 19"),
        "line 24: expected a module of the version that this crate writes, found ``"
    );
    assert_eq!(
        text("(!block, index, index) -> !v", "(!block, index) -> !v"),
        "line 9: expected a type for each operand, found `-> !v\n    %b = \"stable_mosaic.arith.mulf`"
    );
    assert_eq!(text("value = 0 : index", "value = 1 : index"), "line 9: vector.load: vector<8x128xf32> of [8, 128]");
    assert_eq!(text("scalar_prefetch = 1", "scalar_prefetch = 3"), "2 operands and 1 results do not fit the kernel");
    assert!(text("array<i64: 8, 128>", "array<i64: 16, 128>").starts_with("a window of memref<8x128xf32"));
}

/// A kernel of one axis that adds a row of 8 numbers to scratch memory at each step, and writes the sum at each.
fn running_sum(axis: Axis, block: fn(usize) -> i32) -> Result<Kernel, KernelError> {
    let mut program = Program::new("running_sum", &[axis]);
    let at = |b: &mut Body, grid: &GridPosition| vec![grid.axes[0].clone(), b.int(0)];
    let x = program.input(Window::new("x", Element::F32, &[32, 128], &[8, 128], at));
    let o = program.output(Window::new("o", Element::F32, &[32, 128], &[8, 128], move |b, grid| {
        let factor = b.int(block(1));
        vec![b.mul(&grid.axes[0], &factor), b.int(0)]
    }));
    let sum = program.scratch(&[8, 128]);
    program.write(Cost::default(), |b, refs| {
        let zero = b.int(0);
        let is_first = b.compare(meshloom_mosaic::text::Comparison::Equal, &refs.grid.axes[0], &zero);
        b.when(&is_first, |b| {
            let zero = b.full(0.0, &[8, 128]);
            b.store(&zero, &refs[sum]);
        });
        let (so_far, x) = (b.load(&refs[sum]), b.load(&refs[x]));
        let so_far = b.add(&so_far, &x);
        b.store(&so_far, &refs[sum]);
        b.store(&so_far, &refs[o]);
    })
}

/// Scratch memory lasts along a sequential axis, and not along a parallel one.
#[test]
fn scratch_lasts_along_sequential_axes() {
    let ones = [Array::new(DType::F32, &[32, 128], &[1.0; 32 * 128])];
    let blocks = |axis, block| -> Vec<f64> {
        run_kernel(&running_sum(axis, block).expect("a kernel"), &ones)[0]
            .data()
            .iter()
            .copied()
            .step_by(8 * 128)
            .collect()
    };
    assert_eq!(blocks(Axis::Sequential(4), |i| i as i32), [1.0, 2.0, 3.0, 4.0]);
    let parallel = blocks(Axis::Parallel(4), |i| i as i32);
    assert_eq!(parallel[0], 1.0);
    assert!(parallel[1..].iter().all(|number| number.is_nan()), "{parallel:?}");
    // One block, written back at the end.
    let one = blocks(Axis::Sequential(4), |_| 0);
    assert_eq!(one[0], 4.0);
    assert!(one[1..].iter().all(|number| number.is_nan()), "{one:?}");
}

/// Mistakes in a body are found when the text is complete.
#[test]
fn mistakes_in_a_body_are_errors() {
    let problem = |write: fn(&mut Body)| {
        let program = Program::new("wrong", &[Axis::Sequential(1)]);
        program.write(Cost::default(), |b, _| write(b)).expect_err("a wrong body").to_string()
    };
    let sum = problem(|b| {
        let (a, c) = (b.full(0.0, &[8, 128]), b.iota(&[8, 128], 0));
        b.add(&a, &c);
    });
    assert_eq!(sum, "internal error in the body of wrong: addf of vector<8x128xf32> and vector<8x128xi32>");
    let product = problem(|b| {
        let a = b.full(0.0, &[8, 128]);
        b.product(meshloom_mosaic::text::Product::Plain, &a, &a, &a);
    });
    assert!(product.contains("Plain product of vector<8x128xf32>"), "{product}");
    let shape = problem(|b| {
        let a = b.full(0.0, &[8, 128]);
        b.broadcast(&a, &[16, 128]);
    });
    assert!(shape.contains("does not broadcast to [16, 128]"), "{shape}");
}

#[test]
fn the_call_is_json() {
    let kernel = running_sum(Axis::Sequential(4), |i| i as i32).expect("a kernel");
    let config = kernel.config();
    let parts = ["{\"custom_call_config\":{\"body\":\"", "\",\"serialization_format\":1,\"needs_layout_passes\":true,"];
    assert!(config.starts_with(parts[0]) && config.contains(parts[1]), "{config}");
    serde_json::from_str::<serde_json::Value>(&config).expect("JSON");
}
