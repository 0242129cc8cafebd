//! Tests of the order of devices in a mesh: fast axes on neighbours, DCN parts across slices.

use std::collections::BTreeSet;

use insta::assert_snapshot;
use meshloom::hlo::mesh::slice_shape;
use meshloom::pjrt::{Client, DeviceDescription, NamedValue};
use meshloom::sharding::{DevicePlace, Mesh, device_order};
use support::devices::tpus;

fn mesh(axes: &str, dcn: &str, devices: usize) -> Mesh {
    Mesh::parse(axes, devices).and_then(|mesh| mesh.with_dcn(dcn)).unwrap_or_else(|error| panic!("{error}"))
}

fn ordered(axes: &str, dcn: &str, devices: &[DevicePlace]) -> Vec<DevicePlace> {
    let ids = device_order(&mesh(axes, dcn, devices.len()), devices).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), devices.len(), "{axes}: each device once");
    let device = |id: &i32| devices.iter().find(|device| device.id == *id).expect("a device of the topology").clone();
    ids.iter().map(device).collect()
}

/// For each axis, over which coordinates (and `slice`) the devices along it differ, and the largest step between
/// neighbours.
fn check(axes: &str, dcn: &str, devices: &[DevicePlace]) -> String {
    let mesh = mesh(axes, dcn, devices.len());
    let order = ordered(axes, dcn, devices);
    let mut text = String::new();
    for axis in mesh.axes() {
        let stride: usize = mesh.axes().skip(axis.index() + 1).map(|axis| mesh.size(axis)).product();
        let (mut dims, mut step) = (BTreeSet::new(), 0);
        for (position, device) in order.iter().enumerate() {
            if mesh.axis_index(position, axis) + 1 == mesh.size(axis) {
                continue;
            }
            let next = &order[position + stride];
            if next.slice != device.slice {
                dims.insert("slice");
                continue;
            }
            let mut distance = 0;
            for (name, (a, b)) in ["core", "x", "y", "z"].into_iter().zip(device.coords.iter().zip(&next.coords)) {
                if a != b {
                    dims.insert(name);
                    distance = distance.max((a - b).abs());
                }
            }
            step = step.max(distance);
        }
        text += &format!("{}={}: {:?} step {step}\n", mesh.name(axis), mesh.size(axis), dims);
    }
    text
}

#[test]
fn shapes_of_slices() {
    assert_eq!(slice_shape(&tpus([8, 4, 2], 1, 1)), [8, 4, 2]);
    assert_eq!(slice_shape(&tpus([4, 4, 1], 1, 2)), [4, 4]);
    assert_eq!(slice_shape(&tpus([2, 2, 1], 2, 1)), [2, 2, 2]);
    // Slices that differ, and devices without coordinates.
    assert!(slice_shape(&tpus([4, 4, 1], 1, 2)[..24]).is_empty());
    assert!(slice_shape(&vec![DevicePlace::default(); 8]).is_empty());
}

#[test]
fn one_slice() {
    // As v5p:8x8x8. A whole dimension for eight devices, two for 64; going round in two dimensions jumps back.
    assert_snapshot!(check("data=8,fsdp=8,tensor=8", "", &tpus([8, 8, 8], 1, 1)), @r#"
    data=8: {"z"} step 1
    fsdp=8: {"y"} step 1
    tensor=8: {"x"} step 1
    "#);
    assert_snapshot!(check("data=8,fsdp=64", "", &tpus([8, 8, 8], 1, 1)), @r#"
    data=8: {"z"} step 1
    fsdp=64: {"x", "y"} step 7
    "#);
    // No dimension has 4 or 16: one is cut, and the minor axis gets the neighbours.
    assert_snapshot!(check("data=2,fsdp=64,tensor=4", "", &tpus([8, 8, 8], 1, 1)), @r#"
    data=2: {"x"} step 4
    fsdp=64: {"y", "z"} step 7
    tensor=4: {"x"} step 1
    "#);
    // As v5p:16x16x24.
    assert_snapshot!(check("data=24,fsdp=64,tensor=4", "", &tpus([16, 16, 24], 1, 1)), @r#"
    data=24: {"z"} step 1
    fsdp=64: {"x", "y"} step 12
    tensor=4: {"x"} step 1
    "#);
    // Two cores on a chip are the nearest neighbours there are.
    assert_snapshot!(check("data=2,fsdp=2,tensor=2", "", &tpus([2, 2, 1], 2, 1)), @r#"
    data=2: {"y"} step 1
    fsdp=2: {"x"} step 1
    tensor=2: {"core"} step 1
    "#);
    // Four devices along two whole dimensions rather than one cut.
    assert_snapshot!(check("data=4,tensor=4", "", &tpus([4, 2, 2], 1, 1)), @r#"
    data=4: {"x"} step 1
    tensor=4: {"y", "z"} step 1
    "#);
    // An axis that is fastest in the plugin's order stays in that order.
    let ids = device_order(&mesh("data=8,fsdp=64", "", 512), &tpus([8, 8, 8], 1, 1)).expect("an order");
    assert_eq!(ids, (0..512).collect::<Vec<_>>());
}

/// As `tpu7x:2x2x1:slices=2`: 16 devices, ids 100000.. and 200000..
#[test]
fn two_slices() {
    let devices = tpus([2, 2, 1], 2, 2);
    assert_snapshot!(check("diloco=2,fsdp=8", "diloco=2", &devices), @r#"
    diloco=2: {"slice"} step 0
    fsdp=8: {"core", "x", "y"} step 1
    "#);
    // A part of an axis crosses: its major one. The other axes stay within a slice.
    assert_snapshot!(check("data=2,fsdp=4,tensor=2", "fsdp=2", &devices), @r#"
    data=2: {"y"} step 1
    fsdp=4: {"slice", "x"} step 1
    tensor=2: {"core"} step 1
    "#);
    // Even the minor one, where it is asked for.
    assert_snapshot!(check("data=8,tensor=2", "tensor=2", &devices), @r#"
    data=8: {"core", "x", "y"} step 1
    tensor=2: {"slice"} step 0
    "#);
    // By default, the most major axis crosses.
    assert_eq!(check("data=4,fsdp=4", "", &devices), check("data=4,fsdp=4", "data=2", &devices));
    let ids: Vec<i32> = (100_000..100_008).chain(200_000..200_008).collect();
    assert_eq!(device_order(&mesh("data=4,fsdp=4", "", 16), &devices).expect("an order"), ids);
    // The plugin's order does not matter.
    let mut reversed = devices.clone();
    reversed.reverse();
    assert_eq!(
        check("data=2,fsdp=4,tensor=2", "fsdp=2", &reversed),
        check("data=2,fsdp=4,tensor=2", "fsdp=2", &devices)
    );
    // Two axes over four slices.
    assert_snapshot!(check("data=4,fsdp=8", "data=2,fsdp=2", &tpus([2, 2, 1], 2, 4)), @r#"
    data=4: {"slice", "y"} step 1
    fsdp=8: {"core", "slice", "x"} step 1
    "#);
}

#[test]
fn without_coordinates() {
    let plain = |ids: &[i32]| -> Vec<DevicePlace> {
        ids.iter().map(|&id| DevicePlace { id, ..DevicePlace::default() }).collect()
    };
    let ids: Vec<i32> = (0..8).collect();
    for (axes, dcn) in [("data=8", ""), ("data=2,fsdp=4", "fsdp=2"), ("diloco=2,data=4", "diloco=2")] {
        assert_eq!(device_order(&mesh(axes, dcn, 8), &plain(&ids)).expect("an order"), ids, "{axes}");
    }
    // A mesh may have fewer devices than there are.
    assert_eq!(device_order(&mesh("data=4", "", 4), &plain(&ids)).expect("an order"), [0, 1, 2, 3]);
    // A corner is missing: no box, so the plugin's order.
    let mut dented = tpus([3, 3, 1], 1, 1);
    dented.pop();
    let order: Vec<i32> = (0..8).collect();
    assert_eq!(device_order(&mesh("data=2,fsdp=4", "", 8), &dented).expect("an order"), order);
    // A part of a torus: where coordinates begin does not matter.
    let mut shifted = tpus([2, 2, 2], 1, 1);
    shifted.iter_mut().for_each(|device| device.coords[2] += 6);
    assert_eq!(device_order(&mesh("data=8", "", 8), &shifted).expect("an order"), order);
}

#[test]
fn errors() {
    let refused = |axes: &str, dcn: &str, devices: &[DevicePlace], count: usize| {
        device_order(&mesh(axes, dcn, count), devices).expect_err("it does not fit").to_string()
    };
    let two = tpus([2, 2, 1], 2, 2);
    assert_snapshot!(refused("data=32", "", &two, 32), @r#"mesh "data=32" needs 32 devices, but there are 16; use a smaller mesh or more devices"#);
    assert_snapshot!(refused("data=16", "data=4", &two, 16), @r#"mesh "data=16" with dcn "data=4" crosses 4 slices, but the devices are in 2; give mesh.dcn axes, or factors of them, whose product is 2"#);
    assert_snapshot!(refused("data=8", "data=2", &tpus([2, 2, 1], 2, 1), 8), @r#"mesh "data=8" with dcn "data=2" crosses 2 slices, but the devices are in 1; give mesh.dcn axes, or factors of them, whose product is 1"#);
    let unequal = [&two[..8], &two[9..]].concat();
    assert_snapshot!(refused("data=15", "", &unequal, 15), @"slice 0 has 8 devices, but slice 1 has 7; a mesh needs as many of every slice");
    let three = tpus([2, 1, 1], 2, 3);
    assert_snapshot!(refused("data=4,fsdp=3", "data=2", &three, 12), @r#"mesh "data=4,fsdp=3" with dcn "data=2" crosses 2 slices, but the devices are in 3; give mesh.dcn axes, or factors of them, whose product is 3"#);

    let dcn =
        |text: &str| Mesh::parse("data=4,fsdp=2", 8).and_then(|mesh| mesh.with_dcn(text)).unwrap_err().to_string();
    assert_snapshot!(dcn("data"), @r#"dcn "data": "data" is not name=size with a size of at least 1, as in "diloco=2""#);
    assert_snapshot!(dcn("data=0"), @r#"dcn "data=0": "data=0" is not name=size with a size of at least 1, as in "diloco=2""#);
    assert_snapshot!(dcn("data=3"), @r#"dcn "data=3": axis "data" has size 4, which 3 does not divide; a part of an axis crosses slices"#);
    assert_snapshot!(dcn("data=2,data=2"), @r#"mesh "data=2,data=2": axis "data" occurs twice; axis names must be unique"#);
    assert_snapshot!(dcn("fdsp=2"), @r#"the mesh "data=4,fsdp=2" has no axis "fdsp" (did you mean "fsdp"?)"#);
}

/// The attributes of devices that plugins report, and the places that follow from them.
#[test]
fn places_of_descriptions() {
    let describe = |id, attributes: &[(&str, NamedValue)]| {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        DeviceDescription { id, kind: String::new(), description: String::new(), attributes }.place()
    };
    let coords = |coords: &[i64]| ("coords", NamedValue::Ints(coords.to_vec()));
    let tpu = [coords(&[1, 2, 3]), ("core_on_chip", NamedValue::Int(1)), ("slice_index", NamedValue::Int(4))];
    let expected = DevicePlace { id: 7, slice: 4, coords: [1, 1, 2, 3].into_iter().collect() };
    assert_eq!(describe(7, &tpu), expected);
    let capability = ("compute_capability", NamedValue::Text("9.0".into()));
    let gpu = [coords(&[1, 2, 3]), capability, ("slice_index", NamedValue::Int(0))];
    let expected = DevicePlace { id: 7, slice: 1, coords: [3, 2].into_iter().collect() };
    assert_eq!(describe(7, &gpu), expected);
    assert_eq!(describe(3, &[]), DevicePlace { id: 3, ..DevicePlace::default() });
}

#[test]
fn cpu_devices_keep_their_order() {
    let client = Client::cpu(8).expect("a client");
    let places: Vec<DevicePlace> = client.devices().iter().map(|device| device.place()).collect();
    let ids: Vec<i32> = (0..8).collect();
    assert_eq!(device_order(&mesh("data=2,fsdp=4", "data=2", 8), &places).expect("an order"), ids);
}
