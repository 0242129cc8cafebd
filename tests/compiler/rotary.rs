//! The frequencies of rotary embeddings, stretched for longer contexts.

use meshloom_nn::{Rope, RopeScaling};

/// The expected numbers are worked out by hand from the formulas, for eight numbers of a head and theta 10,000.
#[test]
fn frequencies_are_stretched() {
    let close = |scaling: RopeScaling, expected: [f64; 4]| {
        let found = Rope { scaling: scaling.clone(), ..Rope::new(8, 1e4) }.frequencies();
        let error = found.iter().zip(expected).map(|(found, expected)| (found / expected - 1.0).abs());
        assert!(error.fold(0.0, f64::max) < 1e-6, "{scaling:?}: {found:?}");
    };
    close(RopeScaling::None, [1.0, 0.1, 0.01, 0.001]);
    close(RopeScaling::Linear { factor: 8.0 }, [0.125, 0.0125, 0.00125, 0.000125]);
    // Wavelengths of 6.28, 62.8, 628 and 6283 positions: the first is under 100 / 4, the others are over 100 / 2.
    let llama3 = |original| RopeScaling::Llama3 { factor: 8.0, low_frequency: 2.0, high_frequency: 4.0, original };
    close(llama3(100.0), [1.0, 0.0125, 0.00125, 0.000125]);
    // 200 / 62.8 = 3.1831 turns: the share (3.1831 - 2) / 2 = 0.59155 stays.
    close(llama3(200.0), [1.0, 0.06426058, 0.00125, 0.000125]);
    let yarn = |truncate| RopeScaling::Yarn {
        factor: 10.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        original: 4096.0,
        truncate,
        magnitude: 1.0,
    };
    // Pairs that turn 32 times and once: 1.30903 and 2.81418, rounded to 1 and 3.
    close(yarn(true), [1.0, 0.1, 0.0055, 0.0001]);
    close(yarn(false), [1.0, 0.1, 0.00586837, 0.0001]);
}
