use meshloom::hlo::internals;
use meshloom::hlo::internals::stablehlo_names::{element, element_name, element_names, name, names, opcode};
use meshloom::hlo::proto::PrimitiveType;
use meshloom::hlo::{DType, element_type};

#[test]
fn names_lead_back() {
    for op in names().filter(|op| op != "chlo.tan") {
        let opcode = opcode(&op).unwrap();
        assert!(internals::opcode(opcode).is_some(), "{opcode}");
        assert_eq!(name(opcode), Some(op));
    }
    for name in element_names() {
        assert_eq!(element_name(element(name).unwrap()), Some(name));
    }
    assert!(DType::ALL.iter().all(|dtype| {
        PrimitiveType::try_from(element_type(*dtype)).is_ok_and(|element| element_name(element).is_some())
    }));
}
