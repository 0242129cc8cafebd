//! Published model families: from a `config.json` of transformers to what a decoder computes, and to the names of its
//! weights.
//!
//! A family is a `Family`: its `model_type`, its keys with what they are where a file does not have them, a function
//! from the keys to an [`Architecture`], and the `LayerNames` of its tensors. Adding one adds a `Family` here, a row to
//! `FAMILIES` and a golden to `tests/oracle/families`.

mod common;
mod deepseek_v3;
mod error;
mod fields;
mod gemma;
mod gpt_oss;
pub mod json;
mod keys;
mod llama;
mod named_models;
pub mod size;
mod tensors;

pub use error::{ConfigFault, FamilyError};
pub use fields::MOST_LAYERS;
pub use named_models::{NAMED_MODELS, named_model};
pub(crate) use tensors::Form;
pub use tensors::{TensorPart, TensorsOf};

use std::path::Path;

/// The file that describes a published model.
pub const CONFIG: &str = "config.json";

use fields::Fields;
use keys::{Key, Shared};
use meshloom::hlo::files;
use meshloom::hlo::suggest::did_you_mean;
use meshloom::ir::DType;
use meshloom_nn::{Architecture, LayerConfig};
use serde_json::{Map, Value};

/// A family of published models.
#[derive(Debug)]
struct Family {
    /// The family's name in `config.json`.
    model_type: &'static str,
    /// The values of keys that a file lacks, as the class of the family's config in transformers has them: of the keys
    /// that all families have, and of others.
    shared: Shared,
    keys: &'static [Key],
    /// Makes the architecture of a model from the keys of its `config.json`.
    describe: fn(&Fields<'_>) -> Result<Architecture, FamilyError>,
    names: LayerNames,
}

const FAMILIES: [&Family; 10] = [
    &llama::LLAMA,
    &llama::QWEN2,
    &llama::QWEN3,
    &llama::QWEN3_MOE,
    &llama::MISTRAL,
    &llama::MIXTRAL,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &deepseek_v3::DEEPSEEK_V3,
    &gpt_oss::GPT_OSS,
];

/// The names of a family's tensors, within a layer, where families differ.
#[derive(Clone, Copy, Debug)]
struct LayerNames {
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

impl LayerNames {
    const LLAMA: LayerNames = LayerNames {
        mlp_norm: "post_attention_layernorm",
        post_attention_norm: "",
        post_mlp_norm: "",
        router: "mlp.gate",
        experts: ExpertNames::Each { within: "mlp.experts", gate: "gate_proj", up: "up_proj", down: "down_proj" },
    };

    const GEMMA: LayerNames = LayerNames {
        mlp_norm: "pre_feedforward_layernorm",
        post_attention_norm: "post_attention_layernorm",
        post_mlp_norm: "post_feedforward_layernorm",
        ..LayerNames::LLAMA
    };
}

/// A published model, by its `config.json`.
#[derive(Clone, Debug)]
pub struct Published {
    /// The family of the model, as transformers calls it.
    pub model_type: &'static str,
    /// The architecture of the model, without the layers that predict further tokens unless they are [asked
    /// for](Published::predicting_further).
    pub architecture: Architecture,
    /// The layers that predict further tokens, if the file has any.
    pub further: Vec<LayerConfig>,
    /// The longest sequence that it was made for, in tokens, if the file says.
    pub max_length: Option<usize>,
    /// The type of its published weights, if the file says.
    pub dtype: Option<DType>,
    /// The file's text. For a model that also sees, it is the text of the decoder's section, as a file of its own.
    pub text: String,
    /// Keys of the file, with their sections, that neither the family nor the list of those without effect knows.
    pub unknown_keys: Vec<String>,
    /// The block of an FP8 checkpoint, in rows and columns, if the file says.
    pub(crate) fp8_block: Option<[usize; 2]>,
    names: LayerNames,
}

/// Keys that do not change what a model computes.
const WITHOUT_EFFECT: [&str; 39] = [
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
    "num_mtp_layers",
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
    "tie_last_hidden_states",
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
        let path = folder.join(CONFIG);
        let text = files::read_text(&path, files::SETTINGS_BYTES)
            .map_err(|source| FamilyError::Read { path: path.clone(), source })?;
        Published::parse(&path.display().to_string(), &text)
    }

    /// The model that a `config.json` describes. `file` is what errors call it.
    ///
    /// # Errors
    /// As of [`Published::open`].
    pub fn parse(file: &str, text: &str) -> Result<Published, FamilyError> {
        let object = json::object(text)
            .map_err(|reason| FamilyError::File { file: file.to_owned(), fault: ConfigFault::Json(reason) })?;
        match object.get("text_config") {
            Some(Value::Object(decoder)) => Published::of_decoder(file, &object, decoder),
            _ => Ok(Published { text: text.to_owned(), ..Published::of_text(file, &object)? }),
        }
    }

    /// The model with the layers that predict further tokens, or without: its tensors are those of its parameters.
    #[must_use]
    pub fn predicting_further(&self, predicts: bool) -> Published {
        let further = if predicts { self.further.clone() } else { Vec::new() };
        let architecture = Architecture { further, ..self.architecture.clone() };
        Published { architecture, ..self.clone() }
    }

    pub(crate) fn object(&self) -> Map<String, Value> {
        // The text has been read before.
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    fn of_text(file: &str, object: &Map<String, Value>) -> Result<Published, FamilyError> {
        let nothing = Map::new();
        let known = || FAMILIES.iter().map(|family| family.model_type).collect();
        let plain = Fields::new(file, "", object, &[], &nothing);
        let Some(found) = plain.text_or_null("model_type")? else {
            return Err(plain.fault(ConfigFault::NoType(known())));
        };
        if OUTER_TYPES.iter().any(|(outer, _)| *outer == found) {
            return Err(plain.missing("text_config"));
        }
        let Some(family) = FAMILIES.iter().find(|family| family.model_type == found) else {
            let hint = did_you_mean(found, FAMILIES.iter().map(|family| family.model_type));
            return Err(plain.fault(ConfigFault::UnknownType { found: found.to_owned(), hint, known: known() }));
        };
        let keys = family.shared.with(family.keys);
        Published::of(family, &Fields::new(file, "", object, &keys, &keys::missing(&keys)))
    }

    /// Reads the decoder of a model that also sees.
    fn of_decoder(
        file: &str,
        object: &Map<String, Value>,
        decoder: &Map<String, Value>,
    ) -> Result<Published, FamilyError> {
        let missing = keys::missing(OUTER_KEYS);
        let outer = Fields::new(file, "", object, OUTER_KEYS, &missing);
        let found = outer.text_or_null("model_type")?.unwrap_or_default();
        let Some((_, family)) = OUTER_TYPES.iter().find(|(known, _)| *known == found) else {
            let known = OUTER_TYPES.iter().map(|(known, _)| *known).collect();
            return Err(outer.fault(ConfigFault::UnknownOuterType { found: found.to_owned(), known }));
        };
        let keys = family.shared.with(family.keys);
        let missing = keys::missing(&keys);
        let inner = Fields::new(file, "text_config.", decoder, &keys, &missing);
        inner.one_of("model_type", &[family.model_type])?;
        let of_decoder = Published::of(family, &inner)?;
        let tied = outer.flag("tie_word_embeddings")?;
        let dtype = dtype(&outer)?;
        let mut unknown_keys = of_decoder.unknown_keys;
        let beside = outer.unused();
        unknown_keys.extend(
            beside.into_iter().filter(|key| ![&WITHOUT_EFFECT[..], &OF_OUTER].concat().contains(&key.as_str())),
        );
        Ok(Published {
            // transformers asks the whole model, and not its decoder.
            architecture: Architecture { tied_embeddings: tied, ..of_decoder.architecture },
            dtype: of_decoder.dtype.or(dtype),
            text: decoder_alone(object, decoder, family, tied),
            unknown_keys,
            ..of_decoder
        })
    }

    fn of(family: &Family, fields: &Fields<'_>) -> Result<Published, FamilyError> {
        // Layers that differ from what the other keys say.
        fields.refuse("per_layer_config")?;
        let mut architecture = (family.describe)(fields)?;
        size::check(fields, &architecture)?;
        let further = std::mem::take(&mut architecture.further);
        let max_length = if fields.is_written(MAX_LENGTH) { fields.count_or_null(MAX_LENGTH)? } else { None };
        let (dtype, fp8_block) = (dtype(fields)?, fp8_block(fields)?);
        let mut unknown_keys = fields.unused();
        unknown_keys.retain(|key| {
            let key = key.strip_prefix("text_config.").unwrap_or(key);
            !WITHOUT_EFFECT.contains(&key)
        });
        Ok(Published {
            model_type: family.model_type,
            architecture,
            further,
            max_length,
            dtype,
            text: String::new(),
            unknown_keys,
            fp8_block,
            names: family.names,
        })
    }
}

/// Returns the text of a file that has a decoder alone: its section, with the keys beside it.
fn decoder_alone(outer: &Map<String, Value>, decoder: &Map<String, Value>, family: &Family, tied: bool) -> String {
    let mut alone = decoder.clone();
    for key in ["dtype", "torch_dtype"] {
        let value = decoder.get(key).or(outer.get(key));
        alone.extend(value.map(|value| (key.to_owned(), value.clone())));
    }
    alone.insert("model_type".to_owned(), family.model_type.into());
    alone.insert("tie_word_embeddings".to_owned(), tied.into());
    format!("{:#}", Value::Object(alone))
}

const MAX_LENGTH: &str = "max_position_embeddings";

/// The type of weights that a file names, if it is one that is known.
fn dtype(fields: &Fields<'_>) -> Result<Option<DType>, FamilyError> {
    // The second is an older name.
    let names = (fields.text_or_null("dtype")?, fields.text_or_null("torch_dtype")?);
    Ok(match names.0.or(names.1) {
        Some("bfloat16") => Some(DType::BF16),
        Some("float16") => Some(DType::F16),
        Some("float32") => Some(DType::F32),
        _ => None,
    })
}

fn fp8_block(fields: &Fields<'_>) -> Result<Option<[usize; 2]>, FamilyError> {
    let Some(section) = fields.section("quantization_config")? else { return Ok(None) };
    section.use_all();
    match section.numbers("weight_block_size")?[..] {
        [] => Ok(None),
        [rows, columns] if rows > 0 && columns > 0 => Ok(Some([rows, columns])),
        ref found => {
            Err(section.wrong("weight_block_size", &format!("{found:?}"), "a list of two integers of at least 1"))
        }
    }
}

/// The `model_type` of models whose decoder is in `text_config`, and that decoder's family.
const OUTER_TYPES: [(&str, &Family); 1] = [("gemma3", &gemma::GEMMA3)];

/// Keys beside `text_config` that say something of the decoder.
const OUTER_KEYS: &[Key] = &[Key::flag("tie_word_embeddings", true).or_null()];

/// Keys beside `text_config` that say nothing of the decoder.
const OF_OUTER: [&str; 6] =
    ["boi_token_index", "eoi_token_index", "image_token_index", "mm_tokens_per_image", "text_config", "vision_config"];
