//! Run configs and their programs, as the commands ask for them.

use std::path::Path;

use anyhow::{Context, Result, bail};
use maud::Markup;
use meshloom::compile::Lowered;
use meshloom::ir::GraphTextOptions;
use meshloom::kernels::KernelUse;
use meshloom::sharding;
use meshloom::transform::diloco::Fragment;
use meshloom::transform::pipeline::Timeline;
use meshloom_hlo::PlatformKind;
use meshloom_hlo::Stage;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProtoWithConfig;
use meshloom_train::config::RunConfig;

use super::{ahead, timeline};
use crate::output::{WARN, error_line, paint};
use crate::run::{Diloco, Explanation, KernelRow, Run, ShardingRow};
use crate::source;

/// A run config, and its program.
struct Lowering {
    config: RunConfig,
    /// The mesh of the config; `None` for one device.
    mesh: Option<Mesh>,
    lowered: Lowered,
}

/// Whether text that is not HLO is a run config.
pub fn is_config(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok()
}

/// Returns the text of a config file, or of the standard input, and the name that messages give it.
pub fn text(path: &Path) -> Result<(String, String)> {
    let name = source::name(path);
    let bytes = source::read_all(path).with_context(|| format!("cannot read the config {name}"))?;
    let text =
        String::from_utf8(bytes).ok().with_context(|| format!("{name}: a config is UTF-8 text, and this is not"))?;
    Ok((text, name))
}

/// Returns the config of a file, or of the standard input, with overrides.
pub fn load(path: &Path, set: &[String]) -> Result<RunConfig> {
    let (text, name) = text(path)?;
    Ok(RunConfig::from_toml_with(&text, &name, set)?)
}

/// Returns the config on the devices that it states, or those of its topology.
pub fn on_topology(config: RunConfig) -> Result<RunConfig> {
    Ok(config.on_stated_devices()?)
}

/// Returns the config of a text with overrides, and its program at a stage.
pub fn read(text: &str, name: &str, stage: Stage, set: &[String]) -> Result<(Box<dyn Run>, HloModuleProtoWithConfig)> {
    let config = on_topology(RunConfig::from_toml_with(text, name, set)?)?;
    let lowered = config.resolve()?.at_stage(stage)?;
    for warning in config.warnings().into_iter().chain(lowered.warnings()) {
        error_line(&format!("{} {warning}", paint(WARN, "warning:")));
    }
    let module = match stage {
        Stage::Compiled => ahead::of_config(&config)?,
        _ => HloModuleProtoWithConfig { hlo_module: Some(lowered.module.decode()?), config: None },
    };
    let mesh = Some(config.mesh()?).filter(|mesh| mesh.device_count() > 1);
    Ok((Box::new(Lowering { config, mesh, lowered }), module))
}

impl Run for Lowering {
    fn config(&self) -> &RunConfig {
        &self.config
    }

    fn backend(&self) -> Option<PlatformKind> {
        // The devices settle `auto`, and this command does not look for them.
        self.config.platform_kind().ok()
    }

    fn mesh(&self) -> Option<&Mesh> {
        self.lowered.emitted_mesh().or(self.mesh.as_ref())
    }

    fn steps_per_call(&self) -> u64 {
        self.config.train.steps_per_call as u64
    }

    fn diloco(&self) -> Result<Option<Diloco>> {
        let Some(options) = self.config.diloco_options() else { return Ok(None) };
        let schedule = options.schedule()?;
        let name_of = |fragment| match fragment {
            Fragment::Whole => "all".to_owned(),
            Fragment::Part(number) => format!("fragment {number}"),
        };
        Ok(Some(Diloco {
            period: schedule.period(),
            steps_between_syncs: schedule.every(),
            fragments: schedule.fragment_count(),
            overlap_steps: schedule.overlap(),
            transport: options.transport.name(),
            after_step: Box::new(move |step| {
                let event = schedule.after_step(step);
                (event.sent.map(name_of), event.applied.map(name_of))
            }),
        }))
    }

    fn explain(&self, tensor: &str) -> Result<Vec<Explanation>> {
        if self.lowered.mesh().is_none() {
            bail!(
                "the config's mesh is one device: nothing is sharded; --set mesh.axes=data=2,fsdp=4 makes it several"
            );
        }
        Ok(self.lowered.explain(tensor, usize::MAX)?)
    }

    fn graph_text(&self) -> String {
        self.lowered.emitted().to_text(GraphTextOptions { origins: true, ..GraphTextOptions::default() })
    }

    fn kernels(&self) -> Vec<KernelRow> {
        let row = |used: &KernelUse| KernelRow {
            op: used.op.clone(),
            operands: used.operands.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(" "),
            implementation: used.implementation.clone(),
            how: used.how.clone(),
            count: used.count,
        };
        self.lowered.kernels.iter().map(row).collect()
    }

    fn gathered_for_ops(&self) -> Vec<String> {
        let partitioned = self.lowered.partitioned().into_iter();
        partitioned.flat_map(|it| &it.fallbacks).map(ToString::to_string).collect()
    }

    fn shardings(&self) -> Option<Vec<ShardingRow>> {
        let table = &self.lowered.sharded()?.table;
        let row = |row: &sharding::ShardingRow| ShardingRow {
            value: row.name(),
            shape: row.ty.to_string(),
            sharding: row.spec.display(&table.mesh).to_string(),
            device_bytes: Some(table.bytes_per_device(row) as u64),
            whole_bytes: Some(row.ty.byte_count() as u64),
            origin: [table.origin(row), row.source()]
                .into_iter()
                .filter(|it| !it.is_empty())
                .collect::<Vec<_>>()
                .join(", "),
        };
        Some(table.rows.iter().map(row).collect())
    }

    fn pipeline_section(&self) -> Result<Option<Markup>> {
        Ok(self.config.pipeline_options()?.map(|options| timeline::render(&Timeline::of(&options))))
    }
}
