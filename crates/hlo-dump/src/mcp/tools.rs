//! The tools of `hlo-dump mcp`: commands with the arguments that the command line defines, as JSON.

use std::any::TypeId;
use std::ffi::OsString;
use std::num::NonZeroU64;

use anyhow::{Result, bail};
use clap::{Arg, ArgAction, Command};
use meshloom_hlo::suggest::did_you_mean;
use serde_json::{Map, Value, json};

use crate::schema;

/// Commands that are no tools: they write a file, print nothing of a program, or are the server itself.
const NO_TOOLS: [&str; 6] = ["report", "completions", "man", "schema", "mcp", "help"];

/// Arguments that tools do not have: files to write; run configs, and compiling; what only tables and the exit status
/// show.
const NO_ARGUMENTS: [&str; 12] = [
    "output",
    "perfetto",
    "svg",
    "run_config",
    "set",
    "set_after",
    "kernels",
    "compare",
    "target",
    "compiled_as_emitted",
    "exit_code",
    LIMIT,
];

/// The command whose answer is text, since programs are.
const TEXT: &str = "show";

/// The forms of that text; others are pictures, pages or bytes.
const TEXT_FORMS: [&str; 4] = ["text", "stablehlo", "json", "dot"];

/// The argument of each tool that bounds its answer.
const LIMIT: &str = "limit";

/// The most elements of a list, if the client does not say.
const USUAL_LIMIT: usize = 50;

/// The most bytes of text, if the client does not ask for all.
const USUAL_TEXT: usize = 60_000;

/// A command as a tool.
pub struct CommandTool {
    command: Command,
    pub input_schema: Map<String, Value>,
    /// The schema of its answer; `None` for text.
    pub output_schema: Option<Map<String, Value>>,
}

/// Returns the tools of a program with this command line.
pub fn tools(program: &Command) -> Vec<CommandTool> {
    program.get_subcommands().filter(|it| !NO_TOOLS.contains(&it.get_name())).cloned().map(CommandTool::of).collect()
}

impl CommandTool {
    fn of(command: Command) -> CommandTool {
        let output_schema = match schema::of_command(command.get_name()) {
            Some(Value::Object(schema)) if command.get_name() != TEXT => Some(with_left_out(schema)),
            _ => None,
        };
        CommandTool { input_schema: input_schema(&command), output_schema, command }
    }

    pub fn name(&self) -> &str {
        self.command.get_name()
    }

    pub fn about(&self) -> String {
        self.command.get_about().map(ToString::to_string).unwrap_or_default()
    }

    /// Returns the command line of a call.
    ///
    /// # Errors
    /// An argument is unknown, missing or of another type. Its value is checked by the command line itself.
    pub fn command_line(&self, given: &Map<String, Value>) -> Result<Vec<OsString>> {
        let taken: Vec<&Arg> = taken(&self.command).collect();
        let names = || taken.iter().map(|argument| argument.get_id().as_str()).chain([LIMIT]);
        if let Some(unknown) = given.keys().find(|name| !names().any(|it| it == name.as_str())) {
            let (near, all) = (did_you_mean(unknown, names()), names().collect::<Vec<_>>().join(", "));
            bail!("{} has no argument \"{unknown}\"{near}; it has {all}", self.name());
        }
        let mut line: Vec<OsString> = vec![self.name().into()];
        let mut positional: Vec<OsString> = Vec::new();
        for argument in taken {
            let name = argument.get_id().as_str();
            let Some(value) = given.get(name).filter(|value| !value.is_null()) else {
                if argument.is_required_set() {
                    bail!("{} needs the argument \"{name}\": {}", self.name(), help(argument));
                }
                continue;
            };
            let option = argument.get_long().map(|long| format!("--{long}"));
            for text in texts(argument, value)? {
                match (&option, text) {
                    (None, text) => positional.extend(text.map(OsString::from)),
                    (Some(option), None) => line.push(option.into()),
                    // One word, so that no value is read as an option.
                    (Some(option), Some(text)) => line.push(format!("{option}={text}").into()),
                }
            }
        }
        if self.output_schema.is_some() {
            line.push("--json".into());
        }
        line.push("--".into());
        line.extend(positional);
        Ok(line)
    }
}

/// The arguments of a command that its tool has.
fn taken(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|argument| !NO_ARGUMENTS.contains(&argument.get_id().as_str()))
}

fn is_flag(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

fn is_list(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::Append)
}

fn help(argument: &Arg) -> String {
    argument.get_help().map(ToString::to_string).unwrap_or_default()
}

/// Returns the words of an argument's value; `None` for a flag, which has no word beside its name.
fn texts(argument: &Arg, value: &Value) -> Result<Vec<Option<String>>> {
    let name = argument.get_id().as_str();
    let text = |value: &Value| match value {
        Value::String(text) => Ok(Some(text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        other => bail!("\"{name}\": {other} is neither text nor a number"),
    };
    match value {
        Value::Bool(is_given) if is_flag(argument) => Ok(vec![None; usize::from(*is_given)]),
        other if is_flag(argument) => bail!("\"{name}\": {other} is neither true nor false"),
        Value::Array(values) if is_list(argument) => values.iter().map(text).collect(),
        one => Ok(vec![text(one)?]),
    }
}

/// Returns the JSON Schema of a tool's arguments.
fn input_schema(command: &Command) -> Map<String, Value> {
    let mut properties: Map<String, Value> =
        taken(command).map(|it| (it.get_id().to_string(), argument_schema(command.get_name(), it))).collect();
    let what = match command.get_name() {
        TEXT => "The most bytes of text; 0 for all",
        _ => "The most elements of each list in the answer; 0 for all. \"left_out\" counts those that are not shown",
    };
    let default = if command.get_name() == TEXT { USUAL_TEXT } else { USUAL_LIMIT };
    let limit = json!({ "type": "integer", "minimum": 0, "default": default, "description": what });
    properties.insert(LIMIT.to_owned(), limit);
    let required: Vec<&str> = taken(command).filter(|it| it.is_required_set()).map(|it| it.get_id().as_str()).collect();
    let schema = [
        ("type", json!("object")),
        ("properties", properties.into()),
        ("required", json!(required)),
        ("additionalProperties", json!(false)),
    ];
    schema.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn argument_schema(command: &str, argument: &Arg) -> Value {
    let words: Vec<String> = argument.get_possible_values().iter().map(|it| it.get_name().to_owned()).collect();
    let mut one = if is_flag(argument) {
        json!({ "type": "boolean" })
    } else if command == TEXT && argument.get_id() == "emit" {
        json!({ "type": "string", "enum": TEXT_FORMS })
    } else if !words.is_empty() {
        json!({ "type": "string", "enum": words })
    } else {
        json!({ "type": value_type(argument) })
    };
    if is_list(argument) {
        one = json!({ "type": "array", "items": one });
    }
    let values = argument.get_value_names().unwrap_or_default().join(" ");
    let is_plain = is_flag(argument) || argument.is_positional() || !words.is_empty();
    let description = if is_plain { help(argument) } else { format!("{values}: {}", help(argument)) };
    one["description"] = description.into();
    if let (Some(default), false) = (argument.get_default_values().first(), is_flag(argument)) {
        one["default"] = default.to_string_lossy().into();
    }
    one
}

/// Returns the JSON type of a value that is no word of a list.
fn value_type(argument: &Arg) -> Value {
    let types = [
        (TypeId::of::<usize>(), json!("integer")),
        (TypeId::of::<NonZeroU64>(), json!("integer")),
        // A number of bytes can have a unit.
        (TypeId::of::<u64>(), json!(["integer", "string"])),
        (TypeId::of::<f64>(), json!("number")),
    ];
    let parser = argument.get_value_parser().type_id();
    types.into_iter().find(|(id, _)| parser == *id).map_or_else(|| json!("string"), |(_, name)| name)
}

/// Adds what [`cut`] adds to an answer.
fn with_left_out(mut schema: Map<String, Value>) -> Map<String, Value> {
    let left_out = json!({
        "type": "object",
        "description": "The number of elements that are left out of lists, by the path of the list.",
        "additionalProperties": { "type": "integer" }
    });
    let add = |form: &mut Map<String, Value>| {
        if let Some(Value::Object(properties)) = form.get_mut("properties") {
            properties.insert("left_out".to_owned(), left_out.clone());
        }
    };
    add(&mut schema);
    for form in schema.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
        form.as_object_mut().into_iter().for_each(add);
    }
    schema
}

/// Returns the limit of a call; `None` for all.
///
/// # Errors
/// It is no whole number.
pub fn limit(tool: &CommandTool, given: &Map<String, Value>) -> Result<Option<usize>> {
    let usual = if tool.output_schema.is_some() { USUAL_LIMIT } else { USUAL_TEXT };
    let limit = match given.get(LIMIT).filter(|value| !value.is_null()) {
        None => usual,
        Some(value) => match value.as_u64() {
            Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX),
            None => bail!("\"{LIMIT}\": {value} is no whole number"),
        },
    };
    Ok((limit > 0).then_some(limit))
}

/// Shortens the lists of an answer, and says so in its field `left_out`.
pub fn cut(answer: &mut Value, limit: usize) {
    let mut left_out = Map::new();
    // A pair is a list too, and stays whole.
    cut_below(answer, limit.max(2), "", &mut left_out);
    if let (Value::Object(answer), false) = (answer, left_out.is_empty()) {
        answer.insert("left_out".to_owned(), left_out.into());
    }
}

fn cut_below(value: &mut Value, limit: usize, path: &str, left_out: &mut Map<String, Value>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                cut_below(field, limit, &path, left_out);
            }
        }
        Value::Array(elements) => {
            if elements.len() > limit {
                let before = left_out.get(path).and_then(Value::as_u64).unwrap_or(0);
                left_out.insert(path.to_owned(), (before + (elements.len() - limit) as u64).into());
                elements.truncate(limit);
            }
            elements.iter_mut().for_each(|element| cut_below(element, limit, path, left_out));
        }
        _ => {}
    }
}
