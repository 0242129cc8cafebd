//! Metrics lines and progress lines.

use std::time::Duration;

use insta::assert_snapshot;
use meshloom_cli::internals::progress_lines;
use meshloom_train::report::{MemoryUse, MetricsWriter, StepMetrics, Summary, beside_entropy};

fn step(step: u64, loss: f64) -> StepMetrics {
    StepMetrics {
        step,
        loss,
        grad_norm: 0.25,
        tokens_per_second: 12345.678,
        step_seconds: 1.0,
        data_seconds: 0.125,
        wait_seconds: None,
        skipped_steps: 0,
    }
}

/// The number as the line has it, which must be what JSON reads back.
fn check(value: f64) -> String {
    let line = step(1, value).to_json();
    let read: serde_json::Value = serde_json::from_str(&line).unwrap();
    if value.is_finite() {
        let read = read["loss"].as_f64().unwrap();
        assert!((read - value).abs() <= value.abs() * 1e-9, "{value} became {read}");
        assert_eq!(read as f32, value as f32);
    }
    line.split(", ").nth(1).unwrap().strip_prefix("\"loss\": ").unwrap().to_owned()
}

/// A loss above the entropy is not a negative number below it.
#[test]
fn a_loss_is_above_or_below() {
    assert_eq!(beside_entropy(1.5, 3.109, "letter"), "1.6090 below the entropy of single letters");
    assert_eq!(beside_entropy(5.5, 3.1889, "token"), "2.3111 above the entropy of single tokens");
}

#[test]
fn floats_have_ten_digits() {
    assert_snapshot!(check(5.545177459716797), @"5.545177460");
    assert_snapshot!(check(0.5), @"0.5000000000");
    assert_snapshot!(check(0.0), @"0.000000000");
    assert_snapshot!(check(-123456.789), @"-123456.7890");
    assert_snapshot!(check(f64::from(0.1f32)), @"0.1000000015");
    assert_snapshot!(check(9.999999999999), @"10.000000000");
    assert_snapshot!(check(1.25e-7), @"1.250000000e-7");
    assert_snapshot!(check(1.25e30), @"1.250000000e30");
    assert_snapshot!(check(f64::NAN), @"null");
    assert_snapshot!(check(f64::NEG_INFINITY), @"null");
}

#[test]
fn the_file_is_json_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    std::fs::write(&path, "left over").unwrap();
    let mut writer = MetricsWriter::create(&path).unwrap();
    writer.write(&step(1, 5.5)).unwrap();
    // Lines are there at once, and a resumed run adds to them.
    MetricsWriter::append(&path).unwrap().write(&step(2, 4.5)).unwrap();
    assert_snapshot!(std::fs::read_to_string(&path).unwrap(), @r#"
    {"step": 1, "loss": 5.500000000, "grad_norm": 0.2500000000, "tokens_per_second": 12345.67800, "step_seconds": 1.000000000, "data_seconds": 0.1250000000}
    {"step": 2, "loss": 4.500000000, "grad_norm": 0.2500000000, "tokens_per_second": 12345.67800, "step_seconds": 1.000000000, "data_seconds": 0.1250000000}
    "#);
    let error = MetricsWriter::create(directory.path().join("no/metrics.jsonl")).unwrap_err().to_string();
    assert_snapshot!(error.replace(&directory.path().display().to_string(), "DIR"), @r#"cannot write the metrics to "DIR/no/metrics.jsonl": No such file or directory (os error 2); give a path in a directory that exists"#);
}

#[test]
fn plain_progress() {
    let shown = (1..=4000).filter(|number| *number < 500 || *number == 4000);
    assert_snapshot!(progress_lines(4000, shown.map(|number| step(number, 2.0))).join("\n"), @r"
    step 1/4000  loss 2.0000  grad norm 0.250  12,346 tokens/s  ETA 1:06:39
    step 200/4000  loss 2.0000  grad norm 0.250  12,346 tokens/s  ETA 1:03:20
    step 400/4000  loss 2.0000  grad norm 0.250  12,346 tokens/s  ETA 1:00:00
    step 4000/4000  loss 2.0000  grad norm 0.250  12,346 tokens/s  ETA 0:00
    ");
}

/// A run that goes on after a step writes the later ones anew.
#[test]
fn a_resumed_run_continues_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics.jsonl");
    let lines = |steps: &[u64]| steps.iter().map(|&number| step(number, 0.5).to_json() + "\n").collect::<String>();
    for (before, kept) in [
        (lines(&[1, 2, 3, 4]), lines(&[1, 2])),
        (lines(&[1, 2]), lines(&[1, 2])),
        (lines(&[1]), lines(&[1])),
        (lines(&[3, 4]), String::new()),
        (String::new(), String::new()),
        // Stopped within a line.
        (lines(&[1, 2, 3]) + "{\"step\": 4, \"lo", lines(&[1, 2])),
        (lines(&[1, 2]) + "{\"st", lines(&[1, 2])),
        (lines(&[1, 2]).trim_end().to_owned(), lines(&[1])),
        (lines(&[1, 2]) + "{\"step\": 3, \"loss\": null}\n", lines(&[1, 2])),
    ] {
        std::fs::write(&path, &before).unwrap();
        MetricsWriter::resume(&path, 2).unwrap().write(&step(3, 0.25)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), kept + &step(3, 0.25).to_json() + "\n", "{before:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
    std::fs::remove_file(&path).unwrap();
    MetricsWriter::resume(&path, 2).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
    // A file that does not hold metrics is not cut.
    std::fs::write(&path, "a\nb\n").unwrap();
    let error = MetricsWriter::resume(&path, 2).unwrap_err().to_string();
    assert!(error.contains("line 1 is not one of metrics") && error.contains("so it is not continued"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\n");
}

/// Median and 95th percentile of twenty steps, tokens of all of them, and the share of a peak: counted by hand.
#[test]
fn a_summary_counts_steps() {
    let mut summary = Summary::new(Some(4e9), Some(80e9));
    assert_eq!((summary.to_string().as_str(), summary.step_time(0.5)), ("no step", None));
    (summary.lower_seconds, summary.compile_seconds) = (0.0241, 2.5);
    // Steps of 0.1 s to 2 s, of 100 tokens each.
    for step in 1..=20u64 {
        let step_seconds = step as f64 / 10.0;
        let tokens_per_second = 100.0 / step_seconds;
        let data_seconds = step_seconds / 100.0;
        summary.add(&StepMetrics { step_seconds, tokens_per_second, data_seconds, ..self::step(step, 1.0) });
    }
    assert_eq!(summary.step_time(0.5), Some(Duration::from_secs(1)));
    assert_eq!(summary.step_time(0.95), Some(Duration::from_secs_f64(1.9)));
    assert_eq!(summary.tokens_per_second().map(f64::round), Some(95.0));
    assert_eq!(summary.flops_per_second(), Some(4e9));
    assert_eq!(summary.utilization(), Some(0.05));
    let text = "20 steps of 1.00 s (median; 95 % within 1.90 s), 95 tokens/s, 0.004 TFLOP/s of the model, MFU 5.0 %; \
                1.0 % of the time waiting for data; lowered in 24.1 ms, compiled in 2.50 s";
    assert_eq!(summary.to_string(), text);
    let memory = |is_counted| Some(MemoryUse { in_use: 35 << 20, peak: 1 << 30, is_counted });
    for (is_counted, whose) in [(true, ""), (false, " by the compiled programs")] {
        summary.memory = memory(is_counted);
        let expected = format!("{text}; memory of a device{whose}: 35.0 MiB, 1.00 GiB at the peak");
        assert_eq!(summary.to_string(), expected);
    }
}
