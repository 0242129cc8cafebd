use meshloom::hlo::internals::{attribute_named, attributes, opcode, opcodes};

#[test]
fn names_lead_back() {
    for name in opcodes() {
        assert_eq!(opcode(name), Some(name));
        for (attribute, attribute_name, is_read) in attributes(name) {
            let found = attribute_named(name, attribute_name);
            assert_eq!(found, is_read.then_some(attribute), "{name} {attribute_name}");
        }
    }
}
