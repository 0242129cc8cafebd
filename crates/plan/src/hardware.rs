//! The hardware of a search: what a topology names, what devices a client has, and what a file describes.

use std::path::{Path, PathBuf};

use meshloom::analysis::Chip;
use meshloom::analysis::estimate::{Cache, Dimension, Hardware, Reached, Wire};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::files;
use meshloom::hlo::mesh::slice_shape;
use meshloom::hlo::message::counted;
use meshloom::pjrt::{DeviceDescription, Topology};
use serde::{Deserialize, Serialize};

use super::SearchError;
use meshloom_train::config::Place;

/// The most devices that a file describes. More take minutes to split into meshes.
const MOST_DEVICES: usize = 1 << 20;

/// An error in a file of hardware, and its place.
#[derive(thiserror::Error)]
pub enum HardwareError {
    /// The file cannot be read or written.
    #[error("cannot {action} the hardware {path:?}: {source}; give {advice}")]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
        /// The file to give instead.
        advice: &'static str,
    },
    /// The text is not TOML, or has other keys, or values of other types.
    #[error("{place}{message}")]
    Syntax {
        /// The place in the file.
        place: Place,
        /// The parser's message.
        message: String,
    },
    /// A key that is missing, or a value that is not possible.
    #[error("{origin}: {reason}")]
    Key {
        /// The file.
        origin: String,
        /// The key, what is wrong with it, and the values that are possible.
        reason: String,
    },
    /// A number that TOML has no form for.
    #[error("the hardware cannot be written as TOML: {0}")]
    Form(String),
}

meshloom::hlo::debug_is_message!(HardwareError);

/// The hardware that a topology names, `v5p:4x4x8` or `h100:1x8x8`.
///
/// # Errors
/// There is no such topology, or too little is published of its chip.
pub fn hardware(topology: &str) -> Result<Hardware, SearchError> {
    let topology = Topology::parse(topology)?;
    let name = topology.to_string();
    let chip = Chip::parse(name.split(':').next().unwrap_or_default())?;
    let (slice, slices) = topology.slice();
    Ok(Hardware::new(chip, slice, slices)?)
}

/// The hardware that a client's devices are: the GPUs of a host, or a slice of TPUs.
///
/// # Errors
/// They are of no chip whose rates are published, or do not say how they are arranged.
pub fn hardware_of_devices(devices: &[DeviceDescription]) -> Result<Hardware, SearchError> {
    let kind = devices.first().map_or("", |device| device.kind.as_str());
    let unknown = || {
        SearchError::NoPlan(format!(
            "the rates and links of {} of kind \"{kind}\" are not known; describe them in a TOML file, as docs/plan.md \
             says, and give it by --hardware FILE",
            counted(devices.len(), "device")
        ))
    };
    let chip = Chip::of_kind(kind).ok_or_else(unknown)?;
    let slice = if chip.is_switched() {
        vec![devices.len()]
    } else {
        let places: Vec<_> = devices.iter().map(DeviceDescription::place).collect();
        // The parts of a chip come first.
        let parts = usize::from(chip.devices > 1);
        let mut slice: Vec<usize> = slice_shape(&places).into_iter().skip(parts).collect();
        // It leaves out dimensions of one chip.
        slice.resize(slice.len().max(chip.link_rings as usize), 1);
        slice
    };
    if slice.iter().product::<usize>() * chip.devices as usize != devices.len() {
        return Err(unknown());
    }
    Ok(Hardware::new(chip, &slice, 1)?)
}

/// Reads hardware from a file. docs/plan.md has its keys.
///
/// # Errors
/// The file cannot be read, or [its text](hardware_from_toml) is wrong.
pub fn read_hardware(path: impl AsRef<Path>) -> Result<Hardware, HardwareError> {
    let path = path.as_ref();
    let text = files::read_text(path, files::WRITTEN_BYTES).map_err(io(
        "read",
        path,
        "the path of a TOML file with its chips and dimensions",
    ))?;
    hardware_from_toml(&text, &path.display().to_string())
}

/// Writes hardware to a file that [`read_hardware`] reads.
///
/// # Errors
/// The file cannot be written, or hardware has a number that [TOML has not](hardware_to_toml).
pub fn write_hardware(path: impl AsRef<Path>, hardware: &Hardware) -> Result<(), HardwareError> {
    let path = path.as_ref();
    let text = hardware_to_toml(hardware)?;
    std::fs::write(path, text).map_err(io("write", path, "a path that can be written"))
}

/// Reads hardware from text. `origin` is what messages call it.
///
/// # Errors
/// The text is not TOML, lacks a key or has one that is not known, or a number is not possible.
pub fn hardware_from_toml(text: &str, origin: &str) -> Result<Hardware, HardwareError> {
    let written: Written = toml::from_str(text).map_err(|error| HardwareError::Syntax {
        place: match error.span() {
            Some(span) => Place::in_text(origin, text, span.start),
            None => Place { origin: origin.to_owned(), line_column: None },
        },
        message: error.message().to_owned(),
    })?;
    let name = written.chip.as_deref().unwrap_or("cpu");
    let unknown = |error| wrong(origin, format!("chip is {name:?}: {error}"));
    let chip = Chip::parse(name).map_err(unknown)?;
    let hardware = written.on(chip);
    check(&hardware, origin)?;
    Ok(hardware)
}

/// Returns hardware as text that [`hardware_from_toml`] reads. If the chip is not among [those
/// known](meshloom::analysis::CHIPS), `name` has to be the name of a known one, from which facts without a key are
/// taken.
///
/// # Errors
/// A whole number is larger than TOML allows.
pub fn hardware_to_toml(hardware: &Hardware) -> Result<String, HardwareError> {
    toml::to_string(&Written::of(hardware)).map_err(|error| HardwareError::Form(error.to_string()))
}

/// Hardware as a file has it. Absent keys have the values of the chip, or of its backend.
#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct Written {
    chip: Option<String>,
    backend: Option<PlatformKind>,
    bf16_flops: Option<f64>,
    f32_flops: Option<f64>,
    f64_flops: Option<f64>,
    fp8_flops: Option<f64>,
    int8_ops: Option<f64>,
    memory_bytes: Option<u64>,
    memory_bandwidth: Option<f64>,
    host_bandwidth: Option<f64>,
    launch: Option<f64>,
    overlaps: Option<bool>,
    reached: WrittenReached,
    dimension: Vec<Dimension>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct WrittenReached {
    products: Option<f64>,
    memory: Option<f64>,
    links: Option<f64>,
    tile: Option<u64>,
    kernel: Option<f64>,
    fresh: Option<f64>,
    cache: Option<Cache>,
}

impl Written {
    fn of(hardware: &Hardware) -> Written {
        let Hardware { chip, dimensions, reached, launch, overlaps } = hardware;
        let &Reached { products, memory, links, tile, kernel, fresh, cache } = reached;
        Written {
            chip: Some(chip.name.to_owned()),
            backend: Some(chip.backend),
            bf16_flops: chip.bf16_flops,
            f32_flops: chip.f32_flops,
            f64_flops: chip.f64_flops,
            fp8_flops: chip.fp8_flops,
            int8_ops: chip.int8_ops,
            memory_bytes: chip.memory_bytes,
            memory_bandwidth: chip.memory_bandwidth,
            host_bandwidth: chip.host_bandwidth,
            launch: Some(*launch),
            overlaps: Some(*overlaps),
            reached: WrittenReached {
                products: Some(products),
                memory: Some(memory),
                links: Some(links),
                tile: Some(tile),
                kernel: Some(kernel),
                fresh: Some(fresh),
                cache,
            },
            dimension: dimensions.clone(),
        }
    }

    /// The hardware, where nothing else is said of this chip.
    fn on(self, chip: &Chip) -> Hardware {
        let chip = Chip {
            backend: self.backend.unwrap_or(chip.backend),
            bf16_flops: self.bf16_flops.or(chip.bf16_flops),
            f32_flops: self.f32_flops.or(chip.f32_flops),
            f64_flops: self.f64_flops.or(chip.f64_flops),
            fp8_flops: self.fp8_flops.or(chip.fp8_flops),
            int8_ops: self.int8_ops.or(chip.int8_ops),
            memory_bytes: self.memory_bytes.or(chip.memory_bytes),
            memory_bandwidth: self.memory_bandwidth.or(chip.memory_bandwidth),
            host_bandwidth: self.host_bandwidth.or(chip.host_bandwidth),
            ..*chip
        };
        let of_backend = Hardware::of_dimensions(chip, self.dimension);
        let (reached, own) = (of_backend.reached, self.reached);
        Hardware {
            reached: Reached {
                products: own.products.unwrap_or(reached.products),
                memory: own.memory.unwrap_or(reached.memory),
                links: own.links.unwrap_or(reached.links),
                tile: own.tile.unwrap_or(reached.tile),
                kernel: own.kernel.unwrap_or(reached.kernel),
                fresh: own.fresh.unwrap_or(reached.fresh),
                cache: own.cache.or(reached.cache),
            },
            launch: self.launch.unwrap_or(of_backend.launch),
            overlaps: self.overlaps.unwrap_or(of_backend.overlaps),
            ..of_backend
        }
    }
}

/// The least and the largest number that a key may have, and the words for what it must be. Within these bounds, no
/// estimate becomes infinite.
type Bound = (f64, f64, &'static str);

const AMOUNT: Bound = (1.0, 1e30, "it must be a number from 1 to 1e30");
const SECONDS: Bound = (0.0, 3600.0, "it must be a number of seconds from 0 to 3600");
const PART: Bound = (1e-3, 1.0, "it must be a part from 0.001 to 1");
const TILE: Bound = (1.0, 65_536.0, "it must be a whole number from 1 to 65536");
const SIZE: Bound = (1.0, MOST_DEVICES as f64, "it must be a whole number from 1 to 1048576");

/// Whether hardware is possible, and says all that an estimate needs.
fn check(hardware: &Hardware, origin: &str) -> Result<(), HardwareError> {
    let Hardware { chip, dimensions, reached, launch, .. } = hardware;
    let missing = |key: &str, reason: &str| wrong(origin, format!("there is no {key}: {reason}"));
    let invalid = |key: String, value: String, reason: &str| wrong(origin, format!("{key} is {value}: {reason}"));
    let of_chip = [
        ("bf16_flops", chip.bf16_flops, AMOUNT),
        ("f32_flops", chip.f32_flops, AMOUNT),
        ("f64_flops", chip.f64_flops, AMOUNT),
        ("fp8_flops", chip.fp8_flops, AMOUNT),
        ("int8_ops", chip.int8_ops, AMOUNT),
        ("memory_bytes", chip.memory_bytes.map(|bytes| bytes as f64), AMOUNT),
        ("memory_bandwidth", chip.memory_bandwidth, AMOUNT),
        ("host_bandwidth", chip.host_bandwidth, AMOUNT),
        ("launch", Some(*launch), SECONDS),
        ("reached.products", Some(reached.products), PART),
        ("reached.memory", Some(reached.memory), PART),
        ("reached.links", Some(reached.links), PART),
        ("reached.tile", Some(reached.tile as f64), TILE),
        ("reached.kernel", Some(reached.kernel), SECONDS),
        ("reached.fresh", Some(reached.fresh), SECONDS),
        ("reached.cache.bytes", reached.cache.map(|cache| cache.bytes), AMOUNT),
        ("reached.cache.bandwidth", reached.cache.map(|cache| cache.bandwidth), AMOUNT),
    ];
    let of_chip = of_chip.into_iter().filter_map(|(key, value, bound)| Some((key.to_owned(), value?, bound)));
    let of_dimension = |(number, it): (usize, &Dimension)| {
        let numbers = [("size", it.size as f64, SIZE), ("rate", it.rate, AMOUNT), ("latency", it.latency, SECONDS)];
        numbers.map(|(key, value, bound)| (of_number(key, number), value, bound))
    };
    for (key, value, (least, most, reason)) in of_chip.chain(dimensions.iter().enumerate().flat_map(of_dimension)) {
        if !(least..=most).contains(&value) {
            return Err(invalid(key, value.to_string(), reason));
        }
    }
    if chip.memory_bandwidth.is_none() {
        let reason = "give it in bytes per second, or a chip that has it, as chip = \"h100\"";
        return Err(missing("memory_bandwidth", reason));
    }
    if chip.bf16_flops.or(chip.f32_flops).is_none() {
        let reason = "give it in operations per second, or f32_flops, or a chip that has it, as chip = \"h100\"";
        return Err(missing("bf16_flops", reason));
    }
    if dimensions.is_empty() {
        return Err(missing("[[dimension]]", "give one or more, each with size, wire, rate and latency"));
    }
    for (number, dimension) in dimensions.iter().enumerate() {
        let wire = || format!("{:?}", dimension.wire).to_lowercase();
        if dimension.wraps && dimension.wire != Wire::Torus {
            let reason = format!("a {} has no ends to join; leave it out, or give wire = \"torus\"", wire());
            return Err(invalid(of_number("wraps", number), "true".to_owned(), &reason));
        }
        if dimensions[..number].iter().any(|before| before.wire > dimension.wire) {
            let reason = "dimensions go from the fastest to the slowest: memory, core, switch, torus, network";
            return Err(invalid(of_number("wire", number), format!("\"{}\"", wire()), reason));
        }
    }
    let count = dimensions.iter().try_fold(1usize, |count, dimension| count.checked_mul(dimension.size));
    if count.is_none_or(|count| count > MOST_DEVICES) {
        let sizes: Vec<String> = dimensions.iter().map(|dimension| dimension.size.to_string()).collect();
        let reason = format!("it must be at most {MOST_DEVICES}; give smaller sizes");
        return Err(invalid("the number of devices".to_owned(), sizes.join(" x "), &reason));
    }
    Ok(())
}

fn io(action: &'static str, path: &Path, advice: &'static str) -> impl FnOnce(std::io::Error) -> HardwareError {
    move |source| HardwareError::Io { action, path: path.to_owned(), source, advice }
}

fn wrong(origin: &str, reason: String) -> HardwareError {
    HardwareError::Key { origin: origin.to_owned(), reason }
}

/// A key of a dimension, whose number counts from 0.
fn of_number(key: &str, number: usize) -> String {
    format!("{key} of dimension {}", number + 1)
}
