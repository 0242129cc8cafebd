//! The request to compile a program.

use meshloom_hlo::proto::{CompileOptionsProto, ExecutableBuildOptionsProto};

/// The language of a program, by PJRT's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// `mlir`: StableHLO as MLIR bytecode or text. JAX sends bytecode of a portable artifact, which is VHLO.
    Mlir,
    /// `hlo`: a serialized `HloModuleProto`.
    Hlo,
    /// `hlo_with_config`: a serialized `HloModuleProtoWithConfig`.
    HloWithConfig,
    /// Another, by its name.
    Other(String),
}

impl Format {
    /// The format with this name.
    pub fn of_name(name: &str) -> Format {
        match name {
            "mlir" => Format::Mlir,
            "hlo" => Format::Hlo,
            "hlo_with_config" => Format::HloWithConfig,
            other => Format::Other(other.to_owned()),
        }
    }

    /// PJRT's name.
    pub fn name(&self) -> &str {
        match self {
            Format::Mlir => "mlir",
            Format::Hlo => "hlo",
            Format::HloWithConfig => "hlo_with_config",
            Format::Other(name) => name,
        }
    }
}

/// A program that is to be compiled.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The language of the program.
    pub format: Format,
    /// The program.
    pub code: &'a [u8],
    /// A serialized `CompileOptionsProto`. It may have fields that [`options`](Request::options) lacks, since those of
    /// a newer XLA are not decoded.
    pub options_bytes: &'a [u8],
    /// The same, decoded; `None` if it is none.
    pub options: Option<CompileOptionsProto>,
    /// PJRT's name of the platform that the program is compiled for: `cpu`, `cuda`, `tpu`. It is `None` if the
    /// inner plugin does not say.
    pub platform: Option<String>,
    /// Whether the program is compiled for a topology and not for a client's devices.
    pub is_ahead_of_time: bool,
    /// Whether a person looks at decisions: a log or a dump is asked for. A [`Summary`](crate::Summary) is then wanted
    /// of every program, whatever it costs to read.
    pub is_watched: bool,
}

impl<'a> Request<'a> {
    /// A request with its options decoded.
    pub fn new(format: &str, code: &'a [u8], options_bytes: &'a [u8]) -> Request<'a> {
        let options = prost::Message::decode(options_bytes).ok();
        let format = Format::of_name(format);
        Request { format, code, options_bytes, options, platform: None, is_ahead_of_time: false, is_watched: false }
    }

    /// The options of the build, if the options can be decoded and have them.
    pub fn build_options(&self) -> Option<&ExecutableBuildOptionsProto> {
        self.options.as_ref()?.executable_build_options.as_ref()
    }

    /// The devices that the program runs on: replicas times partitions. Options that do not say mean one of each.
    /// `None` if the options cannot be decoded.
    pub fn device_count(&self) -> Option<u64> {
        let count = |number: i64| u64::try_from(number).unwrap_or_default().max(1);
        let of_build =
            |build: &ExecutableBuildOptionsProto| count(build.num_replicas).saturating_mul(count(build.num_partitions));
        self.options.as_ref().map(|_| self.build_options().map_or(1, of_build))
    }
}
