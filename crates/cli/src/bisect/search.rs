//! The search: one thing is changed after another, and the effect is judged.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use meshloom::compile::Pass;
use meshloom::hlo::Literal;
use meshloom::hlo::mesh::Mesh;
use meshloom::hlo::message::counted;
use meshloom::pjrt::DebugValue;

use super::Bisect;
use super::inputs::{Draw, Inputs};
use super::program::Program;
use super::report::{Case, Culprit, Dimension, Effect, Report, Shrinking, Tried};
use super::runner::{Beside, Candidate, DebugOptions, Outcome, Runner};
use super::subject::{ConfigForm, Subject, axes_text, pass_names};
use super::suspects::{DISABLED_PASSES, FLAGS, XLA_PASSES};
use super::symptom::{Kind, Symptom, difference, not_finite, too_much_memory};

pub(super) struct Search<'a> {
    pub(super) subject: &'a Subject,
    pub(super) arguments: &'a Bisect,
    /// Inputs by the names of the parameters.
    given: BTreeMap<String, Literal>,
    /// Passes behind meshloom's, which may be at fault too.
    pub(super) further: &'a [Pass],
    pub(super) progress: &'a mut dyn FnMut(&str),
    pub(super) runner: Runner,
    /// The setting that shows the symptom, as simple as it is so far.
    pub(super) setting: Setting,
    /// The settings of a module's own reference: XLA's optimizations off.
    pub(super) quiet: DebugOptions,
    /// The symptom as it showed first.
    pub(super) symptom: Option<Symptom>,
    /// The settings that remove the symptom, of the most relevant culprit.
    pub(super) removing: Option<DebugOptions>,
    /// The passes of meshloom whose absence removes the symptom.
    pub(super) passes: Vec<&'static str>,
    /// References by the overrides of a form: passes that are left out make no difference to them.
    references: BTreeMap<Vec<String>, Option<Program>>,
    culprits: Vec<Culprit>,
    tried: Vec<Tried>,
    /// Passes that XLA leaves out for the plugin's sake, whatever is tried.
    always_out: Vec<String>,
}

#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) form: ConfigForm,
    pub(super) options: DebugOptions,
    pub(super) plugin: Candidate,
}

#[derive(Clone, Debug)]
pub(super) enum Judged {
    Shows(Symptom),
    Gone,
    Impossible(String),
}

impl<'a> Search<'a> {
    pub(super) fn new(
        subject: &'a Subject,
        arguments: &'a Bisect,
        given: BTreeMap<String, Literal>,
        further: &'a [Pass],
        worker: Option<PathBuf>,
        progress: &'a mut dyn FnMut(&str),
    ) -> Result<Search<'a>> {
        let plugin = Candidate::chosen(arguments.plugin.as_deref())?;
        let form = ConfigForm::default();
        let config = subject.config(&form)?;
        let of_config = config.iter().flat_map(|config| config.target.compiler_options.clone());
        let flags = std::env::var("XLA_FLAGS").unwrap_or_default();
        let options = xla_flags(&flags).chain(of_config).chain(arguments.option.clone());
        let parsed = options.map(|option| match option.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), DebugValue::parse(value))),
            _ => bail!("{option:?} is no setting of XLA's: expected name=value, as in xla_cpu_enable_fast_math=true"),
        });
        let debug_options = parsed.collect::<Result<DebugOptions>>()?;
        let draw = Draw { seed: arguments.seed, range: arguments.range, special: arguments.special };
        let time_limit = Duration::from_secs_f64(arguments.time_limit);
        let mut runner = Runner::new(Inputs { draw, given: given.clone() }, time_limit, worker);
        runner.compile_only = arguments.symptom == [Kind::Memory];
        Ok(Search {
            subject,
            arguments,
            given,
            further,
            progress,
            runner,
            setting: Setting { form, options: debug_options, plugin },
            quiet: DebugOptions::new(),
            symptom: None,
            removing: None,
            passes: Vec::new(),
            references: BTreeMap::new(),
            culprits: Vec::new(),
            tried: Vec::new(),
            always_out: Vec::new(),
        })
    }

    pub(super) fn run(mut self) -> Result<Report> {
        (self.progress)("the program as it is given");
        self.find_quiet()?;
        let first = self.judge(&self.setting.clone())?;
        let (change, effect) = match &first {
            Judged::Shows(symptom) => (symptom.to_string(), Effect::Shows),
            Judged::Gone => ("no symptom shows".to_owned(), Effect::Gone),
            Judged::Impossible(reason) => bail!("the program cannot be run: {reason}"),
        };
        self.tried.push(Tried { dimension: Dimension::AsGiven, change, effect });
        let Judged::Shows(symptom) = first else { return Ok(self.report(None, None)) };
        // Memory is known when a program is compiled.
        self.runner.compile_only = symptom.kind() == Kind::Memory;
        self.symptom = Some(symptom);
        let is_config = matches!(self.subject, Subject::Config { .. });
        let only = &self.arguments.only;
        for dimension in Dimension::ALL.into_iter().filter(|it| only.is_empty() || only.contains(it)) {
            match dimension {
                Dimension::AsGiven => {}
                Dimension::Size if is_config => self.change_sizes()?,
                Dimension::Mesh if is_config => self.change_mesh()?,
                Dimension::Pass if is_config => self.leave_out_passes()?,
                Dimension::PartitionMode if is_config => self.change_mode()?,
                Dimension::Size | Dimension::Mesh | Dimension::Pass | Dimension::PartitionMode => {}
                Dimension::Option => self.drop_options()?,
                Dimension::XlaPass => self.leave_out_xla_passes()?,
                Dimension::XlaFlag => self.change_flags()?,
                Dimension::Plugin => self.change_plugin()?,
            }
        }
        let (case, shrinking) = self.smaller()?;
        Ok(self.report(Some(case), shrinking))
    }

    fn report(mut self, case: Option<Case>, shrinking: Option<Shrinking>) -> Report {
        self.culprits.sort_by_key(|culprit| rank(culprit.dimension));
        let setting = &self.setting;
        Report {
            symptom: self.symptom,
            culprits: self.culprits,
            overrides: setting.form.overrides(),
            options: setting.options.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            plugin: setting.plugin.name.clone(),
            tried: self.tried,
            shrinking,
            runs: self.runner.tries,
            case: case.map(Box::new),
        }
    }

    /// Runs a setting, and says whether the symptom shows that is looked for.
    pub(super) fn judge(&mut self, setting: &Setting) -> Result<Judged> {
        let program = match self.subject.suspect(&setting.form, self.further) {
            Ok(program) => program,
            Err(error) => return Ok(Judged::Impossible(error.to_string())),
        };
        let ports = match program.inputs() {
            Ok(ports) => ports,
            Err(error) => return Ok(Judged::Impossible(error.to_string())),
        };
        let mut values = self.subject.values(&setting.form, &ports, self.arguments.seed)?;
        values.extend(self.given.clone());
        self.runner.inputs.given = values;
        self.look(setting, &program, None)
    }

    /// Whether a program shows the symptom, where results are compared beside another run: by default the setting's own
    /// reference.
    pub(super) fn look(&mut self, setting: &Setting, program: &Program, beside: Option<&Beside>) -> Result<Judged> {
        let outcome = self.runner.run(program, &setting.options, &setting.plugin)?;
        let done = match (self.symptom_of(program, &outcome)?, outcome) {
            (Err(reason), _) => return Ok(Judged::Impossible(reason)),
            (Ok(None), Outcome::Done(done)) if self.looks_for(Kind::Differs) => done,
            (Ok(symptom), _) => return Ok(self.compared(symptom)),
        };
        let beside = match beside.map_or_else(|| self.reference(setting), |beside| Ok(beside.clone())) {
            Ok(beside) => beside,
            Err(error) => return Ok(Judged::Impossible(format!("the reference cannot be made: {error}"))),
        };
        let (reference, options) = match &beside {
            Beside::Settings(options) => (program, options),
            Beside::Module(reference, options) => (&**reference, options),
        };
        let outcome = self.runner.run(reference, options, &setting.plugin)?;
        let Outcome::Done(expected) = outcome else {
            return Ok(Judged::Impossible(format!("the reference cannot be run: {}", outcome_text(&outcome))));
        };
        if expected.outputs.len() != done.outputs.len() {
            let (found, expected) = (counted(done.outputs.len(), "output"), expected.outputs.len());
            return Ok(Judged::Impossible(format!("it has {found}, and its reference {expected}")));
        }
        Ok(self.compared(difference(&done.outputs, &expected.outputs, self.arguments.tolerance)))
    }

    /// The run that a setting's program is compared with.
    pub(super) fn reference(&mut self, setting: &Setting) -> Result<Beside> {
        let key = setting.form.overrides();
        let reference = match self.references.get(&key) {
            Some(reference) => reference.clone(),
            None => {
                let reference = self.subject.reference(&setting.form)?;
                self.references.entry(key).or_insert(reference).clone()
            }
        };
        Ok(match reference {
            None => Beside::Settings(self.quiet.clone()),
            Some(program) => {
                let is_config = matches!(self.subject, Subject::Config { .. });
                let options = if is_config { DebugOptions::new() } else { setting.options.clone() };
                Beside::Module(Box::new(program), options)
            }
        })
    }

    /// A symptom, if it is the one that showed first.
    fn compared(&self, symptom: Option<Symptom>) -> Judged {
        match (symptom, &self.symptom) {
            (None, _) => Judged::Gone,
            (Some(symptom), Some(first)) if !symptom.is_like(first) => {
                Judged::Impossible(format!("another symptom shows: {symptom}"))
            }
            (Some(symptom), _) => Judged::Shows(symptom),
        }
    }

    /// Whether a kind of symptom counts: one that was asked for, or, since one has shown, of that kind.
    fn looks_for(&self, kind: Kind) -> bool {
        match &self.symptom {
            Some(symptom) => symptom.kind() == kind,
            None => self.arguments.symptom.is_empty() || self.arguments.symptom.contains(&kind),
        }
    }

    /// Returns the symptom that a run shows by itself, or the reason why it cannot be judged.
    fn symptom_of(&mut self, program: &Program, outcome: &Outcome) -> Result<Result<Option<Symptom>, String>> {
        Ok(Ok(match outcome {
            Outcome::Refused(reason) => return Ok(Err(reason.clone())),
            Outcome::Died { signal, said } => {
                let symptom = Symptom::Crash { signal: *signal, said: said.clone() };
                if !self.looks_for(Kind::Crash) {
                    return Ok(Err(symptom.to_string()));
                }
                Some(symptom)
            }
            Outcome::TimedOut => {
                let symptom = Symptom::Hang { seconds: self.arguments.time_limit };
                if !self.looks_for(Kind::Hang) {
                    return Ok(Err(symptom.to_string()));
                }
                Some(symptom)
            }
            Outcome::Done(done) => {
                let memory = too_much_memory(done.memory, self.arguments.max_memory);
                let memory = memory.filter(|_| self.looks_for(Kind::Memory));
                let looks = memory.is_none() && self.looks_for(Kind::NotFinite);
                let mut arguments = self.runner.arguments(program)?.into_iter().map(|(_, literal, _)| literal);
                match not_finite(&done.outputs).filter(|_| looks) {
                    Some(found) if arguments.all(|it| not_finite(&[it]).is_none()) => Some(found),
                    _ => memory,
                }
            }
        }))
    }

    /// The least that a module's own reference may do: the settings with most switched off in which it runs.
    fn find_quiet(&mut self) -> Result<()> {
        let Subject::Module(..) = self.subject else { return Ok(()) };
        let program = self.subject.suspect(&self.setting.form, &[])?;
        let level = || ("xla_backend_optimization_level".to_owned(), DebugValue::Int(0));
        let all = DebugValue::Text(XLA_PASSES.join(","));
        let without_passes = || (DISABLED_PASSES.to_owned(), all.clone());
        let few = DebugValue::Text("algsimp,constant_folding,fusion,cse".to_owned());
        let choices =
            [vec![level(), without_passes()], vec![level(), (DISABLED_PASSES.to_owned(), few)], vec![level()], vec![]];
        for options in choices.map(DebugOptions::from_iter) {
            let outcome = self.runner.run(&program, &options, &self.setting.plugin.clone())?;
            if let Outcome::Done(done) = outcome {
                /// Older plugins fold constants wrongly; the runtime switches that off for them.
                const FOLDS_RIGHT: (i32, i32) = (0, 106);
                if done.api_version < FOLDS_RIGHT {
                    self.always_out = vec!["constant_folding".to_owned()];
                }
                self.quiet = options;
                break;
            }
        }
        Ok(())
    }

    /// Tries a change, and notes what came of it.
    fn change(&mut self, dimension: Dimension, change: String, setting: &Setting) -> Result<Effect> {
        (self.progress)(&format!("{}: {change}", dimension.name()));
        let effect = match self.judge(setting)? {
            Judged::Shows(_) => Effect::Shows,
            Judged::Gone => Effect::Gone,
            Judged::Impossible(reason) => Effect::NotPossible(reason),
        };
        self.tried.push(Tried { dimension, change, effect: effect.clone() });
        Ok(effect)
    }

    /// Tries a change, and keeps it if the symptom shows all the same.
    fn simplify(&mut self, dimension: Dimension, change: String, setting: Setting) -> Result<Effect> {
        let effect = self.change(dimension, change, &setting)?;
        if effect == Effect::Shows {
            self.setting = setting;
        }
        Ok(effect)
    }

    fn blame(&mut self, dimension: Dimension, name: impl Into<String>, text: String) {
        self.culprits.push(Culprit { dimension, name: name.into(), text });
    }

    /// Fewer layers, shorter sequences, smaller batches.
    fn change_sizes(&mut self) -> Result<()> {
        const MOST: usize = 3;
        let sizes = |config: &meshloom_train::config::RunConfig| {
            [
                ("model.layers", config.model.layers),
                ("model.seq", config.model.seq),
                ("train.batch", config.train.batch),
            ]
        };
        let Some(config) = self.subject.config(&self.setting.form)? else { return Ok(()) };
        for (key, size) in sizes(&config) {
            let smaller = (0..usize::BITS).map(|power| 1usize << power).take_while(|&smaller| smaller < size);
            let mut tries = 0;
            for smaller in smaller {
                let form = self.setting.form.with(key, smaller);
                // A size that does not fit the mesh or the pipeline cannot be tried.
                if self.subject.config(&form).is_err() || self.subject.suspect(&form, self.further).is_err() {
                    continue;
                }
                let setting = Setting { form, ..self.setting.clone() };
                let effect = self.simplify(Dimension::Size, format!("{key}={smaller}"), setting)?;
                tries += 1;
                if effect == Effect::Shows || tries == MOST {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Axes of one device, the whole mesh first.
    fn change_mesh(&mut self) -> Result<()> {
        let Some(config) = self.subject.config(&self.setting.form)? else { return Ok(()) };
        let mesh = config.mesh()?;
        let whole = mesh.device_count();
        if whole == 1 {
            return Ok(());
        }
        let with = |form: &ConfigForm, mesh: &Mesh, size: &dyn Fn(&str) -> usize| {
            let count: usize = mesh.axis_names().map(size).product();
            form.with("mesh.axes", axes_text(mesh, size)).with("target.devices", count)
        };
        let form = with(&self.setting.form, &mesh, &|_| 1);
        let setting = Setting { form, ..self.setting.clone() };
        match self.simplify(Dimension::Mesh, "one device".to_owned(), setting)? {
            Effect::Shows => return Ok(()),
            Effect::Gone => {
                let text = format!("on one device the symptom is gone: it takes several of the mesh {mesh}");
                self.blame(Dimension::Mesh, mesh.to_string(), text);
            }
            Effect::NotPossible(_) => {}
        }
        let names: Vec<String> = mesh.axis_names().map(str::to_owned).collect();
        for name in names {
            let Some(config) = self.subject.config(&self.setting.form)? else { return Ok(()) };
            let mesh = config.mesh()?;
            let size = |of: &str| mesh.axis(of).map_or(1, |axis| mesh.size(axis));
            for smaller in [1, 2].into_iter().filter(|smaller| *smaller < size(&name)) {
                let form = with(&self.setting.form, &mesh, &|of| if of == name { smaller } else { size(of) });
                let setting = Setting { form, ..self.setting.clone() };
                let effect = self.simplify(Dimension::Mesh, format!("{name}={smaller}"), setting)?;
                if effect == Effect::Shows {
                    break;
                }
            }
        }
        Ok(())
    }

    fn drop_options(&mut self) -> Result<()> {
        let names: Vec<String> = self.setting.options.keys().cloned().collect();
        for name in names {
            let mut setting = self.setting.clone();
            let Some(value) = setting.options.remove(&name) else { continue };
            let option = format!("{name}={value}");
            let removing = setting.options.clone();
            if self.simplify(Dimension::Option, format!("without {option}"), setting)? == Effect::Gone {
                self.removing.get_or_insert(removing);
                let text = format!("without the option {option} the symptom is gone");
                self.blame(Dimension::Option, option, text);
            }
        }
        Ok(())
    }

    fn leave_out_passes(&mut self) -> Result<()> {
        let all = pass_names(self.further);
        let found = self.narrow(&all, &mut |search, passes| {
            let setting = Setting { form: search.setting.form.without(passes), ..search.setting.clone() };
            search.change(Dimension::Pass, without_text(passes, "of meshloom's passes"), &setting)
        })?;
        for found in found {
            let names = found.join(", ");
            let text = format!("without meshloom's pass {names} the symptom is gone");
            if self.passes.is_empty() {
                self.passes = found;
            }
            self.blame(Dimension::Pass, names, text);
        }
        Ok(())
    }

    fn change_mode(&mut self) -> Result<()> {
        let Some(config) = self.subject.config(&self.setting.form)? else { return Ok(()) };
        if config.mesh()?.device_count() == 1 {
            return Ok(());
        }
        let current = config.partition.mode.name();
        for mode in ["explicit", "gspmd", "shardy"].into_iter().filter(|mode| *mode != current) {
            let form = self.setting.form.with("partition.mode", mode);
            let setting = Setting { form, ..self.setting.clone() };
            if self.change(Dimension::PartitionMode, format!("partition.mode={mode}"), &setting)? == Effect::Gone {
                let text = format!("with partition.mode={mode} in place of {current} the symptom is gone");
                self.blame(Dimension::PartitionMode, mode, text);
            }
        }
        Ok(())
    }

    fn leave_out_xla_passes(&mut self) -> Result<()> {
        let settings = |search: &Search<'_>, passes: &[&'static str]| {
            let mut options = search.setting.options.clone();
            let given = match options.get(DISABLED_PASSES) {
                Some(DebugValue::Text(text)) => {
                    text.split(',').filter(|it| !it.is_empty()).map(str::to_owned).collect()
                }
                Some(_) => Vec::new(),
                None => search.always_out.clone(),
            };
            let all: Vec<String> = given.into_iter().chain(passes.iter().map(|&pass| pass.to_owned())).collect();
            options.insert(DISABLED_PASSES.to_owned(), DebugValue::Text(all.join(",")));
            options
        };
        let found = self.narrow(XLA_PASSES, &mut |search, passes| {
            let setting = Setting { options: settings(search, passes), ..search.setting.clone() };
            search.change(Dimension::XlaPass, without_text(passes, "of XLA's passes"), &setting)
        })?;
        for found in found {
            let names = found.join(", ");
            self.removing.get_or_insert(settings(self, &found));
            let text =
                format!("without XLA's pass {names} the symptom is gone ({DISABLED_PASSES}={})", found.join(","));
            self.blame(Dimension::XlaPass, names, text);
        }
        Ok(())
    }

    /// XLA's other settings, at the values at which they do least.
    fn change_flags(&mut self) -> Result<()> {
        let mut names: Vec<&'static str> = FLAGS.iter().map(|flag| flag.name).collect();
        names.retain(|name| !self.setting.options.contains_key(*name));
        let with = |search: &Search<'_>, names: &[&'static str]| {
            let mut options = search.setting.options.clone();
            let flags = FLAGS.iter().filter(|flag| names.contains(&flag.name));
            options.extend(flags.map(|flag| (flag.name.to_owned(), flag.value())));
            options
        };
        // A plugin refuses what it does not know, by name.
        for _ in 0..FLAGS.len() {
            let setting = Setting { options: with(self, &names), ..self.setting.clone() };
            let Judged::Impossible(reason) = self.judge(&setting)? else { break };
            let before = names.len();
            names.retain(|name| !reason.contains(name));
            if names.len() == before {
                break;
            }
        }
        let found = self.narrow(&names, &mut |search, names| {
            let setting = Setting { options: with(search, names), ..search.setting.clone() };
            search.change(Dimension::XlaFlag, flags_text(names), &setting)
        })?;
        for found in found {
            let text = format!("with {} the symptom is gone", flags_text(&found));
            self.removing.get_or_insert(with(self, &found));
            self.blame(Dimension::XlaFlag, found.join(", "), text);
        }
        Ok(())
    }

    fn change_plugin(&mut self) -> Result<()> {
        let others: Vec<Candidate> = Candidate::installed();
        let others = others.into_iter().filter(|it| it.path != self.setting.plugin.path);
        let mut gone = Vec::new();
        for plugin in others.collect::<Vec<_>>() {
            let name = plugin.name.clone();
            let setting = Setting { plugin, ..self.setting.clone() };
            if self.change(Dimension::Plugin, format!("plugin {name}"), &setting)? == Effect::Gone {
                gone.push(name);
            }
        }
        if !gone.is_empty() {
            let name = self.setting.plugin.name.clone();
            let text = format!("the plugin is {name}; with {} the symptom is gone", gone.join(" or "));
            self.blame(Dimension::Plugin, name, text);
        }
        Ok(())
    }

    /// The fewest of some things without which the symptom is gone, if it is gone without all of them; and others that
    /// remove it by themselves. By halves, then one by one.
    fn narrow(&mut self, all: &[&'static str], test: &mut Test<'_, 'a>) -> Result<Vec<Vec<&'static str>>> {
        let mut found = Vec::new();
        if all.is_empty() {
            return Ok(found);
        }
        match test(self, all)? {
            Effect::Gone => self.halve(all, test, &mut found)?,
            Effect::Shows => {}
            // Some of them may be necessary.
            Effect::NotPossible(_) => {
                for part in all.chunks(all.len().div_ceil(4)).filter(|part| part.len() < all.len()) {
                    if test(self, part)? == Effect::Gone {
                        self.halve(part, test, &mut found)?;
                    }
                }
            }
        }
        Ok(found)
    }

    /// As [`Search::narrow`], of things without which it is gone.
    fn halve(
        &mut self,
        all: &[&'static str],
        test: &mut Test<'_, 'a>,
        found: &mut Vec<Vec<&'static str>>,
    ) -> Result<()> {
        /// More are not asked for: what removes the symptom in so many ways is sensitive to everything.
        const MOST: usize = 3;
        if all.len() == 1 || found.len() >= MOST {
            found.extend((found.len() < MOST).then(|| all.to_vec()));
            return Ok(());
        }
        let (left, right) = all.split_at(all.len() / 2);
        let mut is_split = false;
        for half in [left, right] {
            if found.len() < MOST && test(self, half)? == Effect::Gone {
                is_split = true;
                self.halve(half, test, found)?;
            }
        }
        if is_split {
            return Ok(());
        }
        let mut current = all.to_vec();
        let mut index = 0;
        while current.len() > 1 && index < current.len() {
            let mut rest = current.clone();
            rest.remove(index);
            if test(self, &rest)? == Effect::Gone {
                current = rest;
            } else {
                index += 1;
            }
        }
        found.push(current);
        Ok(())
    }
}

/// Whether the symptom is gone without some things.
type Test<'t, 'a> = dyn FnMut(&mut Search<'a>, &[&'static str]) -> Result<Effect> + 't;

/// Returns the place of a dimension in the order of relevance.
fn rank(dimension: Dimension) -> usize {
    use Dimension::*;
    let order = [Option, Pass, XlaPass, XlaFlag, PartitionMode, Mesh, Plugin, Size, AsGiven];
    order.iter().position(|&it| it == dimension).unwrap_or(order.len())
}

/// `without algebra`, `without 12 of XLA's passes`.
fn without_text(names: &[&str], of: &str) -> String {
    match names {
        [a] => format!("without {a}"),
        [a, b] => format!("without {a} and {b}"),
        names => format!("without {} {of}, from {} to {}", names.len(), names[0], names[names.len() - 1]),
    }
}

/// `xla_cpu_use_onednn=false`, `12 settings that do least`.
fn flags_text(names: &[&str]) -> String {
    match names.len() {
        1..=3 => {
            let flags = FLAGS.iter().filter(|flag| names.contains(&flag.name));
            flags.map(|flag| format!("{}={}", flag.name, flag.value)).collect::<Vec<_>>().join(" ")
        }
        count => format!("{count} settings at the values that do least"),
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done(_) => "it ends well".to_owned(),
        Outcome::Died { signal, said } => Symptom::Crash { signal: *signal, said: said.clone() }.to_string(),
        Outcome::TimedOut => "it is not done in time".to_owned(),
        Outcome::Refused(reason) => reason.clone(),
    }
}

/// Returns the settings of `XLA_FLAGS`: `--name=value`, or `--name` for yes.
pub fn xla_flags(text: &str) -> impl Iterator<Item = String> {
    let flag = |word: &str| {
        let flag = word.strip_prefix("--")?;
        // The number of devices is given in another way.
        let is_option = !flag.starts_with("xla_force_host_platform_device_count");
        is_option.then(|| if flag.contains('=') { flag.to_owned() } else { format!("{flag}=true") })
    };
    text.split_whitespace().filter_map(flag).collect::<Vec<_>>().into_iter()
}
