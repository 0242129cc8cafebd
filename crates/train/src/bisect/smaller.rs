//! The module in the end: shrunk as long as the symptom shows.

use std::collections::BTreeSet;

use meshloom::analysis::shrink::{Limits, Shrunk, Verdict, instruction_count, shrink, shrink_pair};
use meshloom::hlo::proto::HloModuleProto;

use super::program::Program;
use super::runner::{DebugOptions, Outcome};
use super::search::{Judged, Search, Setting};
use super::subject::Subject;
use super::symptom::difference;
use super::{BisectError, Case, Kind, Shrinking, Symptom};

/// The run beside the suspect: none, the same module with other settings, or another module.
#[derive(Clone)]
enum Beside {
    Nothing,
    Settings(DebugOptions),
    Module(Box<Program>, DebugOptions),
}

impl Search<'_> {
    /// Shrinks the module of the setting that shows the symptom.
    pub(super) fn smaller(&mut self) -> Result<(Case, Option<Shrinking>), BisectError> {
        let setting = self.setting.clone();
        // Its inputs are those of the setting from here on.
        self.judge(&setting)?;
        let program = self.subject.suspect(&setting.form, self.options.further)?;
        let beside = self.beside(&setting)?;
        let (program, beside, shrinking) = match self.options.shrink_tries {
            0 => (program, beside, None),
            _ => self.shrunk(&setting, program, beside)?,
        };
        let symptom = match self.look(&setting, &program, &beside)? {
            Judged::Shows(symptom) => Some(symptom),
            _ => self.symptom.clone(),
        };
        let Some(symptom) = symptom else {
            return Err(BisectError::Unsupported { reason: "the symptom does not show any more".to_owned() });
        };
        let mut inputs: Vec<_> = self.runner.arguments(&program)?;
        let (reference, reference_options) = match &beside {
            Beside::Nothing => (None, DebugOptions::new()),
            Beside::Settings(options) => (None, options.clone()),
            Beside::Module(reference, options) => {
                inputs.extend(self.runner.arguments(reference)?);
                (Some((reference.module.clone(), (reference.replicas, reference.partitions))), options.clone())
            }
        };
        let mut seen = BTreeSet::new();
        inputs.retain(|(name, ..)| seen.insert(name.clone()));
        let case = Case {
            devices: (program.replicas, program.partitions),
            shardy: program.shardy,
            module: program.module,
            options: setting.options,
            reference,
            reference_options,
            inputs: inputs.into_iter().map(|(name, literal, _)| (name, literal)).collect(),
            symptom,
            plugin: setting.plugin.name,
            tolerance: self.options.tolerance,
            time_limit: self.options.time_limit,
        };
        Ok((case, shrinking))
    }

    /// Returns the run that the suspect is compared with. If settings remove the symptom, it is the suspect with them.
    fn beside(&mut self, setting: &Setting) -> Result<Beside, BisectError> {
        if self.symptom.as_ref().map(Symptom::kind) != Some(Kind::Differs) {
            return Ok(Beside::Nothing);
        }
        if let Some(options) = &self.removing {
            return Ok(Beside::Settings(options.clone()));
        }
        if !self.passes.is_empty() {
            let form = setting.form.without(&self.passes);
            let program = self.subject.suspect(&form, self.options.further)?;
            return Ok(Beside::Module(Box::new(program), setting.options.clone()));
        }
        Ok(match self.subject.reference(&setting.form)? {
            None => Beside::Settings(self.quiet.clone()),
            Some(program) if matches!(self.subject, Subject::Config { .. }) => {
                Beside::Module(Box::new(program), DebugOptions::new())
            }
            Some(program) => Beside::Module(Box::new(program), setting.options.clone()),
        })
    }

    /// Whether a program shows the symptom beside another one.
    fn look(&mut self, setting: &Setting, program: &Program, beside: &Beside) -> Result<Judged, BisectError> {
        let outcome = self.runner.run(program, &setting.options, &setting.plugin)?;
        let symptom = match self.symptom_of(program, &outcome)? {
            Ok(symptom) => symptom,
            Err(reason) => return Ok(Judged::Impossible(reason)),
        };
        let (reference, options) = match beside {
            Beside::Nothing => return Ok(self.compared(symptom)),
            Beside::Settings(options) => (program, options),
            Beside::Module(reference, options) => (&**reference, options),
        };
        let expected = self.runner.run(reference, options, &setting.plugin)?;
        let (Outcome::Done(found), Outcome::Done(expected)) = (outcome, expected) else {
            return Ok(Judged::Impossible("one of two programs does not end well".to_owned()));
        };
        if found.outputs.len() != expected.outputs.len() {
            return Ok(Judged::Impossible("they have other numbers of outputs".to_owned()));
        }
        let difference = difference(&found.outputs, &expected.outputs, self.options.tolerance);
        Ok(self.compared(difference))
    }

    fn shrunk(
        &mut self,
        setting: &Setting,
        program: Program,
        beside: Beside,
    ) -> Result<(Program, Beside, Option<Shrinking>), BisectError> {
        // Where parts lie is read from the module from here on. Devices are compared one by one, where there are as
        // many.
        let joins = match &beside {
            Beside::Module(reference, _) => reference.device_count() != program.device_count(),
            _ => false,
        };
        let plain = |program: &Program| program.with_module(program.module.clone()).with_joined_outputs(joins);
        let start = plain(&program);
        let beside_start = match &beside {
            Beside::Module(reference, options) => Beside::Module(Box::new(plain(reference)), options.clone()),
            other => other.clone(),
        };
        if !matches!(self.look(setting, &start, &beside_start)?, Judged::Shows(_)) {
            return Ok((program, beside, None));
        }
        let limits = Limits { tries: self.options.shrink_tries };
        let mut failure = None;
        let mut tries = 0;
        let mut verdict = |search: &mut Self, program: &Program, beside: &Beside| {
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
            Beside::Module(reference, options) => {
                let pair = (start.module.clone(), reference.module.clone());
                let before = instruction_count(&pair.0) + instruction_count(&pair.1);
                let shrunk = shrink_pair(&pair, limits, &mut |(left, right)| {
                    let beside = Beside::Module(Box::new(reference.with_module(right.clone())), options.clone());
                    verdict(self, &start.with_module(left.clone()), &beside)
                });
                let (left, right) = shrunk.module.clone();
                let count = instruction_count(&left) + instruction_count(&right);
                let shrinking = shrinking(before, count, &shrunk);
                let beside = Beside::Module(Box::new(reference.with_module(right)), options.clone());
                (start.with_module(left), beside, Some(shrinking))
            }
            beside => {
                let shrunk = shrink(&start.module, limits, &mut |module: &HloModuleProto| {
                    verdict(self, &start.with_module(module.clone()), beside)
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
