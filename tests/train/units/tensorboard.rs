use meshloom_train::internals::records;

/// The records of `tests/oracle/events.py`, by TensorBoard's own writer.
#[test]
fn records_are_those_of_tensorboard() {
    let found = [records::first(1.5), records::start(2.5, 4), records::scalars(3.5, 300, &[("loss", 0.25)])];
    let expected = [
        "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c",
        "0f000000000000006d532b0909000000000000044010043a0208017d3f6bf0",
        "1b000000000000001a0d9e13090000000000000c4010ac022a0d0a0b0a046c6f7373150000803e87f80808",
    ];
    for (record, expected) in found.iter().zip(expected) {
        let found = support::hex(record);
        assert_eq!(found, expected);
    }
}
