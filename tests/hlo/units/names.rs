use meshloom::hlo::parse::{make_names_unique, parse};

#[test]
fn repeated_names_get_numbers() {
    let text = "f { x = f32[] parameter(0) x.1 = f32[] negate(x) ROOT y = f32[] negate(x.1) }
        ENTRY e { x = f32[] parameter(0) y = f32[] call(x), to_apply=f ROOT y.1 = f32[] negate(y) }";
    let mut module = parse(text).unwrap().hlo_module.unwrap();
    make_names_unique(&mut module);
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    let names: Vec<&str> = instructions.map(|instruction| instruction.name.as_str()).collect();
    assert_eq!(names, ["x", "x.1", "y", "x.2", "y.1", "y.2"]);
}
