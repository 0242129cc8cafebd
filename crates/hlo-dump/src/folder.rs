//! XLA dump folders (`--xla_dump_to`): finds the file that the user means.
//!
//! Names are `module_NUMBER.NAME.STAGE.txt`, where the stage is `before_optimizations`, `cpu_after_optimizations`
//! (`gpu_`, `tpu_` likewise, or a platform with a number), or a pass: `0012.PIPELINE.after_PASS.before_PASS`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use meshloom_hlo::Stage;
use meshloom_hlo::suggest::did_you_mean;

use crate::arguments::Reading;
use crate::source;

pub struct Chosen {
    pub file: PathBuf,
    /// The same module as a proto, if the folder has it.
    pub proto: Option<PathBuf>,
    /// The module before XLA did anything, which still states the mesh.
    pub unoptimized: Option<PathBuf>,
    pub stage: Option<Stage>,
}

#[derive(Clone)]
struct Dump {
    path: PathBuf,
    /// The rest of the name after the module's, without the form.
    point: String,
    is_text: bool,
    bytes: u64,
}

pub fn choose(folder: &Path, reading: &Reading) -> Result<Chosen> {
    let modules = modules(folder)?;
    let (name, dumps) = match &reading.module {
        None => largest(&modules).with_context(|| {
            "it is a folder in which no file is named as XLA names its dumps (module_0001.NAME.before_optimizations.txt); \
             make one with XLA_FLAGS=--xla_dump_to=FOLDER, or name a file"
        })?,
        Some(wanted) => named(&modules, wanted)?,
    };
    if reading.module.is_none() && modules.len() > 1 {
        crate::output::note(&format!(
            "of {} modules this is the largest, {}; --module chooses another",
            modules.len(),
            source::shown(name)
        ));
    }
    if let Some(stage @ (Stage::Transformed | Stage::Differentiated)) = reading.stage {
        bail!("--stage {stage}: XLA has no such stage, only a run config; its dumps begin with traced");
    }
    let of_pass = |text: &str| dumps.iter().filter(|dump| dump.point.contains(text)).cloned().collect::<Vec<_>>();
    let (found, stage) = match (&reading.pass, reading.stage) {
        (Some(pass), _) => (of_pass(pass), None),
        (None, Some(stage)) => (at_stage(dumps, stage), Some(stage)),
        (None, None) => {
            let compiled = at_stage(dumps, Stage::Compiled);
            // A compiler that died left only the files that it wrote before.
            if compiled.is_empty() { (dumps.clone(), None) } else { (compiled, Some(Stage::Compiled)) }
        }
    };
    let Some(last) = found.iter().max_by(|a, b| (&a.point, a.is_text).cmp(&(&b.point, b.is_text))) else {
        let mut points: Vec<_> = dumps.iter().map(|dump| dump.point.as_str()).collect();
        points.dedup();
        let dump = "XLA writes passes with --xla_dump_hlo_pass_re=.*";
        let (asked, near) = match (&reading.pass, reading.stage) {
            (Some(pass), _) => {
                let words = points.iter().flat_map(|point| point.split('.'));
                (format!("--pass {pass}: "), did_you_mean(pass, words.flat_map(|word| [word, plain_pass(word)])))
            }
            (None, Some(stage)) => (format!("--stage {stage}: "), String::new()),
            (None, None) => (String::new(), String::new()),
        };
        bail!("{asked}{name} has no such dump{near}; there are: {} ({dump})", points.join(", "));
    };
    if let Some(pass) = &reading.pass {
        let mut points: Vec<&str> = found.iter().map(|dump| dump.point.as_str()).collect();
        points.sort_unstable();
        points.dedup();
        if points.len() > 1 {
            let count = points.len();
            let last = source::shown(&last.point);
            crate::output::note(&format!("--pass {pass}: of {count} files this is the last, {last}"));
        }
    }
    let first = at_stage(dumps, Stage::Traced).into_iter().next().filter(|first| first.point != last.point);
    let proto = dumps.iter().find(|dump| dump.point == last.point && !dump.is_text && last.is_text);
    Ok(Chosen {
        file: last.path.clone(),
        proto: proto.map(|dump| dump.path.clone()),
        unoptimized: first.map(|dump| dump.path),
        stage,
    })
}

/// Returns the pass of `after_PASS` or `before_PASS`.
fn plain_pass(word: &str) -> &str {
    word.trim_start_matches("after_").trim_start_matches("before_")
}

fn modules(folder: &Path) -> Result<BTreeMap<String, Vec<Dump>>> {
    let mut modules: BTreeMap<String, Vec<Dump>> = BTreeMap::new();
    for entry in std::fs::read_dir(source::admitted(folder)?).context("cannot list it")? {
        let entry = entry.context("cannot list it")?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((module, point, is_text)) = parts(&name) else { continue };
        let bytes = entry.metadata().map_or(0, |metadata| metadata.len());
        modules.entry(module).or_default().push(Dump { path: folder.join(entry.file_name()), point, is_text, bytes });
    }
    for dumps in modules.values_mut() {
        dumps.sort_by(|a, b| (&a.point, &a.path).cmp(&(&b.point, &b.path)));
    }
    Ok(modules)
}

/// Splits a dump's file name into module, point and form; `None` for other files, and for files that XLA writes beside
/// its modules.
pub fn parts(name: &str) -> Option<(String, String, bool)> {
    let plain = name.strip_suffix(".gz").unwrap_or(name);
    let (stem, is_text) = match plain.strip_suffix(".txt").or_else(|| plain.strip_suffix(".hlo")) {
        Some(stem) => (stem, true),
        None => (plain.strip_suffix(".hlo.pb").or_else(|| plain.strip_suffix(".pb"))?, false),
    };
    let beside = [
        "buffer-assignment",
        "memory-usage-report",
        "live-range",
        "thunk",
        "debug_options",
        "execution_options",
        "compile_options",
        "config",
        "autotune",
        "flags",
        "target_config",
        "target_arguments",
        "comp_env",
    ];
    if !stem.starts_with("module_") || beside.iter().any(|word| stem.contains(word)) {
        return None;
    }
    // The module's name may contain dots: the point begins at a word that XLA writes.
    let words: Vec<&str> = stem.split('.').collect();
    let starts = |word: &str| {
        word.ends_with("before_optimizations")
            || word.ends_with("after_optimizations")
            || (word.len() == 4 && word.bytes().all(|byte| byte.is_ascii_digit()))
            || word.starts_with("after_")
            || word.starts_with("before_")
            // The files that a compiler for TPUs leaves of a program that is too large.
            || word == "oom_intermediate_module"
    };
    let at = words.iter().skip(1).position(|word| starts(word)).map_or(words.len(), |at| at + 1);
    // A GPU's generation stands before the stage: `sm_9.0_gpu_after_optimizations`.
    let at = if words[at - 1].starts_with("sm_") { at - 1 } else { at };
    let point = words[at..].join(".");
    Some((words[..at].join("."), if point.is_empty() { "module".to_owned() } else { point }, is_text))
}

fn largest(modules: &BTreeMap<String, Vec<Dump>>) -> Option<(&String, &Vec<Dump>)> {
    modules.iter().max_by_key(|(_, dumps)| dumps.iter().map(|dump| dump.bytes).max())
}

/// Finds the module that a user means.
///
/// # Errors
/// No module or several modules have that name.
pub fn named<'a, D>(modules: &'a BTreeMap<String, D>, wanted: &str) -> Result<(&'a String, &'a D)> {
    let is_number = |name: &str| {
        let number = name.strip_prefix("module_").and_then(|rest| rest.split('.').next()).unwrap_or_default();
        wanted.parse::<u64>().is_ok_and(|wanted| number.parse() == Ok(wanted))
    };
    let mut found: Vec<_> = modules.iter().filter(|(name, _)| is_number(name)).collect();
    if found.is_empty() {
        found = modules.iter().filter(|(name, _)| name.contains(wanted)).collect();
    }
    match found.as_slice() {
        [] => {
            let names: Vec<_> = modules.keys().map(String::as_str).collect();
            let near = did_you_mean(wanted, names.iter().flat_map(|name| [*name].into_iter().chain(name.split('.'))));
            bail!("--module {wanted}: no module is called so{near}; there are {}", names.join(", "))
        }
        [one] => Ok(*one),
        // `jit_f` is the module `jit_f`, even if there is a `jit_f_backward` too.
        several => match several.iter().find(|(name, _)| name.split('.').nth(1) == Some(wanted)) {
            Some(exact) => Ok(*exact),
            None => {
                let names: Vec<_> = several.iter().map(|(name, _)| name.as_str()).collect();
                bail!("--module {wanted} is part of the names of several modules: {}", names.join(", "))
            }
        },
    }
}

/// Returns the dumps at a stage: one, or one in each form.
fn at_stage(dumps: &[Dump], stage: Stage) -> Vec<Dump> {
    let of = |word: &&str| {
        let mut found: Vec<Dump> = dumps.iter().filter(|dump| dump.point.contains(*word)).cloned().collect();
        // `after_optimizations_before_buffer_assignment` is not yet what runs.
        if found.iter().any(|dump| dump.point.ends_with(*word)) {
            found.retain(|dump| dump.point.ends_with(*word));
        }
        (!found.is_empty()).then_some(found)
    };
    stage.words_of_dumps().iter().find_map(of).unwrap_or_default()
}
