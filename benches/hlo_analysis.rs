//! The analyses of large modules: time against the number of instructions, which should be in proportion.
//!
//! ```text
//! cargo bench --bench hlo_analysis                    # modules of 1,000 to 500,000 instructions
//! cargo bench --bench hlo_analysis -- 20 FILE.pb      # 20 rounds; also an HloModuleProto of yours
//! ```
//!
//! A module has layers, as a compiled decoder does: each a matrix product, a fusion with ten instructions in it, an
//! update in place, a gather over devices and a loop of four iterations whose body has as many; one is scheduled, the
//! other is not.

use std::time::{Duration, Instant};

use anyhow::Context;
use meshloom::analysis::{
    Chip, CostOptions, DeviceWalk, Devices, Walk, collectives_of_walk, cost_of_walk, memory_of_walk,
};
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::source::Sources;
use meshloom::hlo::table::Table;
use prost::Message;

/// The module's text has about so many instructions for each layer.
const PER_LAYER: usize = 50;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let rounds = arguments.first().and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    let mut modules = Vec::new();
    for count in [1_000, 10_000, 100_000, 500_000] {
        for is_scheduled in [true, false] {
            let form = if is_scheduled { "scheduled" } else { "unscheduled" };
            modules.push((format!("{count}, {form}"), layers(count / PER_LAYER, is_scheduled)?));
        }
    }
    for path in arguments.iter().filter(|argument| argument.ends_with(".pb")) {
        let bytes = std::fs::read(path).with_context(|| path.clone())?;
        modules.push((path.clone(), HloModuleProto::decode(&*bytes).with_context(|| path.clone())?));
    }
    let mut rows = Vec::new();
    for (name, module) in &modules {
        let count: usize = module.computations.iter().map(|computation| computation.instructions.len()).sum();
        let times = (0..rounds).map(|_| measure(module)).collect::<anyhow::Result<Vec<_>>>()?;
        let least = |nth: usize| times.iter().map(|times| times[nth]).min().unwrap_or_default();
        rows.push((name, count, [0, 1, 2, 3].map(least)));
    }
    let show = |time: Duration| format!("{:.2} ms", 1e3 * time.as_secs_f64());
    let all = |times: &[Duration; 4]| times.iter().sum::<Duration>().as_secs_f64();
    let table = Table::of(rows)
        .text("module", |(name, ..)| *name)
        .number("instructions", |(_, count, _)| *count)
        .number("walk", |(.., times)| show(times[0]))
        .number("collectives", |(.., times)| show(times[1]))
        .number("cost", |(.., times)| show(times[2]))
        .number("memory", |(.., times)| show(times[3]))
        .number("all, per instruction", |(_, count, times)| format!("{:.0} ns", 1e9 * all(times) / *count as f64));
    println!("{table}");
    Ok(())
}

/// Measures the time of the walk, and of the analyses that are read off it.
fn measure(module: &HloModuleProto) -> anyhow::Result<[Duration; 4]> {
    let options = CostOptions::devices(Devices::partitioned(8)).on(Chip::parse("v5p")?);
    let sources = Sources::of(module);
    let start = Instant::now();
    let walk = DeviceWalk::undecided(Walk::of(module), options.devices);
    let walked = start.elapsed();
    let collectives = collectives_of_walk(&walk, sources);
    let collected = start.elapsed();
    let cost = cost_of_walk(&walk, sources, &options);
    let costed = start.elapsed();
    let memory = memory_of_walk(module, walk.walk(), sources)?;
    let remembered = start.elapsed();
    anyhow::ensure!(collectives.entries.len() <= cost.instructions.len() && memory.peak > 0);
    Ok([walked, collected - walked, costed - collected, remembered - costed])
}

/// A module of so many layers.
fn layers(count: usize, is_scheduled: bool) -> anyhow::Result<HloModuleProto> {
    let mut computations = String::new();
    let mut entry = String::new();
    let chain = |text: &mut String, prefix: &str, from: &str, opcode: &str, length: usize| {
        for nth in 0..length {
            let operand = if nth == 0 { from.to_owned() } else { format!("{prefix}.{}", nth - 1) };
            text.push_str(&format!("  {prefix}.{nth} = f32[64,64] {opcode}({operand}, {operand})\n"));
        }
        format!("{prefix}.{}", length - 1)
    };
    let mut x = "x".to_owned();
    for layer in 0..count {
        let mut fused = format!("fused.{layer} {{\n  fp.{layer} = f32[64,64] parameter(0)\n");
        let last = chain(&mut fused, &format!("fa.{layer}"), &format!("fp.{layer}"), "multiply", 9);
        fused.push_str(&format!("  ROOT fr.{layer} = f32[64,64] add({last}, fp.{layer})\n}}\n"));
        let state = "(s32[], f32[64,64])";
        let mut body = format!(
            "body.{layer} {{\n  bp.{layer} = {state} parameter(0)\n  bi.{layer} = s32[] get-tuple-element(bp.{layer}), index=0\n  \
             bx.{layer} = f32[64,64] get-tuple-element(bp.{layer}), index=1\n  b1.{layer} = s32[] constant(1)\n  \
             bn.{layer} = s32[] add(bi.{layer}, b1.{layer})\n"
        );
        let last = chain(&mut body, &format!("ba.{layer}"), &format!("bx.{layer}"), "add", 8);
        body.push_str(&format!("  ROOT br.{layer} = {state} tuple(bn.{layer}, {last})\n}}\n"));
        let condition = format!(
            "condition.{layer} {{\n  cp.{layer} = {state} parameter(0)\n  ci.{layer} = s32[] get-tuple-element(cp.{layer}), \
             index=0\n  cn.{layer} = s32[] constant(4)\n  ROOT cr.{layer} = pred[] compare(ci.{layer}, cn.{layer}), direction=LT\n}}\n"
        );
        computations.push_str(&fused);
        computations.push_str(&body);
        computations.push_str(&condition);
        let dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
        entry.push_str(&format!(
            "  d.{layer} = f32[64,64] dot({x}, {x}), {dims}, metadata={{op_name=\"step/layer/dot\" source_file=\"model.rs\" \
             source_line=7}}\n  f.{layer} = f32[64,64] fusion(d.{layer}), kind=kLoop, calls=fused.{layer}\n  \
             z.{layer} = s32[] constant(0)\n  row.{layer} = f32[1,64] slice(f.{layer}), slice={{[0:1], [0:64]}}\n  \
             u.{layer} = f32[64,64] dynamic-update-slice(f.{layer}, row.{layer}, z.{layer}, z.{layer})\n  \
             g.{layer} = f32[512,64] all-gather(u.{layer}), channel_id=1, dimensions={{0}}, use_global_device_ids=true, \
             replica_groups={{{{0,1,2,3,4,5,6,7}}}}\n  s.{layer} = f32[64,64] slice(g.{layer}), slice={{[0:64], [0:64]}}\n  \
             t.{layer} = {state} tuple(z.{layer}, s.{layer})\n  w.{layer} = {state} while(t.{layer}), \
             condition=condition.{layer}, body=body.{layer}\n  y.{layer} = f32[64,64] get-tuple-element(w.{layer}), index=1\n"
        ));
        let last = chain(&mut entry, &format!("e.{layer}"), &format!("y.{layer}"), "subtract", 8);
        x = last;
    }
    let scheduled = if is_scheduled { ", is_scheduled=true" } else { "" };
    let text = format!(
        "HloModule layers{scheduled}\n{computations}ENTRY main {{\n  x = f32[64,64] parameter(0)\n{entry}  ROOT r = f32[64,64] negate({x})\n}}\n"
    );
    parse(&text)?.hlo_module.context("no module")
}
