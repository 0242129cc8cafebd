//! Files that leave keys out, or have nulls in them, against what transformers makes of them
//! (tests/oracle/config_forms.py).

use std::collections::BTreeMap;

use meshloom_models::families::{FamilyError, Published};
use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

#[derive(serde::Deserialize)]
struct Family {
    missing: Object,
    base: Object,
    full: Object,
    forms: Vec<Form>,
}

#[derive(serde::Deserialize)]
struct Form {
    keys: Object,
    changes: Option<Object>,
}

fn families() -> BTreeMap<String, Family> {
    let text = std::fs::read_to_string(support::path("tests/oracle/config_forms.json")).expect("the golden file");
    serde_json::from_str(&text).expect("the golden file")
}

fn parse(model_type: &str, objects: &[&Object]) -> Result<Published, FamilyError> {
    let mut all = Object::from_iter([("model_type".to_owned(), model_type.into())]);
    all.extend(objects.iter().flat_map(|object| (*object).clone()));
    Published::parse("config.json", &Value::Object(all).to_string())
}

/// Nothing but the type: every key is as the family's class has it.
#[test]
fn missing_keys_are_as_in_transformers() {
    for (model_type, family) in families() {
        let full = parse(&model_type, &[&family.missing]).unwrap_or_else(|error| panic!("{error}"));
        let sparse = parse(&model_type, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(sparse.architecture, full.architecture, "{model_type}");
        // One at a time as well, so that no two wrong ones make up for each other.
        for key in family.missing.keys() {
            let mut sparse = family.missing.clone();
            sparse.remove(key);
            let sparse = parse(&model_type, &[&sparse]).unwrap_or_else(|error| panic!("{key}: {error}"));
            assert_eq!(sparse.architecture, full.architecture, "{model_type} without {key}");
        }
    }
}

/// A form that transformers refuses is refused; a form that it takes describes the same model as all keys of its
/// config.
#[test]
fn forms_of_a_config_are_read_as_transformers_reads_them() {
    let (mut taken, mut refused, mut wrong) = (0, 0, Vec::new());
    for (model_type, family) in families() {
        for form in &family.forms {
            let what = format!("{model_type} with {}", Value::Object(form.keys.clone()));
            let found = parse(&model_type, &[&family.base, &form.keys]);
            match (&form.changes, found) {
                (None, Err(_)) => refused += 1,
                (None, Ok(_)) => wrong.push(format!("{what} is taken")),
                (Some(_), Err(error)) => wrong.push(format!("{what}: {error}")),
                (Some(changes), Ok(found)) => {
                    let full = parse(&model_type, &[&family.full, changes]);
                    let full = full.unwrap_or_else(|error| panic!("{what}, in full: {error}"));
                    taken += 1;
                    if found.architecture != full.architecture {
                        wrong
                            .push(format!("{what} is\n{:?}\nand in full\n{:?}", found.architecture, full.architecture));
                    }
                }
            }
        }
    }
    println!("{taken} taken, {refused} refused");
    assert_eq!(wrong, Vec::<String>::new());
    assert!(taken > 300 && refused > 100);
}

/// Any value of any key gives a model or an error, and no panic.
#[test]
fn odd_values_give_errors_or_work() {
    let odd = [
        json!(0),
        json!(1),
        json!(3),
        json!(-1),
        json!(i32::MAX),
        json!(u64::MAX),
        json!(1e300),
        json!(1e-300),
        json!(-0.5),
        json!("x"),
        json!(true),
        json!([]),
        json!([0, "x"]),
        json!({}),
        json!({"factor": {}}),
        json!(null),
    ];
    let mut taken = 0;
    for (model_type, family) in families() {
        for key in family.missing.keys() {
            for value in &odd {
                let changed = Object::from_iter([(key.clone(), value.clone())]);
                for whole in [&family.missing, &family.full] {
                    taken += usize::from(parse(&model_type, &[whole, &changed]).is_ok());
                }
            }
        }
        let Some(Value::Object(rope)) = family.full.get("rope_parameters") else { panic!("{model_type}: no section") };
        for kind in ["linear", "llama3", "yarn"] {
            for key in
                ["factor", "low_freq_factor", "original_max_position_embeddings", "beta_fast", "mscale", "rope_theta"]
            {
                for value in &odd {
                    let mut section = rope.clone();
                    section.extend([("rope_type".to_owned(), kind.into()), ("factor".to_owned(), 4.into())]);
                    section
                        .extend([("low_freq_factor".to_owned(), 1.into()), ("high_freq_factor".to_owned(), 2.into())]);
                    section.extend([("mscale_all_dim".to_owned(), 1.into()), (key.to_owned(), value.clone())]);
                    let changed = Object::from_iter([("rope_scaling".to_owned(), section.into())]);
                    taken += usize::from(parse(&model_type, &[&family.base, &changed]).is_ok());
                }
            }
        }
    }
    assert!(taken > 500, "{taken}");
}

fn read(config: &Value) -> Result<Published, FamilyError> {
    Published::parse("config.json", &config.to_string())
}

/// The files of Gemma 3 that also see, as they are published: most keys of the decoder are left out.
#[test]
fn published_gemma_3_is_read_right() {
    let beside = json!({
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255_999,
        "eoi_token_index": 256_000,
        "eos_token_id": [1, 106],
        "image_token_index": 262_144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "vision_use_head": false},
    });
    let decoders = [
        ("gemma-3-4b", json!({"hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34})),
        (
            "gemma-3-12b",
            json!({
                "hidden_size": 3840,
                "intermediate_size": 15_360,
                "num_attention_heads": 16,
                "num_hidden_layers": 48,
                "num_key_value_heads": 8,
            }),
        ),
        (
            "gemma-3-27b",
            json!({
                "head_dim": 128,
                "hidden_size": 5376,
                "intermediate_size": 21_504,
                "num_attention_heads": 32,
                "num_hidden_layers": 62,
                "num_key_value_heads": 16,
                "query_pre_attn_scalar": 168,
            }),
        ),
    ];
    for (preset, mut decoder) in decoders {
        decoder["model_type"] = "gemma3_text".into();
        decoder["rope_scaling"] = json!({"factor": 8.0, "rope_type": "linear"});
        decoder["sliding_window"] = 1024.into();
        let mut file = beside.clone();
        file["text_config"] = decoder;
        let found = read(&file).unwrap_or_else(|error| panic!("{preset}: {error}"));
        let expected =
            meshloom_models::families::named_model(preset).unwrap_or_else(|error| panic!("{preset}: {error}"));
        assert_eq!(found.architecture, expected.architecture, "{preset}");
        assert_eq!(found.unknown_keys, Vec::<String>::new(), "{preset}");
        assert_eq!(found.dtype, expected.dtype, "{preset}");
        // The text that an export writes is read alone.
        let alone = Published::parse("config.json", &found.text).unwrap_or_else(|error| panic!("{preset}: {error}"));
        assert_eq!((alone.architecture, alone.dtype), (found.architecture, found.dtype), "{preset}");
    }
}
