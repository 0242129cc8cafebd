//! The summary of a run: its speed, and the memory that it needed.

use std::fmt;
use std::time::Duration;

use meshloom::hlo::message::{counted, human_bytes};

use crate::report::StepMetrics;

/// The speed of a run, from the times of its steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Model floating-point operations of a step, over all devices, if the model counts them.
    pub step_flops: Option<f64>,
    /// Floating-point operations that all devices can do in a second, if their maker says.
    pub peak_flops: Option<f64>,
    /// Time from the closure to the bytes of the modules.
    pub lower_seconds: f64,
    /// Time that the plugin took to compile them.
    pub compile_seconds: f64,
    /// The memory that the run needs on the device that uses the most, if it is known.
    pub memory: Option<MemoryUse>,
    seconds: Vec<f64>,
    waited: f64,
    tokens: f64,
}

/// The memory of a device that a run needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Between steps.
    pub in_use: u64,
    /// The largest number of bytes.
    pub peak: u64,
    /// Whether the plugin counted the allocations. If not, the numbers are the compiled programs' own figures.
    pub is_counted: bool,
}

impl Summary {
    /// Makes the summary of a run before its first step.
    pub fn new(step_flops: Option<f64>, peak_flops: Option<f64>) -> Summary {
        Summary { step_flops, peak_flops, ..Summary::default() }
    }

    /// Adds a step.
    pub fn add(&mut self, step: &StepMetrics) {
        self.seconds.push(step.step_seconds);
        self.waited += step.data_seconds;
        self.tokens += step.tokens_per_second * step.step_seconds;
    }

    /// Returns the time that the given share of the steps stayed below; a share of `0.5` gives the median. Returns
    /// `None` before the first step.
    pub fn step_time(&self, share: f64) -> Option<Duration> {
        let mut sorted = self.seconds.clone();
        sorted.sort_by(f64::total_cmp);
        let place = (share * sorted.len() as f64).ceil().max(1.0) as usize - 1;
        sorted.get(place).and_then(|&seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Tokens in a second of steps, over all devices.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let total: f64 = self.seconds.iter().sum();
        (total > 0.0).then(|| self.tokens / total)
    }

    /// The share of the steps' time in which they waited for their batches.
    pub fn data_wait(&self) -> Option<f64> {
        let total: f64 = self.seconds.iter().sum();
        (total > 0.0).then(|| self.waited / total)
    }

    /// Model floating-point operations in a second of a step of the median time, over all devices.
    pub fn flops_per_second(&self) -> Option<f64> {
        let median = self.step_time(0.5)?.as_secs_f64();
        self.step_flops.filter(|_| median > 0.0).map(|flops| flops / median)
    }

    /// Model FLOPs utilization: the share that this is of what the devices can do.
    pub fn utilization(&self) -> Option<f64> {
        Some(self.flops_per_second()? / self.peak_flops?)
    }
}

/// `20 steps of 0.83 s (median; 95 % within 1.02 s), 4,935 tokens/s, 0.093 TFLOP/s of the model, MFU 41.2 %; 0.1 % of
/// the time waiting for data; lowered in 24.1 ms, compiled in 2.52 s; memory of a device: 36.1 MiB, 120 MiB at the
/// peak`
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(median), Some(most)) = (self.step_time(0.5), self.step_time(0.95)) else {
            return f.write_str("no step");
        };
        write!(f, "{} of {} (median; 95 % within {})", counted(self.seconds.len(), "step"), time(median), time(most))?;
        if let Some(rate) = self.tokens_per_second() {
            write!(f, ", {} tokens/s", crate::report::thousands(rate))?;
        }
        if let Some(rate) = self.flops_per_second() {
            write!(f, ", {:.3} TFLOP/s of the model", rate / 1e12)?;
        }
        if let Some(share) = self.utilization() {
            write!(f, ", MFU {:.1} %", 100.0 * share)?;
        }
        if let Some(share) = self.data_wait() {
            write!(f, "; {:.1} % of the time waiting for data", 100.0 * share)?;
        }
        let [lowered, compiled] = [self.lower_seconds, self.compile_seconds].map(Duration::try_from_secs_f64);
        if let (Ok(lowered), Ok(compiled)) = (lowered, compiled) {
            write!(f, "; lowered in {}, compiled in {}", time(lowered), time(compiled))?;
        }
        let Some(MemoryUse { in_use, peak, is_counted }) = self.memory else { return Ok(()) };
        let whose = if is_counted { "" } else { " by the compiled programs" };
        write!(f, "; memory of a device{whose}: {}, {} at the peak", human_bytes(in_use), human_bytes(peak))
    }
}

/// Formats a time with three digits: `830 ms`, `1.02 s`.
fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        ..0.9995 => format!("{:.*} ms", if seconds < 0.09995 { 1 } else { 0 }, 1e3 * seconds),
        ..9.995 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.1} s"),
    }
}
