//! The two partitioned programs, and the way to XLA's.

use std::path::Path;

use anyhow::{Result, bail};
use meshloom_analysis::{ModuleCollectives, ModuleMemory, Partitioning, Walk, WholeBy, sliced_wholes};
use meshloom_hlo::Stage;
use meshloom_hlo::proto::{HloInstructionProto, HloModuleProto};
use meshloom_hlo::text::{Layouts, print_shape};
use rustc_hash::FxHashMap;

use crate::arguments::{Advise, Reading};
use crate::input::{Loaded, load_path};
use crate::{collectives, memory, streams};

#[cfg(feature = "configs")]
pub use crate::ahead::Compiler;

#[cfg(not(feature = "configs"))]
pub use self::MissingCompiler as Compiler;

/// There is no compiler without run configs.
#[cfg(not(feature = "configs"))]
pub enum MissingCompiler {}

#[cfg(not(feature = "configs"))]
impl MissingCompiler {
    pub fn of(_: &str, _: &Loaded) -> Result<MissingCompiler> {
        Err(crate::run::missing("compiling ahead of time"))
    }

    pub fn compile(&self, _: &Loaded, _: &HloModuleProto) -> Result<HloModuleProto> {
        match *self {}
    }
}

/// A partitioned program, with what it moves and holds.
pub struct PartitionedSide {
    pub module: HloModuleProto,
    /// Its collectives, whose names are below those of the calls around them.
    pub found: ModuleCollectives,
    pub memory: ModuleMemory,
    /// The shapes of the whole values that collectives move, by their place and name.
    tensors: FxHashMap<(usize, String), String>,
}

/// XLA's program.
pub struct Other {
    /// The input, or the target that it is compiled for.
    pub name: String,
    /// How it is called in the title.
    pub title: String,
    pub side: PartitionedSide,
    /// The compiler that made it, if it was compiled here.
    pub compiler: Option<Compiler>,
}

impl PartitionedSide {
    /// Returns a module that one of the partitioners made of a program. Its memory is known if a file states it.
    pub fn of(module: HloModuleProto, stated: Option<ModuleMemory>, program: &Loaded) -> Result<PartitionedSide> {
        let mut found = collectives::of_module(&module, program);
        let walk = Walk::of(&module);
        let mut at: FxHashMap<(usize, &str), &mut String> =
            found.entries.iter_mut().map(|it| ((it.place, it.name.as_str()), &mut it.op_name)).collect();
        let mut tensors = FxHashMap::default();
        for step in walk.steps() {
            let Some(op_name) = at.get_mut(&(step.place_number, step.instruction.name.as_str())) else { continue };
            **op_name = walk.op_name(step.place_number, step.instruction);
            let tensor = tensor(&step.place.computation.instructions, step.instruction);
            tensors.insert((step.place_number, step.instruction.name.clone()), tensor);
        }
        let memory = match stated {
            Some(memory) => memory,
            None => meshloom_analysis::memory(&module)?,
        };
        Ok(PartitionedSide { module, found, memory, tensors })
    }

    /// Returns the bytes that a device sends if later passes make reduce-scatters of the sums that are sliced as one
    /// slices; `None` if it is not known.
    pub fn scattered_bytes(&self) -> Option<u64> {
        let sliced = sliced_wholes(&self.module, &self.found);
        let sums = sliced.iter().filter(|it| it.by == WholeBy::ScatteredSum);
        // A sum is a reduce-scatter and a gather, which send as much as each other.
        let saved = sums.filter_map(|it| it.moved_bytes.bound()).fold(0u64, u64::saturating_add) / 2;
        self.found.moved_bounds().most.map(|most| most.saturating_sub(saved))
    }

    /// Returns the shape of the whole value that a collective moves.
    pub fn tensor(&self, place: usize, name: &str) -> &str {
        self.tensors.get(&(place, name.to_owned())).map_or("", String::as_str)
    }
}

/// Returns the shape of what a gather makes; of any other collective, of what it gets.
fn tensor(instructions: &[HloInstructionProto], collective: &HloInstructionProto) -> String {
    let operand = |id: &i64| instructions.iter().find(|it| it.id == *id);
    let whole = match collective.opcode.as_str() {
        "all-gather" => Some(collective),
        _ => collective.operand_ids.first().and_then(operand),
    };
    let shape = whole.and_then(|it| it.shape.as_ref()).map(|shape| print_shape(shape, Layouts::None));
    match (shape.unwrap_or_default(), collective.operand_ids.len()) {
        (shape, 0 | 1) => shape,
        (shape, count) if collective.opcode != "all-gather" => format!("{shape} and {} more", count - 1),
        (shape, _) => shape,
    }
}

impl Other {
    /// Returns XLA's program: the one that `--against` names, or what a plugin makes of the same one.
    pub fn of(arguments: &Advise, program: &Loaded) -> Result<Option<Other>> {
        match (&arguments.against, &arguments.target) {
            (Some(path), _) => {
                let mut against = load_against(path, &arguments.input.reading)?;
                check(&against, program)?;
                against.mesh = against.mesh.or_else(|| program.mesh.clone());
                let title = against.title();
                let memory = memory::of(&against)?;
                let side = PartitionedSide::of(against.module, Some(memory), program)?;
                Ok(Some(Other { name: against.name, title, side, compiler: None }))
            }
            (None, Some(target)) => {
                if streams::below().is_some() {
                    bail!("`hlo-dump mcp` compiles nothing: give XLA's module with --against");
                }
                let compiler = Compiler::of(target, program)?;
                let side = PartitionedSide::of(compiler.compile(program, &program.module)?, None, program)?;
                let title = format!("{} (compiled by XLA for {target})", program.module.name);
                Ok(Some(Other { name: target.clone(), title, side, compiler: Some(compiler) }))
            }
            (None, None) => Ok(None),
        }
    }
}

/// Loads what `--against` names; of a dump folder the module after the partitioner, if the folder has it. Options that
/// choose a part of the program's own input do not choose one of this.
fn load_against(path: &Path, reading: &Reading) -> Result<Loaded> {
    let of_stage = |stage| {
        let (mesh, module, pass, function, set) = (None, None, None, None, Vec::new());
        load_path(path, &Reading { mesh, stage, module, pass, function, set, ..reading.clone() })
    };
    match path.is_dir() {
        true => of_stage(Some(Stage::Partitioned)).or_else(|_| of_stage(None)),
        false => of_stage(None),
    }
}

/// Refuses a program that cannot be the same one, partitioned by XLA.
fn check(against: &Loaded, program: &Loaded) -> Result<()> {
    if against.run.is_some() {
        bail!("--against {}: a run config is no program that XLA partitioned; give the module", against.name);
    }
    if let Partitioning::Pending { .. } = &against.partitioning {
        let warning = against.unpartitioned().unwrap_or_default();
        bail!("--against {}: {warning}", against.name);
    }
    if against.device_count() != program.device_count() {
        bail!(
            "--against {}: it is for {} devices, and {} for {}; give what XLA made of the same program",
            against.name,
            against.device_count(),
            program.name,
            program.device_count()
        );
    }
    Ok(())
}
