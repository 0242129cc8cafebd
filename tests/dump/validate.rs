//! A check of JSON against the parts of JSON Schema that `hlo-dump schema` uses. It is stricter than the standard: a
//! field that the schema does not name is wrong.

use serde_json::Value;

/// Checks a value against a schema.
///
/// # Errors
/// The first thing that is wrong, with its path.
pub fn validate(value: &Value, schema: &Value) -> Result<(), String> {
    check(value, schema, schema, "answer")
}

fn check(value: &Value, schema: &Value, root: &Value, path: &str) -> Result<(), String> {
    let Some(rules) = schema.as_object() else {
        return if schema == &Value::Bool(true) { Ok(()) } else { Err(format!("{path}: the schema is {schema}")) };
    };
    let all = |schemas: &Value| -> Vec<Result<(), String>> {
        schemas.as_array().expect("schemas").iter().map(|schema| check(value, schema, root, path)).collect()
    };
    for (rule, given) in rules {
        match rule.as_str() {
            "$ref" => {
                let pointer = given.as_str().and_then(|text| text.strip_prefix('#')).expect("a reference within");
                let target = root.pointer(pointer).ok_or_else(|| format!("{path}: there is no {given}"))?;
                check(value, target, root, path)?;
            }
            "oneOf" => {
                let found = all(given);
                let fitting = found.iter().filter(|it| it.is_ok()).count();
                if fitting != 1 {
                    let why: Vec<_> = found.into_iter().filter_map(Result::err).collect();
                    return Err(format!("{path}: {fitting} of the forms fit: {}", why.join("; or ")));
                }
            }
            "anyOf" => {
                let found = all(given);
                if found.iter().all(Result::is_err) {
                    let why: Vec<_> = found.into_iter().filter_map(Result::err).collect();
                    return Err(why.join("; or "));
                }
            }
            "const" if value != given => return Err(format!("{path} is {value}, not {given}")),
            "enum" if !given.as_array().is_some_and(|words| words.contains(value)) => {
                return Err(format!("{path} is {value}, none of {given}"));
            }
            "type" => {
                let fits = match given {
                    Value::Array(kinds) => kinds.iter().any(|kind| is_a(value, kind)),
                    kind => is_a(value, kind),
                };
                if !fits {
                    return Err(format!("{path} is {value}, not {given}"));
                }
            }
            "minimum" if value.as_f64() < given.as_f64() && value.is_number() => {
                return Err(format!("{path} is {value}, below {given}"));
            }
            "const" | "enum" | "minimum" | "required" | "properties" | "items" | "prefixItems" => {}
            "additionalProperties" | "minItems" | "maxItems" => {}
            "$schema" | "$defs" | "title" | "description" | "format" => {}
            other => return Err(format!("{path}: the schema has {other}, which is not checked")),
        }
    }
    object(value, schema, root, path)?;
    list(value, schema, root, path)
}

fn is_a(value: &Value, kind: &Value) -> bool {
    match kind.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

fn object(value: &Value, schema: &Value, root: &Value, path: &str) -> Result<(), String> {
    let Some(fields) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            return Err(format!("{path} has no {name}"));
        }
    }
    let (known, others) = (schema["properties"].as_object(), &schema["additionalProperties"]);
    if known.is_none() && others.is_null() {
        return Ok(());
    }
    for (name, field) in fields {
        let rule = known.and_then(|known| known.get(name)).or_else(|| (!others.is_null()).then_some(others));
        let path = format!("{path}.{name}");
        check(field, rule.ok_or_else(|| format!("{path} is not in the schema"))?, root, &path)?;
    }
    Ok(())
}

fn list(value: &Value, schema: &Value, root: &Value, path: &str) -> Result<(), String> {
    let Some(elements) = value.as_array() else { return Ok(()) };
    let first = schema["prefixItems"].as_array().map_or(&[][..], Vec::as_slice);
    if !first.is_empty() && first.len() != elements.len() {
        return Err(format!("{path} has {} elements, not {}", elements.len(), first.len()));
    }
    for (at, element) in elements.iter().enumerate() {
        if let Some(rule) = first.get(at).or_else(|| schema.get("items")) {
            check(element, rule, root, &format!("{path}[{at}]"))?;
        }
    }
    Ok(())
}
