//! Train steps of small decoders with random rules over random meshes.
//!
//! A case has a text form, which is what a failure prints and what a kept case is written as:
//!
//! ```text
//! a=2,b=4 | grouped scanned full tied dropout chunks | embed=a,b mlp=b | params: embed=a | optimizer: mlp=a | without: hoist-gathers
//! ```
//!
//! It is a mesh, a model, the rules, rules of parameters and optimizer state where these have their own, and passes
//! that do not run.

use std::fmt;

use meshloom::compile::LOCAL_PASSES;
use meshloom::ir::Literal;
use meshloom::ops::RematPolicy;
use meshloom::optim::{AdamW, Decay, LearningRate, Optimizer};
use meshloom::pjrt::SliceLevels;
use meshloom::sharding::{Mesh, Rule, RuleSets, Rules};
use meshloom::trace::Tree;
use meshloom_nn::{Architecture, Batch, DecoderConfig, GroupedConfig, LayerConfig, Stack};
use meshloom_train::run::{DropoutConfig, StepFunction, TrainStep};

use support::random::Random;

const NAMES: [&str; 18] = [
    "activation_batch",
    "activation_length",
    "activation_norm_length",
    "activation_kv_length",
    "activation_embed",
    "activation_heads",
    "activation_kv_heads",
    "activation_kv",
    "activation_mlp",
    "activation_vocab",
    "embed",
    "heads",
    "kv_heads",
    "kv",
    "mlp",
    "vocab",
    "layers",
    "norm",
];

/// The sizes of a model and its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub name: &'static str,
    pub batch: usize,
    pub length: usize,
    pub embed: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub mlp: usize,
    pub vocab: usize,
    pub layers: usize,
}

/// One variant of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    pub sizes: Sizes,
    pub scanned: bool,
    pub remat: RematPolicy,
    pub tied: bool,
    pub dropout: bool,
    /// Whether the loss is made in four chunks.
    pub chunked: bool,
}

/// A train step with inputs for it.
pub struct Model {
    pub function: StepFunction,
    pub inputs: Vec<Literal>,
}

const REMAT: [(&str, RematPolicy); 3] =
    [("none", RematPolicy::None), ("full", RematPolicy::Full), ("dots", RematPolicy::Dots)];

impl Variant {
    /// All models of some sizes.
    pub fn all(sizes: &[Sizes]) -> Vec<Variant> {
        let mut all = Vec::new();
        for &sizes in sizes {
            for bits in 0..16 {
                let [scanned, tied, dropout, chunked] = [0, 1, 2, 3].map(|bit| bits >> bit & 1 == 0);
                all.extend(REMAT.map(|(_, remat)| Variant { sizes, scanned, remat, tied, dropout, chunked }));
            }
        }
        all
    }

    fn drop_rate(&self) -> f64 {
        if self.dropout { 0.1 } else { 0.0 }
    }

    pub fn model(&self) -> Model {
        let Sizes { batch, length, embed, heads, kv_heads, head_dim, mlp, vocab, layers, .. } = self.sizes;
        let layer = LayerConfig::llama(GroupedConfig::llama(heads, kv_heads, head_dim, 10_000.0), mlp, 1e-5);
        let architecture = Architecture {
            tied_embeddings: self.tied,
            ..Architecture::llama(embed, vocab, Stack::uniform(layer, layers), 1e-5)
        };
        let model = DecoderConfig {
            scan_layers: self.scanned,
            remat: self.remat.clone(),
            loss_chunks: if self.chunked { 4 } else { 1 },
            ..DecoderConfig::new(architecture)
        };
        let step = TrainStep {
            choice_bias_rate: 0.0,
            model,
            // Without it, a first step is the sign of the gradient, and rounding decides on the sign of what is almost
            // zero.
            optimizer: Optimizer::AdamW(AdamW { epsilon: 1e-2, ..AdamW::default() }),
            schedule: LearningRate { peak: 1e-2, warmup: 2, steps: 10, floor: 0.1, decay: Decay::Cosine },
            clip_norm: 1.0,
            batch,
            seq: length,
            microbatches: 1,
            dropout: DropoutConfig { rate: self.drop_rate(), attention_rate: self.drop_rate(), seed: 3 },
            master_copies: true,
        };
        let numbers = |f: &dyn Fn(usize) -> usize| {
            let numbers: Vec<i32> = (0..batch * length).map(|index| f(index) as i32).collect();
            Literal::from_slice(&[batch, length], &numbers).expect("a batch")
        };
        let weights: Vec<f32> = (0..batch * length).map(|index| ((index % 5) as f32) / 4.0).collect();
        let batch = Batch {
            tokens: numbers(&|index| (index * 5 + index / 7) % vocab),
            targets: numbers(&|index| (index * 11 + index / 7) % vocab),
            // Two documents in a row, the second one a little shorter.
            segment_ids: numbers(&|index| index % length / (length / 2 + 1)),
            positions: numbers(&|index| index % length),
            weights: Literal::from_slice(&[batch, length], &weights).expect("weights"),
        };
        let mut inputs = step.initialize(1).unwrap().leaves();
        inputs.extend(batch.leaves());
        Model { function: step.trace().expect("a traced step"), inputs }
    }

    /// Simpler variants, one change each.
    fn simpler(&self) -> Vec<Variant> {
        vec![
            Variant { dropout: false, ..self.clone() },
            Variant { chunked: false, ..self.clone() },
            Variant { tied: false, ..self.clone() },
            Variant { remat: RematPolicy::None, ..self.clone() },
            Variant { scanned: false, ..self.clone() },
        ]
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |holds: bool, yes: &'static str, no: &'static str| if holds { yes } else { no };
        let remat = REMAT.iter().find(|(_, remat)| *remat == self.remat).map_or("?", |(name, _)| name);
        let (scanned, tied) = (word(self.scanned, "scanned", "unrolled"), word(self.tied, "tied", "untied"));
        let (dropout, chunks) = (word(self.dropout, "dropout", "plain"), word(self.chunked, " chunks", ""));
        write!(f, "{} {scanned} {remat} {tied} {dropout}{chunks}", self.sizes.name)
    }
}

/// Logical names and the mesh axes that they are split over.
type RuleList = Vec<(String, Vec<String>)>;

/// A model, a mesh and rules.
#[derive(Clone, Debug)]
pub struct Case {
    pub model: Variant,
    pub mesh: Mesh,
    compute: RuleList,
    params: Option<RuleList>,
    optimizer: Option<RuleList>,
    /// Passes of the local graph that do not run.
    without: Vec<&'static str>,
}

impl Case {
    pub fn random(random: &mut Random, models: &[Variant], meshes: &[&str]) -> Case {
        let mesh = parse_mesh(meshes[random.below(meshes.len())]);
        let compute = random_rules(random, &mesh);
        // Parameters and optimizer state may lie elsewhere than where they are used.
        let [params, optimizer] = [(); 2].map(|()| (random.below(3) == 0).then(|| random_rules(random, &mesh)));
        let model = models[random.below(models.len())].clone();
        let passes = LOCAL_PASSES.iter().map(|pass| pass.name);
        let without = passes.filter(|_| random.below(5) == 0).collect();
        Case { model, mesh, compute, params, optimizer, without }
    }

    /// A case from its text form.
    pub fn parse(text: &str, models: &[Variant]) -> Case {
        let parts: Vec<&str> = text.split('|').map(str::trim).collect();
        let list = |text: &str| {
            let rule = |rule: &str| {
                let (name, axes) = rule.split_once('=').expect("a name and axes");
                (name.to_owned(), axes.split(',').map(str::to_owned).collect())
            };
            text.split_whitespace().map(rule).collect::<RuleList>()
        };
        let of = |name: &str| parts.iter().find_map(|part| part.strip_prefix(name));
        let without = of("without:").unwrap_or_default().split_whitespace();
        let pass = |name| LOCAL_PASSES.iter().find(|pass| pass.name == name).expect("the name of a pass").name;
        let model = models.iter().find(|model| model.to_string() == parts[1]);
        Case {
            model: model.unwrap_or_else(|| panic!("no model is called {:?}", parts[1])).clone(),
            mesh: parse_mesh(parts[0]),
            compute: list(parts[2]),
            params: of("params:").map(list),
            optimizer: of("optimizer:").map(list),
            without: without.map(pass).collect(),
        }
    }

    pub fn rules(&self) -> RuleSets {
        let rules = |list: &RuleList| {
            let rule = |(index, (name, axes)): (usize, &(String, Vec<String>))| Rule {
                name: name.clone(),
                axes: axes.clone(),
                origin: format!("rule {index}"),
                published: false,
            };
            Rules::new(list.iter().enumerate().map(rule).collect(), false).expect("rules")
        };
        let mut sets = RuleSets::uniform(rules(&self.compute));
        if let Some(list) = &self.params {
            sets.params = rules(list);
        }
        if let Some(list) = &self.optimizer {
            sets.optimizer = rules(list);
        }
        sets
    }

    /// The same case, without dead code: XLA refuses a `partition-id` that nothing reads.
    pub fn without_dead_code(mut self) -> Case {
        self.without.retain(|pass| *pass != "dead-code");
        self
    }

    /// Names of passes that do not run.
    pub fn without(&self) -> &[&'static str] {
        &self.without
    }

    /// Returns which collectives are done in levels, in every second case: those over all devices, and some gathers.
    pub fn levels(&self) -> Option<SliceLevels> {
        let devices = self.mesh.device_count();
        let minor = (2..devices).find(|&size| devices.is_multiple_of(size))?;
        let levels = SliceLevels { shape: vec![minor, devices / minor], whole: true, gathers: Some(1 << 9) };
        self.without.len().is_multiple_of(2).then_some(levels)
    }

    /// A case as simple as can be that still fails, by leaving one thing out at a time.
    pub fn minimised(mut self, fails: impl Fn(&Case) -> bool) -> Case {
        while let Some(simpler) = self.simpler().into_iter().find(&fails) {
            self = simpler;
        }
        self
    }

    fn simpler(&self) -> Vec<Case> {
        let mut all: Vec<Case> = vec![
            Case { params: None, optimizer: None, ..self.clone() },
            Case { params: None, ..self.clone() },
            Case { optimizer: None, ..self.clone() },
        ];
        all.retain(|case| case.rule_count() < self.rule_count());
        for at in 0..self.without.len() {
            let mut case = self.clone();
            case.without.remove(at);
            all.push(case);
        }
        let models = self.model.simpler().into_iter().filter(|model| *model != self.model);
        all.extend(models.map(|model| Case { model, ..self.clone() }));
        for at in 0..self.compute.len() {
            let mut case = self.clone();
            case.compute.remove(at);
            all.push(case);
        }
        for at in 0..self.params.as_ref().map_or(0, Vec::len) {
            let mut case = self.clone();
            case.params.iter_mut().for_each(|list| drop(list.remove(at)));
            all.push(case);
        }
        for at in 0..self.optimizer.as_ref().map_or(0, Vec::len) {
            let mut case = self.clone();
            case.optimizer.iter_mut().for_each(|list| drop(list.remove(at)));
            all.push(case);
        }
        all
    }

    /// Rules, and one for each list.
    fn rule_count(&self) -> usize {
        let lists = [&self.params, &self.optimizer];
        self.compute.len() + lists.into_iter().flatten().map(|list| 1 + list.len()).sum::<usize>()
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |list: &RuleList| {
            let rules: Vec<String> = list.iter().map(|(name, axes)| format!("{name}={}", axes.join(","))).collect();
            rules.join(" ")
        };
        write!(f, "{} | {} | {}", self.mesh, self.model, list(&self.compute))?;
        for (name, rules) in [("params", &self.params), ("optimizer", &self.optimizer)] {
            rules.iter().try_for_each(|rules| write!(f, " | {name}: {}", list(rules)))?;
        }
        if self.without.is_empty() { Ok(()) } else { write!(f, " | without: {}", self.without.join(" ")) }
    }
}

/// A mesh of as many devices as its sizes make.
fn parse_mesh(text: &str) -> Mesh {
    let sizes = text.split(',').filter_map(|part| part.split_once('=')).map(|(_, size)| size);
    let devices = sizes.map(|size| size.parse::<usize>().expect("a size")).product();
    Mesh::parse(text, devices).expect("a mesh")
}

fn random_rules(random: &mut Random, mesh: &Mesh) -> RuleList {
    let mut rules = RuleList::new();
    let mut names = NAMES.to_vec();
    random.shuffle(&mut names);
    for name in names {
        if random.below(5) < 2 {
            continue;
        }
        let mut axes: Vec<String> = mesh.axis_names().map(str::to_owned).collect();
        random.shuffle(&mut axes);
        axes.truncate([1, 1, 2, 2, 3][random.below(5)]);
        rules.push((name.to_owned(), axes));
    }
    // Another rule for a name that has one is tried where the first does not fit.
    for _ in 0..random.below(3) {
        let Some((name, _)) = rules.get(random.below(rules.len().max(1))).cloned() else { break };
        let axes: Vec<&str> = mesh.axis_names().collect();
        rules.push((name, vec![axes[random.below(axes.len())].to_owned()]));
    }
    rules
}
