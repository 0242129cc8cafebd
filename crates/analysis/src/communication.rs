//! The communication of single instructions, by their opcodes.

use serde::{Serialize, Serializer};

use meshloom_hlo::CollectiveKind;

/// The communication that an instruction performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Communication {
    /// A collective, whose moved bytes are known.
    Collective(CollectiveKind),
    /// An instruction whose moved bytes depend on its data, or on another program.
    Other(&'static str),
}

impl Communication {
    /// All kinds of communication.
    pub const ALL: [Communication; 9] = [
        Communication::Collective(CollectiveKind::AllGather),
        Communication::Collective(CollectiveKind::AllReduce),
        Communication::Collective(CollectiveKind::AllToAll),
        Communication::Collective(CollectiveKind::CollectivePermute),
        Communication::Collective(CollectiveKind::ReduceScatter),
        Communication::Other("collective-broadcast"),
        Communication::Other("ragged-all-to-all"),
        Communication::Other("send"),
        Communication::Other("recv"),
    ];

    /// Returns the communication with this name; `None` if no communication has it.
    pub fn named(name: &str) -> Option<Communication> {
        Communication::ALL.into_iter().find(|communication| communication.name() == name)
    }

    /// Returns HLO's opcode, without the suffix that marks one of two halves.
    pub fn name(self) -> &'static str {
        match self {
            Communication::Collective(kind) => kind.name(),
            Communication::Other(name) => name,
        }
    }
}

impl Serialize for Communication {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Returns the communication of an opcode, and whether it is the first of two halves. Second halves communicate
/// nothing.
pub fn communication(opcode: &str) -> Option<(Communication, bool)> {
    let (name, asynchronous) = match opcode.strip_suffix("-start") {
        Some(name) => (name, true),
        None => (opcode, false),
    };
    Some((Communication::named(name)?, asynchronous))
}
