//! Values that could not be split.

use std::borrow::Cow;
use std::fmt;

use crate::ir::{Origin, TensorType};

/// A value that every device was given a whole dimension of, because an op cannot work on its parts.
#[derive(Clone, Debug)]
pub struct Fallback {
    /// Name of the op; of an instruction that no op is, its opcode.
    pub op: Cow<'static, str>,
    /// Whether it is an instruction that no op is ([`Opaque`](crate::ops::Opaque)).
    pub is_opaque: bool,
    /// Type of the whole value.
    pub ty: TensorType,
    /// The dimension joined.
    pub dim: usize,
    /// Names of the mesh axes that it was split over.
    pub axes: Vec<String>,
    /// Where the op comes from.
    pub origin: Origin,
}

impl Fallback {
    /// Bytes of the whole value.
    pub fn bytes(&self) -> usize {
        self.ty.byte_count()
    }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fallback { op, ty, dim, axes, origin, .. } = self;
        write!(f, "`{op}` cannot work on parts of dimension {dim} of {ty}: it is gathered over {}", axes.join(","))?;
        write!(f, " ({} bytes on every device)", self.bytes())?;
        write_place(f, origin, ",")
    }
}

/// Where an op comes from, behind a message and a mark.
pub(super) fn write_place(f: &mut fmt::Formatter<'_>, origin: &Origin, mark: &str) -> fmt::Result {
    let scope = origin.scope.path();
    if !scope.is_empty() {
        write!(f, "{mark} in scope `{scope}`")?;
    }
    if let Some(source) = origin.source() {
        write!(f, "{mark} at {source}")?;
    }
    Ok(())
}
