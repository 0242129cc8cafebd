//! The module in the end: shrunk as long as the symptom shows.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use meshloom::analysis::shrink::{Limits, Shrunk, Verdict, instruction_count, shrink, shrink_pair};
use meshloom::hlo::proto::HloModuleProto;

use super::program::Program;
use super::report::{Case, Shrinking};
use super::runner::Beside;
use super::search::{Judged, Search, Setting};
use super::symptom::{Kind, Symptom};

impl Search<'_> {
    /// Shrinks the module of the setting that shows the symptom.
    pub(super) fn smaller(&mut self) -> Result<(Case, Option<Shrinking>)> {
        let setting = self.setting.clone();
        // Its inputs are those of the setting from here on.
        self.judge(&setting)?;
        let program = self.subject.suspect(&setting.form, self.further)?;
        let beside = self.beside(&setting)?;
        let (program, beside, shrinking) = match self.arguments.shrink {
            0 => (program, beside, None),
            _ => self.shrunk(&setting, program, beside)?,
        };
        let symptom = match self.look(&setting, &program, beside.as_ref())? {
            Judged::Shows(symptom) => Some(symptom),
            _ => self.symptom.clone(),
        };
        let Some(symptom) = symptom else { bail!("the symptom does not show any more") };
        let mut inputs = self.runner.arguments(&program)?;
        if let Some(Beside::Module(reference, _)) = &beside {
            inputs.extend(self.runner.arguments(reference)?);
        }
        let mut seen = BTreeSet::new();
        inputs.retain(|(name, ..)| seen.insert(name.clone()));
        let inputs = inputs.into_iter().map(|(name, literal, _)| (name, literal)).collect();
        let (options, plugin) = (setting.options, setting.plugin.name);
        let case = Case { suspect: program, options, beside, inputs, symptom, plugin };
        Ok((case, shrinking))
    }

    /// Returns the run that the suspect is compared with, if results are compared. If settings remove the symptom, it
    /// is the suspect with them.
    fn beside(&mut self, setting: &Setting) -> Result<Option<Beside>> {
        if self.symptom.as_ref().map(Symptom::kind) != Some(Kind::Differs) {
            return Ok(None);
        }
        if let Some(options) = &self.removing {
            return Ok(Some(Beside::Settings(options.clone())));
        }
        if !self.passes.is_empty() {
            let form = setting.form.without(&self.passes);
            let program = self.subject.suspect(&form, self.further)?;
            return Ok(Some(Beside::Module(Box::new(program), setting.options.clone())));
        }
        self.reference(setting).map(Some)
    }

    fn shrunk(
        &mut self,
        setting: &Setting,
        program: Program,
        beside: Option<Beside>,
    ) -> Result<(Program, Option<Beside>, Option<Shrinking>)> {
        // Where parts lie is read from the module from here on. Devices are compared one by one, where there are as
        // many.
        let joins = match &beside {
            Some(Beside::Module(reference, _)) => reference.device_count() != program.device_count(),
            _ => false,
        };
        let plain = |program: &Program| program.with_module(program.module.clone()).with_joined_outputs(joins);
        let start = plain(&program);
        let beside_start = match &beside {
            Some(Beside::Module(reference, options)) => {
                Some(Beside::Module(Box::new(plain(reference)), options.clone()))
            }
            other => other.clone(),
        };
        if !matches!(self.look(setting, &start, beside_start.as_ref())?, Judged::Shows(_)) {
            return Ok((program, beside, None));
        }
        let limits = Limits { tries: self.arguments.shrink };
        let mut failure = None;
        let mut tries = 0;
        let mut verdict = |search: &mut Self, program: &Program, beside: Option<&Beside>| {
            tries += 1;
            let count = instruction_count(&program.module);
            (search.progress)(&format!("shrinking, try {tries}: {count} instructions"));
            match search.look(setting, program, beside) {
                Ok(Judged::Shows(_)) => Verdict::Shows,
                Ok(_) => Verdict::Gone,
                Err(error) => {
                    failure = Some(error);
                    Verdict::Stop
                }
            }
        };
        let found = match &beside_start {
            Some(Beside::Module(reference, options)) => {
                let pair = (start.module.clone(), reference.module.clone());
                let before = instruction_count(&pair.0) + instruction_count(&pair.1);
                let shrunk = shrink_pair(&pair, limits, &mut |(left, right)| {
                    let beside = Beside::Module(Box::new(reference.with_module(right.clone())), options.clone());
                    verdict(self, &start.with_module(left.clone()), Some(&beside))
                });
                let (left, right) = shrunk.module.clone();
                let count = instruction_count(&left) + instruction_count(&right);
                let shrinking = shrinking(before, count, &shrunk);
                let beside = Beside::Module(Box::new(reference.with_module(right)), options.clone());
                (start.with_module(left), Some(beside), Some(shrinking))
            }
            beside => {
                let shrunk = shrink(&start.module, limits, &mut |module: &HloModuleProto| {
                    verdict(self, &start.with_module(module.clone()), beside.as_ref())
                });
                let (before, count) = (instruction_count(&start.module), instruction_count(&shrunk.module));
                let shrinking = shrinking(before, count, &shrunk);
                (start.with_module(shrunk.module), beside.clone(), Some(shrinking))
            }
        };
        match failure {
            Some(error) => Err(error),
            None => Ok(found),
        }
    }
}

fn shrinking<M>(instructions_before: usize, instructions: usize, shrunk: &Shrunk<M>) -> Shrinking {
    Shrinking {
        instructions_before,
        instructions,
        tries: shrunk.tries,
        is_complete: shrunk.is_complete,
        steps: shrunk.steps.clone(),
    }
}
