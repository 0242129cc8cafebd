//! Peak rates, memory and links of accelerators, from their makers' public figures.
//!
//! | chip | source |
//! |---|---|
//! | v4, v5e, v5p, v6e, tpu7x | The page of each under "System architecture" of Google's Cloud TPU documentation, cloud.google.com/tpu/docs: `v4`, `v5e`, `v5p`, `v6e`, `tpu7x`. |
//! | v4's memory bandwidth, v5p's int8 | "Introducing Cloud TPU v5p and AI Hypercomputer", Google Cloud blog, 2023, which compares the two. |
//! | a100 | "NVIDIA A100 Tensor Core GPU" data sheet: the SXM module with 80 GB. |
//! | h100, h200 | "NVIDIA H100 Tensor Core GPU" and "NVIDIA H200 Tensor Core GPU" data sheets: the SXM modules. |
//! | b200 | "NVIDIA HGX" page and "NVIDIA Blackwell" data sheet: one of the eight GPUs of an HGX B200. |
//! | networks of GPUs | Data sheets of DGX A100, H100, H200 and B200: one network card for each GPU. |
//! | hosts of GPUs | The data sheets of A100, H100 and H200: PCIe of 64 and 128 GB/s, both directions together. |
//!
//! NVIDIA's rates are those of dense matrices, half of the sparse rates that the data sheets give first. On GPUs, the
//! rate of `f32` is that of the matrix units, which round to TF32, XLA's default. On TPUs it is that of one bf16 pass,
//! which is how XLA multiplies `f32` unless it is asked for more precision ([`Chip::matrix_rate`]).

use serde::Serialize;

use meshloom_hlo::proto::PrimitiveType;
use meshloom_hlo::{DType, PlatformKind, element_type};

/// The arithmetic that an op is done in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arithmetic {
    /// 64-bit floating point.
    F64,
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point, of either kind.
    Bf16,
    /// 8-bit floating point, of any kind.
    Fp8,
    /// 8-bit whole numbers, and those of fewer bits.
    Int8,
    /// Any other: larger whole numbers, truth values.
    Other,
}

impl Arithmetic {
    /// Returns the arithmetic for products of an element type.
    pub fn of(dtype: DType) -> Arithmetic {
        Arithmetic::of_elements(element_type(dtype))
    }

    /// Returns the same for an element type of HLO, by its number.
    pub(crate) fn of_elements(element_type: i32) -> Arithmetic {
        use PrimitiveType as P;
        match PrimitiveType::try_from(element_type) {
            Ok(P::F64 | P::C128) => Arithmetic::F64,
            Ok(P::F32 | P::C64) => Arithmetic::F32,
            Ok(P::F16 | P::Bf16) => Arithmetic::Bf16,
            Ok(P::S8 | P::U8 | P::S4 | P::U4 | P::S2 | P::U2 | P::S1 | P::U1) => Arithmetic::Int8,
            Ok(P::F8e5m2 | P::F8e4m3 | P::F8e4m3fn | P::F8e4m3b11fnuz | P::F8e3m4 | P::F8e5m2fnuz) => Arithmetic::Fp8,
            Ok(P::F8e4m3fnuz | P::F8e8m0fnu | P::F6e3m2fn | P::F6e2m3fn | P::F4e2m1fn) => Arithmetic::Fp8,
            _ => Arithmetic::Other,
        }
    }
}

/// The names that plugins give to devices, in lower case, each with the name of the chip: a TPU is known by its whole
/// name, a GPU by a word of it.
pub const KINDS: [(&str, &str); 14] = [
    ("a100", "a100"),
    ("h100", "h100"),
    ("h200", "h200"),
    ("b200", "b200"),
    ("tpu v4", "v4"),
    ("tpu v5 lite", "v5e"),
    ("tpu v5e", "v5e"),
    ("tpu v5", "v5p"),
    ("tpu v5p", "v5p"),
    ("tpu v6 lite", "v6e"),
    ("tpu v6e", "v6e"),
    ("tpu v7", "tpu7x"),
    ("tpu v7x", "tpu7x"),
    ("tpu7x", "tpu7x"),
];

/// Words of GPUs on boards that do less than the chip: their rates are not known.
const SLOWER_BOARDS: [&str; 2] = ["pcie", "nvl"];

/// Returns the chip of a device by the name that its plugin gives it, whatever the board: `TPU v5 lite`, `NVIDIA H100
/// PCIe`.
pub fn chip_of_kind(kind: &str) -> Option<&'static str> {
    let kind = kind.to_ascii_lowercase();
    KINDS.iter().find(|(name, _)| kind == *name || words(&kind).any(|word| word == *name)).map(|(_, chip)| *chip)
}

fn words(kind: &str) -> impl Iterator<Item = &str> {
    kind.split(|letter: char| !letter.is_ascii_alphanumeric())
}

/// The peak rates of one chip, in operations and bytes per second. A figure that its maker does not publish is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Chip {
    /// The name that `--chip` takes.
    pub name: &'static str,
    /// The compiler for it.
    pub backend: PlatformKind,
    /// The number of devices that a program sees of it: a tpu7x shows its two halves, each with half of everything.
    pub devices: u32,
    /// Multiplications and additions of matrices of 16-bit floating point, per second.
    pub bf16_flops: Option<f64>,
    /// Multiplications and additions of 32-bit floating point, where matrix units do them at a rate of their own.
    pub f32_flops: Option<f64>,
    /// Multiplications and additions of 64-bit floating point.
    pub f64_flops: Option<f64>,
    /// Multiplications and additions of 8-bit floating point.
    pub fp8_flops: Option<f64>,
    /// Multiplications and additions of 8-bit whole numbers.
    pub int8_ops: Option<f64>,
    /// Bytes of its memory.
    pub memory_bytes: Option<u64>,
    /// Bytes that it reads and writes of that memory.
    pub memory_bandwidth: Option<f64>,
    /// Bytes that it sends to other chips over all its links (ICI, NVLink), while it receives as many.
    pub link_bandwidth: Option<f64>,
    /// Rings that those links are parts of: the dimensions of a torus; 1 where a switch joins all chips.
    pub link_rings: u32,
    /// Bytes that it sends over the network of the data center.
    pub network_bandwidth: Option<f64>,
    /// Bytes that it sends to the memory of its host (PCIe), while it receives as many.
    pub host_bandwidth: Option<f64>,
}

const GIB: u64 = 1 << 30;
const TERA: f64 = 1e12;
const GIGA: f64 = 1e9;
/// A gigabit per second, in bytes.
const GIGABIT: f64 = 1e9 / 8.0;

/// A chip without any published figure.
const UNKNOWN: Chip = Chip {
    name: "cpu",
    backend: PlatformKind::Cpu,
    devices: 1,
    bf16_flops: None,
    f32_flops: None,
    f64_flops: None,
    fp8_flops: None,
    int8_ops: None,
    memory_bytes: None,
    memory_bandwidth: None,
    link_bandwidth: None,
    link_rings: 1,
    network_bandwidth: None,
    host_bandwidth: None,
};

const H100: Chip = Chip {
    name: "h100",
    backend: PlatformKind::Cuda,
    bf16_flops: Some(989.4 * TERA),
    f32_flops: Some(494.7 * TERA),
    f64_flops: Some(67.0 * TERA),
    fp8_flops: Some(1978.9 * TERA),
    int8_ops: Some(1978.9 * TERA),
    memory_bytes: Some(80_000_000_000),
    memory_bandwidth: Some(3350.0 * GIGA),
    link_bandwidth: Some(450.0 * GIGA),
    network_bandwidth: Some(400.0 * GIGABIT),
    host_bandwidth: Some(64.0 * GIGA),
    ..UNKNOWN
};

/// Every known chip, and `cpu`, whose rates are unknown.
pub const CHIPS: &[Chip] = &[
    Chip {
        name: "v4",
        backend: PlatformKind::Tpu,
        bf16_flops: Some(275.0 * TERA),
        int8_ops: Some(275.0 * TERA),
        memory_bytes: Some(32 * GIB),
        memory_bandwidth: Some(1228.0 * GIGA),
        link_bandwidth: Some(2400.0 * GIGABIT),
        link_rings: 3,
        ..UNKNOWN
    },
    Chip {
        name: "v5e",
        backend: PlatformKind::Tpu,
        bf16_flops: Some(197.0 * TERA),
        int8_ops: Some(393.0 * TERA),
        memory_bytes: Some(16 * GIB),
        memory_bandwidth: Some(819.0 * GIGA),
        link_bandwidth: Some(1600.0 * GIGABIT),
        link_rings: 2,
        // 6.4 Tbit/s for a pod of 256.
        network_bandwidth: Some(25.0 * GIGABIT),
        ..UNKNOWN
    },
    Chip {
        name: "v5p",
        backend: PlatformKind::Tpu,
        bf16_flops: Some(459.0 * TERA),
        fp8_flops: Some(459.0 * TERA),
        int8_ops: Some(918.0 * TERA),
        memory_bytes: Some(95 * GIB),
        memory_bandwidth: Some(2765.0 * GIGA),
        link_bandwidth: Some(4800.0 * GIGABIT),
        link_rings: 3,
        network_bandwidth: Some(50.0 * GIGABIT),
        ..UNKNOWN
    },
    Chip {
        name: "v6e",
        backend: PlatformKind::Tpu,
        bf16_flops: Some(918.0 * TERA),
        fp8_flops: Some(918.0 * TERA),
        int8_ops: Some(1836.0 * TERA),
        memory_bytes: Some(32 * GIB),
        memory_bandwidth: Some(1638.0 * GIGA),
        link_bandwidth: Some(3200.0 * GIGABIT),
        link_rings: 2,
        network_bandwidth: Some(100.0 * GIGABIT),
        ..UNKNOWN
    },
    Chip {
        name: "tpu7x",
        backend: PlatformKind::Tpu,
        devices: 2,
        bf16_flops: Some(2307.0 * TERA),
        fp8_flops: Some(4614.0 * TERA),
        memory_bytes: Some(192 * GIB),
        memory_bandwidth: Some(7380.0 * GIGA),
        link_bandwidth: Some(4800.0 * GIGABIT),
        link_rings: 3,
        network_bandwidth: Some(100.0 * GIGABIT),
        ..UNKNOWN
    },
    Chip {
        name: "a100",
        backend: PlatformKind::Cuda,
        bf16_flops: Some(312.0 * TERA),
        f32_flops: Some(156.0 * TERA),
        f64_flops: Some(19.5 * TERA),
        int8_ops: Some(624.0 * TERA),
        memory_bytes: Some(80_000_000_000),
        memory_bandwidth: Some(2039.0 * GIGA),
        link_bandwidth: Some(300.0 * GIGA),
        network_bandwidth: Some(200.0 * GIGABIT),
        host_bandwidth: Some(32.0 * GIGA),
        ..UNKNOWN
    },
    H100,
    Chip { name: "h200", memory_bytes: Some(141_000_000_000), memory_bandwidth: Some(4800.0 * GIGA), ..H100 },
    Chip {
        name: "b200",
        backend: PlatformKind::Cuda,
        bf16_flops: Some(2250.0 * TERA),
        f32_flops: Some(1100.0 * TERA),
        f64_flops: Some(40.0 * TERA),
        fp8_flops: Some(4500.0 * TERA),
        int8_ops: Some(4500.0 * TERA),
        memory_bytes: Some(180_000_000_000),
        memory_bandwidth: Some(8000.0 * GIGA),
        link_bandwidth: Some(900.0 * GIGA),
        network_bandwidth: Some(400.0 * GIGABIT),
        ..UNKNOWN
    },
    UNKNOWN,
];

/// A name that no chip has.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("no chip is called \"{name}\"; expected one of {known}")]
pub struct UnknownChip {
    /// The name.
    pub name: String,
    /// The names there are, separated by commas.
    pub known: String,
}

meshloom_hlo::debug_is_message!(UnknownChip);

impl Chip {
    /// The chip of a name; case does not matter.
    ///
    /// # Errors
    /// No chip has the name.
    pub fn parse(name: &str) -> Result<&'static Chip, UnknownChip> {
        CHIPS.iter().find(|chip| chip.name.eq_ignore_ascii_case(name.trim())).ok_or_else(|| UnknownChip {
            name: name.to_owned(),
            known: CHIPS.iter().map(|chip| chip.name).collect::<Vec<_>>().join(", "),
        })
    }

    /// Returns the chip of a device by the name that its plugin gives it: `TPU v5 lite`, `NVIDIA H100 80GB HBM3`. It is
    /// `None` for boards that do less than the chip can.
    pub fn of_kind(kind: &str) -> Option<&'static Chip> {
        let name = chip_of_kind(kind)?;
        let is_slower = words(&kind.to_ascii_lowercase()).any(|word| SLOWER_BOARDS.contains(&word));
        CHIPS.iter().find(|chip| chip.name == name && !is_slower)
    }

    fn of_a_device(&self, rate: Option<f64>) -> Option<f64> {
        Some(rate? / f64::from(self.devices))
    }

    /// Operations per second of one device's matrix units. A type without a rate of its own runs at the rate of the
    /// next larger type: 8-bit floating point as bf16, and `f32` on TPUs in passes of bf16; XLA makes one pass
    /// unless it is asked for more precision.
    pub fn matrix_rate(&self, arithmetic: Arithmetic) -> Option<f64> {
        self.of_a_device(match arithmetic {
            Arithmetic::F64 => self.f64_flops,
            Arithmetic::F32 => self.f32_flops.or(self.bf16_flops),
            Arithmetic::Bf16 => self.bf16_flops,
            Arithmetic::Fp8 => self.fp8_flops.or(self.bf16_flops),
            Arithmetic::Int8 => self.int8_ops.or(self.bf16_flops),
            Arithmetic::Other => None,
        })
    }

    /// Bytes of memory that one device has.
    pub fn device_memory(&self) -> Option<u64> {
        Some(self.memory_bytes? / u64::from(self.devices))
    }

    /// Bytes per second that one device reads and writes of its memory.
    pub fn device_memory_bandwidth(&self) -> Option<f64> {
        self.of_a_device(self.memory_bandwidth)
    }

    /// Whether devices are joined by a switch, not by rings of neighbours.
    pub fn is_switched(&self) -> bool {
        self.link_rings == 1
    }

    /// Bytes per second that one device sends along one ring, both ways round.
    pub fn ring_bandwidth(&self) -> Option<f64> {
        Some(self.of_a_device(self.link_bandwidth)? / f64::from(self.link_rings))
    }

    /// Bytes per second that one device sends to a neighbour: one way round a ring, or through a switch.
    pub fn neighbour_bandwidth(&self) -> Option<f64> {
        let ways = if self.is_switched() { 1.0 } else { 2.0 };
        Some(self.ring_bandwidth()? / ways)
    }

    /// Bytes per second that one device sends to another slice or host.
    pub fn device_network_bandwidth(&self) -> Option<f64> {
        self.of_a_device(self.network_bandwidth)
    }

    /// Bytes per second that one device sends to the memory of its host.
    pub fn device_host_bandwidth(&self) -> Option<f64> {
        self.of_a_device(self.host_bandwidth)
    }
}
