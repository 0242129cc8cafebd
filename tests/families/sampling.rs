//! Tests of how tokens are drawn: the distributions of transformers' logits processors.

use meshloom_train::generate::SamplingOptions;

use super::golden::read;

/// Probabilities are stored in f32.
const BOUND: f64 = 1e-6;

#[test]
fn options_leave_what_those_of_transformers_do() {
    let file = read("tests/oracle/sampling.safetensors");
    let (dims, logits) = &file["logits"];
    let (rows, vocab) = (dims[0], dims[1]);
    let settings: Vec<&[f32]> = file["options"].1.chunks(4).collect();
    let expected = &file["probabilities"].1;
    assert_eq!(expected.len(), settings.len() * rows * vocab);
    for (setting, expected) in settings.into_iter().zip(expected.chunks(rows * vocab)) {
        let [temperature, top_k, top_p, min_p] = setting else { panic!("four options") };
        // As they were given, before they were rounded.
        let decimal = |number: &f32| number.to_string().parse::<f64>().expect("a number");
        let given = |number: &f32| (*number > 0.0).then(|| decimal(number));
        let options = SamplingOptions {
            temperature: decimal(temperature),
            top_k: given(top_k).map(|count| count as usize),
            top_p: given(top_p),
            min_p: given(min_p),
        };
        options.check().expect("options that mean something");
        for (number, (row, expected)) in logits.chunks(vocab).zip(expected.chunks(vocab)).enumerate() {
            let mut found = vec![0.0; vocab];
            let mut expected: Vec<f64> = expected.iter().map(|&share| share.into()).collect();
            options.distribution(row).into_iter().for_each(|(token, share)| found[token] = share);
            let total: f64 = found.iter().sum();
            assert!((total - 1.0).abs() < BOUND, "{options:?}: {total}");
            // In the last row, torch's sort leaves any of the equal numbers in front.
            if number + 1 == rows && options.top_p.is_some() {
                found.sort_by(f64::total_cmp);
                expected.sort_by(f64::total_cmp);
            }
            for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert_eq!(*found > 0.0, expected > 0.0, "{options:?}: token {token} is kept by one alone");
                assert!((found - expected).abs() < BOUND, "{options:?}: token {token} has {found}, not {expected}");
            }
        }
    }
}

#[test]
fn greedy_takes_the_first_of_the_likeliest() {
    assert_eq!(SamplingOptions::greedy().distribution(&[0.5, 2.0, -1.0, 2.0]), [(1, 1.0)]);
    assert_eq!(SamplingOptions::greedy().distribution(&[]), []);
}

#[test]
fn options_that_mean_nothing_are_refused() {
    let plain = SamplingOptions::default();
    let message = |options: SamplingOptions| match options.check() {
        Ok(()) => "taken".to_owned(),
        Err(error) => error.to_string(),
    };
    for temperature in [-0.1, f64::NAN, f64::INFINITY] {
        let message = message(SamplingOptions { temperature, ..plain.clone() });
        assert_eq!(message, format!("the temperature cannot be {temperature}: it is a number of at least 0"));
    }
    assert_eq!(
        message(SamplingOptions { top_k: Some(0), ..plain.clone() }),
        "top-k cannot be 0: it is a number of tokens of at least 1; leave it out for all"
    );
    for top_p in [0.0, -1.0, 1.01, f64::NAN] {
        let message = message(SamplingOptions { top_p: Some(top_p), ..plain.clone() });
        assert_eq!(message, format!("top-p cannot be {top_p}: it is a probability above 0, up to 1"));
    }
    for min_p in [-0.1, 1.1, f64::NAN] {
        let message = message(SamplingOptions { min_p: Some(min_p), ..plain.clone() });
        assert_eq!(message, format!("min-p cannot be {min_p}: it is a share from 0 to 1"));
    }
    assert_eq!(message(SamplingOptions { top_p: Some(1.0), min_p: Some(0.0), ..plain }), "taken");
}
