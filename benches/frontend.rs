//! Frontend latency: from the model's closure to the bytes of the HLO module, for a train step of Llama 3 405B's shape.
//!
//! ```text
//! cargo bench --bench frontend
//! python3 benches/jax/frontend.py      # the same in JAX
//! ```
//!
//! Each case traces forward pass, differentiates it, adds AdamW, runs the passes and emits. Allocation counts and bytes
//! are those of one iteration; "max alloc" is the peak.

use divan::{AllocProfiler, Bencher, black_box};
use meshloom::compile::{LowerOptions, PartitionMode, lower};
use meshloom::ops::RematPolicy;
use meshloom::sharding::{Mesh, RuleSets, Rules};
use meshloom_benches::llama_405b;
use meshloom_train::run::{TrainStep, aliases};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

fn bytes_of(step: &TrainStep) -> usize {
    let function = step.trace().expect("the model is well-formed");
    let options = LowerOptions { aliases: aliases(&function), ..LowerOptions::default() };
    lower(function.graph(), &options).expect("it lowers").module.bytes.len()
}

#[divan::bench(args = [16, 64, 126])]
fn scanned(bencher: Bencher<'_, '_>, layers: usize) {
    let step = llama_405b(layers, true, RematPolicy::None);
    bencher.bench_local(|| black_box(bytes_of(&step)));
}

#[divan::bench(args = [16, 64, 126])]
fn scanned_remat(bencher: Bencher<'_, '_>, layers: usize) {
    let step = llama_405b(layers, true, RematPolicy::Full);
    bencher.bench_local(|| black_box(bytes_of(&step)));
}

#[divan::bench(args = [16, 64, 126])]
fn unrolled(bencher: Bencher<'_, '_>, layers: usize) {
    let step = llama_405b(layers, false, RematPolicy::None);
    bencher.bench_local(|| black_box(bytes_of(&step)));
}

#[divan::bench(args = [16, 64, 126])]
fn unrolled_remat(bencher: Bencher<'_, '_>, layers: usize) {
    let step = llama_405b(layers, false, RematPolicy::Full);
    bencher.bench_local(|| black_box(bytes_of(&step)));
}

/// The scanned step annotated for meshes of growing size: the time does not depend on it.
#[divan::bench(args = ["data=2,fsdp=4", "data=16,fsdp=384"])]
fn scanned_sharded(bencher: Bencher<'_, '_>, axes: &str) {
    let step = llama_405b(126, true, RematPolicy::Full);
    let devices = axes.split(['=', ',']).filter_map(|part| part.parse::<usize>().ok()).product();
    let mesh = Mesh::parse(axes, devices).expect("the mesh is well-formed");
    let rules = RuleSets::uniform(Rules::preset("decoder", false).expect("the preset exists"));
    bencher.bench_local(|| {
        let function = step.trace().expect("the model is well-formed");
        let aliases = aliases(&function);
        let options = LowerOptions {
            sharding: Some((&mesh, &rules)),
            aliases,
            partition: PartitionMode::GSPMD,
            ..LowerOptions::default()
        };
        black_box(lower(function.graph(), &options).expect("it lowers").module.bytes.len())
    });
}
