//! Inputs that are made to do harm, the same for the same number.

use std::fs;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};
use support::random::Random;
use support::text_files::{gzip, zstd};

use super::{Kind, Reader, wide};
use crate::hlo::mutated::mutate;

/// A manifest of a checkpoint without values.
pub const MANIFEST: &str = r#"{"format":"meshloom checkpoint","version":1,"meshloom":"0.1.0","step":1,"seed":0,"data":{"next_batch":1,"batch":2,"seq":4},"mesh":"data=1","devices":1,"config":"[model]\nlayers = 1\n","files":[[FILES]],"leaves":[[LEAVES]]}"#;

const GENERATION: &str = r#"{"bos_token_id":1,"eos_token_id":[1,2],"pad_token_id":0,"temperature":0.6}"#;

const HARDWARE: &str = "chip = \"h100\"\nmemory_bytes = 94_000_000_000\n\n[[dimension]]\nsize = 8\nwire = \"switch\"\nrate = 450e9\nlatency = 1e-6\n";

/// Numbers that sizes must not be.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "65536",
    "2147483647",
    "4294967296",
    "1099511627776",
    "9223372036854775807",
    "18446744073709551615",
    "-9223372036854775808",
    "1e400",
    "0.5",
    "99999999999999999999999999",
];

/// Pieces of JSON of another type than the value in that place.
const VALUES: [&str; 8] = ["null", "true", "\"x\"", "{}", "[]", "[[]]", "1e400", "-0"];

fn read(path: &str) -> Vec<u8> {
    fs::read(support::path(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn folder(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> = fs::read_dir(support::path(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let paths = paths.iter().filter(|path| path.to_string_lossy().ends_with(ending));
    let found: Vec<_> = paths.map(|path| fs::read(path).unwrap()).filter(|bytes| bytes.len() < 64 << 10).collect();
    assert!(!found.is_empty(), "nothing small in {folder}");
    found
}

/// The small real files that are changed to make inputs of a reader.
pub fn seeds(reader: Reader) -> &'static [Vec<u8>] {
    static SEEDS: [OnceLock<Vec<Vec<u8>>>; Reader::ALL.len()] = [const { OnceLock::new() }; Reader::ALL.len()];
    SEEDS[reader as usize].get_or_init(|| match reader {
        Reader::HloText => folder("tests/oracle/hlo", ".txt"),
        Reader::HloProto => folder("tests/oracle/hlo", ".pb"),
        Reader::Compressed => folder("tests/oracle/hlo", ".txt").iter().map(|bytes| gzip(bytes)).collect(),
        Reader::StableHlo => folder("tests/foreign/lowered", ".stablehlo.txt"),
        Reader::Profile => vec![wide::profile(64, &mut Random(4)), wide::profile(400, &mut Random(9))],
        Reader::Safetensors | Reader::Parameters => vec![
            wide::with_header(r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[16,24]},"__metadata__":{"format":"pt"}}"#, 24),
            wide::with_header(r#"{"w":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[0,8]},"w_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[8,12]}}"#, 12),
        ],
        Reader::ModelConfig => vec![read("examples/tiny-model/config.json")],
        Reader::Tokenizer => vec![read("examples/data/austen.tokenizer.json")],
        Reader::Generation => vec![GENERATION.as_bytes().to_vec()],
        Reader::Manifest => vec![MANIFEST.replace("[FILES]", r#"{"name":"shard-0.bin","bytes":8}"#).replace("[LEAVES]", r#"{"path":"p","dtype":"f32","dims":[2],"has_replicas":false,"pieces":[{"file":0,"offset":0,"start":[0],"dims":[2]}]}"#).into_bytes()],
        Reader::Sums => {
            let sum = |name: &str, bytes: &[u8]| format!("{}  {name}\n", support::hex(&Sha256::digest(bytes)));
            let manifest = &seeds(Reader::Manifest)[0];
            vec![(sum("manifest.json", manifest) + &sum("shard-0.bin", &[0; 8])).into_bytes()]
        }
        Reader::Rules => folder("tests/rule_files", ".yml"),
        Reader::RunConfig => vec![read("examples/configs/default.toml"), read("examples/configs/streaming-diloco.toml")],
        Reader::Hardware => vec![HARDWARE.as_bytes().to_vec()],
        Reader::Lines => vec![b"{\"text\": \"one two\"}\n{\"text\": \"three\", \"id\": 4}\n\n{\"text\": \"caf\\u00e9\"}\n".repeat(4)],
        Reader::CompressedData => {
            let text = b"{\"text\": \"one two three four\"}\n".repeat(40);
            vec![gzip(&text), zstd(&text)]
        }
    })
}

/// Makes an input of about `size` bytes where the kind has a size.
pub fn input(reader: Reader, kind: Kind, size: usize, random: &mut Random) -> Vec<u8> {
    let seeds = seeds(reader);
    let mut bytes = seeds[random.below(seeds.len())].clone();
    let at = random.below(bytes.len());
    match kind {
        Kind::Wide => return wide::of(reader, size, random),
        Kind::Truncated => bytes.truncate(at),
        Kind::Flipped => (0..1 + random.below(8)).for_each(|_| {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }),
        Kind::OtherTypes => other_type(&mut bytes, at, random),
        Kind::HugeNumbers => (0..1 + random.below(2)).for_each(|_| {
            let at = random.below(bytes.len());
            huge_number(&mut bytes, at, random);
        }),
        Kind::Dangling => {
            // A name becomes another one of the file.
            let words: Vec<_> = words(&bytes).collect();
            if let (Some(to), Some(from)) = (words.get(random.below(words.len())), words.get(random.below(words.len())))
            {
                let name = bytes[from.clone()].to_vec();
                bytes.splice(to.clone(), name);
            }
        }
        Kind::Mixed => {
            let mut random = mutate::Random::new(random.below(1 << 20), at);
            bytes = if is_text(reader) { mutate::text(&mut random, seeds) } else { mutate::bytes(&mut random, seeds) };
        }
        Kind::Doubled => {
            // A piece of the input is repeated many times.
            let end = (at + 1 + random.below(400)).min(bytes.len());
            let piece = bytes[at..end].to_vec();
            let times = size / piece.len() + 1;
            bytes.splice(at..at, piece.repeat(times));
        }
        Kind::Special => {}
    }
    bytes
}

fn is_text(reader: Reader) -> bool {
    !matches!(reader, Reader::HloProto | Reader::Compressed | Reader::Profile | Reader::CompressedData)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + bytes[at..].iter().position(is_word)?;
        let end = bytes[start..].iter().position(|byte| !is_word(byte)).map_or(bytes.len(), |length| start + length);
        at = end;
        Some(start..end)
    })
}

fn huge_number(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = bytes[at..].iter().position(u8::is_ascii_digit).map(|length| at + length) else { return };
    let length = bytes[start..].iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len() - start);
    bytes.splice(start..start + length, NUMBERS[random.below(NUMBERS.len())].bytes());
}

/// A value behind a colon or an equals sign becomes one of another type.
fn other_type(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = bytes[at..].iter().position(|byte| matches!(byte, b':' | b'=')).map(|length| at + length + 1)
    else {
        return;
    };
    let length = bytes[start..].iter().position(|byte| matches!(byte, b',' | b'}' | b'\n' | b']'));
    let end = length.map_or(bytes.len(), |length| start + length);
    bytes.splice(start..end, VALUES[random.below(VALUES.len())].bytes());
}
