//! The golden files of tests/oracle/families.py, and a decoder with their weights.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::{DType, Graph, Literal, TensorType};
use meshloom::trace::{Function, LayerPath, MapTree, Param, TensorSpec, Tree, value_and_grad};
use meshloom_models::families::{Published, TensorsOf};
use meshloom_nn::{Batch, Decoder, DecoderConfig};
use safetensors::{Dtype, SafeTensors};
use support::eight_devices::relative_error;
use support::interpret::interpret;

use super::interpreted::InterpretedRun;

/// Every case.
pub const CASES: [&str; 13] = [
    "deepseek_v3",
    "deepseek_v3_plain",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "llama2",
    "llama3",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_plain",
];

/// Largest relative error in f32, of logits, loss and the gradient of each tensor.
pub const BOUND: f64 = 1e-5;

/// The rows of a golden file, which are repeated so that meshes and microbatches divide them.
const REPEATED: usize = 4;

/// Tensors of a file, by name: dimensions and numbers.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A published model, its weights, and what transformers computes of it.
pub struct Golden {
    pub case: &'static str,
    pub published: Published,
    pub weights: Tensors,
    pub expected: Tensors,
}

pub fn read(path: &str) -> Tensors {
    let bytes = std::fs::read(support::path(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let numbers = |name: &str| -> Vec<f32> {
        let view = file.tensor(name).expect("a tensor of that name");
        let bytes = view.data();
        match view.dtype() {
            Dtype::F32 => {
                bytes.chunks(4).map(|word| f32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
            }
            Dtype::BF16 => {
                let word = |half: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([half[0], half[1]])) << 16);
                bytes.chunks(2).map(word).collect()
            }
            Dtype::I32 => {
                bytes.chunks(4).map(|word| i32::from_le_bytes(word.try_into().expect("four bytes")) as f32).collect()
            }
            other => panic!("{name} is {other:?}"),
        }
    };
    file.names()
        .into_iter()
        .map(|name| (name.to_owned(), (file.tensor(name).expect("it is there").shape().to_vec(), numbers(name))))
        .collect()
}

impl Golden {
    pub fn load(case: &'static str) -> Golden {
        let folder = format!("tests/oracle/families/{case}");
        let published = Published::open(&support::path(&folder)).unwrap_or_else(|error| panic!("{case}: {error}"));
        let weights = read(&format!("{folder}/model.safetensors"));
        let expected = read(&format!("{folder}/golden.safetensors"));
        Golden { case, published, weights, expected }
    }

    /// The decoder of the published model.
    pub fn decoder(&self) -> DecoderConfig {
        DecoderConfig::new(self.published.architecture.clone())
    }

    /// Parameters of a decoder of this model, in its form, from tensors that are named as in a checkpoint.
    pub fn params(&self, decoder: &DecoderConfig, tensors: &dyn Fn(&str) -> Vec<f32>) -> Decoder<Literal> {
        let all = self.published.tensors();
        decoder.parameters().map(|path, param: &Param| {
            let LayerPath { name, numbers } = LayerPath::of(&path.to_string(), param.stacked_dims > 0);
            let layers: Vec<Option<usize>> = match numbers {
                None => vec![None],
                Some(numbers) => {
                    let count = param.spec.ty.dims[..param.stacked_dims].iter().product();
                    let number = |layer: usize| numbers.first + layer * numbers.step.unwrap_or(1);
                    (0..count).map(|layer| Some(number(layer))).collect()
                }
            };
            let of_layer = |layer: &Option<usize>| {
                let wanted = |found: &&TensorsOf| found.name == name && found.layer == *layer;
                elements(all.iter().find(wanted).unwrap_or_else(|| panic!("{name} of {layer:?}")), tensors)
            };
            let numbers: Vec<f32> = layers.iter().flat_map(of_layer).collect();
            Literal::from_slice(&param.spec.ty.dims, &numbers)
                .expect("as many as the dims say")
                .convert(param.spec.ty.dtype)
        })
    }

    /// Replaces the initial parameters of a run by the published weights.
    pub fn begin(&self, run: &mut InterpretedRun) {
        let published = self.params(&run.step.model, &|name| self.weight(name)).leaves();
        for (own, published) in run.state.iter_mut().zip(published) {
            assert_eq!(own.ty(), published.ty(), "{}", self.case);
            *own = published;
        }
    }

    pub fn weight(&self, name: &str) -> Vec<f32> {
        self.weights.get(name).unwrap_or_else(|| panic!("{}: no tensor {name}", self.case)).1.clone()
    }

    /// The gradient of a tensor: zeros for what has none, such as biases of a choice.
    pub fn gradient(&self, name: &str) -> Vec<f32> {
        match self.expected.get(&format!("grad.{name}")) {
            Some((_, numbers)) => numbers.clone(),
            None => {
                assert!(name.ends_with("e_score_correction_bias"), "{}: no gradient of {name}", self.case);
                vec![0.0; self.weight(name).len()]
            }
        }
    }

    /// The tokens of the file, repeated, and the loss of transformers: each token's successor within its row.
    pub fn batch(&self) -> Batch<Literal> {
        self.batch_of(REPEATED)
    }

    /// As [`Golden::batch`], repeated so often.
    pub fn batch_of(&self, times: usize) -> Batch<Literal> {
        self.rows(self.expected["tokens"].0[0] * times)
    }

    /// Returns this many rows: those of the file, repeated.
    pub fn rows(&self, rows: usize) -> Batch<Literal> {
        let (dims, tokens) = &self.expected["tokens"];
        let length = dims[1];
        let token = |at: usize| tokens[at % tokens.len()];
        let of = |dtype: DType, f: &dyn Fn(usize) -> f32| {
            Literal::from_fn(TensorType::new(dtype, &[rows, length]), |at| f(at).into())
        };
        let has_next = |at: usize| at % length + 1 < length;
        Batch {
            tokens: of(DType::S32, &token),
            targets: of(DType::S32, &|at| if has_next(at) { token(at + 1) } else { 0.0 }),
            segment_ids: of(DType::S32, &|_| 1.0),
            positions: of(DType::S32, &|at| (at % length) as f32),
            weights: of(DType::F32, &|at| if has_next(at) { 1.0 } else { 0.0 }),
        }
    }

    /// The logits of the file, repeated.
    pub fn logits(&self, name: &str) -> Vec<f64> {
        let (_, numbers) = &self.expected[name];
        std::iter::repeat_n(numbers, REPEATED).flatten().map(|&number| number.into()).collect()
    }

    /// Loss, gradients and logits of a decoder, and their inputs.
    pub fn program(&self, decoder: &DecoderConfig) -> (std::sync::Arc<Graph>, Vec<Literal>) {
        let (params, batch) = (self.params(decoder, &|name| self.weight(name)), self.batch());
        let function = Function::trace(self.case, specs(decoder, &batch), |(params, batch)| {
            let logits = decoder.logits(&params, batch.tokens, batch.segment_ids, batch.positions);
            (value_and_grad(params, |params| decoder.loss(&params, &batch)), logits)
        });
        let graph = function.unwrap_or_else(|error| panic!("{}: {error}", self.case)).graph().clone();
        (graph, params.leaves().into_iter().chain(batch.leaves()).collect())
    }

    /// Returns a graph that computes only the logits of a decoder for some rows, and its inputs.
    pub fn logits_alone(
        &self,
        decoder: &DecoderConfig,
        batch: &Batch<Literal>,
    ) -> (std::sync::Arc<Graph>, Vec<Literal>) {
        let params = self.params(decoder, &|name| self.weight(name));
        let function = Function::trace(self.case, specs(decoder, batch), |(params, batch)| {
            decoder.logits(&params, batch.tokens, batch.segment_ids, batch.positions)
        });
        let graph = function.unwrap_or_else(|error| panic!("{}: {error}", self.case)).graph().clone();
        (graph, params.leaves().into_iter().chain(batch.leaves()).collect())
    }

    /// The relative error of everything that a program of a decoder computes.
    pub fn errors(&self, decoder: &DecoderConfig, results: &[Vec<f64>]) -> Vec<(String, f64)> {
        let expected = self.params(decoder, &|name| self.gradient(name));
        let loss = f64::from(self.expected["loss"].1[0]);
        let mut errors = vec![("loss".to_owned(), relative_error(&results[0], &[loss]))];
        for ((path, expected), found) in expected.paths().into_iter().zip(expected.leaves()).zip(&results[1..]) {
            errors.push((format!("the gradient of {path}"), relative_error(found, &expected.to_f64_vec())));
        }
        let logits = results.last().expect("logits");
        errors.push(("logits".to_owned(), relative_error(logits, &self.logits("logits"))));
        errors
    }

    /// Fails if anything differs by more than a bound.
    pub fn check(&self, what: &str, decoder: &DecoderConfig, results: &[Vec<f64>], bound: f64) {
        let errors = self.errors(decoder, results);
        let worst = errors.iter().max_by(|(_, one), (_, other)| one.total_cmp(other)).expect("errors");
        println!("{} {what}: at most {:.1e}, in {}", self.case, worst.1, worst.0);
        for (name, error) in &errors {
            assert!(*error <= bound, "{} {what}: {name} is off by {error:.1e}", self.case);
        }
    }

    /// The tensors of the checkpoint that no parameter uses, and those that it lacks.
    pub fn unused_and_missing(&self) -> [Vec<String>; 2] {
        let used = RefCell::new(BTreeSet::new());
        for parameter in self.published.tensors() {
            for part in parameter.parts {
                if let Some((dims, _)) = self.weights.get(&part.tensor) {
                    assert_eq!(*dims, part.dims, "{}: the dimensions of {}", self.case, part.tensor);
                }
                used.borrow_mut().insert(part.tensor);
            }
        }
        let (used, found) = (used.into_inner(), self.weights.keys().cloned().collect::<BTreeSet<_>>());
        [found.difference(&used).cloned().collect(), used.difference(&found).cloned().collect()]
    }
}

/// The types of a decoder's parameters and of a batch of these dimensions.
pub fn specs(decoder: &DecoderConfig, batch: &Batch<Literal>) -> (Decoder<TensorSpec>, Batch<TensorSpec>) {
    let [rows, length] = [0, 1].map(|dim| batch.tokens.ty().dims[dim]);
    (decoder.parameters().map(|_, param| param.spec.clone()), decoder.batch_specs(rows, length))
}

/// Runs the graph that is emitted for one device in the interpreter.
pub fn interpreted(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    let lowered = lower(graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    interpret(lowered.emitted(), inputs)
}

/// The elements of a parameter of one layer.
fn elements(parameter: &TensorsOf, tensors: &dyn Fn(&str) -> Vec<f32>) -> Vec<f32> {
    let count = parameter.dims.iter().product::<usize>() / parameter.parts.len();
    let of_part = |part: &meshloom_models::families::TensorPart| -> Vec<f32> {
        let numbers = tensors(&part.tensor);
        (0..count).map(|element| numbers[part.place(element)]).collect()
    };
    parameter.parts.iter().flat_map(of_part).collect()
}
