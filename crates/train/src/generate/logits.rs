//! The logits of a stored model, so that it can be compared with another program's.

use std::io;

use meshloom::compile::Program;
use meshloom::ir::{DType, InternalError, Literal, TensorType};
use meshloom::pjrt::{Array, Client};
use meshloom::trace::{Function, MapTree, Param};
use meshloom_nn::{DecoderConfig, TokenOrder};

use crate::config::RunConfig;
use crate::error::{Error, Execution, TokensError};
use crate::published::StoredModel;
use crate::run::execute;

/// A compiled forward pass with the parameters of a stored model, and the tokens that it is for.
pub struct LogitsProgram<'t> {
    program: Program,
    params: Vec<Array>,
    rows: &'t [Vec<i32>],
    length: usize,
    vocab: usize,
    time_limit: f64,
    /// Rows and tokens of a call.
    call: [usize; 2],
}

impl<'t> LogitsProgram<'t> {
    /// Compiles the forward pass for rows of tokens, over the mesh of the model's config, and copies the parameters to
    /// the devices.
    ///
    /// # Errors
    /// A token is not in the vocabulary, the parameters cannot be read, or the plugin refuses the program.
    pub fn new(model: &StoredModel, client: &Client, rows: &'t [Vec<i32>]) -> Result<LogitsProgram<'t>, Error> {
        let length = rows.iter().map(Vec::len).max().unwrap_or_default();
        if length == 0 {
            return Err(TokensError::None.into());
        }
        let config = model.config.on_client(client)?;
        let placement = config.placement()?;
        let parts = |name: &str| placement.parts(name).max(1);
        let call = [parts("activation_batch"), length.next_multiple_of(parts("activation_length"))];
        let config = RunConfig { model: crate::config::ModelConfig { seq: call[1], ..config.model.clone() }, ..config };
        let mut decoder = DecoderConfig { order: TokenOrder::default(), ..config.decoder_on(&placement)? };
        decoder.architecture.further.clear();
        let vocab = decoder.architecture.vocab;
        for (row, tokens) in rows.iter().enumerate() {
            let is_in = |token: i32| usize::try_from(token).is_ok_and(|token| token < vocab);
            if let Some(place) = tokens.iter().position(|&token| !is_in(token)) {
                return Err(TokensError::OutOfVocabulary { row, place, token: tokens[place], vocab }.into());
            }
        }
        let declared = decoder.parameters();
        let source = model.source(&declared)?;
        let specs = (declared.map(|_, param: &Param| param.spec.clone()), decoder.batch_specs(call[0], call[1]));
        let function = Function::trace("logits", specs, |(params, batch)| {
            decoder.logits(&params, batch.tokens, batch.segment_ids, batch.positions)
        })?;
        let program = config.lower_beside(function.graph(), &placement, client.platform())?.compile(client)?;
        let params = source.put(&declared, &program)?;
        Ok(LogitsProgram { program, params, rows, length, vocab, time_limit: config.train.time_limit, call })
    }

    /// Rows, tokens of the longest, and token values.
    pub fn shape(&self) -> [usize; 3] {
        [self.rows.len(), self.length, self.vocab]
    }

    /// Gives the logits `[length, vocab]` of one row after the other; NaN at places behind the end of a row.
    ///
    /// # Errors
    /// The plugin fails, or `write` does.
    pub fn run(&self, mut write: impl FnMut(&[f32]) -> io::Result<()>) -> Result<(), Error> {
        let [count, width] = self.call;
        for rows in self.rows.chunks(count) {
            let numbers = |dtype: DType, number: &dyn Fn(usize, usize) -> Option<f64>| {
                let ty = TensorType::new(dtype, &[count, width]);
                Literal::from_fn(ty, |at| number(at / width, at % width).unwrap_or_default())
            };
            let token = |row: usize, place: usize| Some(f64::from(*rows.get(row)?.get(place)?));
            // A place behind the end of a row belongs to another segment, so it does not influence the row.
            let is_token = |row: usize, place: usize| token(row, place).map(|_| 1.0);
            let batch = [
                numbers(DType::S32, &token),
                numbers(DType::S32, &|_, _| None),
                numbers(DType::S32, &is_token),
                numbers(DType::S32, &|_, place| Some(place as f64)),
                numbers(DType::F32, &|_, _| None),
            ];
            let batch = self.program.put(self.params.len(), &batch)?;
            let arguments: Vec<&Array> = self.params.iter().chain(&batch).collect();
            let outputs = execute(Execution::Logits, &self.program, &arguments, self.time_limit)?;
            let logits =
                outputs.first().ok_or_else(|| InternalError::new("a forward pass", "logits for its output"))?;
            let logits = logits.get()?.to_vec::<f32>();
            let logits = logits.ok_or_else(|| InternalError::new("a forward pass", "logits of f32"))?;
            for (row, logits) in rows.iter().zip(logits.chunks_exact(width * self.vocab)) {
                let mut logits = logits[..self.length * self.vocab].to_vec();
                logits[row.len() * self.vocab..].fill(f32::NAN);
                write(&logits).map_err(|source| TokensError::Write { source })?;
            }
        }
        Ok(())
    }
}
