//! The folder that `bisect --out` writes: the findings, the program, and a script that shows the symptom.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use hlo_dump::source;
use meshloom::hlo::proto::{HloModuleConfigProto, HloModuleProtoWithConfig};
use meshloom::hlo::text::{TextOptions, print_with_config};
use meshloom::pjrt::DebugValue;
use meshloom_models::parameters::to_bytes;
use serde_json::{Map, Value, json};

use super::program::Program;
use super::report::{Case, Report};
use super::runner::{Beside, DebugOptions};
use super::symptom::Symptom;
use super::{Bisect, effect_text, kept};

/// The script, before the settings of a case are written into it.
const SCRIPT: &str = include_str!("reproduce.py");

pub fn check(out: &Path) -> Result<()> {
    let named = || format!("--out {}", out.display());
    std::fs::create_dir_all(out).with_context(named)?;
    if std::fs::read_dir(out).with_context(named)?.next().is_some() {
        bail!("--out {}: the folder has files; give one that is empty or not there yet", out.display());
    }
    Ok(())
}

pub fn write(arguments: &Bisect, out: &Path, report: &Report, case: &Case) -> Result<()> {
    let text = |program: &Program| {
        let config = HloModuleConfigProto {
            replica_count: program.replicas as i64,
            num_partitions: program.partitions as i64,
            ..HloModuleConfigProto::default()
        };
        let module = HloModuleProtoWithConfig { hlo_module: Some(program.module.clone()), config: Some(config) };
        print_with_config(
            &module,
            &TextOptions { backend_config: true, ..TextOptions::parseable().with_metadata(false) },
        )
    };
    whole(&out.join("module.hlo.txt"), text(&case.suspect).as_bytes())?;
    if let Some(Beside::Module(reference, _)) = &case.beside {
        whole(&out.join("reference.hlo.txt"), text(reference).as_bytes())?;
    }
    whole(&out.join("inputs.safetensors"), &to_bytes(&case.inputs)?)?;
    whole(&out.join("reproduce.py"), script(arguments, case).as_bytes())?;
    // The summary is written last: where it is, the other files are.
    whole(&out.join("summary.md"), summary(&arguments.path, report, case).as_bytes())
}

/// Writes a file completely or not at all.
fn whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = path.with_extension("partial");
    let write = || -> std::io::Result<()> {
        let mut file = std::fs::File::create(&partial)?;
        std::io::Write::write_all(&mut file, bytes)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn script(arguments: &Bisect, case: &Case) -> String {
    let value = |value: &DebugValue| match value {
        DebugValue::Text(text) => json!(text),
        DebugValue::Bool(value) => json!(value),
        DebugValue::Int(value) => json!(value),
        DebugValue::Float(value) => json!(value),
    };
    let run = |module: &str, program: &Program, options: &DebugOptions| {
        let options: Map<String, Value> = options.iter().map(|(name, it)| (name.clone(), value(it))).collect();
        json!({ "module": module, "devices": [program.replicas, program.partitions], "options": options })
    };
    let reference = match &case.beside {
        None => run("module.hlo.txt", &case.suspect, &DebugOptions::new()),
        Some(Beside::Settings(options)) => run("module.hlo.txt", &case.suspect, options),
        Some(Beside::Module(reference, options)) => run("reference.hlo.txt", reference, options),
    };
    let settings = json!({
        "symptom": case.symptom.kind().name(),
        "seconds": arguments.time_limit,
        "tolerance": arguments.tolerance,
        "memory_limit": match case.symptom {
            Symptom::Memory { limit, .. } => json!(limit),
            _ => Value::Null,
        },
        "said": case.symptom.check(),
        "shardy": case.suspect.shardy,
        "suspect": run("module.hlo.txt", &case.suspect, &case.options),
        "reference": reference,
    });
    let text = serde_json::to_string_pretty(&settings).unwrap_or_default();
    SCRIPT.replace("@PLUGIN@", &case.plugin).replace("@CASE@", &text)
}

fn summary(input: &Path, report: &Report, case: &Case) -> String {
    // The folders are those of one machine.
    let name = source::name(input.file_name().map_or(input, Path::new));
    let mut text = format!("# What makes {name} go wrong\n\n");
    if let Some(symptom) = &report.symptom {
        let _ = writeln!(text, "Symptom: {symptom}.\n");
    }
    for culprit in &report.culprits {
        let _ = writeln!(text, "Culprit: {}.\n", culprit.text);
    }
    if report.culprits.is_empty() {
        text.push_str("Nothing that was changed removes it.\n\n");
    }
    text.push_str("## What was changed\n\n| changed | how | symptom |\n|---|---|---|\n");
    for tried in &report.tried {
        let cell = |text: &str| text.replace('|', "\\|");
        let (change, effect) = (cell(&tried.change), cell(&effect_text(&tried.effect)));
        let _ = writeln!(text, "| {} | {change} | {effect} |", tried.dimension.name());
    }
    text.push_str("\n## What is left\n\n");
    for line in kept(report) {
        let _ = writeln!(text, "- {line}");
    }
    let _ = writeln!(text, "- in this module: {}", case.symptom);
    if let Some(shrinking) = report.shrinking.as_ref().filter(|it| !it.steps.is_empty()) {
        text.push_str("\n| shrinking | instructions |\n|---|---|\n");
        for (what, count) in &shrinking.steps {
            let _ = writeln!(text, "| {what} | {count} |");
        }
    }
    let options = case.options.iter().map(|(name, value)| format!(" --option '{name}={value}'"));
    let reference = if matches!(case.beside, Some(Beside::Module(..))) { " --reference reference.hlo.txt" } else { "" };
    let _ = write!(
        text,
        "\n## How to see it\n\n```sh\nmeshloom bisect module.hlo.txt --inputs inputs.safetensors --plugin {}{}{reference}\n\
         python reproduce.py            # with jaxlib's own CPU compiler, another version of XLA\n\
         python reproduce.py PLUGIN.so  # with this plugin\n```\n\nThe script needs jax 0.10.2 and numpy. It exits with 0 \
         if the symptom shows, and with 1 if it does not.\n",
        case.plugin,
        options.collect::<String>(),
    );
    text
}
