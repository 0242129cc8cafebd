//! Run configs and their programs, as the commands ask for them.

use std::path::Path;

use anyhow::{Context, Result, bail};
use maud::Markup;
use meshloom::compile::Lowered;
use meshloom::ir::GraphTextOptions;
use meshloom::kernels::KernelUse;
use meshloom::sharding::{self, ExplainedStep};
use meshloom::transform::diloco::Fragment;
use meshloom::transform::pipeline::Timeline;
use meshloom_hlo::PlatformKind;
use meshloom_hlo::Stage;
use meshloom_hlo::mesh::Mesh;
use meshloom_hlo::proto::HloModuleProtoWithConfig;
use meshloom_train::config::RunConfig;
use serde_json::json;

use super::{ahead, timeline};
use crate::output::{self, BOLD, DIM, WARN, error_line, paint};
use crate::run::{ConfigRun, Row, Said, Syncs};
use crate::source;

struct Lowering {
    config: RunConfig,
    /// The mesh of the config; `None` for one device.
    mesh: Option<Mesh>,
    lowered: Lowered,
}

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

pub fn read(
    text: &str,
    name: &str,
    stage: Stage,
    set: &[String],
) -> Result<(Box<dyn ConfigRun>, HloModuleProtoWithConfig)> {
    let config = RunConfig::from_toml_with(text, name, set)?.on_stated_devices()?;
    let (lowered, module) = match stage {
        Stage::Compiled => ahead::of_config(&config)?,
        _ => {
            let lowered = config.resolve()?.at_stage(stage)?;
            let module = lowered.module.decode()?;
            (lowered, HloModuleProtoWithConfig { hlo_module: Some(module), config: None })
        }
    };
    for warning in config.warnings().into_iter().chain(lowered.warnings()) {
        error_line(&format!("{} {warning}", paint(WARN, "warning:")));
    }
    let mesh = Some(config.mesh()?).filter(|mesh| mesh.device_count() > 1);
    Ok((Box::new(Lowering { config, mesh, lowered }), module))
}

impl ConfigRun for Lowering {
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

    fn syncs(&self) -> Result<Option<Syncs>> {
        let Some(options) = self.config.diloco_options() else { return Ok(None) };
        let schedule = options.schedule()?;
        let name_of = |fragment| match fragment {
            Fragment::Whole => "all".to_owned(),
            Fragment::Part(number) => format!("fragment {number}"),
        };
        Ok(Some(Syncs {
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

    fn explain(&self, tensor: &str, most: usize) -> Result<Said> {
        if self.lowered.mesh().is_none() {
            bail!(
                "the config's mesh is one device: nothing is sharded; --set mesh.axes=data=2,fsdp=4 makes it several"
            );
        }
        let mut found = self.lowered.explain(tensor, usize::MAX)?;
        // A layer that is written out several times gives the same explanation several times.
        found.dedup();
        if found.len() > most {
            output::note(&format!("{} tensors are called \"{tensor}\"; these are the first {most}", found.len()));
            found.truncate(most);
        }
        let step = |(depth, step): (usize, &ExplainedStep)| {
            let ExplainedStep { name, ty, spec, because, source } = step;
            let indent = "  ".repeat(depth);
            let source = source.as_ref().map(|source| paint(DIM, &format!("  {source}"))).unwrap_or_default();
            [format!("{indent}{}  {ty}  {spec}{source}", paint(BOLD, name)), format!("{indent}  {because}")]
        };
        let lines = found.iter().flat_map(|explanation| {
            let steps = explanation.steps.iter().enumerate().flat_map(step);
            std::iter::once(String::new()).chain(steps).collect::<Vec<_>>()
        });
        Ok(Said { lines: lines.collect(), json: serde_json::to_value(&found)? })
    }

    fn graph_text(&self) -> String {
        self.lowered.emitted().to_text(GraphTextOptions { origins: true, ..GraphTextOptions::default() })
    }

    fn kernels(&self) -> Result<Said> {
        let operands =
            |used: &KernelUse| used.operands.iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let line = |used: &KernelUse| {
            let KernelUse { op, implementation, how, count, .. } = used;
            let how = if how.is_empty() { String::new() } else { format!(": {how}") };
            format!("{op} ({count}): {implementation}{how}; operands of a device: {}", operands(used))
        };
        let row = |used: &KernelUse| {
            let KernelUse { op, implementation, how, count, .. } = used;
            let operands = operands(used);
            json!({ "op": op, "operands": operands, "implementation": implementation, "how": how, "count": count })
        };
        let used = &self.lowered.kernels;
        Ok(Said { json: used.iter().map(row).collect(), lines: used.iter().map(line).collect() })
    }

    fn gathered_for_ops(&self) -> Vec<String> {
        let partitioned = self.lowered.partitioned().into_iter();
        partitioned.flat_map(|it| &it.fallbacks).map(ToString::to_string).collect()
    }

    fn shardings(&self) -> Option<Vec<Row>> {
        let table = &self.lowered.sharded()?.table;
        let row = |row: &sharding::ShardingRow| Row {
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
