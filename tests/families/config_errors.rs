//! Tests of faults of a `config.json`, and of the errors that name them.

use meshloom_models::families::{FamilyError, Published};
use serde_json::{Value, json};

/// A small model of a family, with further keys.
fn parse(model_type: &str, keys: Value) -> Result<Published, FamilyError> {
    let mut file = json!({"model_type": model_type, "vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4});
    if model_type != "deepseek_v3" {
        file["num_key_value_heads"] = 2.into();
    }
    for (key, value) in keys.as_object().expect("keys") {
        file[key] = value.clone();
    }
    Published::parse("config.json", &file.to_string())
}

fn refused(model_type: &str, keys: Value) -> String {
    match parse(model_type, keys) {
        Ok(_) => "taken".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn refused_text(text: &str) -> String {
    match Published::parse("config.json", text) {
        Ok(_) => "taken".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn sizes_that_cannot_be_are_named() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
    let with = |key: &str, value: Value| {
        let mut section = yarn.clone();
        section[key] = value;
        json!({"rope_scaling": section, "rope_theta": 10.0})
    };
    let llama3 = json!({"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }});
    let huge = json!({"hidden_size": 2_147_483_640, "intermediate_size": 2_147_483_647, "num_attention_heads": 60, "head_dim": 128});
    let found = [
        refused("mixtral", json!({"num_local_experts": 4, "num_experts_per_tok": 5})),
        refused("qwen3_moe", json!({"num_experts": 4})),
        refused("gpt_oss", json!({"num_local_experts": 2})),
        refused("deepseek_v3", json!({"num_key_value_heads": 4, "num_experts_per_tok": 200})),
        refused("deepseek_v3", json!({})),
        refused("llama", json!({"num_hidden_layers": 0})),
        refused("llama", json!({"num_key_value_heads": 3})),
        refused("qwen3", json!({"num_key_value_heads": 8})),
        refused("qwen2", json!({"num_attention_heads": 6})),
        refused("llama", json!({"num_attention_heads": 6, "head_dim": 8})),
        refused("llama", json!({"head_dim": 7})),
        refused("mistral", json!({"sliding_window": 0})),
        refused("gemma2", json!({"sliding_window": null})),
        refused("llama", json!({"rms_norm_eps": 1e-60})),
        refused("llama", json!({"rope_theta": 1e39})),
        refused("gemma2", json!({"final_logit_softcapping": 1e300})),
        refused("llama", llama3),
        refused("llama", json!({"rope_scaling": {"rope_type": "linear", "factor": 1e30}, "rope_theta": 1e30})),
        refused("llama", with("attention_factor", json!(0.0))),
        refused("llama", with("mscale", json!("x"))),
        refused("llama", json!({"rope_scaling": yarn, "rope_theta": 1.0})),
        refused("llama", huge),
        refused("llama", json!({"vocab_size": 4_294_967_296_u64})),
    ];
    insta::assert_snapshot!(found.join("\n"), @r#"
    config.json has "num_experts_per_tok" = 5, but it must be at most num_local_experts, which is 4
    config.json has "num_experts_per_tok" = 8 (the default, as the file does not have the key), but it must be at most num_experts, which is 4
    config.json has "num_experts_per_tok" = 4 (the default, as the file does not have the key), but it must be at most num_local_experts, which is 2
    config.json has "num_experts_per_tok" = 200, but it must be at most the 128 experts in topk_group = 4 groups
    config.json has "num_key_value_heads" = 128 (the default, as the file does not have the key), but it must be num_attention_heads, which is 4: every head has keys and values of its own
    config.json has "num_hidden_layers" = 0, but it must be an integer from 1 to 2147483647
    config.json has "num_key_value_heads" = 3, but it must be a divisor of num_attention_heads, which is 4
    config.json has "num_key_value_heads" = 8, but it must be a divisor of num_attention_heads, which is 4
    config.json has "hidden_size" = 32, but it must be an even multiple of num_attention_heads, which is 6, where there is no head_dim; give head_dim, the width of a head
    config.json has "hidden_size" = 32, but it must be a multiple of num_attention_heads, which is 6
    config.json has "head_dim" = 7, but it must be an even number
    config.json has "sliding_window" = 0, but it must be an integer from 1 to 2147483647
    config.json has "sliding_window" = null, but it must be an integer from 1 to 2147483647
    config.json has "rms_norm_eps" = 1.0000000000000001e-60, but it must be a number greater than 0 that f32 can hold
    config.json has "rope_theta" = 1e+39, but it must be a number greater than 0 that f32 can hold
    config.json has "final_logit_softcapping" = 1e+300, but it must be a number greater than 0 that f32 can hold
    config.json has "rope_scaling.high_freq_factor" = 4, but it must be greater than low_freq_factor, which is 4
    config.json has "rope_theta" = 1e30, but it must be a base whose frequencies, also when they are stretched, f32 can hold
    config.json has "rope_scaling.attention_factor" = 0.0, but it must be a number greater than 0 that f32 can hold
    config.json has "rope_scaling.mscale" = "x", but it must be a number that f32 can hold
    config.json has "rope_theta" = 1, but it must be greater than 1 with "yarn"
    config.json describes a model of 442722946904011964160 parameters, which are more than can be counted; check hidden_size, vocab_size, num_hidden_layers, and the sizes of heads and of blocks
    config.json has "vocab_size" = 4294967296, but it must be an integer from 1 to 2147483647
    "#);
}

#[test]
fn what_is_not_computed_is_named() {
    let found = [
        refused("llama", json!({"partial_rotary_factor": 0.5})),
        refused("llama", json!({"rope_parameters": {"rope_theta": 10.0, "partial_rotary_factor": 0.25}})),
        refused("llama", json!({"rope_parameters": {"full_attention": {"rope_theta": 10.0}}})),
        refused("llama", json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}})),
        refused("llama", json!({"rope_scaling": {"rope_type": "linear"}})),
        refused("llama", json!({"per_layer_config": {"0": {"num_key_value_heads": 1}}})),
        refused("deepseek_v3", json!({"num_key_value_heads": 4, "moe_layer_freq": 2})),
        refused("gpt_oss", json!({"experts_per_token": 2})),
        refused("gemma3_text", json!({"rope_parameters": {}, "rope_scaling": {"rope_type": "linear", "factor": 8.0}})),
        refused("lama", json!({})),
        refused_text("{\"hidden_size\": 4}"),
        refused_text("{\"model_type\": \"gemma3n\", \"text_config\": {\"model_type\": \"gemma3n_text\"}}"),
        refused_text("{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"gemma2\"}}"),
        refused_text("{\"model_type\": \"gemma3\", \"text_config\": {\"head_dim\": 3}}"),
        refused_text("{\"model_type\": \"gemma3\"}"),
        refused_text(
            "{\"model_type\": \"llama\", \"rope_scaling\": {\"factor\": 2, \"type\": \"linear\", \"factor\": 4}}",
        ),
        refused_text("[]"),
    ];
    insta::assert_snapshot!(found.join("\n"), @r#"
    config.json has "partial_rotary_factor" = 0.5, which meshloom does not compute; it knows 1
    config.json has "rope_parameters.partial_rotary_factor" = 0.25, which meshloom does not compute; it knows 1
    config.json has "rope_parameters.full_attention" = a section, but it must be left out: all layers of this family turn alike, as the keys beside it say
    config.json has "rope_scaling.rope_type" = "dynamic", which meshloom does not compute; it knows "default", "linear", "llama3" and "yarn"
    config.json has no "rope_scaling.factor", which its other keys make necessary; give it
    config.json has "per_layer_config" = {"0":{"num_key_value_heads":1}}, which meshloom does not compute; it knows null
    config.json has "moe_layer_freq" = 2, which meshloom does not compute; it knows 1
    config.json has "experts_per_token" = 2, but it must be num_experts_per_tok, which is 4; leave it out
    config.json has "rope_scaling" = an object, but it must be left out beside rope_parameters that has no full_attention
    config.json has model_type "lama", which no family here has (did you mean "llama"?); there are llama, qwen2, qwen3, qwen3_moe, mistral, mixtral, gemma2, gemma3_text, deepseek_v3, gpt_oss
    config.json has no "model_type", which says how its keys are meant; give one of llama, qwen2, qwen3, qwen3_moe, mistral, mixtral, gemma2, gemma3_text, deepseek_v3, gpt_oss
    config.json has a "text_config" and the model_type "gemma3n"; with one, meshloom knows gemma3; for another model, give its text_config as a config.json of its own
    config.json has "text_config.model_type" = "gemma2", which meshloom does not compute; it knows ["gemma3_text"]
    config.json has "text_config.head_dim" = 3, but it must be an even number
    config.json has no "text_config", which its other keys make necessary; give it
    config.json is not a JSON object that can be read: the key "factor" is there twice; keep one at line 1 column 80
    config.json is not a JSON object that can be read: it is another value
    "#);
}

/// Unknown keys are named with their sections; the keys of a section that is not read are named by the section.
#[test]
fn unknown_keys_are_named_with_their_sections() {
    let unknown = |published: Result<Published, FamilyError>| published.expect("a model").unknown_keys;
    let keys = json!({
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "foo": 1}, "bar": {"a": 1}, "use_cache": true,
    });
    assert_eq!(unknown(parse("llama", keys)), ["bar", "rope_parameters.foo"]);
    let keys = json!({"rope_parameters": {"full_attention": {"rope_theta": 5.0, "foo": 1}, "rope_theta": 5.0}});
    let expected = ["rope_parameters.full_attention.foo", "rope_parameters.rope_theta"];
    assert_eq!(unknown(parse("gemma3_text", keys)), expected);
    let file = json!({
        "model_type": "gemma3", "foo": 1, "vision_config": {"b": 1},
        "text_config": {"foo": 1, "rope_scaling": {"rope_type": "linear", "factor": 8.0, "foo": 1}},
    });
    let expected = ["text_config.foo", "text_config.rope_scaling.foo", "foo"];
    assert_eq!(unknown(Published::parse("config.json", &file.to_string())), expected);
}

/// transformers asks the whole model whether its head is tied, not its decoder.
#[test]
fn a_key_beside_the_decoder_says_whether_the_head_is_tied() {
    let tied = |outer: Value, inner: Value| {
        let mut file = json!({"model_type": "gemma3", "text_config": inner});
        for (key, value) in outer.as_object().expect("keys") {
            file[key] = value.clone();
        }
        Published::parse("config.json", &file.to_string()).expect("a model").architecture.tied_embeddings
    };
    assert!(tied(json!({}), json!({})));
    assert!(tied(json!({}), json!({"tie_word_embeddings": false})));
    assert!(!tied(json!({"tie_word_embeddings": false}), json!({"tie_word_embeddings": true})));
    assert!(!tied(json!({"tie_word_embeddings": null}), json!({})));
}
