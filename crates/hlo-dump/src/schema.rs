//! `hlo-dump schema`: the JSON Schema of what each command prints with `--json`.
//!
//! It comes from the types that are printed: their comments are its descriptions.

use anyhow::{Result, bail};
use meshloom_hlo::suggest::did_you_mean;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::input::AnswerOfInput;
use crate::output::{self, Versioned, schema_name};
use crate::{check, collectives, cost, diff, explain, lock, memory, overlap, report, show, traffic};

type Form = fn(&mut SchemaGenerator) -> Schema;

/// The commands that print JSON, each with the forms that it has.
const COMMANDS: &[(&str, &[Form])] = &[
    ("show", &[of_input::<show::Answer>, of_input::<show::Kernels>]),
    ("collectives", &[of_input::<collectives::Answer>, of_input::<collectives::Grouped>]),
    ("traffic", &[of_input::<traffic::Answer>]),
    ("memory", &[of_input::<memory::Answer>, of_two::<memory::MessageAnswer>]),
    ("cost", &[of_input::<cost::Answer>]),
    ("overlap", &[of_input::<overlap::Answer>]),
    ("explain", &[of_input::<explain::Answer>]),
    #[cfg(feature = "compiler")]
    ("partition", &[of_input::<crate::partition::Answer>]),
    #[cfg(feature = "compiler")]
    ("advise", &[of_input::<crate::advise::Answer>]),
    ("diff", &[of_two::<diff::Answer>]),
    ("report", &[of_input::<report::Answer>]),
    ("lock", &[of_input::<lock::TrafficLock>]),
    ("check", &[of_input::<check::Answer>]),
];

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

fn of_input<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    of_two::<AnswerOfInput<'_, T>>(generator)
}

fn of_two<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    Versioned::<T>::json_schema(generator)
}

pub fn run(command: Option<&str>) -> Result<()> {
    let schema = match command {
        None => of_all(),
        Some(name) => match of_command(name) {
            Some(schema) => schema,
            None => {
                let names: Vec<&str> = COMMANDS.iter().map(|(name, _)| *name).collect();
                let near = did_you_mean(name, names.iter().copied());
                bail!("there is no schema of \"{name}\"{near}; there is one of {}", names.join(", "))
            }
        },
    };
    output::line(&serde_json::to_string_pretty(&schema)?);
    Ok(())
}

/// Returns the schema of a command's JSON; `None` if it prints none.
pub fn of_command(name: &str) -> Option<Value> {
    let (name, forms) = COMMANDS.iter().find(|(command, _)| *command == name)?;
    let mut generator = generator();
    let mut schema = of_forms(name, forms, &mut generator);
    schema.insert("$schema".to_owned(), DIALECT.into());
    schema.insert("$defs".to_owned(), generator.take_definitions(true).into());
    let mut schema = schema.into();
    for_readers(&mut schema);
    Some(schema)
}

/// Returns the schema of what any command prints: the definition with the command's name.
fn of_all() -> Value {
    let mut generator = generator();
    let of_command =
        |(name, forms): &(&str, &[Form])| ((*name).to_owned(), Value::from(of_forms(name, forms, &mut generator)));
    let commands: Vec<(String, Value)> = COMMANDS.iter().map(of_command).collect();
    let any: Vec<Value> = COMMANDS.iter().map(|(name, _)| json!({ "$ref": format!("#/$defs/{name}") })).collect();
    let mut definitions = generator.take_definitions(true);
    definitions.extend(commands);
    let mut schema = json!({ "$schema": DIALECT, "title": "hlo-dump --json", "oneOf": any, "$defs": definitions });
    for_readers(&mut schema);
    schema
}

/// Puts descriptions, which were written for readers of Rust, into the words of JSON.
fn for_readers(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (key, field) in fields {
                match field {
                    Value::String(text) if key == "description" => *text = in_words_of_json(text),
                    field => for_readers(field),
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(for_readers),
        _ => {}
    }
}

/// Returns a comment without line breaks and links, and with null for `None`.
fn in_words_of_json(comment: &str) -> String {
    let line = comment.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
    let mut text = String::new();
    let mut rest = line.trim();
    while let Some((before, link)) = rest.split_once("[`") {
        text.push_str(before);
        let Some((name, after)) = link.split_once("`]") else {
            text.push_str("[`");
            rest = link;
            continue;
        };
        text.push_str(&format!("`{name}`"));
        rest = after.strip_prefix('(').and_then(|it| it.split_once(')')).map_or(after, |(_, after)| after);
    }
    text.push_str(rest);
    text.replace("`None`", "null")
}

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12().for_serialize().into_generator()
}

/// Returns the schema of a command: an object, in one of its forms.
fn of_forms(name: &str, forms: &[Form], generator: &mut SchemaGenerator) -> Map<String, Value> {
    let command = format!("hlo-dump/{name}");
    let form = |form: &Form| {
        let mut schema = form(generator);
        schema.remove("description");
        if let Some(Value::Object(field)) = schema.pointer_mut("/properties/schema") {
            field.insert("const".to_owned(), schema_name(&command).into());
        }
        schema.to_value()
    };
    let mut forms: Vec<Value> = forms.iter().map(form).collect();
    let mut schema = match forms.as_mut_slice() {
        [Value::Object(one)] => std::mem::take(one),
        _ => Map::from_iter([("type".to_owned(), "object".into()), ("oneOf".to_owned(), forms.into())]),
    };
    schema.insert("title".to_owned(), format!("hlo-dump {name} --json").into());
    schema
}
