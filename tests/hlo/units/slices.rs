use meshloom::analysis::{Devices, SliceTransfer, device_count};
use meshloom::hlo::CollectiveKind;
use meshloom::hlo::proto::{FrontendAttributes, HloComputationProto, HloInstructionProto, HloModuleProto};

fn send(kind: &str, target: &str) -> HloInstructionProto {
    let attributes = [("_xla_megascale_transfer_type", kind), ("_xla_megascale_target", target)];
    let map = attributes.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let frontend_attributes = Some(FrontendAttributes { map });
    HloInstructionProto { opcode: "send".to_owned(), frontend_attributes, ..Default::default() }
}

/// A proto without a config, of a program that communicates between slices alone.
#[test]
fn a_transfer_says_how_many_devices_there_are() {
    let instructions = vec![send("ALL_REDUCE", "{1,2}x{0:3}")];
    let computations = vec![HloComputationProto { instructions, ..Default::default() }];
    let module = HloModuleProto { computations, ..Default::default() };
    assert_eq!(device_count(&module, None), Devices { replicas: 1, partitions: 8 });
}

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
        let found = SliceTransfer::of(&send("ALL_GATHER", text)).expect("a transfer");
        let (slices, devices) = expected.unzip();
        assert_eq!(found, SliceTransfer { kind: CollectiveKind::AllGather, slices, devices }, "{text}");
    }
}
