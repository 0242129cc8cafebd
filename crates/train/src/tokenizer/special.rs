//! The tokens that end a text of a published model, by the files beside its weights.

use std::io::ErrorKind;
use std::path::Path;

use meshloom::hlo::files;
use serde_json::{Map, Value};

use super::{Tokenizer, TokenizerError};
use meshloom_models::families::json::object;

/// The tokens of a published model behind which nothing is generated. There can be several: the end of a text, and the
/// end of a turn. The first of `generation_config.json`, `config.json` and `tokenizer_config.json` counts that names
/// such tokens. Files may be missing.
///
/// # Errors
/// A file cannot be read or has a wrong value, or names a token that the tokenizer does not have.
pub fn stop_tokens(folder: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<Vec<i32>, TokenizerError> {
    for name in ["generation_config.json", "config.json"] {
        let found = File::open(folder.as_ref(), name)?.numbers("eos_token_id")?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    let settings = File::open(folder.as_ref(), "tokenizer_config.json")?;
    Ok(settings.named("eos_token", tokenizer)?.into_iter().collect())
}

/// A file of settings, which may be missing.
struct File {
    path: String,
    object: Map<String, Value>,
}

impl File {
    fn open(folder: &Path, name: &str) -> Result<File, TokenizerError> {
        let path = folder.join(name);
        let shown = path.display().to_string();
        let text = match files::read_text(&path, files::SETTINGS_BYTES) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => "{}".to_owned(),
            Err(source) => return Err(TokenizerError::ReadSettings { file: path, source }),
        };
        match object(&text) {
            Ok(object) => Ok(File { path: shown, object }),
            Err(reason) => Err(TokenizerError::Settings { file: shown, reason }),
        }
    }

    fn wrong(&self, key: &str, found: &Value, expected: &'static str) -> TokenizerError {
        let (file, key, found) = (self.path.clone(), key.to_owned(), found.to_string());
        TokenizerError::Setting { file, key, found, expected }
    }

    /// One token or several, by number.
    fn numbers(&self, key: &str) -> Result<Vec<i32>, TokenizerError> {
        let number = |value: &Value| i32::try_from(value.as_u64()?).ok();
        // Models that also see name tokens where their decoder is described.
        let decoder = self.object.get("text_config").and_then(|decoder| decoder.get(key));
        let found = self.object.get(key).filter(|value| !value.is_null()).or(decoder);
        let read = match found {
            None | Some(Value::Null) => return Ok(Vec::new()),
            // Older files write -1 if the model has no such token.
            Some(value) if value.as_i64() == Some(-1) => return Ok(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(number).collect::<Option<Vec<i32>>>(),
            Some(value) => number(value).map(|token| vec![token]),
        };
        let expected = "the number of a token, or a list of such";
        read.ok_or_else(|| self.wrong(key, found.unwrap_or(&Value::Null), expected))
    }

    fn named(&self, key: &str, tokenizer: &Tokenizer) -> Result<Option<i32>, TokenizerError> {
        let text = match self.object.get(key) {
            None | Some(Value::Null) => return Ok(None),
            // The token is described by an object.
            Some(Value::Object(token)) => token.get("content").unwrap_or(&Value::Null),
            Some(text) => text,
        };
        let Some(text) = text.as_str() else { return Err(self.wrong(key, text, "the text of a token")) };
        match tokenizer.token(text) {
            Some(token) => Ok(Some(token)),
            None => {
                let (file, key, token) = (self.path.clone(), key.to_owned(), text.to_owned());
                Err(TokenizerError::NoSuchToken { file, key, token })
            }
        }
    }
}
