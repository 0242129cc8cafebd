//! `meshloom train --target`: the train step, compiled for hardware that need not be there.

use std::path::Path;

use meshloom_train::config::RunConfig;
use meshloom_train::run::StepAhead;
use anyhow::Result;
use meshloom::hlo::message::counted;
use meshloom::pjrt::PjrtError;
use meshloom::pjrt::ahead_of_time::Settings;

/// Compiles the train step for hardware that need not be there, and prints what XLA says of it. Sizes are of each
/// device.
pub fn run(config: &RunConfig, settings: &Settings, write_hlo: Option<&Path>) -> Result<()> {
    let ahead = StepAhead::compile(config, settings)?;
    for warning in config.warnings().into_iter().chain(ahead.lowered.warnings()) {
        eprintln!("warning: {warning}");
    }
    let compiled = &ahead.compiled;
    let kind = ahead.devices.first().map_or("", |device| device.kind.as_str());
    let devices = counted(ahead.devices.len(), "device");
    println!("{} parameters on {devices} ({}) of {kind}", ahead.parameter_count, ahead.mesh);
    println!(
        "lowered in {:.1} ms to {} bytes, compiled for {} in {:.1} s",
        1e3 * ahead.lower_time.as_secs_f64(),
        ahead.lowered.module.bytes.len(),
        compiled.topology,
        compiled.compile_time.as_secs_f64(),
    );
    print_memory(&ahead)?;
    print_costs(&ahead)?;
    let optimized = compiled.optimized_hlo()?;
    let module = optimized.decode()?;
    let instructions: usize = module.computations.iter().map(|computation| computation.instructions.len()).sum();
    println!("optimized program: {instructions} instructions, {} bytes as {}", optimized.bytes.len(), optimized.format);
    match compiled.serialized() {
        Ok(bytes) => println!("serialized executable: {} bytes", bytes.len()),
        Err(error) => println!("serialized executable: {error}"),
    }
    if let Some(path) = write_hlo {
        let write = std::fs::write(path, prost::Message::encode_to_vec(&module));
        write.map_err(|source| PjrtError::Io { action: "write", path: path.to_owned(), source })?;
    }
    Ok(())
}

fn print_memory(ahead: &StepAhead) -> Result<()> {
    let memory = ahead.compiled.memory_stats()?;
    println!("memory of each device, in bytes:");
    let rows = [
        ("arguments", memory.arguments),
        ("outputs", memory.outputs),
        ("of these in the arguments' place", memory.aliased),
        ("temporaries", memory.temporary),
        ("all of these", memory.total()),
        ("code", memory.generated_code),
    ];
    for (name, bytes) in rows {
        println!("  {name:<33}{bytes:>16}");
    }
    if let Some(limit) = ahead.devices.first().and_then(|device| device.memory_limit()) {
        println!("  {:<33}{limit:>16}", "there is");
    }
    Ok(())
}

fn print_costs(ahead: &StepAhead) -> Result<()> {
    match ahead.compiled.cost_analysis() {
        Ok(costs) => {
            println!("XLA's cost analysis of one step on each device, loop bodies counted once:");
            let rows = [
                ("floating-point operations", costs.flops()),
                ("bytes accessed", costs.bytes_accessed()),
                // Some plugins say less than nothing, which is to say that they do not know.
                ("seconds at best", costs.optimal_seconds().filter(|seconds| *seconds > 0.0)),
            ];
            for (name, value) in rows.into_iter().filter_map(|(name, value)| Some((name, value?))) {
                println!("  {name:<33}{value:>16.4e}");
            }
            Ok(())
        }
        Err(error @ PjrtError::Unimplemented { .. }) => {
            println!("{error}");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}
