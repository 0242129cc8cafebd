//! Published model families: from a `config.json` of transformers to what a decoder computes, and to the names of its
//! weights.
//!
//! A family is a `Family`: its `model_type`, a function from the keys of the file to an [`Architecture`], and the
//! `Names` of its tensors. Adding one adds a file here, a row to `FAMILIES` and a golden to
//! `tests/oracle/families`.

mod common;
mod deepseek_v3;
mod error;
mod fields;
mod gemma2;
mod gemma3;
mod gpt_oss;
mod llama;
mod mistral;
mod presets;
mod qwen2;
mod qwen3;
mod tensors;

pub use error::FamilyError;
pub use presets::{PRESETS, preset};
pub(crate) use tensors::Form;
pub use tensors::{Part, TensorsOf};

use std::path::Path;

use fields::Fields;
use meshloom::ir::DType;
use meshloom::nn::Architecture;
use serde_json::{Map, Value};

/// A family of published models.
#[derive(Debug)]
struct Family {
    /// What `config.json` says of it.
    model_type: &'static str,
    /// What a model of it computes, by the keys of its `config.json`.
    describe: fn(&Fields<'_>) -> Result<Architecture, FamilyError>,
    /// The names of its tensors.
    names: Names,
}

/// All families.
const FAMILIES: [&Family; 10] = [
    &llama::LLAMA,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &qwen3::QWEN3_MOE,
    &mistral::MISTRAL,
    &mistral::MIXTRAL,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &deepseek_v3::DEEPSEEK_V3,
    &gpt_oss::GPT_OSS,
];

/// The names of a family's tensors, within a layer, where families differ.
#[derive(Clone, Copy, Debug)]
struct Names {
    mlp_norm: &'static str,
    post_attention_norm: &'static str,
    post_mlp_norm: &'static str,
    router: &'static str,
    experts: ExpertNames,
}

/// The names of the tensors of routed experts.
#[derive(Clone, Copy, Debug)]
enum ExpertNames {
    /// Each expert has its own.
    Each { within: &'static str, gate: &'static str, up: &'static str, down: &'static str },
    /// All experts have one, `[experts, inputs, outputs]`, in which gate and up alternate.
    Together { within: &'static str },
}

impl Names {
    const LLAMA: Names = Names {
        mlp_norm: "post_attention_layernorm",
        post_attention_norm: "",
        post_mlp_norm: "",
        router: "mlp.gate",
        experts: ExpertNames::Each { within: "mlp.experts", gate: "gate_proj", up: "up_proj", down: "down_proj" },
    };

    const GEMMA: Names = Names {
        mlp_norm: "pre_feedforward_layernorm",
        post_attention_norm: "post_attention_layernorm",
        post_mlp_norm: "post_feedforward_layernorm",
        ..Names::LLAMA
    };
}

/// A published model, by its `config.json`.
#[derive(Clone, Debug)]
pub struct Published {
    /// Its family, as transformers calls it.
    pub model_type: &'static str,
    /// What it computes.
    pub architecture: Architecture,
    /// The longest sequence that it was made for, in tokens, if the file says.
    pub max_length: Option<usize>,
    /// The type of its published weights, if the file says.
    pub dtype: Option<DType>,
    /// The file's text; of a model that also sees, that of the decoder's section.
    pub text: String,
    /// Keys of the file that neither the family nor the list of those without effect knows.
    pub unknown_keys: Vec<String>,
    names: Names,
}

/// Keys that do not change what a model computes.
const WITHOUT_EFFECT: [&str; 38] = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "aux_loss_alpha",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "ep_size",
    "hidden_act",
    "id2label",
    "initial_context_length",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "max_position_embeddings",
    "max_window_layers",
    "model_type",
    "num_key_value_heads",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "quantization_config",
    "return_dict",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "seq_aux",
    "sliding_window",
    "sliding_window_size",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

impl Published {
    /// The model of a folder with a `config.json`.
    ///
    /// # Errors
    /// The file cannot be read, its `model_type` is unknown, or it asks for what is not computed here.
    pub fn open(folder: &Path) -> Result<Published, FamilyError> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|source| FamilyError::Read { path: path.clone(), source })?;
        Published::parse(&path.display().to_string(), &text)
    }

    /// The model that a `config.json` describes. `file` is what errors call it.
    ///
    /// # Errors
    /// As of [`Published::open`].
    pub fn parse(file: &str, text: &str) -> Result<Published, FamilyError> {
        let broken = |reason: String| FamilyError::Json { file: file.to_owned(), reason };
        let object: Map<String, Value> = serde_json::from_str(text).map_err(|error| broken(error.to_string()))?;
        // Of a model that also sees, the decoder.
        match object.get("text_config") {
            Some(Value::Object(decoder)) => {
                let text = serde_json::to_string_pretty(decoder).map_err(|error| broken(error.to_string()))?;
                Ok(Published { text, ..Published::of(file, decoder)? })
            }
            _ => Ok(Published { text: text.to_owned(), ..Published::of(file, &object)? }),
        }
    }

    /// The block of an FP8 checkpoint, in rows and columns, if the file says.
    ///
    /// # Errors
    /// It says something else than two counts.
    pub(crate) fn fp8_block(&self) -> Result<Option<[usize; 2]>, FamilyError> {
        let object = self.object();
        let block = object.get("quantization_config").and_then(|section| section.get("weight_block_size"));
        let Some(block) = block.filter(|block| !block.is_null()) else { return Ok(None) };
        let sizes: Option<Vec<usize>> = serde_json::from_value(block.clone()).ok();
        match sizes.as_deref() {
            Some(&[rows, columns]) if rows > 0 && columns > 0 => Ok(Some([rows, columns])),
            _ => Err(FamilyError::Wrong {
                file: "config.json".to_owned(),
                key: "quantization_config.weight_block_size".to_owned(),
                found: block.to_string(),
                expected: "a list of two integers of at least 1".to_owned(),
            }),
        }
    }

    /// The number of layers behind those of the model that predict further tokens.
    pub(crate) fn further_layers(&self) -> usize {
        let count = self.object().get("num_nextn_predict_layers").and_then(Value::as_u64);
        count.and_then(|count| usize::try_from(count).ok()).unwrap_or_default().min(fields::MOST_LAYERS)
    }

    /// What the file says.
    pub(crate) fn object(&self) -> Map<String, Value> {
        // The text has been read before.
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    fn of(file: &str, object: &Map<String, Value>) -> Result<Published, FamilyError> {
        let fields = Fields::new(file, object);
        let found = fields.text("model_type")?.unwrap_or_default();
        let family = FAMILIES.iter().find(|family| family.model_type == found);
        let Some(family) = family else {
            let known = FAMILIES.iter().map(|family| family.model_type.to_owned()).collect();
            return Err(FamilyError::UnknownType { file: file.to_owned(), found: found.to_owned(), known });
        };
        let architecture = (family.describe)(&fields)?;
        let dtype = match fields.text("dtype")? {
            Some(dtype) => Some(dtype),
            None => fields.text("torch_dtype")?,
        };
        let dtype = match dtype {
            Some("bfloat16") => Some(DType::BF16),
            Some("float16") => Some(DType::F16),
            Some("float32") => Some(DType::F32),
            _ => None,
        };
        let max_length = fields.count("max_position_embeddings")?;
        let mut unknown_keys = fields.unused();
        unknown_keys.retain(|key| !WITHOUT_EFFECT.contains(&key.as_str()));
        Ok(Published {
            model_type: family.model_type,
            architecture,
            max_length,
            dtype,
            text: String::new(),
            unknown_keys,
            names: family.names,
        })
    }
}
