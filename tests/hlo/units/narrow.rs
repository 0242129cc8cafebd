use meshloom::hlo::{DType, F8E4M3FN, F8E5M2, Literal, TensorType};

#[test]
fn every_code_comes_back() {
    for code in 0..=u8::MAX {
        for (back, number) in [
            (F8E4M3FN::from_f64(F8E4M3FN(code).to_f64()).0, F8E4M3FN(code).to_f64()),
            (F8E5M2::from_f64(F8E5M2(code).to_f64()).0, F8E5M2(code).to_f64()),
        ] {
            assert!(back == code || number.is_nan(), "{code:#x} is {number} is {back:#x}");
        }
    }
}

#[test]
fn rounding_and_overflow() {
    let e4m3fn = [(448.0, 448.0), (464.0, 448.0), (-464.0, -448.0), (17.0, 16.0), (19.0, 20.0), (2e-3, 0.001953125)];
    for (number, expected) in e4m3fn {
        assert_eq!(F8E4M3FN::from_f64(number).to_f64(), expected, "{number}");
    }
    assert!(F8E4M3FN::from_f64(464.1).to_f64().is_nan() && F8E4M3FN::from_f64(f64::INFINITY).to_f64().is_nan());
    let e5m2 = [(61439.0, 57344.0), (61440.0, f64::INFINITY), (-1e300, f64::NEG_INFINITY), (9.0, 8.0), (11.0, 12.0)];
    for (number, expected) in e5m2 {
        assert_eq!(F8E5M2::from_f64(number).to_f64(), expected, "{number}");
    }
    // Half of the smallest subnormal number is a tie with zero.
    assert_eq!(F8E5M2::from_f64(2f64.powi(-17)).0, 0);
    assert_eq!(F8E5M2::from_f64(1.5 * 2f64.powi(-17)).0, 1);
    assert_eq!(F8E4M3FN::from_f64(-0.0).0, 0x80);
}

#[test]
fn a_number_is_rounded_to_16_bits_once() {
    let (tie, bit, next) = (1.0 + 2f64.powi(-8), 2f64.powi(-45), 1.0 + 2f64.powi(-7));
    let cases =
        [(tie, 1.0), (tie + bit, next), (tie - bit, 1.0), (next + tie - 1.0 - bit, next), (1e300, f64::INFINITY)];
    let rounded = |dtype, number: f64| Literal::from_fn(TensorType::new(dtype, &[]), |_| number).to_f64_vec()[0];
    for (number, expected) in cases {
        assert_eq!(rounded(DType::BF16, number), expected, "{number}");
        assert_eq!(rounded(DType::BF16, -number), -expected, "{number}");
    }
    assert!(rounded(DType::BF16, f64::NAN).is_nan());
    assert_eq!(rounded(DType::F16, 1.0 + 2f64.powi(-11) + bit), 1.0 + 2f64.powi(-10));
}
