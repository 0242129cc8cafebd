//! The folder that `bisect --out` writes: the findings, the program, and a script that shows the symptom.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use meshloom::pjrt::DebugValue;
use meshloom::hlo::proto::{HloModuleConfigProto, HloModuleProto, HloModuleProtoWithConfig};
use meshloom::hlo::text::{TextOptions, print_with_config};
use meshloom_train::bisect::{Case, Report, write_safetensors};
use serde_json::{Map, Value, json};

use super::{effect_text, kept};

/// The script, before the settings of a case are written into it.
const SCRIPT: &str = include_str!("reproduce.py");

/// Checks that the folder can be made, and is empty.
pub fn check(out: &Path) -> Result<()> {
    let named = || format!("--out {}", out.display());
    std::fs::create_dir_all(out).with_context(named)?;
    if std::fs::read_dir(out).with_context(named)?.next().is_some() {
        bail!("--out {}: the folder has files; give one that is empty or not there yet", out.display());
    }
    Ok(())
}

pub fn write(out: &Path, input: &str, report: &Report, case: &Case) -> Result<()> {
    let text = |module: &HloModuleProto, (replicas, partitions): (usize, usize)| {
        let config = HloModuleConfigProto {
            replica_count: replicas as i64,
            num_partitions: partitions as i64,
            ..HloModuleConfigProto::default()
        };
        let module = HloModuleProtoWithConfig { hlo_module: Some(module.clone()), config: Some(config) };
        print_with_config(
            &module,
            &TextOptions { backend_config: true, ..TextOptions::parseable().with_metadata(false) },
        )
    };
    whole(&out.join("module.hlo.txt"), text(&case.module, case.devices).as_bytes())?;
    if let Some((reference, devices)) = &case.reference {
        whole(&out.join("reference.hlo.txt"), text(reference, *devices).as_bytes())?;
    }
    whole(&out.join("inputs.safetensors"), &write_safetensors(&case.inputs))?;
    whole(&out.join("reproduce.py"), script(case).as_bytes())?;
    // The summary is written last: where it is, the other files are.
    whole(&out.join("summary.md"), summary(input, report, case).as_bytes())
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

/// Returns the script with the case written into it.
fn script(case: &Case) -> String {
    let options = |options: &std::collections::BTreeMap<String, DebugValue>| -> Value {
        let value = |value: &DebugValue| match value {
            DebugValue::Text(text) => json!(text),
            DebugValue::Bool(value) => json!(value),
            DebugValue::Int(value) => json!(value),
            DebugValue::Float(value) => json!(value),
        };
        Value::Object(options.iter().map(|(name, it)| (name.clone(), value(it))).collect::<Map<_, _>>())
    };
    let devices = |(replicas, partitions): (usize, usize)| json!([replicas, partitions]);
    let reference = match &case.reference {
        Some((_, count)) => {
            json!({ "module": "reference.hlo.txt", "devices": devices(*count), "options": options(&case.reference_options) })
        }
        None => {
            json!({ "module": "module.hlo.txt", "devices": devices(case.devices), "options": options(&case.reference_options) })
        }
    };
    let settings = json!({
        "symptom": case.symptom.kind().name(),
        "seconds": case.time_limit.as_secs_f64(),
        "tolerance": case.tolerance,
        "memory_limit": match case.symptom {
            meshloom_train::bisect::Symptom::Memory { limit, .. } => json!(limit),
            _ => Value::Null,
        },
        "said": case.symptom.check(),
        "shardy": case.shardy,
        "suspect": { "module": "module.hlo.txt", "devices": devices(case.devices), "options": options(&case.options) },
        "reference": reference,
    });
    let text = serde_json::to_string_pretty(&settings).unwrap_or_default();
    SCRIPT.replace("@PLUGIN@", &case.plugin).replace("@CASE@", &text)
}

fn summary(input: &str, report: &Report, case: &Case) -> String {
    let mut text = format!("# What makes {} go wrong\n\n", name_of(input));
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
    let options = case.options.iter().map(|(name, value)| {
        let value = match value {
            DebugValue::Text(text) => text.clone(),
            DebugValue::Bool(value) => value.to_string(),
            DebugValue::Int(value) => value.to_string(),
            DebugValue::Float(value) => value.to_string(),
        };
        format!(" --option '{name}={value}'")
    });
    let reference = if case.reference.is_some() { " --reference reference.hlo.txt" } else { "" };
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

/// Returns the file's name without its folders, which are those of one machine.
fn name_of(input: &str) -> &str {
    Path::new(input).file_name().and_then(|name| name.to_str()).unwrap_or(input)
}
