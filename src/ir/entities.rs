//! Index types into a [`Graph`](super::Graph), and the origin of nodes.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::{LazyLock, RwLock};

use indexmap::IndexSet;

macro_rules! entities {
    ($($(#[$doc:meta])* $name:ident in $table:literal as $text:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            #[doc = concat!("Position in the graph's ", $table, " table.")]
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $text, self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

entities! {
    /// One tensor in a graph: an input or a result of a node. Printed as `%3`.
    Value in "value" as "%{}";
    /// One application of an op in a graph. Nodes stand in topological order. Printed as `node3`.
    Node in "node" as "node{}";
}

// Scopes and names live in one table for the whole process, so that a node can be moved from graph to graph by copying
// four bytes. It only ever holds distinct names, so its size is bounded by the programs' text, not by how often they
// run.
static NAMES: LazyLock<RwLock<IndexSet<Box<str>>>> =
    LazyLock::new(|| RwLock::new(IndexSet::from_iter([Box::from("")])));
static SCOPES: LazyLock<RwLock<IndexSet<(Scope, Name)>>> =
    LazyLock::new(|| RwLock::new(IndexSet::from_iter([(Scope(0), Name(0))])));

fn intern<T: std::hash::Hash + Eq, Q: std::hash::Hash + indexmap::Equivalent<T> + ?Sized>(
    table: &RwLock<IndexSet<T>>,
    key: &Q,
    make: impl FnOnce() -> T,
) -> u32 {
    // A poisoned lock still holds a valid table: nothing between lock and unlock leaves it half-changed.
    if let Some(index) = table.read().unwrap_or_else(|e| e.into_inner()).get_index_of(key) {
        return index as u32;
    }
    table.write().unwrap_or_else(|e| e.into_inner()).insert_full(make()).0 as u32
}

/// An interned string: a logical axis name or the name of a saved value. The empty name means "none".
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Name(u32);

impl Name {
    /// The name with that text.
    pub fn new(text: &str) -> Name {
        Name(intern(&NAMES, text, || text.into()))
    }

    /// Whether this is the empty name.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The text.
    pub fn text(self) -> String {
        let names = NAMES.read().unwrap_or_else(|e| e.into_inner());
        names.get_index(self.0 as usize).map(|name| name.to_string()).unwrap_or_default()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

/// A path of nested names, such as `train_step/layers.3/attention`: where in the model a node belongs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Scope(u32);

impl Scope {
    /// The empty path.
    pub const ROOT: Scope = Scope(0);

    /// This path with one more name.
    pub fn child(self, name: &str) -> Scope {
        let key = (self, Name::new(name));
        Scope(intern(&SCOPES, &key, || key))
    }

    /// The names joined by `/`; empty for the root.
    pub fn path(self) -> String {
        let scopes = SCOPES.read().unwrap_or_else(|e| e.into_inner());
        let mut parts = Vec::new();
        let mut scope = self;
        while scope != Scope::ROOT {
            let Some(&(parent, name)) = scopes.get_index(scope.0 as usize) else { break };
            parts.push(name.text());
            scope = parent;
        }
        parts.reverse();
        parts.join("/")
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.path())
    }
}

/// The part of a training step that a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Phase {
    /// Written by the user.
    #[default]
    Forward,
    /// Made by reverse-mode differentiation.
    Backward,
    /// A forward node that a checkpoint runs again during the backward pass.
    Recompute,
}

impl Phase {
    /// The prefix of the scope path of a node in this phase: `backward/`.
    pub fn prefix(self) -> &'static str {
        match self {
            Phase::Forward => "",
            Phase::Backward => "backward/",
            Phase::Recompute => "recompute/",
        }
    }
}

/// A line of the user's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserLine {
    /// File, line and column of a call in Rust.
    Rust(&'static Location<'static>),
    /// A line of the program from which a module was made that has been imported.
    Foreign {
        /// The file, as the module names it.
        file: Name,
        /// The line.
        line: u32,
    },
}

impl UserLine {
    /// The file.
    pub fn file(self) -> Cow<'static, str> {
        match self {
            UserLine::Rust(location) => location.file().into(),
            UserLine::Foreign { file, .. } => file.text().into(),
        }
    }

    /// The number of the line, from 1 on.
    pub fn line(self) -> u32 {
        match self {
            UserLine::Rust(location) => location.line(),
            UserLine::Foreign { line, .. } => line,
        }
    }
}

/// `FILE:LINE`, and the column where it is known.
impl fmt::Display for UserLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UserLine::Rust(location) => location.fmt(f),
            UserLine::Foreign { file, line } => write!(f, "{file}:{line}"),
        }
    }
}

/// The origin of a node: the user's source line, the scope path and the phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Origin {
    /// The user's line; `None` for nodes no user wrote.
    pub place: Option<UserLine>,
    /// Scope path at that call.
    pub scope: Scope,
    /// Forward, backward or recomputation.
    pub phase: Phase,
}

impl Origin {
    /// The origin of a line of the user's, outside any scope.
    pub fn at(location: &'static Location<'static>) -> Origin {
        Origin { place: Some(UserLine::Rust(location)), ..Origin::default() }
    }

    /// The user's line as `file:line`, if a user wrote it.
    pub fn source(self) -> Option<String> {
        self.place.map(|place| format!("{}:{}", place.file(), place.line()))
    }

    /// The same origin in another phase.
    #[inline]
    pub fn in_phase(self, phase: Phase) -> Origin {
        Origin { phase, ..self }
    }

    /// The origin of a copy made in `phase`. A copy that the forward pass makes keeps its phase.
    #[inline]
    pub(crate) fn copied_in(self, phase: Phase) -> Origin {
        if phase == Phase::Forward { self } else { self.in_phase(phase) }
    }

    /// The origin in a body that runs in `phase`. A node that the user wrote takes the phase of the op it runs in.
    #[inline]
    pub(crate) fn inside(self, phase: Phase) -> Origin {
        if self.phase == Phase::Forward { self.in_phase(phase) } else { self }
    }
}
