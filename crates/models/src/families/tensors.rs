//! The tensors of a published checkpoint that form the parameters of a decoder, and the layout of their elements.

use std::iter::once;

use super::{ExpertNames, LayerNames, Published};
use meshloom::trace::{LayerPath, Tree};
use meshloom_nn::{Architecture, AttentionConfig, DecoderConfig, LatentConfig, LayerConfig, RopePairs, further_path};

/// A parameter of one layer, or one outside the layers, and the tensors that it is made of.
#[derive(Clone, Debug)]
pub struct TensorsOf {
    /// The path that the parameters of all layers share, such as `layers.attention.wq`.
    pub name: String,
    /// The number of the layer, if it is of one.
    pub layer: Option<usize>,
    /// Dimensions of the parameter.
    pub dims: Vec<usize>,
    /// The tensors, in order. Each of them is an equal share of the parameter's elements.
    pub parts: Vec<TensorPart>,
}

/// A tensor of a published checkpoint, as a parameter sees it.
#[derive(Clone, Debug)]
pub struct TensorPart {
    /// Its name.
    pub tensor: String,
    /// Its dimensions.
    pub dims: Vec<usize>,
    pub(crate) form: Form,
}

/// Where elements of a parameter are in a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// The elements are in the same order.
    Same,
    /// A tensor `[outputs, inputs]`, of a parameter `[inputs, outputs]`: output by output.
    Transposed,
    /// The tensor is transposed as well; the numbers are its rows, one for each of the parameter's outputs.
    Rows(Vec<usize>),
    /// The elements are every second one along the last dimension, from this one on.
    Alternating(usize),
}

impl TensorPart {
    /// The place in the tensor of an element of the parameter, both in row-major order.
    pub fn place(&self, element: usize) -> usize {
        match &self.form {
            Form::Same => element,
            Form::Transposed => {
                let (outputs, inputs) = (self.dims[0], self.dims[1]);
                element % outputs * inputs + element / outputs
            }
            Form::Rows(rows) => {
                let inputs = self.dims[1];
                rows[element % rows.len()] * inputs + element / rows.len()
            }
            Form::Alternating(first) => 2 * element + first,
        }
    }
}

const TABLE: &str = "model.embed_tokens.weight";

/// The head of a decoder whose head is not tied.
const HEAD: &str = "lm_head.weight";

impl Published {
    /// Tensors that published files have twice: each copy, and what it is a copy of. Layers that predict further tokens
    /// come with the table of tokens and the head, which are those of the decoder.
    pub(crate) fn copies(&self) -> Vec<(String, &'static str)> {
        let Architecture { stack, further, tied_embeddings, .. } = &self.architecture;
        let head = if *tied_embeddings { TABLE } else { HEAD };
        let first = stack.layer_count();
        let of_layer = |layer: usize| {
            let copy = |name: &str| format!("model.layers.{layer}.{name}.weight");
            [(copy("embed_tokens"), TABLE), (copy("shared_head.head"), head)]
        };
        (first..first + further.len()).flat_map(of_layer).collect()
    }

    /// Every parameter of the decoder, with its tensors.
    pub fn tensors(&self) -> Vec<TensorsOf> {
        let config = DecoderConfig { scan_layers: false, ..DecoderConfig::new(self.architecture.clone()) };
        let parameters = config.parameters();
        let Architecture { stack, further, .. } = &self.architecture;
        let layers: Vec<&LayerConfig> = stack.layers().chain(further).collect();
        let count = stack.layer_count();
        let declared = parameters.paths().into_iter().zip(parameters.leaves());
        declared
            .map(|(path, param)| {
                let LayerPath { name, numbers } = LayerPath::of(&path, false);
                let layer = numbers.map(|numbers| numbers.first);
                let dims = param.spec.ty.dims.to_vec();
                let of_layer = |number: usize| OfLayer { number, config: layers[number], names: self.names };
                let parts = match (layer, name.strip_prefix("layers."), further_path(&name)) {
                    (Some(layer), Some(within), _) => of_layer(layer).parts(within, &dims),
                    (_, _, Some((depth, within))) => of_layer(count + depth).further(within, &dims),
                    _ => vec![outside(&name, &dims, &self.architecture)],
                };
                TensorsOf { name, layer, dims, parts }
            })
            .collect()
    }
}

fn outside(name: &str, dims: &[usize], architecture: &Architecture) -> TensorPart {
    match name {
        "head" => transposed(HEAD.to_owned(), dims[0], architecture.vocab),
        "final_norm" => same("model.norm.weight".to_owned(), dims),
        _ => same(TABLE.to_owned(), dims),
    }
}

fn same(tensor: String, dims: &[usize]) -> TensorPart {
    TensorPart { tensor, dims: dims.to_vec(), form: Form::Same }
}

fn transposed(tensor: String, inputs: usize, outputs: usize) -> TensorPart {
    TensorPart { tensor, dims: vec![outputs, inputs], form: Form::Transposed }
}

/// Returns the given rows of a tensor `[outputs, inputs]`.
fn rows(tensor: String, inputs: usize, rows: Vec<usize>, outputs: usize) -> TensorPart {
    TensorPart { tensor, dims: vec![outputs, inputs], form: Form::Rows(rows) }
}

/// The layer that parameters belong to.
struct OfLayer<'l> {
    number: usize,
    config: &'l LayerConfig,
    names: LayerNames,
}

impl OfLayer<'_> {
    fn name(&self, within: &str) -> String {
        format!("model.layers.{}.{within}", self.number)
    }

    /// The tensors of a parameter, by its path within a layer that predicts further tokens.
    fn further(&self, within: &str, dims: &[usize]) -> Vec<TensorPart> {
        match (within, within.strip_prefix("layer.")) {
            (_, Some(within)) => self.parts(within, dims),
            ("embedding_norm", _) => vec![same(self.name("enorm.weight"), dims)],
            ("stream_norm", _) => vec![same(self.name("hnorm.weight"), dims)],
            ("projection", _) => vec![transposed(self.name("eh_proj.weight"), dims[0], dims[1])],
            _ => vec![same(self.name("shared_head.norm.weight"), dims)],
        }
    }

    /// The tensors of a parameter, by its path within a layer.
    fn parts(&self, within: &str, dims: &[usize]) -> Vec<TensorPart> {
        // Vectors, and what lies as it does here: biases of heads.
        let vector = |tensor: &str| vec![same(self.name(tensor), &[dims.iter().product()])];
        let linear = |tensor: &str, inputs: usize| {
            let outputs = dims.iter().product::<usize>() / inputs;
            vec![transposed(self.name(&format!("{tensor}.weight")), inputs, outputs)]
        };
        let names = self.names;
        match within {
            "attention_norm" => vector("input_layernorm.weight"),
            "post_attention_norm" => vector(&format!("{}.weight", names.post_attention_norm)),
            "mlp_norm" => vector(&format!("{}.weight", names.mlp_norm)),
            "post_mlp_norm" => vector(&format!("{}.weight", names.post_mlp_norm)),
            "attention.wq" => linear("self_attn.q_proj", dims[0]),
            "attention.wk" => linear("self_attn.k_proj", dims[0]),
            "attention.wv" => linear("self_attn.v_proj", dims[0]),
            "attention.wo" => linear("self_attn.o_proj", dims[0] * dims[1]),
            "attention.bias.query" => vector("self_attn.q_proj.bias"),
            "attention.bias.key" => vector("self_attn.k_proj.bias"),
            "attention.bias.value" => vector("self_attn.v_proj.bias"),
            "attention.output_bias" => vector("self_attn.o_proj.bias"),
            "attention.head_norms.query" => vector("self_attn.q_norm.weight"),
            "attention.head_norms.key" => vector("self_attn.k_norm.weight"),
            "attention.sinks" => vector("self_attn.sinks"),
            "attention.query.q_norm" => vector("self_attn.q_a_layernorm.weight"),
            "attention.kv_norm" => vector("self_attn.kv_a_layernorm.weight"),
            "attention.query.wq_a" => linear("self_attn.q_a_proj", dims[0]),
            "attention.wkv_b" => linear("self_attn.kv_b_proj", dims[0]),
            "mlp.router" => linear(names.router, dims[0]),
            "mlp.router_bias" => vector(&format!("{}.bias", names.router)),
            "mlp.choice_bias" => vector(&format!("{}.e_score_correction_bias", names.router)),
            "mlp.shared.gate" => linear("mlp.shared_experts.gate_proj", dims[0]),
            "mlp.shared.up" => linear("mlp.shared_experts.up_proj", dims[0]),
            "mlp.shared.down" => linear("mlp.shared_experts.down_proj", dims[0]),
            _ => match (&self.config.attention, within.strip_prefix("mlp.")) {
                (AttentionConfig::Latent(latent), None) => vec![self.latent(within, dims, latent)],
                (_, Some(within)) if self.config.routed().is_some() => self.experts(within, dims),
                (_, Some(within)) => linear(&format!("mlp.{within}_proj"), dims[0]),
                // Every other parameter of attention is one of those above.
                (AttentionConfig::Grouped(_), None) => Vec::new(),
            },
        }
    }

    /// The tensor of a parameter of latent attention that has numbers that turn.
    fn latent(&self, within: &str, dims: &[usize], latent: &LatentConfig) -> TensorPart {
        let (nope, turned, narrow) = (latent.nope_head_dim, latent.rope_head_dim, latent.kv_lora);
        let turning = |first: usize| {
            let order: Vec<usize> = match latent.rope.pairs {
                RopePairs::Halves => (0..turned).collect(),
                RopePairs::Neighbours => (0..turned).step_by(2).chain((1..turned).step_by(2)).collect(),
            };
            order.into_iter().map(move |place| first + place)
        };
        match within {
            "attention.wkv_a" => self.narrow_and_turned(dims[0], (0..narrow).collect(), narrow + turned),
            "attention.wk_rope" => self.narrow_and_turned(dims[0], turning(narrow).collect(), narrow + turned),
            _ => {
                let of_head = |head: usize| {
                    let first = head * (nope + turned);
                    (first..first + nope).chain(turning(first + nope))
                };
                let order = (0..latent.heads).flat_map(of_head).collect();
                let tensor = if latent.q_lora > 0 { "self_attn.q_b_proj.weight" } else { "self_attn.q_proj.weight" };
                rows(self.name(tensor), dims[0], order, latent.heads * (nope + turned))
            }
        }
    }

    fn narrow_and_turned(&self, inputs: usize, order: Vec<usize>, outputs: usize) -> TensorPart {
        rows(self.name("self_attn.kv_a_proj_with_mqa.weight"), inputs, order, outputs)
    }

    /// The tensors of a parameter of routed experts.
    fn experts(&self, within: &str, dims: &[usize]) -> Vec<TensorPart> {
        let experts = dims[0];
        match self.names.experts {
            ExpertNames::Each { within: path, gate, up, down } => {
                let name = match within {
                    "gate" => gate,
                    "up" => up,
                    _ => down,
                };
                let (inputs, outputs) = (dims[1], dims[2]);
                let of_expert = |expert: usize| {
                    let tensor = self.name(&format!("{path}.{expert}.{name}.weight"));
                    transposed(tensor, inputs, outputs)
                };
                (0..experts).map(of_expert).collect()
            }
            ExpertNames::Together { within: path } => {
                let last = dims.len() - 1;
                let doubled: Vec<usize> = dims[..last].iter().copied().chain(once(2 * dims[last])).collect();
                let alternating = |tensor: &str, first: usize| TensorPart {
                    tensor: self.name(&format!("{path}.{tensor}")),
                    dims: doubled.clone(),
                    form: Form::Alternating(first),
                };
                vec![match within {
                    "gate" => alternating("gate_up_proj", 0),
                    "up" => alternating("gate_up_proj", 1),
                    "biases.gate" => alternating("gate_up_proj_bias", 0),
                    "biases.up" => alternating("gate_up_proj_bias", 1),
                    "biases.down" => same(self.name(&format!("{path}.down_proj_bias")), dims),
                    _ => same(self.name(&format!("{path}.down_proj")), dims),
                }]
            }
        }
    }
}
