//! The numbers of layers in the path of a parameter.

use std::fmt;

use super::tree::{Path, PathPart};

/// The numbers of the layers that a parameter belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNumbers {
    /// The number of the first layer.
    pub first: usize,
    /// The step from one layer to the next, for a parameter that is stacked over layers; `None` for one layer.
    pub step: Option<usize>,
}

impl LayerNumbers {
    /// Runs `f` with these numbers as the next part of the path, as [`LayerPath::of`] reads them: `3` for one layer,
    /// `1::2` for every second one from layer 1 on, and no part for all layers from the first on.
    pub fn within<R>(self, path: &mut Path, f: impl FnOnce(&mut Path) -> R) -> R {
        match self {
            LayerNumbers { first, step: None } => path.descend(PathPart::Element(first), f),
            LayerNumbers { first: 0, step: Some(1) } => f(path),
            LayerNumbers { first, step: Some(step) } => path.descend(PathPart::Every { first, step }, f),
        }
    }
}

/// A path without the numbers of layers, and the numbers.
///
/// | path | name | numbers |
/// |---|---|---|
/// | `layers.3.mlp.up` | `layers.mlp.up` | layer 3 |
/// | `layers.1::2.mlp.up`, stacked | `layers.mlp.up` | every second layer from 1 on |
/// | `layers.mlp.up`, stacked | `layers.mlp.up` | every layer from 0 on |
/// | `embedding` | `embedding` | none |
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerPath {
    /// The path that the parameters of all layers share.
    pub name: String,
    /// The numbers of its layers; `None` for a parameter outside of layers.
    pub numbers: Option<LayerNumbers>,
}

impl LayerPath {
    /// Reads the path of a parameter, which is stacked over layers or is not.
    pub fn of(path: &str, is_stacked: bool) -> LayerPath {
        let parts: Vec<&str> = path.split('.').collect();
        let numbered = parts.windows(2).enumerate().find_map(|(at, pair)| match pair {
            ["layers", numbers] => Some((at + 1, numbers_of(numbers)?)),
            _ => None,
        });
        match numbered {
            Some((at, numbers)) => {
                LayerPath { name: [&parts[..at], &parts[at + 1..]].concat().join("."), numbers: Some(numbers) }
            }
            None => {
                let numbers = is_stacked.then_some(LayerNumbers { first: 0, step: Some(1) });
                LayerPath { name: path.to_owned(), numbers }
            }
        }
    }
}

impl LayerPath {
    /// The path of a name with some text for the numbers of its layers.
    pub fn numbered(name: &str, numbers: &str) -> String {
        let mut parts: Vec<&str> = name.split('.').collect();
        if let Some(at) = parts.iter().position(|part| *part == "layers") {
            parts.insert(at + 1, numbers);
        }
        parts.join(".")
    }
}

impl fmt::Display for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = match self.numbers {
            None | Some(LayerNumbers { first: 0, step: Some(1) }) => return f.write_str(&self.name),
            Some(LayerNumbers { first, step: None }) => first.to_string(),
            Some(LayerNumbers { first, step: Some(step) }) => format!("{first}::{step}"),
        };
        f.write_str(&LayerPath::numbered(&self.name, &numbers))
    }
}

/// The numbers that a part of a path says.
fn numbers_of(part: &str) -> Option<LayerNumbers> {
    match part.split_once("::") {
        None => Some(LayerNumbers { first: part.parse().ok()?, step: None }),
        Some((first, step)) => {
            Some(LayerNumbers { first: first.parse().ok()?, step: Some(step.parse().ok().filter(|&step| step > 0)?) })
        }
    }
}
