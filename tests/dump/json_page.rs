//! The page `docs/json.md`, made from the JSON Schema that `hlo-dump schema` prints.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

const HEAD: &str = "\
# The JSON of hlo-dump

`tests/dump/json_page.rs` makes this page from `hlo-dump schema`;
`MESHLOOM_UPDATE=1 cargo test --release --test hlo schema` writes it.

With `--json`, a command prints one object. `hlo-dump schema COMMAND` prints its [JSON Schema](https://json-schema.org)
(2020-12), `hlo-dump schema` that of all commands. The field `schema` names the command and a version. The version grows
when a field goes or changes its meaning; new fields may appear without. Bytes and operations are integers, times are
seconds, and null is a number that is not known.

";

/// Returns the page for the schema of all commands.
pub fn page(schema: &Value) -> String {
    let definitions = schema["$defs"].as_object().expect("definitions");
    let commands: Vec<&str> = schema["oneOf"].as_array().expect("a list").iter().map(name).collect();
    let forms: Vec<(&str, Vec<&Value>)> = commands.iter().map(|it| (*it, forms(&definitions[*it]))).collect();
    let of_inputs = forms.iter().filter(|(command, _)| *command != "diff").flat_map(|(_, forms)| forms);
    let fields = |form: &Value| form["properties"].as_object().expect("fields").keys().cloned().collect();
    let common: BTreeSet<String> =
        of_inputs.map(|form| fields(form)).reduce(|one: BTreeSet<String>, other| &one & &other).expect("forms");
    let mut text = HEAD.to_owned();
    text.push_str("## Fields of every answer\n\nAnswers for one input have these; `diff` has `schema` alone.\n\n");
    text.push_str(&table(forms[0].1[0], |field| common.contains(field)));
    for (command, forms) in &forms {
        text.push_str(&format!("\n## {command}\n\n"));
        let is_own = |field: &str| if *command == "diff" { field != "schema" } else { !common.contains(field) };
        let tables: Vec<String> = forms.iter().map(|form| table(form, is_own)).collect();
        text.push_str(&tables.join("\nOr:\n\n"));
    }
    text.push_str("\n## Types\n");
    for (name, definition) in definitions.iter().filter(|(name, _)| !commands.contains(&name.as_str())) {
        text.push_str(&format!("\n### {name}\n\n{}\n\n", description(definition)));
        let is_object = definition.get("properties").is_some();
        text.push_str(&if is_object { table(definition, |_| true) } else { words(definition) });
    }
    text
}

fn name(reference: &Value) -> &str {
    reference["$ref"].as_str().and_then(|text| text.strip_prefix("#/$defs/")).expect("a reference")
}

/// Returns the forms of a command's answer.
fn forms(command: &Value) -> Vec<&Value> {
    command["oneOf"].as_array().map_or_else(|| vec![command], |forms| forms.iter().collect())
}

/// Returns the fields of an object: first those that it always has, as the program prints them.
fn table(object: &Value, is_shown: impl Fn(&str) -> bool) -> String {
    let fields = object["properties"].as_object().expect("fields");
    let required: Vec<&str> = object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let optional = fields.keys().map(String::as_str).filter(|field| !required.contains(field));
    let mut text = "| field | type | meaning |\n|---|---|---|\n".to_owned();
    for field in required.iter().copied().chain(optional).filter(|field| is_shown(field)) {
        let optional = if required.contains(&field) { "" } else { ", or left out" };
        let meaning = description(&fields[field]).replace('|', "\\|");
        text.push_str(&format!("| `{field}` | {}{optional} | {meaning} |\n", kind(&fields[field])));
    }
    text
}

/// Returns the words that a value can be, with their meanings.
fn words(definition: &Value) -> String {
    let plain = definition["enum"].as_array().into_iter().flatten().map(|word| (word, ""));
    let described = definition["oneOf"].as_array().into_iter().flatten().map(|it| (&it["const"], description(it)));
    let mut text = "| word | meaning |\n|---|---|\n".to_owned();
    for (word, meaning) in plain.chain(described) {
        text.push_str(&format!("| `{}` | {meaning} |\n", word.as_str().expect("a word")));
    }
    text
}

fn description(schema: &Value) -> &str {
    schema["description"].as_str().unwrap_or_default()
}

/// Returns the type of a value, with a link to it if this page has it.
fn kind(schema: &Value) -> String {
    if schema.get("$ref").is_some() {
        return format!("[{0}](#{1})", name(schema), name(schema).to_lowercase());
    }
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().map(kind).collect::<Vec<_>>().join(" or ");
    }
    if let Some(word) = schema.get("const") {
        return if schema["type"] == "string" { "string".to_owned() } else { word.to_string() };
    }
    let one = |kind: &str| match (kind, schema.get("items"), schema["prefixItems"].as_array()) {
        ("array", _, Some(parts)) => format!("[{}]", parts.iter().map(self::kind).collect::<Vec<_>>().join(", ")),
        ("array", Some(items), None) => format!("list of {}", self::kind(items)),
        ("object", ..) => map(schema),
        (kind, ..) => kind.to_owned(),
    };
    match &schema["type"] {
        Value::String(kind) => one(kind),
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).map(one).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    }
}

fn map(schema: &Value) -> String {
    let empty = Map::new();
    let values = schema["additionalProperties"].as_object().unwrap_or(&empty);
    format!("object of {}", kind(&Value::Object(values.clone())))
}
