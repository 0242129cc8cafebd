//! A program that a plugin has loaded on devices of a client, and the facts about it.

use std::sync::Arc;

use super::api::Owned;
use super::compiled::Compiled;
use super::program::Parameter;
use super::sys::PJRT_LoadedExecutable;
use meshloom_hlo::TensorType;

/// A loaded program. It must go before its client, which it does not hold: a client may keep its programs.
pub(super) struct Loaded {
    /// The compiled program points into the loaded one, so it goes first: fields are dropped in order of declaration.
    pub(super) compiled: Compiled,
    pub(super) raw: Owned<PJRT_LoadedExecutable>,
    /// The module's name.
    pub(super) name: Arc<str>,
    /// Indices of this process's devices that it runs on, in the order of the argument lists.
    pub(super) devices: Vec<usize>,
    /// The positions of these among all devices of the program.
    pub(super) places: Vec<usize>,
    /// The number of all devices of the program.
    pub(super) total: usize,
    pub(super) parameters: Vec<Parameter>,
    pub(super) output_count: usize,
    /// Per output; `None` when the type has no host form here. Empty when the plugin does not say.
    pub(super) output_types: Vec<Option<TensorType>>,
}
