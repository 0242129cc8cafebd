//! The ledger's messages.

use super::support::{Random, Raw, message, weights};
use meshloom_models::weights::Weights;
use safetensors::Dtype;
use tempfile::TempDir;

fn with_tensors(names: &[String]) -> (TempDir, Weights) {
    let raw = Raw::random(Dtype::F32, &[1], &mut Random(21));
    weights(&names.iter().map(|name| (name.as_str(), &raw)).collect::<Vec<_>>())
}

fn layers(count: usize) -> Vec<String> {
    (0..count).map(|layer| format!("model.layers.{layer}.w")).collect()
}

#[test]
fn each_tensor_is_used_once_or_skipped() {
    let other = ["lm_head", "model.layers.61.a.b", "model.layers.0.rotary_emb.inv_freq", "bias"];
    let names = [layers(3), other.map(str::to_owned).to_vec()].concat();
    let (_folder, weights) = with_tensors(&names);
    let mut ledger = weights.ledger();
    for name in layers(3) {
        assert!(ledger.take(&name));
    }
    for pattern in ["model.layers.61.", "*.rotary_emb.inv_freq", "lm_head", "bias", "nothing.is.so."] {
        ledger.skip(pattern);
    }
    // A tensor that may be left over may also be used.
    assert!(ledger.take("bias"));
    ledger.finish().unwrap();
}

#[test]
fn a_pattern_is_for_whole_names() {
    let (folder, weights) = with_tensors(&layers(2));
    let mut ledger = weights.ledger();
    for pattern in ["model.layers", "layers.0.w", "layers.", "model.layers.1.w.", "model.layers.?.w*x"] {
        ledger.skip(pattern);
    }
    assert_eq!(
        message(folder.path(), ledger.finish()),
        "the weights in \"FOLDER\" and the model do not fit; unused: 2 tensors model.layers.0.w and \
         model.layers.1.w; change the configuration of the model, or skip on purpose what it does not use"
    );
}

#[test]
fn what_does_not_fit_is_listed_in_natural_order() {
    let (folder, weights) = with_tensors(&layers(12));
    let mut ledger = weights.ledger();
    for name in ["model.layers.3.w", "model.layers.3.w"] {
        assert!(ledger.take(name));
    }
    for layer in ["20", "9", "100"] {
        assert!(!ledger.take(&format!("model.layers.{layer}.bias")));
        assert!(!ledger.take(&format!("model.layers.{layer}.bias")));
    }
    assert_eq!(
        message(folder.path(), ledger.finish()),
        "the weights in \"FOLDER\" and the model do not fit; unused: 11 tensors model.layers.0.w, model.layers.1.w, \
         model.layers.2.w, model.layers.4.w, model.layers.5.w, model.layers.6.w, model.layers.7.w, model.layers.8.w \
         and 3 more; missing: 3 tensors model.layers.9.bias, model.layers.20.bias and model.layers.100.bias; used \
         more than once: tensor model.layers.3.w; change the configuration of the model, or skip on purpose what it \
         does not use"
    );
}
