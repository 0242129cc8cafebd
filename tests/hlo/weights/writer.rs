//! Writing: what others read back, and what is left when it does not come to its end.

use std::path::Path;

use super::support::{Random, Raw, file, folder, message, open};
use meshloom_models::weights::{MAX_SHARD_BYTES, TensorSpec, WeightsError, whole, write_weights};
use safetensors::{Dtype, SafeTensors};

const INDEX: &str = "model.safetensors.index.json";

fn spec(name: &str, dtype: Dtype, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec() }
}

/// Names of all kinds, in an order that is not theirs.
fn tensors() -> Vec<(TensorSpec, Raw)> {
    let mut random = Random(41);
    let specs = [
        spec("model.embed_tokens.weight", Dtype::BF16, &[11, 8]),
        spec("model.layers.10.w", Dtype::F32, &[3, 5]),
        spec("model.layers.2.w", Dtype::F8_E4M3, &[7]),
        spec("a \"quoted\" \u{e9}\n name", Dtype::F16, &[2, 2]),
        spec("scalar", Dtype::I64, &[]),
        spec("empty", Dtype::BOOL, &[4, 0]),
        spec("flags", Dtype::BOOL, &[9]),
        spec("complex", Dtype::C64, &[2]),
    ];
    specs.map(|spec| (spec.clone(), Raw::random(spec.dtype, &spec.shape, &mut random))).into()
}

/// Writes tensors, and looks at the folder before each and before the files get their names.
fn write_and(
    folder: &Path,
    tensors: &[(TensorSpec, Raw)],
    max_shard_bytes: u64,
    look: impl Fn(),
) -> Result<(), WeightsError> {
    let specs: Vec<TensorSpec> = tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let mut left = tensors.iter();
    let bytes_of = |spec: &TensorSpec| {
        look();
        let (own, raw) = left.next().expect("each tensor once");
        assert_eq!(own, spec);
        Ok(raw.bytes.clone())
    };
    let complete = || {
        look();
        Ok(())
    };
    write_weights(folder, &specs, max_shard_bytes, bytes_of, complete)
}

fn write(folder: &Path, tensors: &[(TensorSpec, Raw)], max_shard_bytes: u64) -> Result<(), WeightsError> {
    write_and(folder, tensors, max_shard_bytes, || {})
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Checks a file with the `safetensors` crate. Returns the tensors in the order of their bytes.
fn check_file(path: &Path, tensors: &[(TensorSpec, Raw)]) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap();
    let (header_bytes, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header_bytes % 8, 0);
    assert_eq!(metadata.metadata().as_ref().unwrap().get("format").unwrap(), "pt");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for (spec, raw) in tensors {
        if let Ok(found) = file.tensor(&spec.name) {
            assert_eq!((found.dtype(), found.shape(), found.data()), (spec.dtype, &spec.shape[..], &raw.bytes[..]));
        }
    }
    metadata.offset_keys()
}

#[test]
fn one_file() {
    let (folder, tensors) = (folder(&[("config.json", b"{}".to_vec())]), tensors());
    write(folder.path(), &tensors, MAX_SHARD_BYTES).unwrap();
    assert_eq!(names(folder.path()), ["config.json", "model.safetensors"]);
    let found = check_file(&folder.path().join("model.safetensors"), &tensors);
    let expected: Vec<&str> = tensors.iter().map(|(spec, _)| spec.name.as_str()).collect();
    assert_eq!(found, expected);

    let weights = open(folder.path()).unwrap();
    assert_eq!(weights.tensors().len(), tensors.len());
    for (spec, raw) in &tensors {
        assert_eq!(weights.read_bytes(&spec.name, &whole(&spec.shape)).unwrap(), raw.bytes);
    }
}

#[test]
fn shards() {
    let (folder, tensors) = (folder(&[]), tensors());
    let target = folder.path().join("new/checkpoint");
    // Bytes: 176, 60, 7, 8, 8, 0, 9, 16.
    write(&target, &tensors, 75).unwrap();
    let shards = [1, 2, 3].map(|shard| format!("model-0000{shard}-of-00003.safetensors"));
    assert_eq!(names(&target), [&shards[..], &[INDEX.to_owned()]].concat());
    let found = shards.each_ref().map(|shard| check_file(&target.join(shard), &tensors));
    let name = |index: usize| tensors[index].0.name.clone();
    assert_eq!(found, [vec![name(0)], vec![name(1), name(2), name(3)], vec![name(4), name(5), name(6), name(7)]]);

    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(target.join(INDEX)).unwrap()).unwrap();
    assert_eq!(index["metadata"]["total_size"], 284);
    assert_eq!(index["weight_map"].as_object().unwrap().len(), tensors.len());
    assert_eq!(index["weight_map"]["flags"], "model-00003-of-00003.safetensors");

    let weights = open(&target).unwrap();
    for (spec, raw) in &tensors {
        assert_eq!(weights.read_bytes(&spec.name, &whole(&spec.shape)).unwrap(), raw.bytes);
    }
}

#[test]
fn no_tensors_are_a_file_too() {
    let folder = folder(&[]);
    write(folder.path(), &[], 1).unwrap();
    assert!(open(folder.path()).unwrap().tensors().is_empty());
}

#[test]
fn weights_are_never_replaced() {
    let tensors = tensors();
    for name in ["model.safetensors", INDEX, "model-00001-of-00002.safetensors"] {
        let folder = folder(&[(name, file("{}", b""))]);
        assert_eq!(
            message(folder.path(), write(folder.path(), &tensors, MAX_SHARD_BYTES)),
            format!("\"FOLDER\" has weights already ({name}), and weights are never replaced; give another folder")
        );
        assert_eq!(names(folder.path()), [name]);
    }
}

#[test]
fn a_write_that_fails_leaves_nothing() {
    let (folder, mut tensors) = (folder(&[]), tensors());
    tensors[6].1.bytes.pop();
    assert_eq!(
        message(folder.path(), write(folder.path(), &tensors, 75)),
        "tensor \"flags\" has 9 bytes, but was given 8; give all of them, and no more"
    );
    assert!(names(folder.path()).is_empty());
}

/// Whenever the process is killed, the folder has no weights, and the next writer notices what is left.
#[test]
fn unfinished_files_are_no_weights() {
    let tensors = tensors();
    for max_shard_bytes in [75, MAX_SHARD_BYTES] {
        let folder = folder(&[]);
        let look = || {
            let left = names(folder.path());
            assert!(left.iter().all(|name| name.starts_with(".model") && name.ends_with(".safetensors.unfinished")));
            assert!(message(folder.path(), open(folder.path())).starts_with("there are no weights"));
            assert_eq!(
                message(folder.path(), write(folder.path(), &tensors, max_shard_bytes)),
                format!(
                    "{:?} is there: another writer is at work, or one was killed; wait for it, or delete the file if \
                     there is none",
                    left[0]
                )
            );
            assert_eq!(names(folder.path()), left);
        };
        write_and(folder.path(), &tensors, max_shard_bytes, look).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn a_write_that_fails_at_its_end_leaves_no_weights() {
    let (folder, tensors) = (folder(&[]), tensors());
    // A file cannot get the name of a folder with something in it.
    let block = || std::fs::create_dir_all(folder.path().join("model-00003-of-00003.safetensors/x")).unwrap();
    assert_eq!(
        message(folder.path(), write_and(folder.path(), &tensors, 75, block)),
        "cannot rename a file to \"model-00003-of-00003.safetensors\": Is a directory (os error 21); give a folder \
         that can be written and has room"
    );
    let shards = [1, 2, 3].map(|shard| format!("model-0000{shard}-of-00003.safetensors"));
    assert_eq!(names(folder.path()), shards);
    assert!(message(folder.path(), open(folder.path())).starts_with("there are no weights"));
}

#[test]
fn tensors_that_cannot_be_written() {
    let (x, folder) = (spec("x", Dtype::F32, &[2]), folder(&[]));
    let cases = [
        (
            vec![x.clone(), x.clone()],
            "\"x\" cannot be written: there are two of this name; give each a name of its own",
        ),
        (
            vec![spec("__metadata__", Dtype::F32, &[2])],
            "\"__metadata__\" cannot be written: the format keeps this name for other things; give it another",
        ),
        (
            vec![spec("y", Dtype::F4, &[3])],
            "\"y\" cannot be written: its bytes are not whole, or more than a disk holds; give another shape",
        ),
        (
            vec![spec("y", Dtype::F32, &[usize::MAX, 2])],
            "\"y\" cannot be written: its bytes are not whole, or more than a disk holds; give another shape",
        ),
        (
            (1..9).map(|number| spec(&number.to_string(), Dtype::U8, &[1 << 60])).collect(),
            "\"8\" cannot be written: its bytes are not whole, or more than a disk holds; give another shape",
        ),
    ];
    for (specs, expected) in cases {
        let refused = write(folder.path(), &without_bytes(specs), MAX_SHARD_BYTES);
        assert_eq!(message(folder.path(), refused), format!("tensor {expected}"));
    }
    let long = spec(&"x".repeat(100_000_000), Dtype::F32, &[]);
    assert_eq!(
        message(folder.path(), write(folder.path(), &without_bytes(vec![x, long]), 8)),
        "the header of model-00002-of-00002.safetensors would have more than 100000000 bytes; write smaller shards"
    );
    assert!(names(folder.path()).is_empty());
}

fn without_bytes(specs: Vec<TensorSpec>) -> Vec<(TensorSpec, Raw)> {
    specs.into_iter().map(|spec| (spec, Raw { dtype: Dtype::U8, shape: Vec::new(), bytes: Vec::new() })).collect()
}

/// The umask decides, as for all files.
#[cfg(unix)]
#[test]
fn files_have_the_usual_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder(&[("usual", Vec::new())]);
    write(folder.path(), &[], 1).unwrap();
    let mode = |name| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
    assert_eq!(mode("model.safetensors"), mode("usual"));
}
