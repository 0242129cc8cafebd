//! Names of hardware, for programs that are compiled elsewhere.
//!
//! ```text
//! v5e:2x4                 8 chips of a TPU v5e
//! tpu7x:2x2x1:slices=2    two slices of 4 chips of a TPU7x, 16 devices
//! h100:1x1x8              slices x hosts x GPUs of a host
//! cpu:8                   8 virtual devices of this machine's processor
//! ```

mod description;
mod gpus;

use std::fmt;

pub(super) use description::TopologyDescription;

use super::error::PjrtError;
use super::value::NamedValue;
use meshloom_hlo::PlatformKind;
use meshloom_hlo::suggest::did_you_mean;

/// Names of TPU generations, as libtpu takes them, and the number of dimensions in which their chips are arranged.
const TPUS: &[(&str, usize)] = &[("v2", 2), ("v3", 2), ("v4", 3), ("v5e", 2), ("v5p", 3), ("v6e", 2), ("tpu7x", 3)];

/// The most slices of a topology. libtpu numbers the devices of a slice from its number times 100,000, in 32 bits.
const MOST_SLICES: usize = 1024;

/// The most chips in one dimension: more than anybody has, and a product of three still far from overflow.
const MOST_CHIPS: usize = 1024;

/// Hardware to compile for: a kind of chip, the number of chips, and their arrangement.
///
/// It is only a name. [`ahead_of_time::describe`](super::ahead_of_time::describe) says whether the plugin knows such an
/// arrangement, and what devices it has.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    chip: Chip,
    shape: Vec<usize>,
    slices: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Chip {
    /// A TPU, by its name in [`TPUS`].
    Tpu(&'static str),
    /// A GPU, by its place in [`gpus::GPUS`].
    Gpu(usize),
    Cpu,
}

impl Topology {
    /// Reads `CHIP:SHAPE` or, for TPUs, `CHIP:SHAPE:slices=N`.
    ///
    /// # Errors
    /// [`PjrtError::InvalidTopology`] says what is wrong with the text, and suggests what was meant.
    pub fn parse(text: &str) -> Result<Topology, PjrtError> {
        let invalid = |reason: String| PjrtError::InvalidTopology { topology: text.into(), reason };
        let mut parts = text.trim().split(':');
        let name = parts.next().unwrap_or_default();
        let chip = Chip::named(name).ok_or_else(|| {
            let names: Vec<_> = Chip::names().collect();
            let suggestion = match did_you_mean(name, names.iter().copied()) {
                near if near.is_empty() => same_start(name, &names),
                near => near,
            };
            invalid(format!("there is no chip \"{name}\"{suggestion}; there are {}", names.join(", ")))
        })?;
        let example = chip.example();
        let shape = parts.next().ok_or_else(|| invalid(format!("it has no shape; write {example}")))?;
        let shape = parse_shape(shape).map_err(|reason| invalid(format!("{reason}; write {example}")))?;
        let (rank, meaning) = chip.dimensions();
        if shape.len() != rank {
            return Err(invalid(format!("the shape has {} numbers, expected {rank}, {meaning}", shape.len())));
        }
        let mut topology = Topology { chip, shape, slices: 1 };
        for part in parts {
            topology.read_suffix(part).map_err(invalid)?;
        }
        Ok(topology)
    }

    fn read_suffix(&mut self, part: &str) -> Result<(), String> {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        if key != "slices" {
            let suggestion = did_you_mean(key, ["slices"]);
            return Err(format!("there is no setting \"{key}\"{suggestion}; there is slices=N"));
        }
        match self.chip {
            Chip::Tpu(_) => {}
            Chip::Gpu(_) => {
                return Err("a GPU topology's first number is that of slices; leave slices=N out".into());
            }
            Chip::Cpu => return Err("there are no slices of a CPU; leave slices=N out".into()),
        }
        let slices = value.parse().ok().filter(|slices| (1..=MOST_SLICES).contains(slices));
        self.slices = slices.ok_or_else(|| format!("slices={value} is not a number from 1 to {MOST_SLICES}"))?;
        Ok(())
    }

    /// The platform of the plugin that compiles for it.
    pub fn platform(&self) -> PlatformKind {
        match self.chip {
            Chip::Tpu(_) => PlatformKind::Tpu,
            Chip::Gpu(_) => PlatformKind::Cuda,
            Chip::Cpu => PlatformKind::Cpu,
        }
    }

    /// The number of chips in all slices. Some TPU chips are two devices each.
    pub fn chip_count(&self) -> usize {
        self.shape.iter().product::<usize>() * self.slices
    }

    /// The number of devices that its plugin shows, without asking it.
    pub fn device_count(&self) -> usize {
        /// Programs see two halves of each of these chips.
        const HALVED: [&str; 4] = ["v2", "v3", "v4", "tpu7x"];
        self.chip_count() * if matches!(self.chip, Chip::Tpu(name) if HALVED.contains(&name)) { 2 } else { 1 }
    }

    /// The number of slices (for GPUs: domains of fast links).
    pub fn slice_count(&self) -> usize {
        match self.chip {
            Chip::Tpu(_) | Chip::Cpu => self.slices,
            Chip::Gpu(_) => self.shape.first().copied().unwrap_or(1),
        }
    }

    /// How the chips are arranged that fast links join (those of a slice of TPUs, of a host of GPUs), and how many of
    /// such groups there are.
    pub fn slice(&self) -> (&[usize], usize) {
        match (self.chip, self.shape.split_last()) {
            (Chip::Gpu(_), Some((_, hosts))) => (&self.shape[hosts.len()..], hosts.iter().product()),
            _ => (&self.shape, self.slices),
        }
    }

    /// The number of virtual devices, when it is a CPU's.
    pub(super) fn cpu_count(&self) -> Option<usize> {
        (self.chip == Chip::Cpu).then(|| self.chip_count())
    }

    fn shape_text(&self) -> String {
        self.shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
    }

    /// The name and options that `PJRT_TopologyDescription_Create` takes.
    fn create_arguments(&self) -> (String, Vec<(&'static str, NamedValue)>) {
        match self.chip {
            Chip::Tpu(name) => {
                let slices = (self.slices > 1).then_some(("num_slices", NamedValue::Int(self.slices as i64)));
                (format!("{name}:{}", self.shape_text()), slices.into_iter().collect())
            }
            Chip::Gpu(index) => {
                let config = gpus::GPUS[index].target_config();
                let topology = NamedValue::Text(self.shape_text());
                (String::new(), vec![("target_config", NamedValue::Text(config)), ("topology", topology)])
            }
            Chip::Cpu => ("cpu".into(), Vec::new()),
        }
    }
}

impl Chip {
    fn names() -> impl Iterator<Item = &'static str> {
        TPUS.iter().map(|&(name, _)| name).chain(gpus::GPUS.iter().map(|gpu| gpu.name)).chain(["cpu"])
    }

    fn named(name: &str) -> Option<Chip> {
        if name == "cpu" {
            return Some(Chip::Cpu);
        }
        let tpu = TPUS.iter().find(|tpu| tpu.0 == name).map(|tpu| Chip::Tpu(tpu.0));
        tpu.or_else(|| gpus::GPUS.iter().position(|gpu| gpu.name == name).map(Chip::Gpu))
    }

    fn name(self) -> &'static str {
        match self {
            Chip::Tpu(name) => name,
            Chip::Gpu(index) => gpus::GPUS[index].name,
            Chip::Cpu => "cpu",
        }
    }

    fn dimensions(self) -> (usize, &'static str) {
        match self {
            Chip::Cpu => (1, "virtual devices"),
            Chip::Gpu(_) => (3, "slices x hosts x GPUs of a host"),
            Chip::Tpu(name) => match TPUS.iter().find(|tpu| tpu.0 == name) {
                Some((_, 2)) => (2, "chips along x and y"),
                _ => (3, "chips along x, y and z"),
            },
        }
    }

    fn example(self) -> String {
        let shape = match (self, self.dimensions().0) {
            (Chip::Cpu, _) => "8",
            (Chip::Gpu(_), _) => "1x1x8",
            (_, 2) => "2x4",
            _ => "2x2x1",
        };
        format!("{}:{shape}", self.name())
    }
}

/// ` (did you mean "v5e" or "v5p"?)`: the names are too short for spelling alone to tell which was meant.
fn same_start(name: &str, names: &[&str]) -> String {
    let Some(start) = name.get(..2) else { return String::new() };
    let near: Vec<_> = names.iter().filter(|name| name.starts_with(start)).map(|name| format!("\"{name}\"")).collect();
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) }
}

fn parse_shape(text: &str) -> Result<Vec<usize>, String> {
    let number = |part: &str| part.parse().ok().filter(|size| (1..=MOST_CHIPS).contains(size));
    let wrong = |part: &str| format!("\"{part}\" in the shape \"{text}\" is not a number from 1 to {MOST_CHIPS}");
    text.split('x').map(|part| number(part).ok_or_else(|| wrong(part))).collect()
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.chip.name(), self.shape_text())?;
        if self.slices > 1 { write!(f, ":slices={}", self.slices) } else { Ok(()) }
    }
}
