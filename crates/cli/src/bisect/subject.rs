//! The subject of a search: a run config, a module, or two modules; and the programs that a setting makes of it.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use meshloom::analysis::Devices;
use meshloom::compile::{LOCAL_PASSES, Lowered, PASSES, Pass};
use meshloom::emit::ProgramForm;
use meshloom::hlo::mesh::Mesh;
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::{DType, Literal, PlatformKind};
use meshloom::pjrt::Platform;
use meshloom::trace::Tree;

use super::program::{Port, Program};
use meshloom_train::config::RunConfig;
use meshloom_train::run::Calls;

#[derive(Clone, Debug)]
pub enum Subject {
    /// A run config: its train step on its mesh, against the same step on one device without any pass of meshloom's.
    Config {
        text: String,
        /// The name of the file in messages.
        name: String,
        /// Overrides, each `section.key=value`.
        set: Vec<String>,
    },
    /// A module for so many replicas and partitions, against itself with XLA's optimizations off.
    Module(Box<HloModuleProto>, Devices),
    /// Two modules that should give equal results. The first is the one at fault.
    Pair(Box<(HloModuleProto, HloModuleProto)>, Devices),
}

/// One of the forms that a run config can be in.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ConfigForm {
    /// Overrides behind the user's.
    pub(super) set: BTreeMap<String, String>,
    /// Passes of meshloom's that are left out.
    pub(super) without: Vec<&'static str>,
}

impl ConfigForm {
    pub(super) fn with(&self, key: &str, value: impl ToString) -> ConfigForm {
        let mut form = self.clone();
        form.set.insert(key.to_owned(), value.to_string());
        form
    }

    pub(super) fn without(&self, passes: &[&'static str]) -> ConfigForm {
        let mut form = self.clone();
        form.without.extend(passes.iter().filter(|pass| !self.without.contains(pass)));
        form
    }

    /// The overrides as they are given on the command line.
    pub(super) fn overrides(&self) -> Vec<String> {
        self.set.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }
}

/// Names of passes, each once.
pub(super) fn pass_names(further: &[Pass]) -> Vec<&'static str> {
    let mut names: Vec<&'static str> = Vec::new();
    for pass in PASSES.iter().chain(LOCAL_PASSES).chain(further) {
        if !names.contains(&pass.name) {
            names.push(pass.name);
        }
    }
    names
}

impl Subject {
    /// Returns the run config in a form; `None` for a module.
    pub(super) fn config(&self, form: &ConfigForm) -> Result<Option<RunConfig>> {
        let Subject::Config { text, name, set } = self else { return Ok(None) };
        let set = [set.clone(), form.overrides()].concat();
        let config = RunConfig::from_toml_with(text, name, &set)?;
        let config = config.on_stated_devices()?;
        if config.platform_kind()? != PlatformKind::Cpu || !config.target.topology.is_empty() {
            bail!(
                "programs are tried on virtual devices of the CPU; add --set target.platform=cpu --set \
                 'target.topology=\"\"'"
            );
        }
        Ok(Some(config))
    }

    /// The program that may be at fault.
    pub(super) fn suspect(&self, form: &ConfigForm, further: &[Pass]) -> Result<Program> {
        match self {
            Subject::Config { .. } => self.lowered(form, further),
            Subject::Module(module, devices) => Ok(of_module(module, devices)),
            Subject::Pair(pair, devices) => Ok(of_module(&pair.0, devices)),
        }
    }

    /// Returns another program that should give the same results; `None` if it is the same one with other settings.
    pub(super) fn reference(&self, form: &ConfigForm) -> Result<Option<Program>> {
        match self {
            Subject::Config { .. } => {
                let mut form = form.without(&pass_names(&[]));
                if let Some(mesh) = self.config(&form)?.map(|config| config.mesh()).transpose()? {
                    form = form.with("mesh.axes", axes_text(&mesh, |_| 1)).with("target.devices", 1);
                    form = form.with("partition.mode", "explicit");
                }
                let program = self.lowered(&form, &[])?;
                Ok(Some(program))
            }
            Subject::Module(..) => Ok(None),
            Subject::Pair(pair, devices) => Ok(Some(of_module(&pair.1, devices))),
        }
    }

    fn lowered(&self, form: &ConfigForm, further: &[Pass]) -> Result<Program> {
        let Some(config) = self.config(form)? else { bail!("only a run config is lowered") };
        let platform = Platform::of_any_plugin(PlatformKind::Cpu);
        let known = pass_names(further);
        let without: Vec<&str> = form.without.iter().copied().filter(|name| known.contains(name)).collect();
        let (_, lowered) = config.resolve()?.lower_through(Calls::Single, &platform, &without, further)?;
        of_lowered(&lowered)
    }

    /// Returns the values of a config's train step: its state before the first step, and a batch. Values that are
    /// missing are drawn.
    pub(super) fn values(&self, form: &ConfigForm, ports: &[Port], seed: u64) -> Result<BTreeMap<String, Literal>> {
        let Some(config) = self.config(form)? else { return Ok(BTreeMap::new()) };
        let mut values = BTreeMap::new();
        if config.diloco.is_none() {
            let state = config.train_step()?.initialize(seed)?;
            values.extend(ports.iter().map(|port| port.name.clone()).zip(state.leaves()));
        }
        for port in ports {
            if let Some(value) = of_batch(port, config.model.vocab) {
                values.insert(port.name.clone(), value);
            }
        }
        Ok(values)
    }
}

/// A batch of one document in each row. Its tokens go through the vocabulary.
fn of_batch(port: &Port, vocab: usize) -> Option<Literal> {
    let name = port.name.split(['.', '\'']).rfind(|part| part.chars().any(char::is_alphabetic)).unwrap_or(&port.name);
    let length = port.ty.dims.last().copied().unwrap_or(1).max(1);
    let is_integer = !port.ty.dtype.is_float() && port.ty.dtype != DType::Pred;
    let number: fn(usize, usize, usize) -> f64 = match name {
        "tokens" if is_integer => |index, _, vocab| (index * 37 % vocab.max(1)) as f64,
        "targets" if is_integer => |index, _, vocab| ((index + 1) * 37 % vocab.max(1)) as f64,
        "positions" if is_integer => |index, length, _| (index % length) as f64,
        "segment_ids" if is_integer => |_, _, _| 1.0,
        "weights" if port.ty.dtype.is_float() && port.ty.dims.len() >= 2 => |_, _, _| 1.0,
        _ => return None,
    };
    Some(Literal::from_fn(port.ty.clone(), |index| number(index, length, vocab)))
}

fn of_module(module: &HloModuleProto, devices: &Devices) -> Program {
    let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
    Program::of_module(module.clone(), (count(devices.replicas), count(devices.partitions)))
}

fn of_lowered(lowered: &Lowered) -> Result<Program> {
    if lowered.module.takes_place || lowered.form == ProgramForm::Local {
        bail!("a program in the shapes of one device cannot be tried; leave --set kernels.experts out");
    }
    let module = lowered.module.decode()?;
    let partitions = lowered.mesh().map_or(1, Mesh::device_count);
    let ports = lowered.port_specs()?;
    Ok(Program {
        shardy: lowered.needs_shardy(),
        ports: Some(ports),
        joins_outputs: true,
        ..Program::of_module(module, (1, partitions))
    })
}

pub(super) fn axes_text(mesh: &Mesh, size: impl Fn(&str) -> usize) -> String {
    mesh.axis_names().map(|name| format!("{name}={}", size(name))).collect::<Vec<_>>().join(",")
}
