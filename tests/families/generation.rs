//! Tests of the generation of families: the tokens are those of transformers, and the logits of each step are those of
//! a whole pass.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

use meshloom::compile::{LowerOptions, lower};
use meshloom::ir::{DType, Graph, Literal, TensorType};
use meshloom::pjrt::{Client, shared_runs};
use meshloom::trace::{Function, MapTree, TensorSpec, Tree};
use meshloom_nn::{
    AttentionConfig, Batch, Continued, Decoder, DecoderConfig, GeneratingDecoder, KeyValueCache, NextTokens, Prompts,
};
use meshloom_train::generate::{
    Continuation, End, GenerateOptions, Generator, GeneratorOptions, Request, SamplingOptions,
};
use meshloom_train::published::StoredModel;
use meshloom_train::tokenizer::Tokenizer;
use support::cases::{cases, every_case};
use support::eight_devices::{client, relative_error};
use support::interpret::interpret;

use super::golden::{BOUND, CASES, Golden, read};
use super::meshes::{NARROW_WHOLE, on_mesh, parse};

/// Tokens that transformers added to each prompt.
const LENGTH: usize = 64;

const LLAMA: &str = "llama2";
const ROUTED: &str = "qwen3_moe";

/// The prompts of a folder, and what transformers adds to them.
struct Expected {
    prompts: Vec<Vec<i32>>,
    added: Vec<Vec<i32>>,
}

impl Expected {
    fn of(golden: &Golden) -> Expected {
        let tensors = read(&format!("tests/oracle/families/{}/generation.safetensors", golden.case));
        let numbers = |name: &str| tensors[name].1.iter().map(|&token| token as i32).collect::<Vec<_>>();
        let added = numbers("tokens").chunks(LENGTH).map(<[i32]>::to_vec).collect();
        Expected { prompts: ["prompt_0", "prompt_1"].map(numbers).to_vec(), added }
    }

    /// Tokens of the longest row.
    fn capacity(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.len() + LENGTH).max().expect("prompts")
    }

    fn requests(&self) -> Vec<Request> {
        self.prompts.iter().map(|prompt| Request { prompt: prompt.clone(), seed: 0 }).collect()
    }
}

/// A generator with the weights of a folder.
fn generator(
    golden: &Golden,
    client: &Client,
    decoder: &DecoderConfig,
    lowering: &LowerOptions<'_>,
    (rows, capacity): (usize, usize),
) -> Generator {
    let apart = GeneratingDecoder::new(decoder, capacity).config().clone();
    let params = golden.params(&apart, &|name| golden.weight(name));
    let params: HashMap<String, Literal> = params.paths().into_iter().zip(params.leaves()).collect();
    let options = GeneratorOptions { debug_options: support::unoptimized(), ..GeneratorOptions::new(rows, capacity) };
    let read = |path: &str, dims: &[usize], shard: &[Range<usize>]| {
        let whole = &params[path];
        assert_eq!(&*whole.ty().dims, dims, "{path}");
        Ok(cut(whole, shard))
    };
    let made = Generator::new(client, decoder, lowering, options, read);
    made.unwrap_or_else(|error| panic!("{}: {error}", golden.case))
}

/// A box of a value.
fn cut(whole: &Literal, shard: &[Range<usize>]) -> Literal {
    let ty = TensorType::new(whole.ty().dtype, &shard.iter().map(ExactSizeIterator::len).collect::<Vec<_>>());
    let mut bytes = vec![0; ty.byte_count()];
    let all: Vec<Range<usize>> = shard.iter().map(|range| 0..range.len()).collect();
    for (from, to) in shared_runs((whole.ty(), shard), (&ty, &all)) {
        bytes[to].copy_from_slice(&whole.bytes()[from]);
    }
    Literal::from_bytes(ty, bytes).expect("as many as the dims say")
}

fn greedy(length: usize) -> GenerateOptions {
    GenerateOptions { length, sampling: SamplingOptions::greedy(), stop_tokens: Vec::new() }
}

fn generate(generator: &mut Generator, requests: &[Request], options: &GenerateOptions) -> Vec<Vec<i32>> {
    let all = generator.generate(requests, options, |_, _| ControlFlow::Continue(()));
    let tokens = |Continuation { tokens, end }| {
        assert_eq!(end, End::Length);
        tokens
    };
    all.unwrap_or_else(|error| panic!("{error}")).into_iter().map(tokens).collect()
}

/// Together and each alone, by two programs.
#[test]
fn families_generate_what_transformers_does() {
    let mut all = CASES;
    // The small tier takes deepseek_v3, and the two cases whose programs other tests take as well.
    all.swap(9, 11);
    let chosen = cases("families generate", 3, all);
    assert!([LLAMA, ROUTED].iter().all(|case| chosen.len() < 3 || chosen.contains(case)), "{chosen:?}");
    for case in chosen {
        let golden = Golden::load(case);
        let expected = Expected::of(&golden);
        let sizes = (2, expected.capacity());
        let mut generator = generator(&golden, &client(), &golden.decoder(), &LowerOptions::default(), sizes);
        assert_eq!(generate(&mut generator, &expected.requests(), &greedy(LENGTH)), expected.added, "{case}");
        for (request, added) in expected.requests().into_iter().zip(&expected.added) {
            assert_eq!(
                generate(&mut generator, &[request], &greedy(LENGTH)),
                std::slice::from_ref(added),
                "{case} alone"
            );
        }
        assert_eq!(generator.program_count(), 2, "{case}: one for the prompts, one for all tokens after them");
    }
}

/// The models are loaded from the folders themselves, whose files name the tokens that end a text.
#[test]
fn published_models_generate_what_transformers_does() {
    for case in cases("families generate from folders", 1, ["gemma2", "deepseek_v3", "gpt_oss", "qwen3_moe"]) {
        let expected = Expected::of(&Golden::load(case));
        let folder = support::path(format!("tests/oracle/families/{case}"));
        let model = StoredModel::open(&folder, &[]).unwrap_or_else(|error| panic!("{case}: {error}"));
        let generator = model.generator(&client(), GeneratorOptions::new(2, expected.capacity()));
        let mut generator = generator.unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(generate(&mut generator, &expected.requests(), &greedy(LENGTH)), expected.added, "{case}");
    }
}

#[test]
fn files_say_what_ends_a_text() {
    let published = support::path("tests/oracle/families/llama2");
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(published.join(file), folder.path().join(file)).expect("a copy");
    }
    let stop_tokens = || {
        let model = StoredModel::open(folder.path(), &[]).expect("a model");
        assert!(model.is_of_published());
        model.stop_tokens(&Tokenizer::bytes()).map_err(|error| error.to_string())
    };
    assert_eq!(stop_tokens(), Ok(vec![2]));
    let write = |text: &str| std::fs::write(folder.path().join("generation_config.json"), text).expect("a file");
    write(r#"{"eos_token_id": [3, 5]}"#);
    assert_eq!(stop_tokens(), Ok(vec![3, 5]));
    write(r#"{"bos_token_id": 1}"#);
    assert_eq!(stop_tokens(), Ok(vec![2]));
    write(r#"{"eos_token_id": "</s>"}"#);
    let message = stop_tokens().expect_err("no token");
    assert!(message.contains("eos_token_id") && message.contains("the number of a token"), "{message}");
}

fn check_on_mesh(case: &'static str, mesh: &str, rows: usize) {
    let golden = Golden::load(case);
    let expected = Expected::of(&golden);
    let (decoder, rules) = (on_mesh(&golden.decoder(), mesh), support::experts::rules(NARROW_WHOLE));
    let parsed = parse(mesh);
    let options = LowerOptions { sharding: Some((&parsed, &rules)), deny_replication: true, ..LowerOptions::default() };
    let mut generator = generator(&golden, &client(), &decoder, &options, (rows, expected.capacity()));
    assert_eq!(generate(&mut generator, &expected.requests(), &greedy(LENGTH)), expected.added, "{case} on {mesh}");
}

#[test]
fn fsdp_and_tensor() {
    let mut all = CASES;
    all.reverse();
    for case in cases("families generate on fsdp and tensor", 1, all) {
        check_on_mesh(case, "fsdp=4,tensor=2", 4);
    }
}

#[test]
fn experts() {
    for case in cases("families generate on experts", 1, ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"]) {
        check_on_mesh(case, "fsdp=2,expert=4", 8);
    }
}

/// The arguments of a step.
type StepTree<T> = (Decoder<T>, (KeyValueCache<T>, NextTokens<T>));

type Run = fn(&Graph, &[Literal]) -> Vec<Literal>;

/// The passes of a decoder for prompts of one length, with the function that runs them.
struct Passes {
    run: Run,
    prefill: Graph,
    step: Graph,
    params: Decoder<Literal>,
}

impl Passes {
    fn new(run: Run, golden: &Golden, decoder: &DecoderConfig, [rows, length, capacity]: [usize; 3]) -> Passes {
        let decoder = GeneratingDecoder::new(decoder, capacity);
        let specs: Decoder<TensorSpec> = decoder.parameters().map(|_, param| param.spec.clone());
        let prompts = (specs.clone(), decoder.prompt_specs(rows, length));
        let prefill =
            Function::trace("prefill", prompts, |(params, prompts): (_, Prompts<_>)| decoder.prefill(&params, prompts));
        let input: StepTree<TensorSpec> = (specs, (decoder.cache_specs(rows), decoder.next_specs(rows)));
        let step = Function::trace("step", input, |(params, (cache, next))| decoder.step(&params, cache, next));
        Passes {
            run,
            prefill: emitted(prefill.expect("it traces").graph()),
            step: emitted(step.expect("it traces").graph()),
            params: golden.params(decoder.config(), &|name| golden.weight(name)),
        }
    }

    /// The logits behind prompts, then behind each of the tokens of rows that follow.
    fn logits(&self, rows: &[Vec<i32>], prompts: &[usize], length: usize) -> Vec<Vec<f64>> {
        let steps = rows.iter().zip(prompts).map(|(row, prompt)| row.len() - prompt).min().expect("rows");
        let padding: Vec<i32> = prompts.iter().map(|prompt| (length - prompt) as i32).collect();
        let padded = rows.iter().zip(prompts).flat_map(|(row, &prompt)| {
            // The tokens of the padding do not matter.
            (0..length - prompt).map(|at| at as i32 % 5).chain(row[..prompt].iter().copied()).collect::<Vec<_>>()
        });
        let padded = Literal::from_slice(&[rows.len(), length], &padded.collect::<Vec<_>>()).expect("rows");
        let padding = Literal::vector(&padding);
        let prompt = Prompts { tokens: padded, padding: padding.clone() };
        let mut left = (self.run)(&self.prefill, &[self.params.leaves(), prompt.leaves()].concat());
        let mut found = Vec::new();
        for step in 0..=steps {
            found.push(left.pop().expect("logits").to_f64_vec());
            if step == steps {
                break;
            }
            let tokens: Vec<i32> = rows.iter().zip(prompts).map(|(row, prompt)| row[prompt + step]).collect();
            let place = Literal::scalar((length + step) as i32);
            let next = NextTokens { tokens: Literal::vector(&tokens), padding: padding.clone(), place };
            left = (self.run)(&self.step, &[self.params.leaves(), left, next.leaves()].concat());
        }
        found
    }
}

fn emitted(graph: &Graph) -> Graph {
    lower(graph, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}")).emitted().clone()
}

/// The logits of rows of one length in one pass without a cache.
fn whole_logits(run: Run, golden: &Golden, decoder: &DecoderConfig, rows: &[Vec<i32>]) -> Vec<f64> {
    let (count, length) = (rows.len(), rows[0].len());
    let tokens: Vec<i32> = rows.iter().flatten().copied().collect();
    let of = |f: &dyn Fn(usize) -> f64| Literal::from_fn(TensorType::new(DType::S32, &[count, length]), f);
    let params = golden.params(decoder, &|name| golden.weight(name));
    let specs = (decoder.parameters().map(|_, param| param.spec.clone()), decoder.batch_specs(count, length));
    let function = Function::trace("whole", specs, |(params, batch): (Decoder<_>, Batch<_>)| {
        decoder.logits(&params, batch.tokens, batch.segment_ids, batch.positions)
    });
    let batch = Batch {
        tokens: Literal::from_slice(&[count, length], &tokens).expect("rows"),
        targets: of(&|_| 0.0),
        segment_ids: of(&|_| 1.0),
        positions: of(&|at| (at % length) as f64),
        weights: of(&|_| 0.0).convert(DType::F32),
    };
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    run(&emitted(function.graph()), &[params.leaves(), batch.leaves()].concat())[0].to_f64_vec()
}

/// Checks the logits of rows that begin with a prompt, padded to a length, with a cache of so many tokens.
fn check_logits(run: Run, golden: &Golden, rows: &[Vec<i32>], prompts: &[usize], [length, capacity]: [usize; 2]) {
    let (case, decoder) = (golden.case, golden.decoder());
    let vocab = decoder.architecture.vocab;
    let passes = Passes::new(run, golden, &decoder, [rows.len(), length, capacity]);
    let found = passes.logits(rows, prompts, length);
    let whole = whole_logits(run, golden, &decoder, rows);
    let (mut worst, of_row) = (0.0_f64, rows[0].len() * vocab);
    for (step, found) in found.iter().enumerate() {
        for (row, (found, prompt)) in found.chunks(vocab).zip(prompts).enumerate() {
            let at = row * of_row + (prompt + step - 1) * vocab;
            worst = worst.max(relative_error(found, &whole[at..at + vocab]));
        }
    }
    println!("{case}: {} steps behind {length} places: at most {worst:.1e}", found.len() - 1);
    assert!(worst <= BOUND, "{case}: logits are off by {worst:.1e}");
}

/// Steps are checked past the end of every window, for prompts that are shorter than windows and for longer ones, and
/// with more places in front, padding among them, than the cache has slots. The interpreter runs them; in the full tier
/// they are compiled, too.
#[test]
fn steps_compute_what_a_whole_pass_does() {
    check_steps(interpret, &cases("families steps, interpreted", 6, CASES));
    check_steps(support::run, &cases("families steps, compiled", 0, CASES));
}

fn check_steps(run: Run, of: &[&'static str]) {
    for &case in of {
        let golden = Golden::load(case);
        let (_, tokens) = &golden.expected["tokens"];
        let tokens: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
        let rows: Vec<Vec<i32>> = tokens.chunks(24).map(<[i32]>::to_vec).collect();
        let windows = golden.published.architecture.stack.layers().filter_map(|layer| match &layer.attention {
            AttentionConfig::Grouped(grouped) => grouped.window,
            AttentionConfig::Latent(_) => None,
        });
        assert!(windows.max().unwrap_or(0) < 12, "{case}: a window that is never left");
        check_logits(run, &golden, &rows, &[3, 4], [4, 24]);
        check_logits(run, &golden, &rows, &[2, 13], [40, 24]);
    }
}

/// A row does not depend on the others, nor on whether there are others. The test takes two rows, and three in the full
/// tier.
#[test]
fn rows_are_drawn_by_themselves() {
    let golden = Golden::load(ROUTED);
    let count = if every_case("families rows") { 3 } else { 2 };
    let sizes = (count, Expected::of(&golden).capacity());
    let mut generator = generator(&golden, &client(), &golden.decoder(), &LowerOptions::default(), sizes);
    let request = |prompt: &[i32], seed| Request { prompt: prompt.to_vec(), seed };
    let all = [request(&[1, 2, 3], 7), request(&[4, 5, 6, 7, 8], 7), request(&[1, 2, 3], 8)];
    let requests = &all[..count];
    let options = GenerateOptions { sampling: SamplingOptions::default(), ..greedy(24) };
    let together = generate(&mut generator, requests, &options);
    for (request, expected) in requests.iter().zip(&together) {
        assert_eq!(&generate(&mut generator, std::slice::from_ref(request), &options)[0], expected);
    }
    let reversed: Vec<Request> = requests.iter().rev().cloned().collect();
    let mut again = generate(&mut generator, &reversed, &options);
    again.reverse();
    assert_eq!(again, together);
    let other = generate(&mut generator, &all[2..], &options);
    assert_ne!(together[0], other[0], "another seed draws other tokens");
    assert_eq!(generator.program_count(), 2);
}

/// A row ends by a token, or by the caller that is told of each token; the others go on.
#[test]
fn rows_end_by_themselves() {
    let golden = Golden::load(LLAMA);
    let expected = Expected::of(&golden);
    let sizes = (2, expected.capacity());
    let mut generator = generator(&golden, &client(), &golden.decoder(), &LowerOptions::default(), sizes);
    let stop = expected.added[0][9];
    let options = GenerateOptions { stop_tokens: vec![stop], ..greedy(LENGTH) };
    let mut told = Vec::new();
    let found = generator.generate(&expected.requests(), &options, |row, token| {
        told.push((row, token));
        ControlFlow::Continue(())
    });
    let until = |row: usize| expected.added[row].iter().take_while(|&&token| token != stop).count();
    for (row, found) in found.expect("a text").into_iter().enumerate() {
        assert_eq!(found.tokens, expected.added[row][..until(row)]);
        assert_eq!(found.end, if until(row) < LENGTH { End::StopToken(stop) } else { End::Length });
        let of_row: Vec<i32> = told.iter().filter(|(of, _)| *of == row).map(|&(_, token)| token).collect();
        assert_eq!(of_row, found.tokens);
    }
    let found = generator.generate(&expected.requests(), &greedy(LENGTH), |row, _| match row {
        0 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    let found = found.expect("a text");
    assert_eq!(found[0], Continuation { tokens: expected.added[0][..1].to_vec(), end: End::Told });
    assert_eq!(found[1], Continuation { tokens: expected.added[1].clone(), end: End::Length });
}

#[test]
fn what_cannot_be_generated_is_refused() {
    let golden = Golden::load(LLAMA);
    let capacity = Expected::of(&golden).capacity();
    let mut generator = generator(&golden, &client(), &golden.decoder(), &LowerOptions::default(), (2, capacity));
    let mut refused = |prompts: &[&[i32]], options: &GenerateOptions| {
        let requests: Vec<Request> =
            prompts.iter().map(|prompt| Request { prompt: prompt.to_vec(), seed: 0 }).collect();
        match generator.generate(&requests, options, |_, _| ControlFlow::Continue(())) {
            Ok(_) => "generated".to_owned(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(
        refused(&[&[1], &[2], &[3]], &greedy(4)),
        "3 prompts for a generator of 2 rows; give fewer, or make one with more rows"
    );
    assert_eq!(
        refused(&[&[1], &[]], &greedy(4)),
        "prompt 1 has no tokens; give it one at least, such as the token that begins a text"
    );
    assert_eq!(
        refused(&[&[1, 48]], &greedy(4)),
        "prompt 0 has the token 48, but the model has tokens 0 to 47; is the tokenizer that of the model?"
    );
    assert!(refused(&[&[-1]], &greedy(4)).starts_with("prompt 0 has the token -1"));
    let rest = capacity - 2;
    assert_eq!(
        refused(&[&[1, 2, 3]], &greedy(rest)),
        format!(
            "prompt 0 has 3 tokens, and {rest} are to follow, but the cache holds {capacity}; shorten either, or make a \
             generator with a capacity of {}",
            capacity + 1
        )
    );
    let sampling = SamplingOptions { top_p: Some(1.5), ..SamplingOptions::default() };
    assert_eq!(
        refused(&[&[1]], &GenerateOptions { sampling, ..greedy(4) }),
        "top-p cannot be 1.5: it is a probability above 0, up to 1"
    );
    assert_eq!(refused(&[&[1, 2]], &greedy(rest)), "generated");
    assert_eq!(refused(&[], &greedy(4)), "generated");
}

/// A step writes into the cache that it is given: XLA copies no part of it, and no weight.
#[test]
fn a_step_copies_nothing() {
    for case in cases("families copies", 1, ["gemma3_text", "llama2", "deepseek_v3", "gpt_oss"]) {
        let golden = Golden::load(case);
        let generator = generator(&golden, &client(), &golden.decoder(), &LowerOptions::default(), (2, 512));
        let cache = generator.decoder().cache_specs(2);
        let module = generator.step_program().executable().optimized_hlo().expect("a module").decode().expect("one");
        let aliases = module.input_output_alias.as_ref().map_or(0, |alias| alias.entries.len());
        assert_eq!(aliases, cache.leaves().len(), "{case}: each part of the cache is written where it is");
        let sizes: Vec<Vec<i64>> =
            cache.leaves().iter().map(|spec| spec.ty.dims.iter().map(|&size| size as i64).collect()).collect();
        let copies = module.computations.iter().flat_map(|computation| &computation.instructions);
        let copies = copies.filter(|instruction| instruction.opcode == "copy" || instruction.opcode == "transpose");
        for copy in copies {
            let dims = copy.shape.as_ref().expect("a shape").dimensions.clone();
            assert!(!sizes.contains(&dims), "{case}: {} copies a part of the cache, {dims:?}", copy.name);
        }
        let cost = generator.step_cost().expect("a cost");
        println!("{case}: {cost:?}");
    }
}

/// The cache that a pass returns beside the logits is a tree that a step takes.
#[test]
fn trees_of_both_passes_agree() {
    let golden = Golden::load("gemma2");
    let decoder = GeneratingDecoder::new(&golden.decoder(), 9);
    let specs = decoder.cache_specs(1);
    assert_eq!(specs.paths()[..2], ["layers.0.key", "layers.0.value"]);
    let slots: Vec<usize> = specs.leaves().iter().step_by(2).map(|spec| spec.ty.dims[2]).collect();
    assert!(slots.contains(&7) && slots.contains(&9), "{slots:?}");
    let continued = Continued { cache: specs, logits: TensorSpec::new(DType::F32, [1, 4]) };
    assert_eq!(continued.paths()[0], "cache.layers.0.key");
}

/// No matrix is converted at each step, whatever type parameters are stored in, except for the router, which works in
/// f32.
#[test]
fn weights_are_stored_as_they_are_used() {
    for case in ["llama2", "gemma2", "deepseek_v3", "gpt_oss"] {
        let golden = Golden::load(case);
        let narrow = DecoderConfig { compute_dtype: DType::BF16, ..golden.decoder() };
        let decoder = GeneratingDecoder::new(&narrow, 9);
        let params = decoder.parameters();
        let matrices: Vec<Option<String>> =
            params.paths().into_iter().zip(params.leaves()).map(|(path, param)| param.decays.then_some(path)).collect();
        let specs: Decoder<TensorSpec> = params.map(|_, param| param.spec.clone());
        let input: StepTree<TensorSpec> = (specs, (decoder.cache_specs(1), decoder.next_specs(1)));
        let step = Function::trace("step", input, |(params, (cache, next))| decoder.step(&params, cache, next));
        let graph = step.expect("it traces").graph().clone();
        let mut weights = std::collections::HashMap::new();
        for (value, path) in graph.inputs().iter().zip(matrices) {
            weights.extend(path.map(|path| (*value, path)));
        }
        for node in graph.nodes() {
            // Names of dimensions leave a value as it is.
            let weight = node.operands().first().and_then(|operand| weights.get(operand)).cloned();
            let Some(path) = weight else { continue };
            if node.op().name() == "with_axes" {
                weights.insert(node.result(), path);
            } else if node.op().name() == "convert" {
                assert!(path.ends_with("router"), "{case}: {path} is converted");
            }
        }
    }
}
