//! Codes of element types, as numbers.

use half::f16;
use meshloom_models::internals::{decoder, e8m0};
use meshloom_models::weights::Dtype;

#[test]
fn scales_are_powers_of_two() {
    for code in 0..255 {
        assert_eq!(f64::from(e8m0(code)), 2f64.powi(i32::from(code) - 127), "{code}");
    }
    assert!(e8m0(255).is_nan());
}

#[test]
fn every_code_of_a_short_dtype() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (dtype, number) in [
        (Dtype::BF16, (|code| half::bf16::from_bits(code).to_f64()) as fn(u16) -> f64),
        (Dtype::F16, |code| f16::from_bits(code).to_f64()),
    ] {
        let mut out = vec![0.0; 1 << 16];
        decoder(dtype).unwrap().1(&bytes, &mut out);
        for (code, found) in (0..=u16::MAX).zip(out) {
            let expected = number(code);
            assert!(f64::from(found) == expected || found.is_nan() && expected.is_nan(), "{dtype} {code:#x}");
        }
    }
    let mut out = [0.0; 256];
    decoder(Dtype::F8_E4M3).unwrap().1(&(0..=255).collect::<Vec<u8>>(), &mut out);
    assert_eq!((out[0x38], out[0x7e], out[0xfe], out[1]), (1.0, 448.0, -448.0, 2f32.powi(-9)));
    assert!(out[0x7f].is_nan() && out[0xff].is_nan());
    assert_eq!(out.iter().filter(|number| number.is_nan()).count(), 2);
}
