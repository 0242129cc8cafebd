//! `meshloom doctor`: the plugins and libraries that are here to compile with.

use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;
use meshloom::hlo::suggest::did_you_mean;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom::pjrt::{
    CudaDevice, CudaDriver, FindOptions, FoundLibrary, Plugin, Topology, WHEELS, Wheel, libraries_of, plugin_variable,
};
use serde::{Serialize, Serializer};
use serde_json::json;

use hlo_dump::configs::ahead::{download, settings};
use hlo_dump::output::{self, BAD, BOLD, GOOD, line, paint, plural};

#[derive(Args)]
pub struct Doctor {
    /// Fetches missing plugins for these platforms: cpu, tpu, cuda
    #[arg(long, value_name = "PLATFORM")]
    pub fetch: Vec<String>,
}

/// The platforms, what each compiles for, and a small topology to try it with.
const PLATFORMS: [(&str, &str, &str); 3] = [
    ("cpu", "compiles and runs: cpu:8", "cpu:2"),
    ("tpu", "compiles ahead of time: v4, v5e, v5p, v6e, tpu7x, several slices; runs where there are TPUs", "v5e:2x2"),
    ("cuda", "compiles ahead of time: a100, h100, h200, b200; runs where there is a driver", "h100:1x1x2"),
];

#[derive(Serialize)]
struct Answer {
    version: &'static str,
    plugins: Vec<DoctorReport>,
    offline: bool,
}

#[derive(Serialize)]
struct DoctorReport {
    platform: &'static str,
    can: &'static str,
    path: Option<String>,
    api_version: Option<String>,
    /// The plugin's answer for a small topology: the number of devices, and their kind.
    works: Option<String>,
    problem: Option<String>,
    fix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nvidia: Option<Nvidia>,
}

/// The parts that NVIDIA has installed here.
#[derive(Serialize)]
struct Nvidia {
    driver: Option<CudaDriver>,
    /// The reason why there is no driver, or none that works.
    driver_problem: Option<String>,
    /// The libraries that the plugin opens, if there is a plugin.
    #[serde(serialize_with = "as_rows")]
    libraries: Vec<FoundLibrary>,
}

fn as_rows<S: Serializer>(libraries: &[FoundLibrary], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(libraries.iter().map(|it| {
        let (path, problem) = (it.path(), it.problem());
        json!({ "name": it.name, "soname": it.soname, "package": it.package, "path": path, "problem": problem })
    }))
}

impl Nvidia {
    fn of(plugin: Option<&Path>) -> Nvidia {
        let (driver, driver_problem) = match CudaDriver::read() {
            Ok(driver) => (Some(driver), None),
            Err(reason) => (None, Some(reason)),
        };
        let libraries = plugin.map(libraries_of).unwrap_or_default();
        Nvidia { driver, driver_problem, libraries }
    }

    fn lines(&self) -> Vec<String> {
        let Nvidia { driver, driver_problem, libraries } = self;
        let mut lines: Vec<String> = driver_problem.iter().cloned().collect();
        if let Some(CudaDriver { version, cuda_version: (major, minor), devices }) = driver {
            let version = version.as_deref().unwrap_or("of an unknown version");
            lines.push(format!("driver {version}, which runs CUDA {major}.{minor}"));
            let memory = |device: &CudaDevice| output::human_bytes(device.memory_bytes);
            let device =
                |(number, device): (usize, &CudaDevice)| format!("GPU {number}: {}, {}", device.name, memory(device));
            lines.extend(devices.iter().enumerate().map(device));
        }
        let (found, missing): (Vec<_>, Vec<_>) = libraries.iter().partition(|library| library.path().is_some());
        if !found.is_empty() {
            lines.push(format!("libraries: {}", found.iter().map(|it| it.name).collect::<Vec<_>>().join(", ")));
        }
        lines.extend(missing.iter().map(|it| format!("missing: {} of {}", it.soname, it.package)));
        if !missing.is_empty() {
            lines.push("what is missing of CUDA 12 is downloaded when a program first runs on GPUs".to_owned());
        }
        lines
    }
}

pub fn run(arguments: &Doctor, json: bool) -> Result<()> {
    for platform in &arguments.fetch {
        if !PLATFORMS.iter().any(|(name, ..)| name == platform) {
            let near = did_you_mean(platform, PLATFORMS.map(|(name, ..)| name));
            bail!("--fetch {platform}: unknown platform{near}; known are cpu, tpu and cuda");
        }
        if let Some(wheel) = Wheel::of_platform(platform).next() {
            output::note(&download(wheel));
        }
        Plugin::locate(platform, &FindOptions::default())?;
    }
    let plugins: Vec<DoctorReport> = PLATFORMS.iter().map(|platform| examine(*platform)).collect();
    let offline = std::env::var("MESHLOOM_OFFLINE").is_ok_and(|value| value == "1");
    if json {
        return output::json("meshloom/doctor", &Answer { version: env!("CARGO_PKG_VERSION"), plugins, offline });
    }
    line(&paint(BOLD, &format!("meshloom {}", env!("CARGO_PKG_VERSION"))));
    line("`hlo-dump`, `plan` and `config` work without a plugin, but for what is compiled");
    for report in &plugins {
        line("");
        print(report);
    }
    if offline {
        line("");
        line("MESHLOOM_OFFLINE=1: nothing is downloaded");
    }
    let known: Vec<_> =
        WHEELS.iter().map(|wheel| format!("{} ({})", wheel.package.requirement(), wheel.platform)).collect();
    line("");
    line(&format!("known wheels: {}", known.join(", ")));
    Ok(())
}

/// Looks for a plugin, without downloading one, and asks it for a topology in a child process, since it may crash.
fn examine((platform, can, topology): (&'static str, &'static str, &'static str)) -> DoctorReport {
    let find = FindOptions { allow_fetch: false, ..FindOptions::default() };
    let mut report = DoctorReport {
        platform,
        can,
        path: None,
        api_version: None,
        works: None,
        problem: None,
        fix: None,
        nvidia: None,
    };
    match Plugin::locate(platform, &find) {
        Ok(path) => {
            report.nvidia = (platform == "cuda").then(|| Nvidia::of(Some(&path)));
            report.path = Some(path.display().to_string());
        }
        Err(error) => {
            report.nvidia = (platform == "cuda").then(|| Nvidia::of(None));
            report.problem = Some(error.to_string());
            let size = Wheel::of_platform(platform).next().map(download).unwrap_or_default();
            report.fix = Some(format!("meshloom doctor --fetch {platform}    ({size})"));
            return report;
        }
    }
    let settings = Settings { find, time_limit: std::time::Duration::from_secs(120), ..settings() };
    let described = Topology::parse(topology).and_then(|topology| ahead_of_time::describe(&topology, &settings));
    match described {
        Ok(described) => {
            let (major, minor) = described.api_version;
            report.api_version = Some(format!("{major}.{minor}"));
            let kind = described.devices.first().map_or("", |device| device.kind.as_str());
            report.works =
                Some(format!("{topology} is {} of kind {kind}", plural(described.devices.len() as u64, "device")));
        }
        Err(error) => {
            report.problem = Some(error.to_string());
            let variable = plugin_variable(platform);
            report.fix = Some(format!("set {variable} to another plugin, or remove the file to fetch it again"));
        }
    }
    report
}

fn print(report: &DoctorReport) {
    let DoctorReport { platform, can, path, api_version, works, problem, fix, nvidia } = report;
    match path {
        Some(path) => {
            let state = if problem.is_none() { paint(GOOD, "found") } else { paint(BAD, "broken") };
            let version = api_version.as_ref().map(|version| format!(", PJRT API {version}")).unwrap_or_default();
            line(&format!("{platform:<5} {state}{version}: {path}"));
        }
        None => line(&format!("{platform:<5} {}", paint(BAD, "missing"))),
    }
    line(&format!("      {can}"));
    for text in [works, problem].into_iter().flatten() {
        line(&format!("      {}", text.replace('\n', "\n      ")));
    }
    for text in nvidia.iter().flat_map(Nvidia::lines) {
        line(&format!("      {text}"));
    }
    if let Some(fix) = fix {
        line(&format!("      to fix: {fix}"));
    }
}
