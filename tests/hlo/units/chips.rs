use meshloom::analysis::chips::{Arithmetic, CHIPS, Chip, KINDS, chip_of_kind};

#[test]
fn kinds() {
    let kinds = [
        ("TPU v4", Some("v4")),
        ("TPU v5 lite", Some("v5e")),
        ("TPU v5", Some("v5p")),
        ("TPU v6 lite", Some("v6e")),
        ("TPU7x", Some("tpu7x")),
        ("NVIDIA H100 80GB HBM3", Some("h100")),
        ("NVIDIA A100-SXM4-40GB", Some("a100")),
        ("NVIDIA H1000", None),
        ("TPU v50", None),
        ("cpu", None),
    ];
    for (kind, expected) in kinds {
        assert_eq!(Chip::of_kind(kind).map(|chip| chip.name), expected, "{kind}");
        assert_eq!(chip_of_kind(kind), expected, "{kind}");
    }
    assert_eq!((chip_of_kind("NVIDIA H100 PCIe"), Chip::of_kind("NVIDIA H100 PCIe")), (Some("h100"), None));
    assert!(KINDS.iter().all(|(_, name)| CHIPS.iter().any(|chip| chip.name == *name)));
}

#[test]
fn names() {
    for chip in CHIPS {
        assert_eq!(Chip::parse(&chip.name.to_uppercase()), Ok(chip));
    }
    let error = Chip::parse("v9").expect_err("no such chip").to_string();
    assert_eq!(
        error,
        "no chip is called \"v9\"; expected one of v4, v5e, v5p, v6e, tpu7x, a100, h100, h200, b200, cpu"
    );
}

#[test]
fn rates_of_a_device() {
    let chip = |name| Chip::parse(name).expect("a chip");
    assert_eq!(chip("v5p").matrix_rate(Arithmetic::Bf16), Some(459e12));
    assert_eq!(chip("v5p").matrix_rate(Arithmetic::F32), Some(459e12));
    assert_eq!(chip("v5p").ring_bandwidth(), Some(200e9));
    assert_eq!(chip("v4").matrix_rate(Arithmetic::Fp8), Some(275e12));
    // Half a chip.
    assert_eq!(chip("tpu7x").matrix_rate(Arithmetic::Fp8), Some(2307e12));
    assert_eq!(chip("tpu7x").device_memory(), Some(96 << 30));
    assert_eq!(chip("h100").ring_bandwidth(), Some(450e9));
    assert_eq!(chip("h100").matrix_rate(Arithmetic::Other), None);
    assert_eq!(chip("cpu").matrix_rate(Arithmetic::Bf16), None);
    assert_eq!(chip("cpu").device_memory(), None);
}
