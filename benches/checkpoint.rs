//! Bytes per second of saving and loading: 256 MiB of parameters on 8 virtual devices.
//!
//! ```text
//! cargo bench --bench checkpoint -- [MIB] [DIRECTORY]
//! ```
//!
//! Training waits for the time `copied to the host`; writing, which includes hashing and waiting for the disk, goes on
//! beside it.

use std::path::PathBuf;
use std::time::Instant;

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::{Array, Client, ShardLayout};
use meshloom::trace::{Init, Param};
use meshloom_train::checkpoint::{About, Checkpoint, Checkpointer, DataPosition, RecordedConfig, Start};
use meshloom_train::config::{CheckpointConfig, RunConfig};

const DEVICES: usize = 8;
const WIDTH: usize = 1024;
const VALUES: usize = 8;

fn main() -> anyhow::Result<()> {
    // `cargo bench` adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let mib = arguments.first().and_then(|text| text.parse::<usize>().ok()).unwrap_or(256);
    let scratch = match arguments.get(1) {
        Some(directory) => tempfile::tempdir_in(directory)?,
        None => tempfile::tempdir()?,
    };
    let client = Client::cpu(DEVICES)?;
    // Rows of 4 KiB, split over the devices.
    let rows = (mib * 256 / VALUES).next_multiple_of(DEVICES);
    let ty = TensorType::new(DType::F32, &[rows, WIDTH]);
    let bytes: Vec<u8> = (0..ty.byte_count()).map(|place| (place / 3) as u8).collect();
    let literal = Literal::from_bytes(ty.clone(), bytes)?;
    let part = rows / DEVICES;
    let boxes = (0..DEVICES).map(|device| vec![device * part..(device + 1) * part, 0..WIDTH]).collect();
    let layout = ShardLayout::from_boxes(&ty.dims, boxes)?;
    let arrays = vec![Array::put(&client, &literal, &layout)?; VALUES];
    let declared = vec![Param::new(DType::F32, [rows, WIDTH], &["", ""], Init::Constant(0.0)); VALUES];
    let total = (VALUES * ty.byte_count()) as f64;
    let report = |what: &str, start: Instant| {
        let seconds = start.elapsed().as_secs_f64();
        println!("{what:<24} {seconds:>7.3} s {:>8.0} MB/s", total / seconds / 1e6);
    };
    println!("{:.0} MB in {VALUES} values on {DEVICES} devices", total / 1e6);

    let config = CheckpointConfig { dir: scratch.path().display().to_string(), every: 1, keep: 1, keep_best: 0 };
    let mut checkpointer = Checkpointer::new(&config, Start::Fresh)?;
    let mut folder = PathBuf::new();
    for step in 1..=3 {
        let about = About {
            step,
            skipped_steps: 0,
            validation_loss: None,
            seed: 0,
            data: DataPosition { next_batch: step, batch: 1, seq: 1 },
            mesh: format!("fsdp={DEVICES}"),
            devices: DEVICES,
            config: RecordedConfig::of(&RunConfig::default()),
        };
        let start = Instant::now();
        checkpointer.save(about, &declared, &arrays)?;
        report("copied to the host", start);
        checkpointer.wait()?;
        report("saved", start);
        folder = scratch.path().join(format!("step-{step:08}"));
    }
    let devices: Vec<usize> = (0..DEVICES).collect();
    for (what, layout) in [("loaded as it was", layout), ("loaded by columns", by_columns(&ty)?)] {
        let specs: Vec<_> =
            arrays.iter().map(|array| meshloom::pjrt::ArraySpec { layout: layout.clone(), ..array.spec() }).collect();
        let start = Instant::now();
        let checkpoint = Checkpoint::open(&folder)?;
        report("checked", start);
        let start = Instant::now();
        for array in checkpoint.load(&declared, &specs, &client, &devices)? {
            array.block_until_ready()?;
        }
        report(what, start);
    }
    Ok(())
}

/// Split over the columns instead: each device needs a part of every row.
fn by_columns(ty: &TensorType) -> anyhow::Result<ShardLayout> {
    let part = WIDTH / DEVICES;
    let boxes = (0..DEVICES).map(|device| vec![0..ty.dims[0], device * part..(device + 1) * part]).collect();
    Ok(ShardLayout::from_boxes(&ty.dims, boxes)?)
}
