//! Each family on one device, and its file in each form.

use meshloom::ir::{DType, Graph, Literal};
use meshloom::ops::RematPolicy;
use meshloom::trace::{Function, TensorSpec};
use meshloom_models::families::Published;
use meshloom_nn::{DecoderConfig, RmsNorm, rms_norm};
use support::cases::cases;
use support::eight_devices::relative_error;

use super::golden::{BOUND, CASES, Golden, interpreted, read};

fn numbers(results: &[Literal]) -> Vec<Vec<f64>> {
    results.iter().map(Literal::to_f64_vec).collect()
}

#[test]
fn every_tensor_is_used_once() {
    for case in CASES {
        let [unused, missing] = Golden::load(case).unused_and_missing();
        assert_eq!((unused, missing), (Vec::new(), Vec::new()), "{case}");
    }
}

type Run = fn(&Graph, &[Literal]) -> Vec<Literal>;

fn check(case: &'static str, scan_layers: bool, run: Run) {
    let golden = Golden::load(case);
    let decoder = DecoderConfig { scan_layers, remat: RematPolicy::Full, ..golden.decoder() };
    let (graph, inputs) = golden.program(&decoder);
    let what = if scan_layers { "in scans" } else { "apart" };
    golden.check(what, &decoder, &numbers(&run(&graph, &inputs)), BOUND);
}

/// Compares logits, loss and all gradients, with layers in scans. XLA compiles some families, and in the full tier all;
/// the interpreter runs the others.
#[test]
fn families_compute_what_transformers_does() {
    let compiled = cases("families in scans, compiled", 4, CASES);
    for case in CASES {
        check(case, true, if compiled.contains(&case) { support::run } else { interpreted });
    }
}

/// Compares the same with unrolled layers. The interpreter runs some families; in the full tier all are compiled.
#[test]
fn layers_apart_compute_what_transformers_does() {
    for case in cases("families layers apart, interpreted", 3, CASES) {
        check(case, false, interpreted);
    }
    for case in cases("families layers apart, compiled", 0, CASES) {
        check(case, false, support::run);
    }
}

/// In bf16 both sides round, at each product: logits are as far from those of transformers in bf16 as those are from
/// those in f32, within a factor of two.
#[test]
fn logits_in_bf16_are_as_near_as_rounding_is() {
    for case in cases("families in bf16", 2, CASES) {
        let golden = Golden::load(case);
        let decoder = DecoderConfig { compute_dtype: DType::BF16, param_dtype: DType::BF16, ..golden.decoder() };
        let (graph, inputs) = golden.logits_alone(&decoder, &golden.batch());
        let results = numbers(&support::run(&graph, &inputs));
        let found = results.first().expect("logits");
        let exact = relative_error(found, &golden.logits("logits"));
        let rounded = relative_error(found, &golden.logits("logits_bf16"));
        let theirs = relative_error(&golden.logits("logits_bf16"), &golden.logits("logits"));
        println!("{case}: {exact:.1e} from f32, {rounded:.1e} from theirs, which are {theirs:.1e} from f32");
        assert!(rounded <= 2.0 * theirs, "{case}: {rounded:.1e} from theirs, which are {theirs:.1e} from f32");
    }
}

/// Where norms round, bit for bit: before the product with the weight or behind it, and with one plus the weight.
#[test]
fn norms_round_where_those_of_transformers_do() {
    let file = read("tests/oracle/families/norms.safetensors");
    let literal = |name: &str| {
        let (dims, numbers) = &file[name];
        Literal::from_slice(dims, numbers).expect("as many as the dims say").convert(DType::BF16)
    };
    let forms = [
        ("llama", "weight", RmsNorm::llama(1e-5)),
        ("gpt_oss", "weight", RmsNorm::from(1e-5)),
        ("gemma", "weight_minus_one", RmsNorm::gemma(1e-6)),
    ];
    let differing = |form: RmsNorm, weight: &str, expected: &str| {
        let inputs = [literal("x"), literal(weight)];
        let specs = inputs.each_ref().map(|input| TensorSpec::new(DType::BF16, &input.ty().dims));
        let function = Function::trace("norm", specs, |[x, weight]| rms_norm(x, weight, form)).expect("it traces");
        let found = support::run(function.graph(), &inputs);
        let (found, expected) = (found[0].to_f64_vec(), literal(expected).to_f64_vec());
        found.iter().zip(&expected).filter(|(found, expected)| found != expected).count()
    };
    for (name, weight, form) in forms {
        assert_eq!(differing(form, weight, name), 0, "{name}");
    }
    // Each place of rounding is seen.
    assert!(differing(RmsNorm::llama(1e-5), "weight", "gpt_oss") > 20);
    assert!(differing(RmsNorm::from(1e-5), "weight", "llama") > 20);
}

/// Published files and those that transformers writes today describe the same models.
#[test]
fn both_forms_of_a_config_say_the_same() {
    for case in CASES {
        let golden = Golden::load(case);
        for form in ["published", "multimodal"] {
            let path = support::path(format!("tests/oracle/families/{case}/config.{form}.json"));
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let other = Published::parse("config.json", &text).unwrap_or_else(|error| panic!("{case} {form}: {error}"));
            assert_eq!(other.architecture, golden.published.architecture, "{case} {form}");
            assert_eq!(other.unknown_keys, Vec::<String>::new(), "{case} {form}");
        }
        assert_eq!(golden.published.unknown_keys, Vec::<String>::new(), "{case}");
    }
}
