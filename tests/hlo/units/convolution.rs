use meshloom::analysis::{CostOptions, Devices, cost};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::WindowDimension;

/// Returns the number of pairs, of a position in the kernel and one in the output, that meet an element of the input.
/// It is taken from the cost of a convolution along one dimension.
fn valid_positions(window: &WindowDimension, input: i64, kernel: i64, output: i64) -> u64 {
    const TEXT: &str = "HloModule m
ENTRY main {
  x = f32[1,1,1] parameter(0)
  k = f32[1,1,1] parameter(1)
  ROOT r = f32[1,1,1] convolution(x, k), window={size=1}, dim_labels=b0f_0io->b0f
}
";
    let mut module = parse(TEXT).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module");
    for (instruction, (dimension, size)) in
        module.computations[0].instructions.iter_mut().zip([(1, input), (0, kernel), (1, output)])
    {
        instruction.shape.as_mut().expect("a shape").dimensions[dimension] = size;
        if let Some(window_of) = &mut instruction.window {
            window_of.dimensions = vec![*window];
        }
    }
    let found = cost(&module, &CostOptions::devices(Devices::partitioned(1)));
    // Each product is two operations.
    found.instructions.last().map_or(0, |it| it.work.flops / 2)
}

/// Counts the pairs, one by one.
fn one_by_one(window: &WindowDimension, input: i64, kernel: i64, output: i64) -> u64 {
    let meets = |k: i64, o: i64| {
        let index = o * window.stride - window.padding_low + k * window.window_dilation;
        let element = index / window.base_dilation;
        index == element * window.base_dilation && (0..input).contains(&element)
    };
    let pairs = (0..kernel).flat_map(|k| (0..output).map(move |o| (k, o)));
    pairs.filter(|&(k, o)| meets(k, o)).count() as u64
}

#[test]
fn positions_are_those_counted_one_by_one() {
    for (stride, padding_low, window_dilation, base_dilation) in [
        (1, 0, 1, 1),
        (1, 2, 1, 1),
        (2, 1, 1, 1),
        (1, 3, 2, 1),
        (1, 2, 1, 2),
        (3, 1, 2, 2),
        (2, 5, 3, 4),
        (1, -1, 1, 3),
    ] {
        for (input, kernel) in [(7, 3), (1, 1), (5, 5), (9, 4)] {
            let window = WindowDimension { stride, padding_low, window_dilation, base_dilation, ..Default::default() };
            for output in [1, 4, 11] {
                let expected = one_by_one(&window, input, kernel, output);
                assert_eq!(valid_positions(&window, input, kernel, output), expected, "{window:?} {input} {output}");
            }
        }
    }
}

#[test]
fn sizes_that_are_not_are_no_work() {
    let window = WindowDimension { padding_low: i64::MIN, ..Default::default() };
    assert_eq!(valid_positions(&window, 0, 3, 3), 0);
    let _ = valid_positions(&window, i64::MAX, 3, i64::MAX);
}
