//! Keeps programs in a folder: as they were given, and what was decided about each.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

use super::request::{Format, Request};
use super::rewrite::Decision;

/// The bytes with which MLIR's bytecode begins.
const BYTECODE: &[u8] = b"ML\xefR";

/// A folder of programs, each in a folder with a number. Several processes may share it.
#[derive(Debug)]
pub(crate) struct Dump {
    folder: PathBuf,
    /// The first number that may be free.
    next: AtomicU64,
    /// The number of the next folder that is being written.
    scratch: AtomicU64,
}

impl Dump {
    pub(crate) fn new(folder: PathBuf) -> Dump {
        Dump { folder, next: AtomicU64::new(1), scratch: AtomicU64::new(0) }
    }

    /// Writes a program and the decision about it, before it is compiled: a compiler may end the process. Returns its
    /// folder.
    pub(crate) fn write(&self, request: &Request<'_>, decision: &Decision, milliseconds: f64) -> io::Result<PathBuf> {
        // The folder is complete before it gets its number.
        let scratch =
            self.folder.join(format!(".writing-{}-{}", process::id(), self.scratch.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&scratch)?;
        let written = files(&scratch, request, decision, milliseconds).and_then(|()| self.rename(&scratch));
        if written.is_err() {
            // The folder is of no use once one of its files fails.
            let _ = fs::remove_dir_all(&scratch);
        }
        written
    }

    /// Gives a folder the first number that is free.
    fn rename(&self, scratch: &Path) -> io::Result<PathBuf> {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let folder = self.folder.join(format!("{number:04}"));
            // A folder that is there and has files is not replaced.
            match fs::rename(scratch, &folder) {
                Ok(()) => return Ok(folder),
                Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Writes what became of a program into its folder.
pub(crate) fn write_outcome(
    folder: &Path,
    milliseconds: f64,
    refused: Option<&str>,
    is_compiled: bool,
) -> io::Result<()> {
    let outcome = json!({ "compiled": is_compiled, "milliseconds": milliseconds, "replacement_refused": refused });
    let scratch = folder.join(".compiled.json");
    write_file(&scratch, &text(&outcome))?;
    fs::rename(scratch, folder.join("compiled.json"))
}

fn files(folder: &Path, request: &Request<'_>, decision: &Decision, milliseconds: f64) -> io::Result<()> {
    write_file(&folder.join(file_name("program", &request.format, request.code)), request.code)?;
    write_file(&folder.join("options.pb"), request.options_bytes)?;
    if let Decision::Replaced(replacement) = decision {
        let name = file_name("replacement", &replacement.format, &replacement.code);
        write_file(&folder.join(name), &replacement.code)?;
        write_file(&folder.join("replacement_options.pb"), &replacement.options)?;
    }
    write_file(&folder.join("decision.json"), &text(&decision_json(request, decision, milliseconds)))
}

/// The decision about a program, as the README describes it.
fn decision_json(request: &Request<'_>, decision: &Decision, milliseconds: f64) -> Value {
    let build = request.build_options();
    let (name, reason, line, report) = match decision {
        Decision::PassedOn { reason, line, .. } => ("passed_on", Some(reason.to_string()), line.as_ref(), &Value::Null),
        Decision::Replaced(replacement) => ("replaced", None, None, &replacement.report),
    };
    let summary = decision.summary();
    json!({
        "module": summary.map(|summary| &summary.module),
        "format": request.format.name(),
        "platform": request.platform,
        "ahead_of_time": request.is_ahead_of_time,
        "devices": request.device_count(),
        "replicas": build.map(|build| build.num_replicas),
        "partitions": build.map(|build| build.num_partitions),
        "decision": name,
        "reason": reason,
        "line": line,
        "milliseconds": milliseconds,
        "instructions": summary.map(|summary| &summary.instructions),
        "shardings": summary.map(|summary| &summary.shardings),
        "report": report,
    })
}

fn text(json: &Value) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

/// The name of a program's file, by what it holds.
fn file_name(stem: &str, format: &Format, code: &[u8]) -> String {
    let ending = match format {
        Format::Mlir if code.starts_with(BYTECODE) => "mlirbc",
        Format::Mlir => "mlir",
        Format::Hlo => "hlo.pb",
        Format::HloWithConfig => "hlo_with_config.pb",
        Format::Other(_) => "bin",
    };
    format!("{stem}.{ending}")
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
