//! From the names on a tensor's dimensions to its spec.

use super::{Diagnostic, Rule, RuleProblem, Rules, unknown_axis};
use crate::sharding::{Axes, Mesh, ShardingError, Spec};

/// The spec of a tensor, and the rule that gave each dimension its axes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// The spec.
    pub spec: Spec,
    /// For each dimension the place in [`Rules::rules`] of the rule that settled it; `None` if no rule did.
    pub rules: Vec<Option<usize>>,
}

/// The state of one dimension on the way through the rules.
#[derive(Clone, Default)]
struct Slot<'a> {
    /// The rule that settled it, with its place.
    settled: Option<(usize, &'a Rule)>,
    /// The first rule that could not apply because of a taken axis.
    skipped: Option<RuleProblem>,
}

impl Rules {
    /// The spec of a tensor by the names on its dimensions. In lenient mode problems are added to `diagnostics`.
    pub fn resolve(
        &self,
        mesh: &Mesh,
        tensor: &str,
        names: &[Option<&str>],
        dims: &[usize],
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Result<Spec, ShardingError> {
        self.assign(mesh, tensor, names, dims, diagnostics).map(|assigned| assigned.spec)
    }

    /// As [`Rules::resolve`], with the rule behind each dimension.
    pub fn assign(
        &self,
        mesh: &Mesh,
        tensor: &str,
        names: &[Option<&str>],
        dims: &[usize],
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Result<Assigned, ShardingError> {
        check_names(tensor, names, dims)?;
        let mut slots: Vec<Slot<'_>> = vec![Slot::default(); dims.len()];
        for (place, rule) in self.rules.iter().enumerate() {
            let Some(dim) = names.iter().position(|name| *name == Some(rule.name.as_str())) else { continue };
            if slots[dim].settled.is_some() {
                continue;
            }
            for axis in rule.axes.iter().filter(|axis| !self.knows(mesh, axis)) {
                self.report(unknown_axis(mesh, rule, axis), diagnostics)?;
            }
            let is_first = slots[dim].skipped.is_none();
            match taken(rule, &slots) {
                None => slots[dim].settled = Some((place, rule)),
                // A rule all of whose axes have size 1 would have split nothing: no loss, no complaint.
                Some((axis, taken_dim, taken_rule)) if is_first && splits(mesh, rule) => {
                    slots[dim].skipped = Some(RuleProblem::Clash {
                        tensor: tensor.to_owned(),
                        dim,
                        name: rule.name.clone(),
                        rule: rule.to_string(),
                        axis: axis.to_owned(),
                        taken_dim,
                        taken_rule: taken_rule.to_string(),
                        published: rule.published && taken_rule.published,
                    });
                }
                Some(_) => {}
            }
        }
        let mut spec = Spec::replicated(dims.len());
        let rules = slots.iter().map(|slot| slot.settled.map(|(place, _)| place)).collect();
        for (dim, slot) in slots.into_iter().enumerate() {
            match (slot.settled, slot.skipped) {
                // A later rule of the same name is a stated fallback, so a rule that was skipped before it is not a
                // problem.
                (Some((_, rule)), _) => {
                    let axes = rule.axes.iter().filter_map(|axis| mesh.axis(axis));
                    let axes = axes.filter(|axis| mesh.size(*axis) > 1).collect();
                    let axes = self.divide(mesh, tensor, rule, (dim, dims[dim]), axes, diagnostics)?;
                    spec = spec.with_dim(dim, axes);
                }
                (None, Some(problem)) => self.report(problem, diagnostics)?,
                (None, None) => {}
            }
        }
        Ok(Assigned { spec, rules })
    }

    /// The mesh axes that split all but the first dimension of activations with these names, whatever their sizes.
    /// Problems of the rules are reported for the activations themselves.
    pub(in crate::sharding) fn axes_of_rows(
        &self,
        mesh: &Mesh,
        tensor: &str,
        names: &[Option<&str>],
    ) -> Result<Axes, ShardingError> {
        let lenient = self.clone().with_strict(false);
        // All axes divide zero.
        let spec = lenient.resolve(mesh, tensor, names, &vec![0; names.len()], &mut Vec::new())?;
        Ok((1..names.len()).flat_map(|dim| spec.dim(dim).iter().copied()).collect())
    }

    /// The axes unchanged if they divide the dimension, or need not divide it. Otherwise the result is the problem, or
    /// those axes that do divide it, taken in order.
    fn divide(
        &self,
        mesh: &Mesh,
        tensor: &str,
        rule: &Rule,
        (dim, size): (usize, usize),
        axes: Axes,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Result<Axes, ShardingError> {
        let parts: usize = axes.iter().map(|axis| mesh.size(*axis)).product();
        if size.is_multiple_of(parts) || self.uneven && !self.as_divides {
            return Ok(axes);
        }
        let mut kept = Axes::new();
        let mut kept_parts = 1;
        for axis in axes {
            if size.is_multiple_of(kept_parts * mesh.size(axis)) {
                kept_parts *= mesh.size(axis);
                kept.push(axis);
            }
        }
        if self.as_divides {
            return Ok(kept);
        }
        let problem = RuleProblem::NotDivisible {
            tensor: tensor.to_owned(),
            dim,
            name: rule.name.clone(),
            size,
            parts,
            rule: rule.to_string(),
            mesh: mesh.to_string(),
            kept: kept.iter().map(|axis| mesh.name(*axis)).collect::<Vec<_>>().join(","),
        };
        self.report(problem, diagnostics)?;
        Ok(kept)
    }
}

/// The first axis of a rule that is used in the tensor already, by which dimension and rule.
fn taken<'a>(rule: &'a Rule, slots: &[Slot<'a>]) -> Option<(&'a str, usize, &'a Rule)> {
    let taker = |axis: &String| {
        let mut settled = slots.iter().enumerate().filter_map(|(dim, slot)| Some((dim, slot.settled?.1)));
        settled.find(|(_, taker)| taker.axes.contains(axis))
    };
    rule.axes.iter().find_map(|axis| taker(axis).map(|(dim, taker)| (axis.as_str(), dim, taker)))
}

/// Whether a rule names an axis of more than one device.
fn splits(mesh: &Mesh, rule: &Rule) -> bool {
    rule.axes.iter().filter_map(|axis| mesh.axis(axis)).any(|axis| mesh.size(axis) > 1)
}

fn check_names(tensor: &str, names: &[Option<&str>], dims: &[usize]) -> Result<(), ShardingError> {
    let tensor = || tensor.to_owned();
    if names.len() != dims.len() {
        return Err(ShardingError::NameCount { tensor: tensor(), rank: dims.len(), names: names.len() });
    }
    for (second, name) in names.iter().enumerate() {
        if let Some(name) = name
            && let Some(first) = names[..second].iter().position(|earlier| *earlier == Some(name))
        {
            return Err(ShardingError::DuplicateName { tensor: tensor(), name: (*name).to_owned(), first, second });
        }
    }
    Ok(())
}
