//! Platforms: what differs between them, on the CPU plugin in the place of others.
//!
//! `MESHLOOM_CUDA_PLUGIN` names a CPU plugin, so everything that a run does for GPUs is done, but for the GPUs.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use meshloom::hlo::PlatformKind;
use meshloom::pjrt::{CacheUse, FoundLibrary, Plugin, check_present, libraries_of, plugin_variable};
use meshloom_train::config::{Auto, RunConfig};
use meshloom_train::{Devices, Trainer};
use support::cases::{cases, every_case};
use support::configs::{self, SHORT_RUN, TINY, UNOPTIMIZED};
use support::counts::process;
use support::eight_devices::{client, relative_error};
use support::plugins::cpu_plugins;
use support::program::meshloom;

use super::interpreted::InterpretedRun;

/// A CPU plugin that refuses options that it does not know.
fn stand_in() -> Arc<Plugin> {
    cpu_plugins().into_iter().find(|plugin| plugin.api_version() >= (0, 115)).expect("a strict plugin")
}

/// The program with these arguments, and the CPU plugin in the place of the plugins of these variables.
fn run(arguments: &[&str], keys: &[&str], stand_ins: &[&str]) -> Output {
    let mut command = process(meshloom());
    for variable in ["MESHLOOM_CPU_PLUGIN", "MESHLOOM_CUDA_PLUGIN", "MESHLOOM_TPU_PLUGIN"] {
        command.env_remove(variable);
    }
    command.envs(stand_ins.iter().map(|variable| (variable, stand_in().path().to_owned())));
    let keys = keys.iter().flat_map(|key| ["--set", key]);
    command.args(arguments).args(keys).current_dir(support::path("")).output().expect("it runs")
}

/// Runs it, and returns what it says on its standard error.
fn says(arguments: &[&str], keys: &[&str], stand_ins: &[&str]) -> (bool, String) {
    let output = run(arguments, keys, stand_ins);
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

const CUDA: &[&str] = &["MESHLOOM_CUDA_PLUGIN"];

/// The losses of a metrics file.
fn losses(file: &Path) -> Vec<f64> {
    let text = std::fs::read_to_string(file).expect("metrics");
    let loss = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["loss"].as_f64();
    text.lines().map(|line| loss(line).expect("a loss")).collect()
}

/// A tiny model, and in the full tier the default one, on the devices that the plugin has by default: the numbers are
/// those of the interpreter, or of the CPU.
#[test]
fn the_main_job_runs_on_cudas_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let is_default = every_case("train the default model on another platform");
    let model = if is_default { &[] } else { TINY };
    let short = [model, &["train.batch=4", "train.warmup=1", "target.compile_cache=", UNOPTIMIZED]].concat();
    let file = folder.path().join("cuda");
    let arguments = ["train", "--steps", "2", "--sample", "0", "--metrics", file.to_str().expect("a path")];
    let (ok, text) = says(&arguments, &[&short[..], &["target.platform=cuda", "mesh.axes=data=-1"]].concat(), CUDA);
    assert!(ok, "{text}");
    assert!(text.contains("parameters on 4 devices of cuda (data=4); "), "{text}");
    assert!(!text.contains("warning"), "{text}");
    let cuda = losses(&file);
    let config = configs::config(&[&short, &["target.devices=4", "mesh.axes=data=4"]]);
    let cpu: Vec<f64> = if is_default {
        let mut trainer = Trainer::new(&config, &client()).expect("a trainer");
        (0..2).map(|_| trainer.step().expect("a step").loss).collect()
    } else {
        let mut run = InterpretedRun::new(&config);
        (0..2).map(|_| run.step()[0]).collect()
    };
    assert_eq!(cuda.len(), 2);
    // A tiny model does not learn in a step; what it has learned shows all the same.
    let learns = if is_default { cuda[1] < cuda[0] } else { relative_error(&cuda[1..], &cuda[..1]) > 1e-4 };
    assert!(relative_error(&cuda, &cpu) <= 1e-5 && learns, "{cuda:?} {cpu:?}");
}

/// `target.devices` is the CPU's: elsewhere the mesh takes the first devices that it needs, or all.
#[test]
fn a_smaller_mesh_takes_the_first_devices() {
    let train = |axes: &str| {
        let own = ["target.platform=cuda", "target.devices=3", "target.compile_cache=", UNOPTIMIZED, axes];
        says(&["train", "--steps", "1", "--sample", "0"], &[TINY, &own].concat(), CUDA)
    };
    let (ok, text) = train("mesh.axes=data=2");
    assert!(ok && text.contains("warning: the mesh takes the first 2 of 4 devices"), "{text}");
    assert!(text.contains("on 2 devices of cuda (data=2)"), "{text}");
    let (ok, text) = train("mesh.axes=data=8");
    assert!(!ok && text.contains("has 8 devices, but there are 4") && text.contains("(cuda has 4 devices;"), "{text}");
}

/// Each key goes to the plugin when it is set, and only then; the stand-in refuses what it is sent, by name.
#[test]
fn options_are_sent_when_set() {
    let keys = [
        ("target.memory_fraction=0.5", "memory_fraction"),
        ("target.preallocate=false", "preallocate"),
        ("target.visible_devices=\"0,1\"", "visible_devices"),
    ];
    let asked = cases("train options of a plugin", 1, keys);
    for (key, option) in keys {
        for platform in ["cpu", "tpu"] {
            let error = RunConfig::from_overrides(&[format!("target.platform={platform}"), key.to_owned()]);
            let error = error.expect_err(key).to_string();
            let expected = format!(": {platform} has no such option, only cuda");
            assert!(error.contains(&format!("target.{option} is ")) && error.ends_with(&expected), "{error}");
        }
        if !asked.contains(&(key, option)) {
            continue;
        }
        let (ok, text) = says(&["config", "--resolved"], &["target.platform=cuda", "mesh.axes=data=-1", key], CUDA);
        assert!(!ok && text.contains("PJRT_Client_Create failed") && text.contains(option), "{key}: {text}");
        // The plugin says what is wrong; the libraries that it is without are named besides.
        let missing = |it: &FoundLibrary| it.problem().is_some() && !text.contains(it.soname);
        assert!(!libraries_of(stand_in().path()).iter().any(missing), "{key}: {text}");
    }
    for (key, expected) in [
        ("target.memory_fraction=1.5", "it must be a number from 0 to 1"),
        ("target.visible_devices=all", "it must be integers with commas between them, as in \"0,1\", or one integer"),
        ("target.preallocate=maybe", "target.preallocate is \"maybe\" (a string), but must be \"auto\", true or false"),
    ] {
        let error = RunConfig::from_overrides(&["target.platform=cuda".to_owned(), key.to_owned()]);
        let error = error.expect_err(key).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// `auto` takes the first platform that has devices, and `meshloom config --resolved` says which.
///
/// A plugin whose file the user names is there, so it is found whatever hardware the machine has; but hardware that is
/// there and comes first is taken.
#[test]
fn auto_takes_the_first_platform_with_devices() {
    let present = [PlatformKind::Tpu, PlatformKind::Cuda].into_iter().find(|kind| check_present(*kind).is_ok());
    let config = configs::config(&[&["target.platform=auto"]]);
    if present.is_none() {
        let Devices { config, client, notes } = config.open().expect("the CPU is always there");
        assert_eq!((config.target.platform, client.devices().len()), (Auto::Chosen(PlatformKind::Cpu), 8));
        assert!(notes.is_empty(), "what is absent need not be said: {notes:?}");
    }
    let both = ["MESHLOOM_CUDA_PLUGIN", "MESHLOOM_TPU_PLUGIN"];
    for (stand_ins, expected) in cases("train platforms of auto", 1, [(&both[..], "tpu"), (CUDA, "cuda")]) {
        let keys = ["target.platform=auto", "mesh.axes=data=2,fsdp=-1"];
        let output = run(&["config", "--resolved", "--format", "toml"], &keys, stand_ins);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if present == Some(PlatformKind::Tpu) {
            assert!(text.contains("\nplatform = \"tpu\"\n"), "{text}");
            continue;
        }
        for line in [&format!("platform = \"{expected}\"")[..], "axes = \"data=2,fsdp=2\"", "compiler_preset = false"] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
        }
        // The printed config has the same meaning.
        let again = RunConfig::from_toml(&text, "resolved.toml").expect("it can be read again");
        assert_eq!(again.mesh.axes, "data=2,fsdp=2");
    }
}

/// Without the hardware there is one message, and nothing has been written. With it there are devices.
#[test]
fn absent_hardware_is_one_error() {
    for (kind, expected) in [
        (PlatformKind::Cuda, "there are no devices of the platform cuda: this machine has no NVIDIA driver: "),
        (PlatformKind::Tpu, "there are no devices of the platform tpu: this machine has no TPU among "),
    ] {
        if check_present(kind).is_ok() {
            let keys = [&format!("target.platform={kind}")[..], "mesh.axes=data=-1"];
            let (ok, text) = says(&["config", "--resolved"], &keys, &[]);
            assert!(ok, "{kind} is there: {text}");
            continue;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let arguments = ["train", "--metrics", &path("metrics"), "--checkpoint", &path("checkpoints")];
        let (ok, text) = says(&arguments, &[&format!("target.platform={kind}")], &[]);
        assert!(!ok && text.starts_with(&format!("error: {expected}")) && text.lines().count() == 1, "{text}");
        assert!(text.contains(&plugin_variable(kind.name())), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "something was written");
    }
}

/// Facts that only a plugin knows are not made up if no plugin is asked.
#[test]
fn a_program_that_is_only_looked_at_says_what_it_needs() {
    let stated = |keys: &[&str]| {
        configs::config(&[keys]).on_stated_devices().and_then(|config| {
            config.resolve()?.at_stage(meshloom_train::Stage::Partitioned)?;
            Ok(config)
        })
    };
    let config = stated(&["target.platform=cuda", "target.devices=3", "mesh.axes=data=2,fsdp=2"]).expect("a mesh");
    assert_eq!(config.target.devices, 4);
    let error = stated(&["target.platform=cuda", "mesh.axes=data=-1"]).expect_err("nobody counts the devices");
    let expected = "mesh.axes is \"data=-1\": -1 fills up the devices of cuda, which are not asked here";
    assert!(error.to_string().contains(expected), "{error}");
    let error = stated(&["target.platform=auto"]).expect_err("nobody looks for devices").to_string();
    assert!(error.starts_with("target.platform is \"auto\": which platform has devices shows when"), "{error}");
    let other = Trainer::new(&configs::config(&[SHORT_RUN, &["target.platform=cuda"]]), &client());
    let error = other.err().expect("the client is a CPU's").to_string();
    assert!(error.starts_with("target.platform is \"cuda\": the client is of cpu"), "{error}");
}

/// The second run of a program takes it from the cache, and computes the same.
#[test]
fn compiled_programs_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = format!("target.compile_cache={:?}", folder.path().display().to_string());
    let train = |keys: &[&str]| {
        let config = configs::config(&[TINY, &["model.layers=1", "train.batch=4", UNOPTIMIZED, &cache], keys]);
        let mut trainer = Trainer::new(&config, &client()).expect("a trainer");
        let losses: Vec<f64> = (0..3).map(|_| trainer.step().expect("a step").loss).collect();
        (trainer.compile_cache(), losses)
    };
    const ONE: &[&str] = &["target.devices=1", "mesh.axes=data=1"];
    let (found, losses) = train(ONE);
    assert_eq!(found, Some(CacheUse::Miss));
    assert_eq!(train(ONE), (Some(CacheUse::Hit), losses.clone()));
    // Other options; in the full tier also no cache, and several virtual devices.
    let others = [
        ([ONE, &["target.compiler_options=[]"]].concat(), Some(CacheUse::Miss)),
        ([ONE, &["target.compile_cache="]].concat(), None),
        (vec!["mesh.axes=data=2", "target.devices=2"], Some(CacheUse::Bypassed)),
        (vec!["mesh.axes=data=2", "target.devices=2"], Some(CacheUse::Bypassed)),
    ];
    for (keys, expected) in cases("train compile caches", 1, others) {
        let (found, others) = train(&keys);
        assert_eq!(found, expected, "{keys:?}");
        assert!(expected.is_some() || others == losses, "{others:?} {losses:?}");
    }
}
