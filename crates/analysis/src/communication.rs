//! What single instructions communicate, by their opcodes.

use serde::{Serialize, Serializer};

use meshloom_hlo::CollectiveKind;

/// What an instruction communicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Communication {
    /// A collective, whose moved bytes are known.
    Collective(CollectiveKind),
    /// Something whose moved bytes depend on its data, or on another program.
    Other(&'static str),
}

impl Communication {
    /// All there are.
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

    /// That of a name; `None` for what communicates nothing.
    pub fn named(name: &str) -> Option<Communication> {
        Communication::ALL.into_iter().find(|communication| communication.name() == name)
    }

    /// HLO's opcode, without what says that it is one of two halves.
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

/// What an opcode communicates, and whether it is the first of two halves. Second halves communicate nothing.
pub fn communication(opcode: &str) -> Option<(Communication, bool)> {
    let (name, asynchronous) = match opcode.strip_suffix("-start") {
        Some(name) => (name, true),
        None => (opcode, false),
    };
    Some((Communication::named(name)?, asynchronous))
}
