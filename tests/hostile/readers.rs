//! The readers, and the work that each does with an input.

use std::fs;
use std::path::Path;

use hlo_dump::Caller;
use meshloom_models::families::Published;
use meshloom_models::parameters::ParameterFile;
use meshloom_models::weights::{FP8_BLOCK, Weights};
use meshloom_plan::read_hardware;
use meshloom_train::checkpoint::Checkpoint;
use meshloom_train::config::RunConfig;
use meshloom_train::data::TextDataset;
use meshloom_train::tokenizer::{Tokenizer, stop_tokens};
use sha2::{Digest, Sha256};
use support::random::Random;

use super::Reader;

/// The commands that a stranger's module goes through.
const COMMANDS: [&[&str]; 14] = [
    &["collectives"],
    &["show"],
    &["show", "--full"],
    &["show", "--emit", "stablehlo"],
    &["show", "--emit", "json"],
    &["show", "--emit", "dot"],
    &["show", "--emit", "svg"],
    &["show", "--emit", "html"],
    &["memory"],
    &["cost"],
    &["overlap", "--chip", "v5p"],
    &["traffic"],
    &["report"],
    &["diff"],
];

/// The name of the file that a reader reads.
pub fn name(reader: Reader) -> &'static str {
    match reader {
        Reader::HloText => "module.txt",
        Reader::HloProto => "module.pb",
        Reader::Compressed => "module.gz",
        Reader::StableHlo => "module.mlir",
        Reader::Profile => "a.xplane.pb",
        Reader::Safetensors | Reader::Parameters => "model.safetensors",
        Reader::ModelConfig => "config.json",
        Reader::Tokenizer => "tokenizer.json",
        Reader::Generation => "generation_config.json",
        Reader::Manifest => "manifest.json",
        Reader::Sums => "SHA256SUMS",
        Reader::Rules => "rules.yml",
        Reader::RunConfig => "run.toml",
        Reader::Hardware => "hardware.toml",
        Reader::Lines => "a.jsonl",
        Reader::CompressedData => "b.jsonl.gz",
    }
}

/// Prepares the files beside the input.
pub fn prepare(reader: Reader, folder: &Path, input: &[u8]) {
    match reader {
        // A manifest is read further only if its checksum is right.
        Reader::Manifest => {
            fs::write(folder.join("shard-0.bin"), [0; 8]).unwrap();
            let sum = |name: &str, bytes: &[u8]| format!("{}  {name}\n", support::hex(&Sha256::digest(bytes)));
            let sums = sum("manifest.json", input) + &sum("shard-0.bin", &[0; 8]);
            fs::write(folder.join("SHA256SUMS"), sums).unwrap();
        }
        Reader::Sums => {
            fs::write(folder.join("manifest.json"), &super::inputs::seeds(Reader::Manifest)[0]).unwrap();
            fs::write(folder.join("shard-0.bin"), [0; 8]).unwrap();
        }
        _ => {}
    }
}

/// Reads the file, and does with it what programs do. Whether it was accepted, or why it was not.
pub fn run(reader: Reader, folder: &Path, random: &mut Random) -> Result<(), String> {
    let path = folder.join(name(reader));
    match reader {
        Reader::HloText | Reader::HloProto | Reader::Compressed | Reader::StableHlo | Reader::Profile => {
            let command = COMMANDS[random.below(COMMANDS.len())];
            let mut words: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
            words.push(path.display().to_string());
            match command[0] {
                "diff" => words.push(path.display().to_string()),
                "overlap" => words.extend(["--perfetto".to_owned(), folder.join("trace.json").display().to_string()]),
                "report" => words.extend(["--output".to_owned(), folder.join("report.html").display().to_string()]),
                _ => {}
            }
            let ran = hlo_dump::run(words, Caller::default());
            let error = String::from_utf8_lossy(&ran.err).into_owned();
            assert!(error.len() < 16 << 10, "the error has {} bytes", error.len());
            for bytes in [&ran.out, &ran.err] {
                assert!(!bytes.contains(&0x1b), "an escape is sent to the terminal");
            }
            if ran.status == 2 { Err(error) } else { Ok(()) }
        }
        Reader::Safetensors => {
            let weights = Weights::open(folder, FP8_BLOCK).map_err(text)?;
            for tensor in weights.tensors() {
                let whole = meshloom_models::weights::whole(tensor.shape());
                weights.read(tensor.name(), &whole).map_err(text)?;
            }
            Ok(())
        }
        Reader::Parameters => ParameterFile::open(&path).map(drop).map_err(text),
        Reader::ModelConfig => {
            Published::open(folder).map_err(text)?;
            let model = format!("model.config={}", folder.display());
            let config = RunConfig::from_overrides(&[model, "model.seq=64".to_owned()]).map_err(text)?;
            config.architecture().map(drop).map_err(text)
        }
        Reader::Tokenizer => {
            let tokenizer = Tokenizer::load(&path).map_err(text)?;
            let tokens = tokenizer.encode_with_special("a aa aaa It was the best of times").map_err(text)?;
            tokenizer.decode(&tokens);
            Ok(())
        }
        Reader::Generation => stop_tokens(folder, &Tokenizer::bytes()).map(drop).map_err(text),
        Reader::Manifest | Reader::Sums => Checkpoint::open(folder).map(drop).map_err(text),
        Reader::Rules => {
            let source = format!("rules.file={:?}", path.display().to_string());
            let config = RunConfig::from_overrides(&[source]).map_err(text)?;
            config.architecture().map(drop).map_err(text)
        }
        Reader::RunConfig => RunConfig::load(&path, &[]).map_err(text)?.architecture().map(drop).map_err(text),
        Reader::Hardware => read_hardware(&path).map(drop).map_err(text),
        Reader::Lines | Reader::CompressedData => {
            let cache = folder.join("cache");
            let settings = [format!("data.sources=[{path:?}]"), format!("data.cache={cache:?}")];
            let config = RunConfig::from_overrides(&settings).map_err(text)?;
            let threads = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
            let open = || TextDataset::open(&config.data, &Tokenizer::bytes(), 16).map(drop).map_err(text);
            match threads {
                Ok(threads) => threads.install(open),
                // This thread has a pool already.
                Err(_) => open(),
            }
        }
    }
}

/// The text of an error, which must be short whatever is in the input.
fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
