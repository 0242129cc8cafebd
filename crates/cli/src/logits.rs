//! `meshloom logits`: what a model makes of given tokens, as a NumPy file.

use std::fs::File;
use std::io::{BufWriter, Write};

use anyhow::{Result, anyhow};
use meshloom_train::Devices;
use meshloom_train::generate::LogitsProgram;
use meshloom_train::published::StoredModel;

use crate::arguments::Logits;
use meshloom::hlo::files;

/// Bytes of a file of tokens, at most.
const MAX_BYTES: u64 = 256 << 20;

pub fn run(arguments: &Logits) -> Result<()> {
    let path = &arguments.tokens;
    let text = files::read(path, MAX_BYTES).map_err(|error| anyhow!("cannot read the tokens {path:?}: {error}"))?;
    let rows: Vec<Vec<i32>> = serde_json::from_slice(&text).map_err(|error| {
        anyhow!("{path:?} is no JSON list of lists of tokens, such as [[1, 5, 3], [2, 4]]: {error}")
    })?;
    let model = StoredModel::open(&arguments.folder, &arguments.set)?;
    let Devices { client, notes, .. } = model.config.open()?;
    for note in notes {
        eprintln!("warning: {note}");
    }
    let program = LogitsProgram::new(&model, &client, &rows)?;
    let shape = program.shape();
    let output = &arguments.output;
    let file = File::create(output).map_err(|error| anyhow!("cannot write the logits to {output:?}: {error}"))?;
    let mut file = BufWriter::new(file);
    file.write_all(&npy_header(shape))?;
    program.run(|logits| logits.iter().try_for_each(|logit| file.write_all(&logit.to_le_bytes())))?;
    file.flush()?;
    println!("f32 {shape:?} in {}", output.display());
    Ok(())
}

/// Returns the header of a NumPy file of row-major `f32`, in version 1.0 of the format (numpy/lib/format.py).
fn npy_header([rows, length, vocab]: [usize; 3]) -> Vec<u8> {
    const START: &[u8] = b"\x93NUMPY\x01\x00";
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {length}, {vocab}), }}");
    // Elements begin at a multiple of 64 bytes, behind a line's end.
    let before = START.len() + size_of::<u16>();
    let padding = (before + text.len() + 1).next_multiple_of(64) - before - text.len() - 1;
    text.extend(std::iter::repeat_n(' ', padding).chain(['\n']));
    [START, &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}
