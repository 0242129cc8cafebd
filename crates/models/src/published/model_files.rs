//! The files of a published model beside its weights.

use std::path::Path;
use std::sync::Arc;

use meshloom::hlo::files;

use crate::weights::WeightsError;

/// Ends of the names of files with weights, whatever their format.
const WEIGHTS: [&str; 11] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    ".pt",
    ".pth",
    ".unfinished",
];

/// A larger file is no description of a model. The largest tokenizers have some 40 MB.
const MAX_BYTES: u64 = 1 << 27;

/// The files of a published model beside its weights: `config.json`, the tokenizer, `generation_config.json`, a
/// license. A run on the model keeps them in each of its checkpoints, so that those can be used without the folder.
#[derive(Clone, Debug, Default)]
pub struct ModelFiles(Vec<ModelFile>);

/// A file of a published model.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// Its name.
    pub name: String,
    /// Its contents.
    pub bytes: Arc<[u8]>,
}

impl ModelFiles {
    /// Reads the files of a folder that are no weights, not hidden, of plain names, and of no more than 128 MiB.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn read(folder: &Path) -> Result<ModelFiles, WeightsError> {
        let unreadable = |path: &Path, source| WeightsError::Read { path: path.to_owned(), source };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|source| unreadable(folder, source))? {
            let path = entry.map_err(|source| unreadable(folder, source))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|name| is_kept(name)) else {
                continue;
            };
            // In the cache of the Hub, files are links.
            let metadata = std::fs::metadata(&path).map_err(|source| unreadable(&path, source))?;
            if metadata.is_file() && metadata.len() <= MAX_BYTES {
                let bytes = files::read(&path, MAX_BYTES).map_err(|source| unreadable(&path, source))?;
                files.push(ModelFile { name: name.to_owned(), bytes: bytes.into() });
            }
        }
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(ModelFiles(files))
    }

    /// The same with a file of this name replaced by another text.
    pub(crate) fn with(self, name: &str, text: &str) -> ModelFiles {
        let mut files = self.without(name);
        files.0.push(ModelFile { name: name.to_owned(), bytes: text.as_bytes().into() });
        files
    }

    pub(crate) fn without(mut self, name: &str) -> ModelFiles {
        self.0.retain(|file| file.name != name);
        self
    }

    pub(crate) fn write(&self, folder: &Path) -> Result<(), WeightsError> {
        self.iter().try_for_each(|file| {
            let path = folder.join(&file.name);
            let written = std::fs::write(&path, &file.bytes);
            written.map_err(|source| WeightsError::Write { action: "write", path, source })
        })
    }

    /// The files, by name.
    pub fn iter(&self) -> impl Iterator<Item = &ModelFile> {
        self.0.iter()
    }
}

/// Says whether a file of this name is kept.
pub fn is_kept(name: &str) -> bool {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    is_plain && !name.starts_with('.') && !WEIGHTS.iter().any(|end| name.ends_with(end))
}
