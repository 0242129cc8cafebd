//! Folders whose index and files do not fit, or that lead elsewhere.

use super::support::{Random, Raw, file, folder, index, message, open, serialized};
use meshloom_models::weights::whole;
use safetensors::Dtype;

const INDEX: &str = "model.safetensors.index.json";

fn raw(value: u64) -> Raw {
    Raw::random(Dtype::F32, &[2, 2], &mut Random(value))
}

#[test]
fn index_and_files_have_the_same_tensors() {
    let (x, y) = (raw(1), raw(2));
    let (with_x, with_y, with_both) =
        (serialized(&[("x", &x)]), serialized(&[("y", &y)]), serialized(&[("x", &x), ("y", &y)]));
    let two = index(&[("x", "a.safetensors"), ("y", "b.safetensors")]);
    let cases = [
        (
            vec![("a.safetensors", with_x.clone()), (INDEX, two.clone())],
            r#"its file "b.safetensors" is not there; download it"#,
        ),
        (
            vec![("a.safetensors", with_x.clone()), ("b.safetensors", with_both.clone()), (INDEX, two.clone())],
            "tensor \"x\" is in both \"a.safetensors\" and \"b.safetensors\"; remove the file that is of another \
             checkpoint",
        ),
        (
            vec![("a.safetensors", with_x.clone()), ("b.safetensors", file("{}", b"")), (INDEX, two.clone())],
            r#"tensor "y" is not in its file "b.safetensors"; download both again"#,
        ),
        (
            vec![("a.safetensors", with_y), ("b.safetensors", with_x.clone()), (INDEX, two)],
            r#"tensor "x" is not in its file "a.safetensors"; download both again"#,
        ),
        (
            vec![("a.safetensors", with_both), (INDEX, index(&[("x", "a.safetensors")]))],
            r#"it does not have tensor "y" of file "a.safetensors"; download both again"#,
        ),
        (
            vec![(INDEX, b"".to_vec())],
            "it is damaged: EOF while parsing a value at line 1 column 0; download the file \
             again",
        ),
        (
            vec![(INDEX, b"{\"metadata\":{}}".to_vec())],
            "it is damaged: missing field `weight_map` at line 1 column 15; download the file again",
        ),
        (
            vec![(INDEX, b"{\"weight_map\":{\"x\":[]}}".to_vec())],
            "it is damaged: tensor \"x\": invalid type: sequence, expected a string at line 1 column 19; download the \
             file again",
        ),
        (
            vec![(INDEX, b"{\"weight_map\":{\"x\":\"a\",\"x\":\"b\"}}".to_vec())],
            "it is damaged: tensor \"x\" occurs twice at line 1 column 31; download the file again",
        ),
    ];
    for (files, expected) in cases {
        let folder = folder(&files);
        let said = message(folder.path(), open(folder.path()));
        assert_eq!(said, format!("\"{INDEX}\" cannot be used: {expected}"));
    }
}

#[test]
fn a_damaged_shard_is_named() {
    let files = [("a.safetensors", vec![0; 3]), (INDEX, index(&[("x", "a.safetensors")]))];
    let folder = folder(&files);
    assert_eq!(
        message(folder.path(), open(folder.path())),
        "\"a.safetensors\" cannot be used: it has 3 bytes, and a safetensors file at least 8; download the file again"
    );
}

#[test]
fn an_index_names_files_of_the_folder_alone() {
    let x = raw(3);
    let outer = folder(&[("secret.safetensors", serialized(&[("x", &x)]))]);
    let inner = outer.path().join("checkpoint");
    std::fs::create_dir_all(inner.join("sub")).unwrap();
    std::fs::copy(outer.path().join("secret.safetensors"), inner.join("sub/a.safetensors")).unwrap();
    let absolute = outer.path().join("secret.safetensors");
    let names = [
        "../secret.safetensors",
        absolute.to_str().unwrap(),
        "sub/a.safetensors",
        "./a.safetensors",
        "a.safetensors/",
        "sub\\a.safetensors",
        "C:a.safetensors",
        "a\0b",
        "..",
        ".",
        "",
    ];
    for name in names {
        std::fs::write(inner.join(INDEX), index(&[("x", name)])).unwrap();
        assert_eq!(
            message(&inner, open(&inner)),
            format!(
                "\"{INDEX}\" cannot be used: tensor \"x\" is in file {:?}, which is not the name of a file of the \
                 folder; do not use what comes from this author",
                name.replace(&format!("{}/", inner.display()), "")
            )
        );
    }
}

#[test]
fn folders_without_weights() {
    let empty = folder(&[("config.json", b"{}".to_vec()), ("a.safetensors", file("{}", b""))]);
    let expected = "there are no weights in \"FOLDER\": it has neither model.safetensors nor \
                    model.safetensors.index.json; give the folder of a checkpoint whose download is complete";
    assert_eq!(message(empty.path(), open(empty.path())), expected);
    let absent = empty.path().join("absent");
    assert_eq!(message(&absent, open(&absent)), expected);
}

#[test]
fn one_file_comes_before_an_index() {
    let folder = folder(&[("model.safetensors", serialized(&[("x", &raw(4))])), (INDEX, b"not read".to_vec())]);
    assert_eq!(open(folder.path()).unwrap().tensors().len(), 1);
}

#[test]
fn what_is_no_file_is_not_opened() {
    let folder = folder(&[]);
    std::fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    let expected = "\"model.safetensors\" is not a file; give the folder of a checkpoint as it was published";
    assert_eq!(message(folder.path(), open(folder.path())), expected);
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::symlink;

    /// As in the cache of the Hugging Face Hub.
    #[test]
    fn links_of_the_user_are_followed() {
        let x = raw(5);
        let cache = folder(&[]);
        let (blobs, snapshot) = (cache.path().join("blobs"), cache.path().join("snapshots/main"));
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::write(blobs.join("0123"), serialized(&[("x", &x)])).unwrap();
        std::fs::write(blobs.join("4567"), index(&[("x", "a.safetensors")])).unwrap();
        symlink("../../blobs/0123", snapshot.join("a.safetensors")).unwrap();
        symlink("../../blobs/4567", snapshot.join(INDEX)).unwrap();
        let weights = open(&snapshot).unwrap();
        assert_eq!(weights.read_bytes("x", &whole(&[2, 2])).unwrap(), x.bytes);

        std::fs::remove_file(blobs.join("0123")).unwrap();
        assert_eq!(
            message(&snapshot, open(&snapshot)),
            "cannot read \"a.safetensors\": No such file or directory (os error 2); give a folder with files that can \
             be read"
        );
    }

    /// To open a device may do something, and to open a pipe waits for ever.
    #[test]
    fn links_to_devices_are_not_opened() {
        let folder = folder(&[(INDEX, index(&[("x", "a.safetensors")]))]);
        symlink("/dev/zero", folder.path().join("a.safetensors")).unwrap();
        let expected = "\"a.safetensors\" is not a file; give the folder of a checkpoint as it was published";
        assert_eq!(message(folder.path(), open(folder.path())), expected);
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_open() {
        let folder = folder(&[("model.safetensors", serialized(&[("x", &raw(6))]))]);
        let weights = open(folder.path()).unwrap();
        let path = folder.path().join("model.safetensors");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
        assert_eq!(
            message(folder.path(), weights.read("x", &whole(&[2, 2]))),
            "cannot read \"model.safetensors\": failed to fill whole buffer; give a folder with files that can be read"
        );
        assert_eq!(weights.read("x", &[0..1, 0..2]).unwrap().len(), 2);
    }

    #[test]
    fn an_index_of_any_length() {
        let folder = folder(&[(INDEX, b"{}".to_vec())]);
        let file = std::fs::OpenOptions::new().write(true).open(folder.path().join(INDEX)).unwrap();
        file.set_len(100_000_001).unwrap();
        assert_eq!(
            message(folder.path(), open(folder.path())),
            "\"model.safetensors.index.json\" cannot be used: it has 100000001 bytes, and at most 100000000 are \
             allowed; download the file again"
        );
    }

    /// A tensor may be larger than memory: a sparse file has any size.
    #[test]
    fn a_box_of_a_tensor_that_memory_does_not_hold() {
        let bytes = 1u64 << 45;
        let header = format!(r#"{{"x":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
        let folder = folder(&[("model.safetensors", file(&header, b""))]);
        let file = std::fs::OpenOptions::new().append(true).open(folder.path().join("model.safetensors")).unwrap();
        if file.set_len(8 + header.len() as u64 + bytes).is_err() {
            return;
        }
        let weights = open(folder.path()).unwrap();
        let end = bytes as usize;
        assert_eq!(weights.read_bytes("x", std::slice::from_ref(&(end - 2..end))).unwrap(), [0, 0]);
    }
}
