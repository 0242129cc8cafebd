use meshloom::hlo::proto::HloInstructionProto;
use prost::Message;

#[test]
fn instruction_stays_small() {
    // Emission keeps one of these as scratch and a decoded module has one per instruction.
    let size = size_of::<HloInstructionProto>();
    assert!(size <= 640, "HloInstructionProto has {size} bytes");
}

#[test]
fn rare_fields_keep_their_tags() {
    let mut instruction = HloInstructionProto { id: 7, ..Default::default() };
    assert_eq!(instruction.encode_to_vec(), [0x98, 0x02, 7]);
    instruction.delta = 5;
    instruction.is_stable = true;
    // Tags 35, 60 and 66.
    let mut fields: Vec<&[u8]> = vec![&[0x98, 0x02, 7], &[0xe0, 0x03, 1], &[0x90, 0x04, 5]];
    let mut bytes = instruction.encode_to_vec();
    assert_eq!(instruction.encoded_len(), bytes.len());
    let mut found: Vec<&[u8]> = bytes.chunks(3).collect();
    found.sort();
    fields.sort();
    assert_eq!(found, fields);
    assert_eq!(HloInstructionProto::decode(bytes.as_slice()).unwrap(), instruction);
    // An unknown tag.
    bytes.extend([0xf8, 0x3f, 1]);
    assert_eq!(HloInstructionProto::decode(bytes.as_slice()).unwrap(), instruction);
}
