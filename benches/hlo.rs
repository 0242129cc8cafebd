//! Reading HLO text: megabytes a second, and the memory it takes as a multiple of the text.
//!
//! ```text
//! cargo bench --bench hlo -- [megabytes] [rounds]
//! ```
//!
//! The texts are modules of sharded JAX programs as XLA's compilers print them (`tests/foreign`), repeated under new
//! names until there are as many megabytes. Times are those on the processor, so that other work on the machine does
//! not show; the first round also pays for memory that the system hands out for the first time, as every run of a
//! program does. Peak memory is what the process has resident at most while it reads, above what it had before: with
//! what the allocator adds.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use meshloom::hlo::parse::parse;

const TEMPLATES: &[(&str, &str)] = &[
    ("TPU", "pipeline.tpu.txt"),
    ("GPU", "pipeline.gpu.txt"),
    ("CPU", "moe.optimized.txt"),
    ("lowered", "moe.unoptimized.txt"),
];

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let megabytes = numbers.first().copied().unwrap_or(110);
    let rounds = numbers.get(1).copied().unwrap_or(3);
    for (name, file) in TEMPLATES {
        let template = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/foreign").join(file))?;
        let text = repeated(&template, megabytes * 1_000_000)?;
        let instructions = text.lines().filter(|line| line.contains(" = ")).count();
        let line = text.len() as f64 / instructions as f64;
        println!("{name}: {} bytes, {instructions} instructions of {line:.0} bytes", text.len());
        for round in 1..=rounds {
            let resident = memory("VmRSS")?;
            reset_peak()?;
            let start = on_processor()?;
            let module = parse(&text)?;
            let seconds = on_processor()? - start;
            let peak = memory("VmHWM")?.saturating_sub(resident) as f64 / text.len() as f64;
            println!("  round {round}: {:4.0} MB/s, peak {peak:.1} x the text", text.len() as f64 / 1e6 / seconds);
            drop(module);
        }
    }
    Ok(())
}

/// The computations of a module again and again, each time under other names, and one entry.
fn repeated(template: &str, bytes: usize) -> Result<String> {
    let start = template.find("\n%").context("the template has no computation before its entry")? + 1;
    // One module has one entry; the other times it is a computation that nothing calls.
    let body = template[start..].replace("ENTRY ", "");
    let mut text = template[..start].to_string();
    for time in 0.. {
        let mut rest = body.as_str();
        while let Some(sign) = rest.find('%') {
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
            let end = rest[sign + 1..].find(|letter| !is_name(letter)).map_or(rest.len(), |length| sign + 1 + length);
            text.push_str(&rest[..end]);
            text.push_str(&format!(".{time}"));
            rest = &rest[end..];
        }
        text.push_str(rest);
        if text.len() >= bytes {
            break;
        }
    }
    Ok(text)
}

/// Seconds that this thread has run.
fn on_processor() -> Result<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").context("this benchmark reads Linux's /proc")?;
    let nanoseconds: f64 = text.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanoseconds / 1e9)
}

/// Bytes of memory that the system counts under a name.
fn memory(name: &str) -> Result<usize> {
    let status = fs::read_to_string("/proc/self/status")?;
    let Some(line) = status.lines().find(|line| line.starts_with(name)) else {
        bail!("no {name} in /proc/self/status")
    };
    let kilobytes: usize = line.split_whitespace().nth(1).unwrap_or_default().parse()?;
    Ok(kilobytes << 10)
}

/// Makes the peak what is resident now.
fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("cannot reset the peak")
}
