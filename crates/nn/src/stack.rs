//! The layers of a decoder, which need not be alike: a prefix, a cycle of layers that comes again and again, and a
//! suffix. The [runs](super::LayerRun) in which they are computed are described elsewhere.

use super::layer::LayerConfig;

/// The layers of a decoder, from the first to the last.
#[derive(Clone, Debug, PartialEq)]
pub struct Stack {
    /// Layers before the first cycle.
    pub prefix: Vec<LayerConfig>,
    /// The layers of a cycle.
    pub cycle: Vec<LayerConfig>,
    /// How often the cycle comes.
    pub cycles: usize,
    /// Layers behind the last cycle.
    pub suffix: Vec<LayerConfig>,
}

impl Stack {
    /// `count` layers that are all alike.
    pub fn uniform(layer: LayerConfig, count: usize) -> Stack {
        Stack { prefix: Vec::new(), cycle: vec![layer], cycles: count, suffix: Vec::new() }
    }

    /// The shortest description of these layers. If several are as short, it is the one whose cycles end last, so that
    /// layers outside of whole cycles stand in front.
    pub fn of_layers(layers: &[LayerConfig]) -> Stack {
        // Layers by the number of the first that is alike, which are cheap to compare.
        let kinds: Vec<Option<usize>> =
            layers.iter().map(|layer| layers.iter().position(|other| other == layer)).collect();
        let mut best = Stack { prefix: layers.to_vec(), cycle: Vec::new(), cycles: 0, suffix: Vec::new() };
        // How many layers need no description, since their cycle has come before.
        let mut saved = 0;
        for end in (1..=layers.len()).rev() {
            for length in 1..=end {
                if best.cycles > 0 && end - length <= saved {
                    break;
                }
                let alike = (0..end - length).rev().take_while(|&at| kinds[at] == kinds[at + length]).count();
                let cycles = alike / length + 1;
                if best.cycles > 0 && (cycles - 1) * length <= saved {
                    continue;
                }
                saved = (cycles - 1) * length;
                let start = end - cycles * length;
                best = Stack {
                    prefix: layers[..start].to_vec(),
                    cycle: layers[start..start + length].to_vec(),
                    cycles,
                    suffix: layers[end..].to_vec(),
                };
            }
        }
        best
    }

    /// The number of layers.
    pub fn layer_count(&self) -> usize {
        self.prefix.len() + self.cycle.len() * self.cycles + self.suffix.len()
    }

    /// Each layer, from the first on.
    pub fn layers(&self) -> impl Iterator<Item = &LayerConfig> {
        let cycles = (0..self.cycles).flat_map(|_| &self.cycle);
        self.prefix.iter().chain(cycles).chain(&self.suffix)
    }

    /// The layers of a description, each once: however often the cycle comes.
    pub fn described(&self) -> impl Iterator<Item = &LayerConfig> {
        self.prefix.iter().chain(&self.cycle).chain(&self.suffix)
    }

    /// Number of layers with routed experts.
    pub fn routed_count(&self) -> usize {
        let count = |layers: &[LayerConfig]| layers.iter().filter(|layer| layer.routed().is_some()).count();
        // A number of cycles may be absurd, so they are not walked through.
        count(&self.prefix) + count(&self.cycle).saturating_mul(self.cycles) + count(&self.suffix)
    }

    /// Changes every layer.
    pub fn for_each(&mut self, mut f: impl FnMut(&mut LayerConfig)) {
        self.prefix.iter_mut().chain(&mut self.cycle).chain(&mut self.suffix).for_each(&mut f);
    }
}
