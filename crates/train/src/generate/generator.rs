//! Rows of text, continued together.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use super::lowering::Lowering;
use super::{GenerateError, GeneratorOptions, SamplingOptions};
use crate::error::{Error, Execution};
use crate::run::{execute, laid_out_for};
use meshloom::analysis::{CostOptions, Devices, cost};
use meshloom::compile::{LowerOptions, Program};
use meshloom::ir::{InternalError, Literal};
use meshloom::pjrt::{Array, Client};
use meshloom::trace::{LayerPath, Tree};
use meshloom_nn::{DecoderConfig, GeneratingDecoder};

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its tokens, at least one.
    pub prompt: Vec<i32>,
    /// The seed of the draws. The text of a row depends on nothing but its own request and the options.
    pub seed: u64,
}

/// The options for continuing prompts.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to add to each.
    pub length: usize,
    /// The options for drawing tokens.
    pub sampling: SamplingOptions,
    /// Tokens that end a text, and are not part of it.
    pub stop_tokens: Vec<i32>,
}

/// The tokens that follow a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Its tokens.
    pub tokens: Vec<i32>,
    /// The reason why the text ends there.
    pub end: End,
}

/// The reason why a text has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The text has as many tokens as were asked for.
    Length,
    /// This token ends texts.
    StopToken(i32),
    /// The caller, which is told of each token, wanted no more.
    Told,
}

/// The memory traffic of a step, by the cost model of [`cost()`] over the program that the plugin compiled, summed over
/// all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCost {
    /// Bytes that a step reads.
    pub bytes_read: u64,
    /// Tokens that it gives, one of each row.
    pub tokens: usize,
    /// Bytes of the parameters, once.
    pub parameter_bytes: u64,
    /// Bytes of the cache.
    pub cache_bytes: u64,
}

impl StepCost {
    /// Bytes read for each token.
    pub fn bytes_read_per_token(&self) -> f64 {
        self.bytes_read as f64 / self.tokens.max(1) as f64
    }
}

/// A decoder that continues rows of text. Its programs are one for each power of two that prompts are padded to, made
/// when one comes, and one for all further tokens.
pub struct Generator {
    lowering: Lowering,
    params: Vec<Array>,
    step: Program,
    prefills: BTreeMap<usize, Program>,
}

/// The shortest length that prompts are padded to.
const SHORTEST: usize = 16;

/// The rows of a generator, and how far each is.
struct GeneratedRows<'r> {
    options: &'r GenerateOptions,
    rows: Vec<Row>,
}

struct Row {
    prompt: usize,
    random: u64,
    tokens: Vec<i32>,
    end: Option<End>,
}

impl Generator {
    /// Compiles the step of a decoder and copies its parameters, one after the other. `read` gives a box of the
    /// parameter with a path and dimensions, in any floating-point type; layers are by themselves, as in
    /// `layers.3.mlp.up`, and those of one name follow each other. `lowering` says where they lie.
    ///
    /// # Errors
    /// Mesh, rules and decoder do not fit together, the plugin refuses the program, or a parameter cannot be read.
    pub fn new(
        client: &Client,
        decoder: &DecoderConfig,
        lowering: &LowerOptions<'_>,
        options: GeneratorOptions,
        read: impl Fn(&str, &[usize], &[Range<usize>]) -> Result<Literal, Error>,
    ) -> Result<Generator, Error> {
        let GeneratorOptions { rows, capacity, .. } = options;
        if rows == 0 || capacity == 0 {
            return Err(GenerateError::Empty { rows, capacity }.into());
        }
        let lowering = Lowering::new(client, GeneratingDecoder::new(decoder, capacity), lowering, options)?;
        let step = lowering.step()?;
        let params = put_params(&lowering, &step, read)?;
        Ok(Generator { lowering, params, step, prefills: BTreeMap::new() })
    }

    /// The decoder.
    pub fn decoder(&self) -> &GeneratingDecoder {
        &self.lowering.decoder
    }

    /// Texts that are continued at once.
    pub fn rows(&self) -> usize {
        self.lowering.options.rows
    }

    /// Returns the number of programs that have been compiled so far.
    pub fn program_count(&self) -> usize {
        1 + self.prefills.len()
    }

    /// The compiled step.
    pub fn step_program(&self) -> &Program {
        &self.step
    }

    /// The bytes that a step reads and writes.
    ///
    /// # Errors
    /// The plugin does not show the program that it compiled.
    pub fn step_cost(&self) -> Result<StepCost, Error> {
        let executable = self.step.executable();
        let devices = executable.devices().len();
        let module = executable.optimized_hlo()?.decode()?;
        let work = cost(&module, &CostOptions::devices(Devices::partitioned(devices))).total;
        let bytes =
            |inputs: &[meshloom::pjrt::ArraySpec]| inputs.iter().map(|input| input.ty.byte_count() as u64).sum();
        let caches = self.lowering.decoder.cache_specs(self.rows()).leaves().len();
        let inputs = self.step.inputs();
        Ok(StepCost {
            bytes_read: work.bytes_read * devices as u64,
            tokens: self.rows(),
            parameter_bytes: bytes(&inputs[..self.params.len()]),
            cache_bytes: bytes(&inputs[self.params.len()..self.params.len() + caches]),
        })
    }

    /// Continues prompts, each as if it were alone. `told` gets each token as it comes, with the number of its prompt.
    /// If it breaks off, that token is the last one of its prompt.
    ///
    /// # Errors
    /// A prompt is empty, too long or not of this model, or there are too many; an option means nothing; or the plugin
    /// fails.
    pub fn generate(
        &mut self,
        requests: &[Request],
        options: &GenerateOptions,
        mut told: impl FnMut(usize, i32) -> ControlFlow<()>,
    ) -> Result<Vec<Continuation>, Error> {
        self.check(requests, options)?;
        let mut rows = GeneratedRows::new(requests, options);
        if requests.is_empty() || options.length == 0 {
            return Ok(rows.finish());
        }
        let longest = requests.iter().map(|request| request.prompt.len()).max().unwrap_or(1);
        let length = longest.next_power_of_two().max(SHORTEST);
        let (mut left, padding) = self.prefilled(requests, length)?;
        let mut place = length as i32;
        loop {
            let logits = left.pop().ok_or_else(|| InternalError::new("a pass of a decoder", "logits"))?;
            let next = rows.draw(&logits.get()?, &mut told)?;
            if rows.are_done() {
                return Ok(rows.finish());
            }
            left = self.stepped(&left, &next, &padding, place)?;
            place += 1;
        }
    }

    fn check(&self, requests: &[Request], options: &GenerateOptions) -> Result<(), GenerateError> {
        options.sampling.check()?;
        let (rows, capacity) = (self.rows(), self.lowering.decoder.capacity());
        let vocab = self.lowering.decoder.config().architecture.vocab;
        if requests.len() > rows {
            return Err(GenerateError::TooManyPrompts { given: requests.len(), rows });
        }
        for (row, Request { prompt, .. }) in requests.iter().enumerate() {
            if prompt.is_empty() {
                return Err(GenerateError::EmptyPrompt(row));
            }
            let is_unknown = |token: &i32| usize::try_from(*token).map_or(true, |token| token >= vocab);
            if let Some(&token) = prompt.iter().find(|token| is_unknown(token)) {
                return Err(GenerateError::UnknownToken { row, token, vocab });
            }
            let (prompt, length) = (prompt.len(), options.length);
            if prompt.saturating_add(length) > capacity {
                return Err(GenerateError::TooLong { row, prompt, length, capacity });
            }
        }
        Ok(())
    }

    /// Runs the prompts in one pass. Returns the results of the pass, and the padding of rows in the form that steps
    /// take.
    fn prefilled(&mut self, requests: &[Request], length: usize) -> Result<(Vec<Array>, Array), Error> {
        let rows = self.rows();
        let (mut tokens, mut padding) = (vec![0; rows * length], vec![length as i32 - 1; rows]);
        for ((row, padding), request) in tokens.chunks_mut(length).zip(&mut padding).zip(requests) {
            let before = length - request.prompt.len();
            row[before..].copy_from_slice(&request.prompt);
            *padding = before as i32;
        }
        let program = match self.prefills.entry(length) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => entry.insert(self.lowering.prefill(length)?),
        };
        let padding = Literal::vector(&padding);
        let prompts = [Literal::from_slice(&[rows, length], &tokens)?, padding.clone()];
        let params = laid_out_for(program, self.params.clone())?;
        let prompts = program.put(params.len(), &prompts)?;
        let arguments: Vec<&Array> = params.iter().chain(&prompts).collect();
        let left = execute(Execution::Prompts, program, &arguments, self.lowering.options.time_limit)?;
        let of_padding = self.step.inputs().len() - 2;
        let padding = self.step.put(of_padding, &[padding])?;
        let [padding] = padding;
        Ok((left, padding))
    }

    /// One token more of each row, from the cache, which is used up.
    fn stepped(&self, cache: &[Array], next: &[i32], padding: &Array, place: i32) -> Result<Vec<Array>, Error> {
        let program = &self.step;
        let first = self.params.len() + cache.len();
        let [tokens] = program.put(first, &[Literal::vector(next)])?;
        let [place] = program.put(first + 2, &[Literal::scalar(place)])?;
        let next = [&tokens, padding, &place];
        let arguments: Vec<&Array> = self.params.iter().chain(cache).chain(next).collect();
        execute(Execution::Token, program, &arguments, self.lowering.options.time_limit)
    }
}

fn put_params(
    lowering: &Lowering,
    program: &Program,
    read: impl Fn(&str, &[usize], &[Range<usize>]) -> Result<Literal, Error>,
) -> Result<Vec<Array>, Error> {
    let declared = lowering.decoder.parameters();
    let mut order: Vec<(usize, String)> = declared.paths().into_iter().enumerate().collect();
    // Stored values may have several layers, which are then read one after the other.
    order.sort_by_cached_key(|(_, path)| {
        let LayerPath { name, numbers } = LayerPath::of(path, false);
        (name, numbers.map(|numbers| numbers.first))
    });
    let devices = program.executable().devices();
    let mut arrays = Vec::with_capacity(order.len());
    for (index, path) in order {
        let input = program.inputs().get(index).ok_or_else(|| InternalError::new("a step", "each parameter"))?;
        let part = |device: usize| -> Result<Literal, Error> {
            Ok(read(&path, &input.ty.dims, &input.layout.value_part(device))?.convert(input.ty.dtype))
        };
        arrays.push((index, Array::put_parts(&lowering.client, input.ty.clone(), &input.layout, devices, part)?));
    }
    arrays.sort_by_key(|(index, _)| *index);
    Ok(arrays.into_iter().map(|(_, array)| array).collect())
}

impl<'r> GeneratedRows<'r> {
    fn new(requests: &[Request], options: &'r GenerateOptions) -> GeneratedRows<'r> {
        let row = |request: &Request| Row {
            prompt: request.prompt.len(),
            random: request.seed,
            tokens: Vec::with_capacity(options.length),
            end: None,
        };
        GeneratedRows { options, rows: requests.iter().map(row).collect() }
    }

    /// The next token of each row of logits `[rows, vocab]`; of rows that have ended, any.
    fn draw(
        &mut self,
        logits: &Literal,
        told: &mut impl FnMut(usize, i32) -> ControlFlow<()>,
    ) -> Result<Vec<i32>, Error> {
        let [rows, vocab] = logits.ty().dims[..] else {
            return Err(InternalError::new("a pass of a decoder", "logits of rows").into());
        };
        let of_row = vocab * size_of::<f32>();
        let mut next = vec![0; rows];
        for (number, (row, bytes)) in self.rows.iter_mut().zip(logits.bytes().chunks(of_row)).enumerate() {
            if row.end.is_some() {
                continue;
            }
            let numbers: Vec<f32> =
                bytes.as_chunks().0.iter().map(|&word: &[u8; 4]| f32::from_le_bytes(word)).collect();
            let tokens = row.prompt + row.tokens.len();
            let Some(token) = self.options.sampling.draw(&numbers, &mut row.random) else {
                return Err(GenerateError::NotFinite { row: number, tokens }.into());
            };
            next[number] = token;
            row.end = row.take(token, self.options, || told(number, token));
        }
        Ok(next)
    }

    fn are_done(&self) -> bool {
        self.rows.iter().all(|row| row.end.is_some())
    }

    fn finish(self) -> Vec<Continuation> {
        let of_row = |row: Row| Continuation { tokens: row.tokens, end: row.end.unwrap_or(End::Length) };
        self.rows.into_iter().map(of_row).collect()
    }
}

impl Row {
    /// Adds a token, and says whether it is the last.
    fn take(&mut self, token: i32, options: &GenerateOptions, told: impl FnOnce() -> ControlFlow<()>) -> Option<End> {
        if options.stop_tokens.contains(&token) {
            return Some(End::StopToken(token));
        }
        self.tokens.push(token);
        match told() {
            ControlFlow::Break(()) => Some(End::Told),
            ControlFlow::Continue(()) => (self.tokens.len() >= options.length).then_some(End::Length),
        }
    }
}
