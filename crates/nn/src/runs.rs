//! The runs in which the layers of a decoder are computed and stored: one scan over cycles, or a pipeline over cycles,
//! with shorter scans around it where neighbouring layers are alike.

use meshloom::trace::{Inputs, LayerNumbers, MapTree, Path, Tree};

use super::config::DecoderConfig;
use super::layer::{DecoderLayer, LayerConfig};

/// Neighbouring layers that are computed and stored together.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerRun {
    /// The number of the first layer.
    pub first: usize,
    /// The layers of a cycle.
    pub cycle: Vec<LayerConfig>,
    /// The way in which they run.
    pub form: RunForm,
}

/// The way in which the layers of a [`LayerRun`] are computed and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunForm {
    /// One cycle, whose layers have parameters of their own.
    Apart,
    /// So many cycles in a scan. Parameters have a leading dimension over them.
    Scanned(usize),
    /// In a pipeline over cycles.
    Pipelined,
}

impl DecoderConfig {
    /// The runs of the layers, in order.
    pub fn runs(&self) -> Vec<LayerRun> {
        let stack = &self.architecture.stack;
        let mut runs = Runs { scanned: self.scan_layers, next: 0, runs: Vec::new() };
        runs.add_layers(&stack.prefix);
        match &self.pipeline {
            Some(pipeline) => {
                let held = pipeline.leading_dims().iter().map(|(size, _)| size).product();
                runs.add_cycles(&stack.cycle, stack.cycles.saturating_sub(held));
                runs.add(&stack.cycle, held, RunForm::Pipelined);
            }
            None => runs.add_cycles(&stack.cycle, stack.cycles),
        }
        runs.add_layers(&stack.suffix);
        runs.runs
    }
}

impl LayerRun {
    /// The numbers of its layers.
    pub(super) fn numbers(&self) -> LayerNumbers {
        let step = if self.form == RunForm::Apart { None } else { Some(self.cycle.len()) };
        LayerNumbers { first: self.first, step }
    }
}

/// The runs so far.
struct Runs {
    scanned: bool,
    /// The number of the next layer.
    next: usize,
    runs: Vec<LayerRun>,
}

impl Runs {
    fn add(&mut self, cycle: &[LayerConfig], cycles: usize, form: RunForm) {
        if cycles > 0 && !cycle.is_empty() {
            self.runs.push(LayerRun { first: self.next, cycle: cycle.to_vec(), form });
            self.next += cycles * cycle.len();
        }
    }

    fn add_cycles(&mut self, cycle: &[LayerConfig], cycles: usize) {
        if self.scanned {
            return self.add(cycle, cycles, RunForm::Scanned(cycles));
        }
        for layer in (0..cycles).flat_map(|_| cycle) {
            self.add(std::slice::from_ref(layer), 1, RunForm::Apart);
        }
    }

    /// Layers; neighbours may be alike.
    fn add_layers(&mut self, layers: &[LayerConfig]) {
        for alike in layers.chunk_by(|one, next| one == next) {
            match (alike, self.scanned) {
                ([first, _, ..], true) => {
                    self.add(std::slice::from_ref(first), alike.len(), RunForm::Scanned(alike.len()));
                }
                _ => alike.iter().for_each(|layer| self.add(std::slice::from_ref(layer), 1, RunForm::Apart)),
            }
        }
    }
}

/// The parameters of the layers, run by run.
///
/// Layer 3 by itself has paths such as `layers.3.attention.wq`. Stacked layers are `layers.attention.wq` if they are
/// all from the first on, and `layers.1::2.attention.wq` if they are every second layer from layer 1 on; how many there
/// are is the leading dimension, or the leading dimensions of a pipeline.
#[derive(Clone, Debug)]
pub struct Layers<T>(pub Vec<RunWeights<T>>);

/// The parameters of a [`LayerRun`].
#[derive(Clone, Debug)]
pub struct RunWeights<T> {
    /// The numbers of the layers that they belong to: the first of each cycle.
    pub numbers: LayerNumbers,
    /// The parameters of each layer of the cycle.
    pub layers: Vec<DecoderLayer<T>>,
}

impl<T> RunWeights<T> {
    /// The numbers of the layers at one position of the cycle.
    fn numbers_at(&self, position: usize) -> LayerNumbers {
        LayerNumbers { first: self.numbers.first + position, ..self.numbers }
    }
}

impl<T: Inputs> Inputs for Layers<T> {
    type Specs = Layers<T::Specs>;

    fn specs(&self) -> Self::Specs {
        let of_run = |run: &RunWeights<T>| RunWeights {
            numbers: run.numbers,
            layers: run.layers.iter().map(DecoderLayer::specs).collect(),
        };
        Layers(self.0.iter().map(of_run).collect())
    }
}

impl<T: Tree> Tree for Layers<T> {
    type Leaf = T::Leaf;

    fn visit(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &T::Leaf)) {
        for run in &self.0 {
            for (position, layer) in run.layers.iter().enumerate() {
                run.numbers_at(position).within(path, |path| layer.visit(path, f));
            }
        }
    }

    fn rebuild(&self, next: &mut dyn FnMut() -> T::Leaf) -> Self {
        let mut of_run = |run: &RunWeights<T>| RunWeights {
            numbers: run.numbers,
            layers: run.layers.iter().map(|layer| layer.rebuild(next)).collect(),
        };
        Layers(self.0.iter().map(&mut of_run).collect())
    }
}

impl<U, T: MapTree<U>> MapTree<U> for Layers<T> {
    type Mapped = Layers<T::Mapped>;

    fn map_with(&self, path: &mut Path, f: &mut dyn FnMut(&Path, &T::Leaf) -> U) -> Self::Mapped {
        let mut runs = Vec::with_capacity(self.0.len());
        for run in &self.0 {
            let each = |(position, layer): (usize, &DecoderLayer<T>)| {
                run.numbers_at(position).within(path, |path| layer.map_with(path, f))
            };
            runs.push(RunWeights { numbers: run.numbers, layers: run.layers.iter().enumerate().map(each).collect() });
        }
        Layers(runs)
    }
}
