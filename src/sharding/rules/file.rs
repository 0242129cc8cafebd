//! Rule files of MaxText's shape.
//!
//! ```yaml
//! mesh_axes: ['data', 'fsdp', 'tensor']
//! data_sharding: [['data', 'fsdp', 'tensor']]
//! logical_axis_rules: [
//!   ['activation_batch', ['data', 'fsdp']],
//!   ['embed', 'fsdp'],
//!   ['norm', []],
//! ]
//! ```
//!
//! `mesh_axes` are the axes that rules may name; an axis that the mesh at hand does not have counts as of size 1.
//! `data_sharding` and `context_sharding` say how a loader spreads a batch over hosts. They are read and checked, but
//! the batch enters the program by the rules, as it does in MaxText, and each device gets its part at once. The same
//! holds for `input_data_sharding_logical_axes`, by logical names. A whole config of MaxText is a rule file too: keys
//! that are not about rules are skipped, which a [`Diagnostic`] reports.

use std::fmt;

use saphyr::{LoadableYamlNode, MarkedYaml, Marker, Scalar, YamlData};
use saphyr_parser::Event;

use super::{Diagnostic, Rule, Rules};
use crate::sharding::error::{RULE_FILE_KEYS, RuleFileError, RuleFileProblem, ShardingError};
use meshloom_hlo::suggest::{did_you_mean, misspelled};

const RULE: &str = "a rule: a logical name and a mesh axis, a list of mesh axes or nothing, as in ['embed', ['fsdp']]";

/// The contents of a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFile {
    /// `mesh_axes`: the mesh axes that rules may name, major to minor, or `None` if the file lacks the key.
    pub mesh_axes: Option<Vec<String>>,
    /// `logical_axis_rules`.
    pub rules: Vec<Rule>,
    /// `data_sharding`: for each dimension of the batch the mesh axes that a loader spreads it over.
    pub data_sharding: Vec<Vec<String>>,
    /// `context_sharding`: the mesh axis over which a loader spreads sequences.
    pub context_sharding: Option<String>,
    /// `input_data_sharding_logical_axes`: the logical name of each dimension of the batch.
    pub input_axes: Vec<String>,
    /// Keys of the file that do not concern rules, in order.
    pub skipped: Vec<String>,
    /// The name of the file in messages.
    pub file: String,
}

impl RuleFile {
    /// Reads a rule file. `file` is its name in messages.
    ///
    /// # Errors
    /// The text is not YAML, or not of this form. Each error has line and column.
    pub fn parse(text: &str, file: &str) -> Result<RuleFile, ShardingError> {
        RuleReader { file }.read(text).map_err(|error| ShardingError::RuleFile { error })
    }

    /// The rules, with the axes that the file declares. If `stage` is one of them, it has the stages of pipelines,
    /// whether or not there is a rule for them: MaxText names the mesh axis where it maps layers over the stages.
    pub fn into_rules(self, strict: bool) -> Result<Rules, ShardingError> {
        let (mut rules, declared) = (self.rules, self.mesh_axes.unwrap_or_default());
        let (name, axis) = ("activation_stage", "stage");
        if declared.iter().any(|own| own == axis) && !rules.iter().any(|rule| rule.name == name) {
            let origin = "its mesh_axes".to_owned();
            rules.insert(0, Rule { name: name.to_owned(), axes: vec![axis.to_owned()], origin, published: true });
        }
        let mut rules = Rules::new(rules, strict)?.with_declared_axes(declared);
        if !self.skipped.is_empty() {
            rules.notes.push(Diagnostic::SkippedKeys { file: self.file, keys: self.skipped });
        }
        Ok(rules)
    }
}

/// Rule files nest three levels.
const MOST_DEPTH: usize = 64;

type Node<'a> = MarkedYaml<'a>;
type FileResult<T> = Result<T, Box<RuleFileError>>;

/// A name with where it stands.
type Placed = (String, Marker);

struct RuleReader<'a> {
    file: &'a str,
}

impl RuleReader<'_> {
    /// Refuses deep nesting, which the loader would follow with the stack.
    fn check_depth(&self, text: &str) -> FileResult<()> {
        let mut depth = 0usize;
        for event in saphyr_parser::Parser::new_from_str(text) {
            // Text that is not YAML is refused when it is loaded.
            let Ok((event, span)) = event else { return Ok(()) };
            match event {
                Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
                Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MOST_DEPTH {
                let problem = format!("it is nested more than {MOST_DEPTH} levels deep");
                return Err(self.error(span.start, RuleFileProblem::Syntax(problem)));
            }
        }
        Ok(())
    }

    fn read(&self, text: &str) -> FileResult<RuleFile> {
        self.check_depth(text)?;
        let documents = Node::load_from_str(text)
            .map_err(|error| self.error(*error.marker(), RuleFileProblem::Syntax(error.info().to_owned())))?;
        let start = Marker::new(0, 1, 0);
        let Some(document) = documents.first() else { return Err(self.error(start, RuleFileProblem::NoRules)) };
        let YamlData::Mapping(entries) = &document.data else {
            return Err(self.wrong_type(document, "the file", "a mapping with the key logical_axis_rules"));
        };
        let (mut axes, mut rules, mut data, mut context) = (None, None, Vec::new(), None);
        let (mut input, mut skipped) = (Vec::new(), Vec::new());
        for (key, value) in entries {
            match key.data.as_str() {
                Some("mesh_axes") => axes = Some(self.names("mesh_axes", value)?),
                Some("logical_axis_rules") => rules = Some(self.rules(value)?),
                Some("data_sharding") => data = self.data_sharding(value)?,
                Some("context_sharding") => context = Some(self.name("context_sharding", value, "a mesh axis")?),
                Some("input_data_sharding_logical_axes") => input = self.logical_names(value)?,
                _ => skipped.push(self.skip(key)?),
            }
        }
        let rules = rules.ok_or_else(|| self.error(start, RuleFileProblem::NoRules))?;
        if let Some(axes) = &axes {
            let in_rules = rules.iter().flat_map(|(rule, axes)| axes.iter().map(move |axis| (rule.to_string(), axis)));
            let in_data = data.iter().flatten().map(|axis| ("data_sharding".to_owned(), axis));
            let in_context = context.iter().map(|axis| ("context_sharding".to_owned(), axis));
            for (what, axis) in
                in_rules.map(|(rule, axis)| (format!("rule {rule}"), axis)).chain(in_data).chain(in_context)
            {
                self.check_known(axes, what, axis)?;
            }
        }
        let texts = |names: Vec<Placed>| names.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        Ok(RuleFile {
            mesh_axes: axes.map(texts),
            rules: rules.into_iter().map(|(rule, _)| rule).collect(),
            data_sharding: data.into_iter().map(texts).collect(),
            context_sharding: context.map(|(name, _)| name),
            input_axes: input,
            skipped,
            file: self.file.to_owned(),
        })
    }

    fn rules(&self, node: &Node<'_>) -> FileResult<Vec<(Rule, Vec<Placed>)>> {
        let expected = "a list of rules, as in [['embed', ['fsdp']], ['norm', []]]";
        let list = node.data.as_sequence().ok_or_else(|| self.wrong_type(node, "logical_axis_rules", expected))?;
        list.iter().map(|node| self.rule(node)).collect()
    }

    fn rule(&self, node: &Node<'_>) -> FileResult<(Rule, Vec<Placed>)> {
        let wrong = || self.wrong_type(node, "an element of logical_axis_rules", RULE);
        let (name, axes) = match node.data.as_sequence().map(Vec::as_slice) {
            Some([name]) => (name, None),
            Some([name, axes]) => (name, Some(axes)),
            _ => return Err(wrong()),
        };
        let (name, _) = self.name("the name of a rule", name, "a logical axis name")?;
        let what = format!("the mesh axes of {name:?}");
        let axes = match axes {
            None => Vec::new(),
            Some(axes) if axes.data.is_null() => Vec::new(),
            Some(axes) if axes.data.as_str().is_some() => vec![self.name(&what, axes, "a mesh axis")?],
            Some(axes) => self.names(&what, axes)?,
        };
        let texts = axes.iter().map(|(axis, _)| axis.clone()).collect();
        let origin = format!("{}:{}", self.file, node.span.start.line());
        Ok((Rule { name, axes: texts, origin, published: true }, axes))
    }

    /// A list of lists; a plain list is that of the first dimension.
    fn data_sharding(&self, node: &Node<'_>) -> FileResult<Vec<Vec<Placed>>> {
        let what = "data_sharding";
        let expected = "a list with a list of mesh axes for each dimension of the batch, as in [['data', 'fsdp']]";
        let list = node.data.as_sequence().ok_or_else(|| self.wrong_type(node, what, expected))?;
        if list.iter().any(|element| element.data.as_str().is_some()) {
            return Ok(vec![self.names(what, node)?]);
        }
        list.iter().map(|dim| if dim.data.is_null() { Ok(Vec::new()) } else { self.names(what, dim) }).collect()
    }

    /// A logical name for each dimension of the batch; a single name is that of the first.
    fn logical_names(&self, node: &Node<'_>) -> FileResult<Vec<String>> {
        let what = "input_data_sharding_logical_axes";
        let name =
            |node: &Node<'_>| self.name(what, node, "a logical axis name, or a list of them").map(|(name, _)| name);
        match node.data.as_sequence() {
            Some(list) => list.iter().map(name).collect(),
            None => Ok(vec![name(node)?]),
        }
    }

    /// A list of names, each once.
    fn names(&self, what: &str, node: &Node<'_>) -> FileResult<Vec<Placed>> {
        let list = node.data.as_sequence();
        let list = list.ok_or_else(|| self.wrong_type(node, what, "a list of mesh axes, as in ['data', 'fsdp']"))?;
        let mut names: Vec<Placed> = Vec::with_capacity(list.len());
        for element in list {
            let (axis, place) = self.name(&format!("an element of {what}"), element, "a mesh axis")?;
            if names.iter().any(|(other, _)| *other == axis) {
                return Err(self.error(place, RuleFileProblem::AxisTwice { what: what.to_owned(), axis }));
            }
            names.push((axis, place));
        }
        Ok(names)
    }

    fn name(&self, what: &str, node: &Node<'_>, expected: &str) -> FileResult<Placed> {
        let name = node.data.as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| self.wrong_type(node, what, expected))?;
        Ok((name.to_owned(), node.span.start))
    }

    fn check_known(&self, axes: &[Placed], what: String, (axis, place): &Placed) -> FileResult<()> {
        if axes.iter().any(|(known, _)| known == axis) {
            return Ok(());
        }
        let known: Vec<&str> = axes.iter().map(|(name, _)| name.as_str()).collect();
        let suggestion = did_you_mean(axis, known.iter().copied());
        let known = known.join(", ");
        Err(self.error(*place, RuleFileProblem::UnknownAxis { what, axis: axis.clone(), suggestion, known }))
    }

    /// The name of a key to skip. A key that is nearly a key of rule files is an error instead.
    fn skip(&self, key: &Node<'_>) -> FileResult<String> {
        let unknown = |key_text, suggestion| {
            Err(self.error(key.span.start, RuleFileProblem::UnknownKey { key: key_text, suggestion }))
        };
        let Some(name) = key.data.as_str() else { return unknown(ShownNode(key).to_string(), String::new()) };
        match misspelled(name, RULE_FILE_KEYS) {
            None => Ok(name.to_owned()),
            meant => unknown(name.to_owned(), did_you_mean(name, meant)),
        }
    }

    fn wrong_type(&self, node: &Node<'_>, what: &str, expected: &str) -> Box<RuleFileError> {
        let (what, expected) = (what.to_owned(), expected.to_owned());
        self.error(node.span.start, RuleFileProblem::WrongType { what, found: ShownNode(node).to_string(), expected })
    }

    fn error(&self, place: Marker, problem: RuleFileProblem) -> Box<RuleFileError> {
        let file = self.file.to_owned();
        Box::new(RuleFileError { file, line: place.line(), column: place.col() + 1, problem })
    }
}

/// A value as messages call it.
struct ShownNode<'a>(&'a Node<'a>);

impl fmt::Display for ShownNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.data {
            YamlData::Value(Scalar::Null) => f.write_str("nothing"),
            YamlData::Value(Scalar::Boolean(value)) => write!(f, "{value} (a boolean)"),
            YamlData::Value(Scalar::Integer(value)) => write!(f, "{value} (an integer)"),
            YamlData::Value(Scalar::FloatingPoint(value)) => write!(f, "{value} (a number)"),
            YamlData::Value(Scalar::String(value)) => write!(f, "{value:?} (a string)"),
            YamlData::Sequence(list) => write!(f, "a list of {}", list.len()),
            YamlData::Mapping(_) => f.write_str("a mapping"),
            _ => f.write_str("something else"),
        }
    }
}
