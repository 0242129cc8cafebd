//! Writes a module as a portable artifact of StableHLO: MLIR's bytecode of the dialect VHLO, which keeps its meaning
//! from version to version.
//!
//! | step | module |
//! |---|---|
//! | the walk over the module, which is that of the text, makes a record of ops | [`record`] |
//! | attributes, types and locations of text become bytes, by the tables of the reader | [`encode`] |
//! | each thing once, under a number that is short if it is used often | [`items`] |
//! | the forms of ops in a version, and attributes that StableHLO leaves out | [`version`] |
//! | the sections of the file | [`file`](mod@file) |

mod encode;
mod file;
mod items;
mod record;
mod version;

pub use version::{ArtifactVersion, VersionError};

use super::printer::Printer;
use super::{WriteError, WriteOptions};
use crate::proto::HloModuleProto;

/// A module as a portable artifact of StableHLO, which plugins take as the format `mlir`.
///
/// It says what the text of [`write`](super::write()) says. Without a version it has the oldest one that knows all that
/// is in the module, from 1.0.0 on, so that as many plugins as possible read it.
///
/// # Errors
/// As of [`write`](super::write()); or the version does not have an op, an attribute or a type; or the module has an op
/// of another dialect.
///
/// ```
/// use meshloom_hlo::stablehlo::{ArtifactVersion, WriteOptions, write_artifact};
///
/// let text = "HloModule m\n\nENTRY main {\n  x = f32[2] parameter(0)\n  ROOT y = f32[2] negate(x)\n}\n";
/// let module = meshloom_hlo::read::read(text.as_bytes(), &Default::default())?.module;
/// let artifact = write_artifact(&module, &WriteOptions::default(), None)?;
/// assert!(artifact.starts_with(b"ML\xefR"));
/// let newer: ArtifactVersion = "1.9.0".parse()?;
/// write_artifact(&module, &WriteOptions::default(), Some(newer))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_artifact(
    module: &HloModuleProto,
    options: &WriteOptions,
    version: Option<ArtifactVersion>,
) -> Result<Vec<u8>, WriteError> {
    let mut record = record::Record::new(version);
    Printer::new(module, options, &mut record).module()?;
    Ok(file::write(record)?)
}
