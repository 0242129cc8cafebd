//! Files of text in a folder that lasts as long as a test, with a token cache of their own.

use std::io::Write;
use std::path::PathBuf;

use flate2::write::GzEncoder;
use meshloom_train::config::RunConfig;
use meshloom_train::data::{DataError, TextDataset};
use meshloom_train::tokenizer::Tokenizer;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use tempfile::TempDir;

use crate::configs;

pub struct TextFiles(TempDir);

impl TextFiles {
    /// Files of these names.
    pub fn new(files: &[(&str, &[u8])]) -> TextFiles {
        let made = TextFiles(tempfile::tempdir().expect("a folder"));
        std::fs::create_dir(made.path("")).expect("a folder");
        files.iter().for_each(|(name, bytes)| made.write(name, bytes));
        made
    }

    /// A file of the source.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("files").join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    }

    /// The folder of the token cache.
    pub fn cache(&self) -> PathBuf {
        self.0.path().join("cache")
    }

    /// Replaces the path of the folder by `DIR`.
    pub fn without_folder(&self, text: impl ToString) -> String {
        text.to_string().replace(&self.0.path().display().to_string(), "DIR")
    }

    /// A config whose source is the folder of the files; later keys win.
    #[track_caller]
    pub fn config(&self, settings: &[&[&str]]) -> RunConfig {
        let (sources, cache) =
            (format!("data.sources=[{:?}]", self.path("")), format!("data.cache={:?}", self.cache()));
        configs::config(&[&[&sources, &cache], &settings.concat()])
    }

    /// The text in rows of `length` tokens.
    pub fn open(&self, tokenizer: &Tokenizer, length: usize, settings: &[&str]) -> Result<TextDataset, DataError> {
        TextDataset::open(&self.config(&[settings]).data, tokenizer, length)
    }
}

/// A gzip file of two members, as `gzip -c a b` writes: a decoder that stops after the first loses text.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    in_two_parts(bytes, |part| {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(part).expect("compressed");
        encoder.finish().expect("compressed")
    })
}

/// A zstd file of two frames, each with a checksum, as the program `zstd` writes them.
pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    in_two_parts(bytes, |part| compress_to_vec(part, CompressionLevel::Fastest))
}

fn in_two_parts(bytes: &[u8], compress: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    [compress(first), compress(second)].concat()
}
