//! The numbers of steps: a JSON line per step for programs.

use std::f64::consts::LN_2;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The numbers of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepMetrics {
    /// The step, from 1.
    pub step: u64,
    /// Mean loss per target, in nats.
    pub loss: f64,
    /// Global norm of the gradient, before clipping.
    pub grad_norm: f64,
    /// Tokens per second in this step.
    pub tokens_per_second: f64,
    /// Seconds that this step took.
    pub step_seconds: f64,
    /// The part of `step_seconds` in which the step waited for its batch.
    pub data_seconds: f64,
    /// The part of `step_seconds` in which the step waited for messages, if the replica is apart from the others.
    pub wait_seconds: Option<f64>,
    /// Steps of the run up to this one that changed nothing, because their loss or gradient norm was not finite.
    pub skipped_steps: u64,
}

impl StepMetrics {
    /// Whether loss and gradient norm are finite: if not, the step changed nothing.
    pub fn is_finite(&self) -> bool {
        self.loss.is_finite() && self.grad_norm.is_finite()
    }

    /// The numbers of the step by name; the skipped steps from the first on.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let wait_seconds = self.wait_seconds.map(|seconds| ("wait_seconds", seconds));
        let skipped = (self.skipped_steps > 0).then_some(("skipped_steps", self.skipped_steps as f64));
        let always = [
            ("loss", self.loss),
            ("grad_norm", self.grad_norm),
            ("tokens_per_second", self.tokens_per_second),
            ("step_seconds", self.step_seconds),
            ("data_seconds", self.data_seconds),
        ];
        always.into_iter().chain(wait_seconds).chain(skipped).collect()
    }

    /// The metrics line, without its line end. Floats have ten significant digits, enough to read an f32 back exactly.
    /// A number that is not finite is `null`, because JSON has no other form for it.
    pub fn to_json(&self) -> String {
        json_line(self.step, &self.named())
    }
}

/// How good the model is on the validation set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The step after which, from 1; 0 before the first.
    pub step: u64,
    /// Mean loss per target, in nats.
    pub loss: f64,
    /// The same in bits for each byte of the set, if it is text: it does not depend on the tokenizer.
    pub bits_per_byte: Option<f64>,
}

impl Evaluation {
    /// Makes an evaluation from a mean loss per target, in nats. The set has `bytes_per_token` bytes of text for each
    /// token.
    pub fn new(step: u64, loss: f64, bytes_per_token: Option<f64>) -> Evaluation {
        Evaluation { step, loss, bits_per_byte: bytes_per_token.map(|bytes| loss / LN_2 / bytes) }
    }

    /// `e` to the loss: among how many equally likely targets the model might as well have chosen.
    pub fn perplexity(&self) -> f64 {
        self.loss.exp()
    }

    /// The numbers by name.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let bits = self.bits_per_byte.map(|bits| ("eval_bits_per_byte", bits));
        [("eval_loss", self.loss), ("eval_perplexity", self.perplexity())].into_iter().chain(bits).collect()
    }

    /// The metrics line, without its line end, in the form of [`StepMetrics::to_json`].
    pub fn to_json(&self) -> String {
        json_line(self.step, &self.named())
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}  validation loss {:.4}  perplexity {:.3}", self.step, self.loss, self.perplexity())?;
        self.bits_per_byte.map_or(Ok(()), |bits| write!(f, "  {bits:.4} bits per byte"))
    }
}

/// Compares a loss with the entropy of single letters or tokens: `1.6089 below the entropy of single letters`.
pub fn beside_entropy(loss: f64, entropy: f64, single: &str) -> String {
    let side = if loss > entropy { "above" } else { "below" };
    format!("{:.4} {side} the entropy of single {single}s", (entropy - loss).abs())
}

const SIGNIFICANT_DIGITS: i32 = 10;

fn json_line(step: u64, numbers: &[(&str, f64)]) -> String {
    let numbers = numbers.iter().map(|(name, number)| format!("\"{name}\": {}", json_float(*number)));
    format!("{{\"step\": {step}, {}}}", numbers.collect::<Vec<_>>().join(", "))
}

fn json_float(value: f64) -> String {
    if !value.is_finite() {
        return "null".to_owned();
    }
    let exponent = if value == 0.0 { 0 } else { value.abs().log10().floor() as i32 };
    match exponent {
        -5..SIGNIFICANT_DIGITS => format!("{value:.*}", (SIGNIFICANT_DIGITS - 1 - exponent) as usize),
        _ => format!("{value:.*e}", SIGNIFICANT_DIGITS as usize - 1),
    }
}

/// The metrics file cannot be written.
#[derive(thiserror::Error)]
#[error("cannot write the metrics to {path:?}: {source}; give a path in a directory that exists")]
pub struct MetricsError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

meshloom::hlo::debug_is_message!(MetricsError);

/// The fields that every line has.
#[derive(serde::Deserialize)]
struct MetricsLine {
    step: u64,
}

/// Writes one JSON object a line. Each line is handed to the system at once, so a run that is stopped loses none.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
}

impl MetricsWriter {
    /// Checks that the file can be written, and leaves it as it is.
    pub fn check(path: impl AsRef<Path>) -> Result<(), MetricsError> {
        let path = path.as_ref();
        let opened = match path.exists() {
            true => File::options().append(true).open(path),
            false => tempfile::tempfile_in(directory_of(path)),
        };
        opened.map(drop).map_err(|source| MetricsError { path: path.to_owned(), source })
    }

    /// A new file; one that exists is emptied.
    pub fn create(path: impl AsRef<Path>) -> Result<MetricsWriter, MetricsError> {
        MetricsWriter::open(path.as_ref(), File::options().write(true).create(true).truncate(true))
    }

    /// Appends to a file, or creates it. [`MetricsWriter::resume`] is for resumed runs.
    pub fn append(path: impl AsRef<Path>) -> Result<MetricsWriter, MetricsError> {
        MetricsWriter::open(path.as_ref(), File::options().append(true).create(true))
    }

    /// The file of a run that continues after `step` steps: later lines, and half a line at the end, are dropped. The
    /// file is replaced as a whole or not at all, and created if necessary.
    ///
    /// # Errors
    /// The file cannot be read or written, or a line before the last is not one of metrics.
    pub fn resume(path: impl AsRef<Path>, step: u64) -> Result<MetricsWriter, MetricsError> {
        let path = path.as_ref();
        let failed = |source| MetricsError { path: path.to_owned(), source };
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return MetricsWriter::create(path),
            read => read.map_err(failed)?,
        };
        let kept = lines_until(&text, step).map_err(failed)?;
        if kept.len() < text.len() {
            let mut file = tempfile::NamedTempFile::new_in(directory_of(path)).map_err(failed)?;
            file.write_all(kept.as_bytes()).map_err(failed)?;
            file.as_file().sync_all().map_err(failed)?;
            file.persist(path).map_err(|error| failed(error.error))?;
        }
        MetricsWriter::append(path)
    }

    fn open(path: &Path, options: &std::fs::OpenOptions) -> Result<MetricsWriter, MetricsError> {
        let path = path.to_owned();
        match options.open(&path) {
            Ok(file) => Ok(MetricsWriter { path, file }),
            Err(source) => Err(MetricsError { path, source }),
        }
    }

    /// Adds the line of one step.
    pub fn write(&mut self, metrics: &StepMetrics) -> Result<(), MetricsError> {
        self.write_line(metrics.to_json())
    }

    /// Adds the line of an evaluation.
    pub fn write_evaluation(&mut self, evaluation: &Evaluation) -> Result<(), MetricsError> {
        self.write_line(evaluation.to_json())
    }

    fn write_line(&mut self, line: String) -> Result<(), MetricsError> {
        let line = line + "\n";
        self.file.write_all(line.as_bytes()).map_err(|source| MetricsError { path: self.path.clone(), source })
    }
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The lines of a metrics file up to a step.
fn lines_until(text: &str, step: u64) -> io::Result<&str> {
    let mut end = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match serde_json::from_str::<MetricsLine>(line) {
            Ok(found) if line.ends_with('\n') && found.step <= step => end += line.len(),
            Ok(_) => break,
            // A run that was stopped while it wrote has left this.
            Err(_) if !line.ends_with('\n') => break,
            Err(error) => {
                let message = format!("line {} is not one of metrics ({error}), so it is not continued", index + 1);
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
        }
    }
    Ok(&text[..end])
}

/// A number with commas: `12,345`.
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digit.is_ascii_digit() {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
