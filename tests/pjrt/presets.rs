//! Compiler options that suit a chip.

use meshloom::hlo::PlatformKind;
use meshloom::pjrt::CHIP_OPTIONS;

#[test]
fn a_chip_has_options_once() {
    let cases = [
        (PlatformKind::Tpu, "TPU v5 lite", Some("v5e")),
        (PlatformKind::Tpu, "TPU v5", Some("v5p")),
        (PlatformKind::Tpu, "TPU v4", None),
        (PlatformKind::Cuda, "NVIDIA A100-SXM4-40GB", Some("a100")),
        (PlatformKind::Cuda, "NVIDIA H100 80GB HBM3", Some("h100")),
        (PlatformKind::Cuda, "NVIDIA H100 PCIe", Some("h100")),
        (PlatformKind::Cuda, "NVIDIA H1000", None),
        (PlatformKind::Cuda, "TPU v5", None),
        (PlatformKind::Cuda, "cpu", None),
        (PlatformKind::Cpu, "NVIDIA H100", None),
    ];
    for (kind, device, expected) in cases {
        let found: Vec<_> =
            CHIP_OPTIONS.iter().filter(|it| it.kind == kind && it.suits(device)).map(|it| it.chip).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{device}");
    }
}
