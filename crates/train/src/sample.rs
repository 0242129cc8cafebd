//! Sampling text from a trained decoder.

use crate::error::{Error, Execution, execute};
use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::ir::{DType, InternalError, Literal, TensorType};
use meshloom::nn::{Decoder, DecoderConfig};
use meshloom::pjrt::{Array, Client};
use meshloom::trace::{Function, MapTree, Param, TensorSpec, Tree};

meshloom::tree! {
    struct SampleInput<T> {
        params: Decoder<T>,
        tokens: T,
        segment_ids: T,
        positions: T,
        last: T,
    }
}

/// A forward pass on one device that gives the logits of the next token.
pub struct Sampler {
    program: Program,
    params: Vec<Array>,
    seq: usize,
    /// Seconds that one token may take, 0 for any.
    pub(crate) time_limit: f64,
}

impl Sampler {
    /// Compiles the forward pass for a window of `seq` tokens and copies the parameters, one by one: `read` gives the
    /// one of a path, of this type or another floating-point one.
    ///
    /// # Errors
    /// The plugin refuses the program, or a parameter cannot be read.
    pub fn new(
        client: &Client,
        model: &DecoderConfig,
        seq: usize,
        read: impl Fn(&str, &TensorType) -> Result<Literal, Error>,
    ) -> Result<Sampler, Error> {
        let declared = model.parameters();
        let window = || TensorSpec::new(DType::S32, [1, seq]);
        let input = SampleInput {
            params: declared.map(|_, param| param.spec.clone()),
            tokens: window(),
            segment_ids: window(),
            positions: window(),
            last: TensorSpec::new(DType::S32, []),
        };
        let function = Function::trace("next_token", input, |input| {
            let (model, params) = model.without_pipeline(&input.params);
            let logits = model.on_one_device().logits(&params, input.tokens, input.segment_ids, input.positions);
            let (zero, vocab) = (input.last.zeros_like(), model.architecture.vocab);
            logits.dynamic_slice(&[zero, input.last, zero], [1, 1, vocab]).reshape([vocab])
        })?;
        let program = lower(function.graph(), &LowerOptions::default().on(client.platform()))?.compile(client)?;
        let put = |(index, (path, param)): (usize, (String, Param))| -> Result<Array, Error> {
            let ty = &param.spec.ty;
            Ok(program.put(index, &read(&path, ty)?.convert(ty.dtype))?)
        };
        let named = Tree::paths(&declared).into_iter().zip(declared.leaves());
        let params = named.enumerate().map(put).collect::<Result<_, _>>()?;
        Ok(Sampler { program, params, seq, time_limit: 0.0 })
    }

    /// Continues `prompt` by `count` tokens, drawn from the model's distribution at a temperature (1 is the model's
    /// own, 0 the likeliest token). The same seed gives the same text.
    ///
    /// # Errors
    /// The plugin fails.
    pub fn continue_text(&self, prompt: &[i32], count: usize, temperature: f64, seed: u64) -> Result<Vec<i32>, Error> {
        let mut text = prompt.to_vec();
        let mut state = seed;
        for _ in 0..count {
            let start = text.len().saturating_sub(self.seq);
            let seen = &text[start..];
            let row =
                |element: &dyn Fn(usize) -> f64| Literal::from_fn(TensorType::new(DType::S32, &[1, self.seq]), element);
            let tokens = row(&|place| seen.get(place).map_or(0.0, |&token| token.into()));
            let last = Literal::scalar(seen.len().saturating_sub(1) as i32);
            let inputs = [tokens, row(&|_| 1.0), row(&|place| place as f64), last];
            let inputs = self.program.put(self.params.len(), &inputs)?;
            let arguments: Vec<&Array> = self.params.iter().chain(&inputs).collect();
            let outputs = execute(Execution::Sample, &self.program, &arguments, self.time_limit)?;
            let logits = outputs.first().ok_or_else(|| InternalError::new("next_token", "logits for its output"))?;
            text.push(draw(&logits.get()?.to_f64_vec(), temperature, &mut state));
        }
        Ok(text.split_off(prompt.len()))
    }
}

/// Draws a position with probability proportional to `exp(logit / temperature)`.
fn draw(logits: &[f64], temperature: f64, state: &mut u64) -> i32 {
    let highest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights = logits.iter().map(|logit| ((logit - highest) / temperature.max(1e-6)).exp());
    let total: f64 = weights.clone().sum();
    let mut left = crate::random::uniform(state) * total;
    for (index, weight) in weights.enumerate() {
        left -= weight;
        if left <= 0.0 {
            return index as i32;
        }
    }
    logits.len().saturating_sub(1) as i32
}
