//! Rust numbers beside tensors: a number that the element type cannot hold is refused, wherever it is written.

use meshloom::ir::DType;
use meshloom::ops::Op;
use meshloom::trace::{Function, Tensor, TensorSpec, TraceError, TraceErrorKind, arange, full, iota};

type Place = (&'static str, fn(Tensor, f64) -> Tensor);

/// Every place of the language that takes a number of a tensor's element type.
const PLACES: &[Place] = &[
    ("add", |x, number| x + number),
    ("add from the left", |x, number| number + x),
    ("subtract", |x, number| x - number),
    ("subtract from the left", |x, number| number - x),
    ("multiply", |x, number| x * number),
    ("divide", |x, number| x / number),
    ("remainder", |x, number| x % number),
    ("maximum", |x, number| x.maximum(number)),
    ("minimum", |x, number| x.minimum(number)),
    ("pow", |x, number| x.pow(number)),
    ("equal", |x, number| x.equal(number)),
    ("not_equal", |x, number| x.not_equal(number)),
    ("less", |x, number| x.less(number)),
    ("less_equal", |x, number| x.less_equal(number)),
    ("greater", |x, number| x.greater(number)),
    ("greater_equal", |x, number| x.greater_equal(number)),
    ("select", |x, number| x.equal(x).select(x, number)),
    ("select from the left", |x, number| x.equal(x).select(number, x)),
    ("clamp from below", |x, number| x.clamp(number, x)),
    ("clamp from above", |x, number| x.clamp(x, number)),
    ("pad", |x, number| x.pad(0, 1, 1, number)),
    ("full_like", |x, number| x.full_like(number)),
    ("full", |x, number| full(x.dtype(), [2], number)),
    ("a filled index", |x, number| x.at(&[arange(DType::S32, 5)]).fill(number).get()),
    ("a set index", |x, number| x.at(&[arange(DType::S32, 2)]).set(number)),
    ("an added index", |x, number| x.at(&[arange(DType::S32, 2)]).add(number)),
];

/// Returns the range of an integer type, without meshloom's conversions.
fn range(dtype: DType) -> Option<(i128, i128)> {
    Some(match dtype {
        DType::Pred => (0, 1),
        DType::S4 => (-8, 7),
        DType::S8 => (i8::MIN.into(), i8::MAX.into()),
        DType::S16 => (i16::MIN.into(), i16::MAX.into()),
        DType::S32 => (i32::MIN.into(), i32::MAX.into()),
        DType::S64 => (i64::MIN.into(), i64::MAX.into()),
        DType::U4 => (0, 15),
        DType::U8 => (0, u8::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::U64 => (0, u64::MAX.into()),
        _ => return None,
    })
}

/// Magnitudes from the smallest to the largest that a floating-point type holds after rounding.
fn magnitudes(dtype: DType) -> Option<(f64, f64)> {
    Some(match dtype {
        // More than half of the least subnormal number; less than half a step above the largest number.
        DType::F8E4M3FN => (1.1 * 2f64.powi(-10), 463.0),
        DType::F8E5M2 => (1.1 * 2f64.powi(-17), 61_000.0),
        DType::F16 => (1.1 * 2f64.powi(-25), 65_519.0),
        DType::BF16 => (1.1 * 2f64.powi(-134), 3.39e38),
        DType::F32 => (1.1 * 2f64.powi(-150), 3.4028235e38),
        DType::F64 => (f64::from_bits(1), f64::MAX),
        _ => return None,
    })
}

fn traced(dtype: DType, f: impl Fn(Tensor) -> Tensor) -> Result<Function<TensorSpec, TensorSpec>, TraceError> {
    Function::trace("f", TensorSpec::new(dtype, [3]), f)
}

#[test]
fn a_number_that_a_type_cannot_hold_is_refused_everywhere() {
    let numbers: Vec<f64> = vec![
        0.0,
        1.0,
        -1.0,
        2.0,
        7.0,
        8.0,
        -8.0,
        -9.0,
        15.0,
        16.0,
        127.0,
        128.0,
        -128.0,
        -129.0,
        255.0,
        256.0,
        32767.0,
        32768.0,
        65535.0,
        65536.0,
        2147483647.0,
        2147483648.0,
        -2147483648.0,
        -2147483649.0,
        4294967295.0,
        4294967296.0,
        9007199254740992.0,
        -9223372036854775808.0,
        9223372036854775808.0,
        18446744073709551616.0,
        1e12,
        1e300,
        0.5,
        1.7,
        -0.1,
        1e-9,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ];
    let (mut refused, mut taken) = (0, 0);
    for (name, place) in PLACES {
        for dtype in DType::ALL {
            for &number in &numbers {
                let holds = match (range(dtype), magnitudes(dtype)) {
                    (Some((low, high)), _) => number.fract() == 0.0 && (low..=high).contains(&(number as i128)),
                    (_, Some((least, most))) => {
                        let infinite = number.is_infinite() && dtype != DType::F8E4M3FN;
                        number == 0.0 || number.is_nan() || infinite || (least..=most).contains(&number.abs())
                    }
                    _ => panic!("{dtype} is of no known kind"),
                };
                let result = traced(dtype, |x| place(x, number));
                let found = result.as_ref().err().map(|error| &error.kind);
                let is_number = matches!(found, Some(TraceErrorKind::Number { .. }));
                // Another error is an op that does not take the type at all.
                assert!(is_number != holds || found.is_some() && !is_number, "{name}: {dtype}, {number}: {found:?}");
                refused += usize::from(is_number);
                taken += usize::from(found.is_none());
                if let Ok(function) = &result {
                    let number_of = |op: &Op| if let Op::Splat(splat) = op { Some(splat.number()) } else { None };
                    let splats: Vec<f64> = function.graph().nodes().filter_map(|node| number_of(node.op())).collect();
                    assert!(splats.iter().any(|splat| splat.to_bits() == number.to_bits()), "{name}: {splats:?}");
                }
            }
        }
    }
    assert!(refused > 5_000 && taken > 4_000, "{refused} refused, {taken} taken");
}

#[test]
fn what_has_fractions_is_refused_for_integers() {
    type OfOne = (&'static str, fn(Tensor) -> Tensor);
    let functions: &[OfOne] = &[
        ("mean", |x| x.mean(..)),
        ("variance", |x| x.variance(..)),
        ("recip", |x| x.recip()),
        ("gelu", |x| x.gelu()),
        ("gelu_tanh", |x| x.gelu_tanh()),
        ("silu", |x| x.silu()),
        ("softplus", |x| x.softplus()),
        ("log_logistic", |x| x.log_logistic()),
        ("log_add_exp", |x| x.log_add_exp(1.0)),
        ("logsumexp", |x| x.logsumexp(0)),
        ("softmax", |x| x.softmax(0)),
        ("log_softmax", |x| x.log_softmax(0)),
        ("exp", |x| x.exp()),
        ("sqrt", |x| x.sqrt()),
        ("logistic", |x| x.logistic()),
        ("rms_norm", |x| meshloom_nn::rms_norm(x, x, 1e-5)),
    ];
    for (name, function) in functions {
        for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_float()) {
            let error = traced(dtype, function).err();
            let error = error.unwrap_or_else(|| panic!("{name} of {dtype}")).to_string();
            assert!(error.contains(dtype.name()), "{name}: {error}");
        }
        assert!(traced(DType::F32, function).is_ok(), "{name}");
    }
    // Functions without fractions are not refused.
    for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_integer() && dtype.bit_count() >= 8) {
        traced(dtype, |x| x.relu() + x.square() / 2).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn positions_that_a_type_cannot_hold_are_refused() {
    for dtype in DType::ALL {
        let Some((_, high)) = range(dtype).filter(|_| dtype.is_integer()) else { continue };
        // More positions than a program can have.
        let Some(count) = usize::try_from(high + 1).ok().filter(|&count| count <= 1 << 32) else { continue };
        assert!(traced(dtype, |_| arange(dtype, count)).is_ok(), "{dtype}");
        let error = traced(dtype, |_| iota(dtype, [2, count + 1], -1)).expect_err("one too many").to_string();
        assert!(error.starts_with(&format!("{dtype} cannot hold the number {count}")), "{error}");
    }
}

#[test]
fn the_message_says_what_to_do() {
    let error = traced(DType::S32, |x| x * 0.5).expect_err("a half").to_string();
    let expected = "s32 cannot hold the number 0.5; use an element type that can (convert a tensor by \
                    `x.convert(F32)` first) (at numbers.rs:";
    assert!(error.replace("tests/compiler/", "").replace("compiler/", "").starts_with(expected), "{error}");
    let error = traced(DType::F16, |x| x + 1e-8).expect_err("nothing is left of it").to_string();
    assert!(error.starts_with("f16 cannot hold the number 1e-8; use a wider element type"), "{error}");
    let error = traced(DType::S32, |x| x.mean(..)).expect_err("a mean").to_string();
    let expected = "the mean of a tensor: expected a floating-point tensor, such as `x.convert(F32)`, found s32[3] (";
    assert!(error.starts_with(expected), "{error}");
}
