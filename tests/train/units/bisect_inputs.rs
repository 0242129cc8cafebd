use meshloom::ir::{DType, Literal, TensorType};
use meshloom_cli::internals::{Draw, read_safetensors, write_safetensors};

#[test]
fn values_make_the_round_trip() {
    let draw = Draw { special: true, ..Draw::default() };
    let value = |dtype| (format!("x.{dtype}"), draw.value("x", &TensorType::new(dtype, &[2, 3])));
    let values: Vec<(String, Literal)> = DType::ALL.into_iter().map(value).collect();
    let bytes = write_safetensors(&values).expect("short names");
    let read = read_safetensors(&bytes).expect("our own file");
    assert_eq!(read, values.into_iter().collect());
    assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok());
    for cut in [0, 7, 20, bytes.len() - 1] {
        assert!(read_safetensors(&bytes[..cut]).is_err(), "cut off at {cut}");
    }
}

#[test]
fn values_depend_on_name_and_seed_alone() {
    let draw = Draw::default();
    let of = |draw: &Draw, name, dims: &[usize]| draw.value(name, &TensorType::new(DType::F32, dims)).to_f64_vec();
    assert_eq!(of(&draw, "a", &[4]), of(&draw, "a", &[2, 2]));
    assert_ne!(of(&draw, "a", &[4]), of(&draw, "b", &[4]));
    assert_ne!(of(&draw, "a", &[4]), of(&Draw { seed: 1, ..Draw::default() }, "a", &[4]));
    assert!(of(&draw, "a", &[64]).iter().all(|number| (-1.0..1.0).contains(number)));
}
