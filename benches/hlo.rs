//! Reading HLO: megabytes a second, and the memory it takes as a multiple of the file.
//!
//! ```text
//! cargo bench --bench hlo -- [megabytes] [rounds]
//! ```
//!
//! The texts are modules of sharded JAX programs as XLA's compilers print them (`tests/foreign`), repeated under
//! new names until there are as many megabytes. Then a program of layers is read in every form: as many megabytes
//! of StableHLO text with scopes and source lines, and what it is in the other forms. Times are those on the
//! processor, so that other work on the machine does not show; the first round also pays for memory that the system
//! hands out for the first time, as every run of a program does. Peak memory is what the process has resident at
//! most while it reads, above what it had before: with what the allocator adds.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use meshloom::hlo::read::{Limits, read};
use meshloom::hlo::stablehlo::{WriteOptions, write_artifact};
use meshloom::hlo::text::{TextOptions, print};
use prost::Message;

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
        measure(text.as_bytes(), rounds)?;
    }
    let text = layers(megabytes * 1_000_000);
    let module = read(text.as_bytes(), &Limits::default())?.module;
    let forms = [
        ("HLO proto", module.encode_to_vec()),
        ("HLO text", print(&module, &TextOptions::parseable()).into_bytes()),
        ("portable artifact", write_artifact(&module, &WriteOptions::default(), None)?),
        ("StableHLO text", text.into_bytes()),
    ];
    drop(module);
    for (name, bytes) in forms {
        println!("the layers as {name}: {} bytes", bytes.len());
        measure(&bytes, rounds)?;
    }
    Ok(())
}

fn measure(bytes: &[u8], rounds: usize) -> Result<()> {
    for round in 1..=rounds {
        let resident = memory("VmRSS")?;
        reset_peak()?;
        let start = on_processor()?;
        let module = read(bytes, &Limits::default())?;
        let seconds = on_processor()? - start;
        let peak = memory("VmHWM")?.saturating_sub(resident) as f64 / bytes.len() as f64;
        println!("  round {round}: {:4.0} MB/s, peak {peak:.1} x the file", bytes.len() as f64 / 1e6 / seconds);
        drop(module);
    }
    Ok(())
}

/// A program of layers as StableHLO text of about this size, each op with its scope and source line.
fn layers(bytes: usize) -> String {
    use std::fmt::Write;
    let mut text =
        "module @layers {\n  func.func public @main(%arg0: tensor<8x512xf32>, %arg1: tensor<512x512xf32>) -> \
                    tensor<8x512xf32> {\n"
            .to_owned();
    let (mut next, mut last) = (0, "%arg0".to_owned());
    for layer in 0.. {
        let at = |op: &str, line: usize| {
            format!("loc(\"jit(step)/jvp(layer_{layer})/{op}\"(\"models/decoder.py\":{line}:12 to :40))")
        };
        _ = writeln!(
            text,
            "    %{next} = stablehlo.dot_general {last}, %arg1, contracting_dims = [1] x [0] : (tensor<8x512xf32>, \
             tensor<512x512xf32>) -> tensor<8x512xf32> {}",
            at("dot_general", 40)
        );
        _ = writeln!(text, "    %{} = stablehlo.tanh %{next} : tensor<8x512xf32> {}", next + 1, at("tanh", 41));
        _ = writeln!(
            text,
            "    %{} = stablehlo.multiply %{}, %{next} : tensor<8x512xf32> {}",
            next + 2,
            next + 1,
            at("mul", 42)
        );
        _ = writeln!(
            text,
            "    %{} = stablehlo.add %{}, {last} : tensor<8x512xf32> {}",
            next + 3,
            next + 2,
            at("add", 43)
        );
        last = format!("%{}", next + 3);
        next += 4;
        if text.len() >= bytes {
            break;
        }
    }
    _ = write!(text, "    return {last} : tensor<8x512xf32>\n  }}\n}}\n");
    text
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
