//! A small state that no model has, spread over the devices by hand.

use std::fs;
use std::path::{Path, PathBuf};

use meshloom::ir::{DType, Literal, TensorType};
use meshloom::pjrt::{Array, ArraySpec, ShardLayout};
use meshloom::trace::{Init, MapTree, Param, Tree};
use meshloom_train::checkpoint::{
    About, Checkpoint, CheckpointError, Checkpointer, DataPosition, RecordedConfig, Start,
};
use meshloom_train::config::{CheckpointConfig, RunConfig};

use support::eight_devices::client;

meshloom::tree! {
    /// Values of several types and ranks.
    pub struct State<T> {
        /// `bf16[6,8]`, split in both dimensions.
        pub matrix: T,
        /// `f32[10]`, padded to 12 and split in four.
        pub uneven: T,
        /// `f64[3]`, whole on all devices.
        pub wide: T,
        /// `pred[4,2]`.
        pub flags: T,
        /// `s32[]`.
        pub step: T,
    }
}

pub fn declared() -> State<Param> {
    let param = |dtype, dims: &[usize]| Param::new(dtype, dims, &vec![""; dims.len()], Init::Constant(0.0));
    State {
        matrix: param(DType::BF16, &[6, 8]),
        uneven: param(DType::F32, &[10]),
        wide: param(DType::F64, &[3]),
        flags: param(DType::Pred, &[4, 2]),
        step: param(DType::S32, &[]),
    }
}

/// Bytes that differ by place and number, NaNs among them.
pub fn literal(ty: &TensorType, number: u64) -> Literal {
    let bytes: Vec<u8> = (0..ty.byte_count() as u64)
        .map(|place| match ty.dtype {
            DType::Pred => ((place + number) % 2) as u8,
            DType::S4 => (place % 8) as u8,
            _ => (place * 37 + number * 101) as u8,
        })
        .collect();
    Literal::from_bytes(ty.clone(), bytes).expect("as many bytes")
}

pub fn literals(number: u64) -> State<Literal> {
    declared().map(|_, param| literal(&param.spec.ty, number))
}

/// The layout of each value on the eight devices.
pub fn layouts() -> State<ShardLayout> {
    let boxes = |dims: &[usize], of: &dyn Fn(usize) -> Vec<std::ops::Range<usize>>| {
        ShardLayout::from_boxes(dims, (0..8).map(of).collect()).expect("boxes")
    };
    State {
        matrix: boxes(&[6, 8], &|device| vec![device / 4 * 3..device / 4 * 3 + 3, device % 4 * 2..device % 4 * 2 + 2]),
        uneven: boxes(&[12], &|device| std::iter::once(device % 4 * 3..device % 4 * 3 + 3).collect())
            .with_value_dims(&[10])
            .expect("padded"),
        wide: ShardLayout::replicated(&[3], 8),
        flags: boxes(&[4, 2], &|device| vec![device / 2..device / 2 + 1, device % 2..device % 2 + 1]),
        step: ShardLayout::replicated(&[], 8),
    }
}

pub fn arrays(number: u64) -> State<Array> {
    put(&literals(number))
}

fn put(literals: &State<Literal>) -> State<Array> {
    let State { matrix, uneven, wide, flags, step } = layouts();
    let mut layouts = [matrix, uneven, wide, flags, step].into_iter();
    literals
        .map(|_, literal| Array::put(&client(), literal, &layouts.next().expect("a layout")).expect("the value fits"))
}

/// Values that are finite, but for these: the last number of each is that.
pub fn finite_but(bad: &[(&str, f64)]) -> State<Array> {
    put(&declared().map(|path, param| {
        let ty = &param.spec.ty;
        let last = bad.iter().find(|(name, _)| path.to_string() == **name).map(|(_, number)| *number);
        Literal::from_fn(ty.clone(), |index| match last {
            Some(number) if index + 1 == ty.element_count() => number,
            _ => index as f64,
        })
    }))
}

pub fn about(step: u64) -> About {
    About {
        step,
        skipped_steps: 0,
        validation_loss: None,
        seed: 7,
        data: DataPosition { next_batch: step, batch: 4, seq: 16 },
        mesh: "data=2,fsdp=4".to_owned(),
        devices: 8,
        config: RecordedConfig::of(&RunConfig::default()),
    }
}

pub fn config(directory: &Path, keep: usize) -> CheckpointConfig {
    CheckpointConfig { dir: directory.to_str().expect("a name").to_owned(), every: 2, keep, keep_best: 0 }
}

/// Writes checkpoints of these steps, each with the values of its number.
pub fn write(directory: &Path, steps: &[u64]) -> Vec<PathBuf> {
    let mut checkpointer = Checkpointer::new(&config(directory, 0), Start::Fresh).expect("a directory");
    for &step in steps {
        checkpointer.save(about(step), &declared(), &arrays(step)).expect("saved");
    }
    checkpointer.finish().expect("written");
    steps.iter().map(|step| directory.join(format!("step-{step:08}"))).collect()
}

pub fn values(checkpoint: &Checkpoint) -> Result<Vec<Literal>, CheckpointError> {
    Ok(checkpoint.load_on_host(&declared(), "")?.leaves())
}

/// The values on other devices: `specs` as a program's inputs.
pub fn load(
    checkpoint: &Checkpoint,
    layouts: &[ShardLayout],
    devices: &[usize],
) -> Result<Vec<Array>, CheckpointError> {
    let types = declared().leaves().into_iter().map(|param| param.spec.ty);
    let specs: Vec<ArraySpec> =
        types.zip(layouts).map(|(ty, layout)| ArraySpec { ty, layout: layout.clone() }).collect();
    checkpoint.load(&declared(), &specs, &client(), devices)
}

/// The names in a directory, sorted, but for that of the lock.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

/// The values of a number, one after the other.
pub fn written_values(number: u64) -> Vec<Literal> {
    literals(number).leaves()
}
