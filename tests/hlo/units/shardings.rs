use meshloom::analysis::{AxisPart, shardings};
use meshloom::hlo::mesh::Mesh;
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::OpSharding;
use meshloom::hlo::proto::op_sharding::Type;

#[test]
fn tiles_are_axes() {
    let mesh = Mesh::parse("data=2,fsdp=4", 8).expect("a mesh");
    let tiled = |dims: &[i64], reshape: &[i64], perm: &[i32], devices: &[i64], last: bool| OpSharding {
        r#type: Type::Other as i32,
        tile_assignment_dimensions: dims.to_vec(),
        iota_reshape_dims: reshape.to_vec(),
        iota_transpose_perm: perm.to_vec(),
        tile_assignment_devices: devices.to_vec(),
        replicate_on_last_tile_dim: last,
        ..OpSharding::default()
    };
    let whole = OpSharding { r#type: Type::Replicated as i32, ..OpSharding::default() };
    let cases = [
        (tiled(&[4, 1, 2], &[2, 4], &[1, 0], &[], true), "fsdp|", 4, 64),
        (tiled(&[2, 4], &[8], &[], &[], false), "data|fsdp", 8, 32),
        (tiled(&[8, 1], &[8], &[], &[], false), "data,fsdp|", 8, 32),
        (tiled(&[1, 4, 2], &[], &[], &[0, 4, 1, 5, 2, 6, 3, 7], true), "|fsdp", 4, 64),
        (tiled(&[2, 1, 4], &[4, 2], &[1, 0], &[], true), "fsdp:(2)2|", 2, 128),
        (whole, "|", 1, 256),
        (tiled(&[2, 1, 4], &[2], &[], &[], true), "none", 2, 128),
    ];
    let text = "HloModule m\nENTRY main {\n  ROOT x = f32[16,4] parameter(0)\n}\n";
    let mut module = parse(text).expect("a program").hlo_module.expect("a module");
    for (sharding, expected, parts, device_bytes) in cases {
        module.computations[0].instructions[0].sharding = Some(Box::new(sharding.clone()));
        let found = shardings(&module, Some(&mesh)).pop().expect("the parameter");
        let join = |axes: &Vec<AxisPart>| axes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let text = found.axes.map_or("none".to_owned(), |dims| dims.iter().map(join).collect::<Vec<_>>().join("|"));
        assert_eq!(
            (text.as_str(), found.parts, found.device_bytes),
            (expected, parts, Some(device_bytes)),
            "{sharding:?}"
        );
    }
}
