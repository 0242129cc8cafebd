use meshloom::analysis::SliceTransfer;
use meshloom::hlo::CollectiveKind;
use meshloom::hlo::proto::{FrontendAttributes, HloInstructionProto};

#[test]
fn targets_are_slices_and_devices() {
    let cases = [
        ("{1,2,3,4}x{0:255}", Some((4, 256))),
        ("{1,2}x{0:7}", Some((2, 8))),
        ("{1}x{0}", Some((1, 1))),
        ("{1,3}x{0:7}", None),
        ("{2,1}x{0:7}", None),
        ("{1,2}x{4:7}", None),
        ("{1,2}", None),
        ("{}x{0:7}", None),
        ("1,2x0:7", None),
    ];
    for (text, expected) in cases {
        let attributes = [("_xla_megascale_transfer_type", "ALL_GATHER"), ("_xla_megascale_target", text)];
        let map = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let frontend_attributes = Some(FrontendAttributes { map });
        let send = HloInstructionProto { opcode: "send".to_owned(), frontend_attributes, ..Default::default() };
        let found = SliceTransfer::of(&send).expect("a transfer");
        let (slices, devices) = expected.unzip();
        assert_eq!(found, SliceTransfer { kind: CollectiveKind::AllGather, slices, devices }, "{text}");
    }
}
