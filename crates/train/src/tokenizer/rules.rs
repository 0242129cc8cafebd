//! Judges the rules of a `tokenizer.json` by how far they can make a text grow.

use serde::Deserialize;
use serde_json::Value;

/// The most bytes that a byte of text may become by all rules of a section, and the most bytes or tokens that a rule
/// may add to each text. The rules of real tokenizers triple a text where they write spaces as `▁`, and add a token or
/// two.
const MOST: f64 = 64.0;

/// How many rules a section may have. Each goes through the whole text.
const MOST_RULES: usize = 256;

/// The sections that change a text. Others are not looked at.
#[derive(Deserialize)]
struct Sections {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
}

/// How much rules change a text.
struct Growth {
    factor: f64,
    /// Bytes or tokens that are added to each text.
    added: f64,
    rules: usize,
}

/// Refuses rules that let a text grow far, or that are very many.
///
/// # Errors
/// They do, or the text is not JSON.
pub(super) fn check(json: &[u8]) -> Result<(), String> {
    let Sections { normalizer, pre_tokenizer, post_processor, decoder } =
        serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let sections = [
        ("normalizer", normalizer),
        ("pre_tokenizer", pre_tokenizer),
        ("post_processor", post_processor),
        ("decoder", decoder),
    ];
    // The normalizer's text goes to the pre-tokenizer.
    let mut factor = 1.0;
    for (name, section) in &sections {
        if *name == "decoder" {
            factor = 1.0;
        }
        let mut growth = Growth { factor, added: 0.0, rules: 0 };
        growth.add(section);
        let Growth { factor: grown, added, rules } = growth;
        factor = grown;
        if rules > MOST_RULES {
            return Err(format!("its {name} has {rules} rules, and at most {MOST_RULES} are followed"));
        }
        if grown > MOST || added > MOST {
            let how = if grown > MOST { format!("{grown:.0} bytes of each byte") } else { format!("{added:.0} more") };
            return Err(format!(
                "its {name} makes {how} of a text, where {MOST} is the most that is followed: such rules are made to fill \
                 memory"
            ));
        }
    }
    Ok(())
}

impl Growth {
    /// Adds a rule, and those in it.
    fn add<'r>(&mut self, rule: &'r Value) {
        self.rules += usize::from(rule.is_object());
        let text = |key: &str| rule.get(key).and_then(Value::as_str);
        match text("type") {
            Some("Replace") => {
                let content = text("content").unwrap_or_default().len() as f64;
                let pattern = rule.get("pattern").and_then(|pattern| pattern.get("String")?.as_str());
                self.factor *= match pattern {
                    Some(pattern) if !pattern.is_empty() => (content / pattern.len() as f64).max(1.0),
                    // An expression may match each byte, or nothing before each.
                    _ => 1.0 + content,
                };
            }
            Some("Prepend") => self.added += text("prepend").unwrap_or_default().len() as f64,
            Some("TemplateProcessing") => {
                let tokens = rule.get("special_tokens").and_then(Value::as_object);
                let ids = |name: &str| tokens?.get(name)?.get("ids")?.as_array().map(Vec::len);
                let pieces = rule.get("single").and_then(Value::as_array).into_iter().flatten();
                // A text that occurs several times counts as added text, too.
                let name = |piece: &'r Value| piece.get("SpecialToken").and_then(|token| token.get("id")?.as_str());
                self.added +=
                    pieces.map(|piece| name(piece).map_or(1, |name| ids(name).unwrap_or(1)) as f64).sum::<f64>();
            }
            _ => {}
        }
        for key in ["normalizers", "pretokenizers", "processors", "decoders"] {
            rule.get(key).and_then(Value::as_array).into_iter().flatten().for_each(|rule| self.add(rule));
        }
    }
}
