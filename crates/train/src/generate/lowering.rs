//! The lowering of a decoder's passes to programs.

use std::collections::BTreeMap;

use crate::Error;
use crate::run::aliases;
use meshloom::compile::{LowerOptions, Program, lower};
use meshloom::ir::{DType, Graph};
use meshloom::kernels::{AttentionKernel, Kernels};
use meshloom::pjrt::{Client, CompileCache, CompileOptions, DebugValue, ProgramFormat};
use meshloom::sharding::{Mesh, Role, Rule, RuleSets, Rules};
use meshloom::trace::{Function, MapTree, TensorSpec};
use meshloom_nn::{Continued, Decoder, GeneratingDecoder, KeyValueCache, NextTokens, Prompts};

/// The room that a generator has, and how its programs are compiled.
#[derive(Clone, Debug)]
pub struct GeneratorOptions {
    /// Texts that are continued at once. On a mesh, a multiple of the devices that rows are spread over.
    pub rows: usize,
    /// Tokens of a row that the cache holds: a prompt and what follows it.
    pub capacity: usize,
    /// The language in which the plugin is given programs.
    pub format: ProgramFormat,
    /// The options that the plugin gets when it compiles.
    pub debug_options: BTreeMap<String, DebugValue>,
    /// Where compiled programs are kept.
    pub cache: Option<CompileCache>,
    /// Seconds that a program may take, 0 for any.
    pub time_limit: f64,
}

impl GeneratorOptions {
    /// Makes options for this number of rows and of tokens in each, with the defaults otherwise.
    pub fn new(rows: usize, capacity: usize) -> GeneratorOptions {
        let format = ProgramFormat::default();
        GeneratorOptions { rows, capacity, format, debug_options: BTreeMap::new(), cache: None, time_limit: 0.0 }
    }
}

meshloom::tree! {
    struct PrefillInput<T> {
        params: Decoder<T>,
        prompts: Prompts<T>,
    }

    struct GenerateInput<T> {
        params: Decoder<T>,
        cache: KeyValueCache<T>,
        next: NextTokens<T>,
    }
}

/// The parts that the programs of a generator share.
pub(super) struct Lowering {
    pub(super) decoder: GeneratingDecoder,
    pub(super) client: Client,
    pub(super) options: GeneratorOptions,
    placement: Option<(Mesh, RuleSets)>,
    /// The options of lowering, except for the mesh and the rules.
    lower_options: LowerOptions<'static>,
}

/// Logical axes of sequences. A step has one token of each row, which nothing splits.
const SEQUENCES: [&str; 4] =
    ["activation_length", "activation_norm_length", "activation_norm_length_moe", "activation_logits_length"];

impl Lowering {
    pub(super) fn new(
        client: &Client,
        decoder: GeneratingDecoder,
        lowering: &LowerOptions<'_>,
        options: GeneratorOptions,
    ) -> Result<Lowering, Error> {
        let placement = match lowering.sharding {
            None => None,
            Some((mesh, rules)) => Some((mesh.clone(), with_whole_sequences(rules)?)),
        };
        let lower_options =
            LowerOptions { sharding: None, aliases: Vec::new(), without: &[], further: &[], ..lowering.clone() };
        Ok(Lowering { decoder, client: client.clone(), options, placement, lower_options })
    }

    /// The pass over prompts of a length.
    pub(super) fn prefill(&self, length: usize) -> Result<Program, Error> {
        let (decoder, rows) = (&self.decoder, self.options.rows);
        let input = PrefillInput { params: self.params(), prompts: decoder.prompt_specs(rows, length) };
        let function = Function::trace("prefill", input, |input| decoder.prefill(&input.params, input.prompts))?
            .with_output_specs(&self.continued())?;
        self.compile(function.graph(), self.lower_options.kernels, Vec::new())
    }

    /// The step, which writes into the cache that it is given.
    pub(super) fn step(&self) -> Result<Program, Error> {
        let (decoder, rows) = (&self.decoder, self.options.rows);
        let (cache, next) = (decoder.cache_specs(rows), decoder.next_specs(rows));
        let input = GenerateInput { params: self.params(), cache, next };
        let function = Function::trace("decode", input, |input| decoder.step(&input.params, input.cache, input.next))?
            .with_output_specs(&self.continued())?;
        // One query has few scores, and a loop over blocks of keys would be slower than computing them at once.
        let kernels = Kernels { attention: AttentionKernel::Plain, ..self.lower_options.kernels };
        self.compile(function.graph(), kernels, aliases(&function))
    }

    fn params(&self) -> Decoder<TensorSpec> {
        self.decoder.parameters().map(|_, param| param.spec.clone())
    }

    /// The types of what both programs leave.
    fn continued(&self) -> Continued<TensorSpec> {
        let (rows, vocab) = (self.options.rows, self.decoder.config().architecture.vocab);
        let logits = TensorSpec::new(DType::F32, [rows, vocab]);
        Continued {
            cache: self.decoder.cache_specs(rows),
            logits: logits.with_axes(&["activation_batch", "activation_vocab"]),
        }
    }

    fn compile(&self, graph: &Graph, kernels: Kernels, aliases: Vec<(usize, usize)>) -> Result<Program, Error> {
        let sharding = self.placement.as_ref().map(|(mesh, rules)| (mesh, rules));
        let options = LowerOptions { sharding, kernels, aliases, ..self.lower_options.clone() };
        let lowered = lower(graph, &options)?;
        let debug_options = self.options.debug_options.clone();
        let options = lowered.compile_options(&self.client)?.with_format(self.options.format);
        let options = CompileOptions { debug_options, ..options };
        Ok(match &self.options.cache {
            Some(cache) => lowered.compile_cached(&self.client, &options, cache)?.0,
            None => lowered.compile_with(&self.client, &options)?,
        })
    }
}

/// Rules by which sequences stay whole.
fn with_whole_sequences(rules: &RuleSets) -> Result<RuleSets, Error> {
    let whole = |role: Role| -> Result<Rules, Error> {
        let rule = |name: &str| Rule {
            name: name.to_owned(),
            axes: Vec::new(),
            origin: "generation".to_owned(),
            published: false,
        };
        Ok(rules.get(role).clone().with_first(SEQUENCES.map(rule).to_vec())?)
    };
    Ok(RuleSets { params: whole(Role::Params)?, compute: whole(Role::Compute)?, optimizer: whole(Role::Optimizer)? })
}
