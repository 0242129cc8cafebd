//! The progress line of a training run.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use meshloom_train::report::{StepMetrics, thousands};

/// The live progress line: a bar on a terminal, else a plain line now and then.
pub struct Progress {
    steps: u64,
    /// Smoothed over recent steps, so that the first, which may compile, is soon forgotten.
    step_seconds: Option<f64>,
    out: Out,
}

enum Out {
    Bar(ProgressBar),
    Plain,
    /// Another process shows the progress.
    Hidden,
}

impl Progress {
    /// Progress on standard error of a run that ends with step `steps`, unless another process shows it.
    pub fn new(steps: u64, is_shown: bool) -> Progress {
        let out = match (is_shown, std::io::stderr().is_terminal()) {
            (false, _) => Out::Hidden,
            (true, false) => Out::Plain,
            (true, true) => {
                let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
                // Without the template, which is a constant that parses, the bar would still show the message.
                if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}  {wide_msg}") {
                    bar.set_style(style);
                }
                Out::Bar(bar)
            }
        };
        Progress { steps, step_seconds: None, out }
    }

    pub fn update(&mut self, metrics: &StepMetrics) {
        let message = self.message(metrics);
        match &self.out {
            Out::Bar(bar) => {
                bar.set_position(metrics.step);
                bar.set_message(message);
            }
            Out::Plain => self.plain(metrics.step, &message).iter().for_each(|line| say(line)),
            Out::Hidden => {}
        }
    }

    fn message(&mut self, metrics: &StepMetrics) -> String {
        let smoothed =
            self.step_seconds.map_or(metrics.step_seconds, |seconds| 0.8 * seconds + 0.2 * metrics.step_seconds);
        self.step_seconds = Some(smoothed);
        let left = self.steps.saturating_sub(metrics.step) as f64 * smoothed;
        format!(
            "loss {:.4}  grad norm {:.3}  {} tokens/s  ETA {}",
            metrics.loss,
            metrics.grad_norm,
            thousands(metrics.tokens_per_second),
            clock(left),
        )
    }

    fn plain(&self, step: u64, message: &str) -> Option<String> {
        /// How many plain lines a run of many steps gets.
        const LINES: u64 = 20;
        let is_shown = step <= 1 || step == self.steps || step.is_multiple_of(self.steps.div_ceil(LINES).max(1));
        is_shown.then(|| format!("step {step}/{}  {message}", self.steps))
    }

    /// A line above the progress line.
    pub fn note(&self, text: &str) {
        match &self.out {
            Out::Bar(bar) => bar.println(text),
            Out::Plain => say(text),
            Out::Hidden => {}
        }
    }

    /// Ends the progress line and leaves it standing.
    pub fn finish(&self) {
        if let Out::Bar(bar) = &self.out {
            bar.abandon();
        }
    }
}

/// The plain lines of a run.
pub fn lines(steps: u64, metrics: impl Iterator<Item = StepMetrics>) -> Vec<String> {
    let mut progress = Progress { steps, step_seconds: None, out: Out::Plain };
    let mut line = |metrics: StepMetrics| {
        let message = progress.message(&metrics);
        progress.plain(metrics.step, &message)
    };
    metrics.filter_map(&mut line).collect()
}

/// Prints a line. A closed standard error does not end a run.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Formats seconds as `1:05` or `2:01:05`, or as `?` if they are not a length of time.
fn clock(seconds: f64) -> String {
    let Ok(duration) = Duration::try_from_secs_f64(seconds.round()) else { return "?".to_owned() };
    let seconds = duration.as_secs();
    match seconds / 3600 {
        0 => format!("{}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}
