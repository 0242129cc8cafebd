//! `meshloom generate`: what follows a text, by a model in a folder.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

use anyhow::Result;
use meshloom::hlo::message::{self, counted};
use meshloom_train::Devices;
use meshloom_train::generate::{
    ContinuedText, GenerateOptions, Generator, GeneratorOptions, Request, SamplingOptions, StepCost,
};
use meshloom_train::published::StoredModel;
use meshloom_train::tokenizer::Tokenizer;

use crate::arguments::Generate;

pub struct Texts<'a> {
    pub prompts: &'a [String],
    /// The first has this seed, each other the next.
    pub seed: u64,
    /// Texts that end one.
    pub stops: &'a [String],
    /// Whether prompts have the special tokens that the tokenizer's file puts around a text.
    pub with_special: bool,
    pub options: GenerateOptions,
}

impl Texts<'_> {
    pub fn requests(&self, tokenizer: &Tokenizer) -> Result<Vec<Request>> {
        let seeds = (0..).map(|number: u64| self.seed.wrapping_add(number));
        let request = |(prompt, seed): (&String, u64)| {
            let prompt = match self.with_special {
                true => tokenizer.encode_with_special(prompt)?,
                false => tokenizer.encode(prompt)?,
            };
            Ok(Request { prompt, seed })
        };
        self.prompts.iter().zip(seeds).map(request).collect()
    }

    pub fn room(&self, requests: &[Request]) -> GeneratorOptions {
        let longest = requests.iter().map(|request| request.prompt.len()).max().unwrap_or(1);
        GeneratorOptions::new(requests.len(), longest.saturating_add(self.options.length))
    }

    /// Prints each prompt and what follows it. One alone is printed as it comes.
    pub fn print(&self, requests: &[Request], generator: &mut Generator, tokenizer: &Tokenizer) -> Result<()> {
        let stream = |request: &Request| ContinuedText::behind(&request.prompt, tokenizer, self.stops);
        let mut streams: Vec<ContinuedText<'_>> = requests.iter().map(stream).collect();
        let mut texts = self.prompts.to_vec();
        let is_alone = texts.len() == 1;
        let mut shown = io::stdout().lock();
        let mut written = if is_alone { show(&mut shown, &texts[0]) } else { Ok(()) };
        generator.generate(requests, &self.options, |row, token| {
            let piece = streams[row].push(token);
            if is_alone {
                written = std::mem::replace(&mut written, Ok(())).and_then(|()| show(&mut shown, &piece));
            }
            texts[row].push_str(&piece);
            // The text has ended, or its reader is gone.
            if streams[row].has_ended() || written.is_err() {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        written?;
        let rests = streams.into_iter().map(ContinuedText::finish);
        if is_alone {
            return Ok(writeln!(shown, "{}", for_stdout(&rests.collect::<String>()))?);
        }
        for (number, (text, rest)) in texts.iter().zip(rests).enumerate() {
            let between = if number > 0 { "\n" } else { "" };
            let text = text.clone() + &rest;
            writeln!(shown, "{between}[{}]\n{}", number + 1, for_stdout(&text))?;
        }
        Ok(())
    }
}

/// A text as it is printed: a terminal is not told what to do by what a model has made.
fn for_stdout(text: &str) -> Cow<'_, str> {
    if io::stdout().is_terminal() { message::shown(text) } else { Cow::Borrowed(text) }
}

fn show(to: &mut impl Write, text: &str) -> io::Result<()> {
    to.write_all(for_stdout(text).as_bytes())?;
    to.flush()
}

pub fn run(arguments: &Generate) -> Result<()> {
    let model = StoredModel::open(&arguments.folder, &arguments.set)?;
    let tokenizer = model.config.load_tokenizer()?;
    let sampling = SamplingOptions {
        temperature: if arguments.greedy { 0.0 } else { arguments.temperature },
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        min_p: arguments.min_p,
    };
    // Before anything is compiled.
    sampling.check().map_err(meshloom_train::Error::from)?;
    let mut stop_tokens = model.stop_tokens(&tokenizer)?;
    stop_tokens.extend(&arguments.stop_token);
    let texts = Texts {
        prompts: &arguments.prompts()?,
        seed: arguments.seed.unwrap_or(model.config.train.seed),
        stops: &arguments.stop,
        with_special: model.is_of_published(),
        options: GenerateOptions { length: arguments.length, sampling, stop_tokens },
    };
    let requests = texts.requests(&tokenizer)?;
    let Devices { client, notes, .. } = model.config.open()?;
    notes.iter().for_each(|note| eprintln!("warning: {note}"));
    let mut generator = model.generator(&client, texts.room(&requests))?;
    texts.print(&requests, &mut generator, &tokenizer)?;
    // Some plugins do not show the programs that they make.
    if let Ok(cost) = generator.step_cost() {
        eprintln!("{}", described(&cost));
    }
    Ok(())
}

fn described(cost: &StepCost) -> String {
    let mib = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
    format!(
        "a step of {} reads {} for each, by its program; the parameters are {}, the cache {}",
        counted(cost.tokens, "token"),
        mib(cost.bytes_read_per_token()),
        mib(cost.parameter_bytes as f64),
        mib(cost.cache_bytes as f64),
    )
}
