use meshloom::analysis::{AxisPart, Strides, mesh_of, pair_axes};
use meshloom::hlo::device_groups::DeviceGroups;
use meshloom::hlo::mesh::Mesh;
use meshloom::hlo::proto::{FrontendAttributes, HloModuleProto};

fn mesh(text: &str) -> Mesh {
    let sizes = text.split(',').map(|axis| axis.split_once('=').expect("a size").1.parse::<usize>().expect("a number"));
    Mesh::parse(text, sizes.product()).expect("a mesh")
}

fn text(parts: Option<Vec<AxisPart>>) -> String {
    let join = |parts: Vec<AxisPart>| parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    parts.map_or("none".to_owned(), join)
}

#[test]
fn groups_are_axes() {
    let lists = |text: &str| {
        let list = |list: &str| list.split(' ').map(|id| id.parse().expect("a number")).collect();
        DeviceGroups::Lists(text.split(',').map(list).collect())
    };
    let iota = |group_size, dims: &[u64], permutation: &[usize]| DeviceGroups::Iota {
        group_size,
        dims: dims.to_vec(),
        permutation: permutation.to_vec(),
    };
    let cases = [
        ("data=2,fsdp=4", lists("0 1 2 3,4 5 6 7"), "fsdp"),
        ("data=2,fsdp=4", lists("3 0 1 2,7 6 5 4"), "fsdp"),
        ("data=2,fsdp=4", lists("0 4,1 5,2 6,3 7"), "data"),
        ("data=2,fsdp=4", lists("0 1 2 3 4 5 6 7"), "data,fsdp"),
        ("data=2,fsdp=4", DeviceGroups::One, "data,fsdp"),
        ("data=2,fsdp=4", lists("0 2,1 3,4 6,5 7"), "fsdp:(1)2"),
        ("data=2,fsdp=4", lists("0 1,2 3,4 5,6 7"), "fsdp:(2)2"),
        ("data=2,fsdp=4", lists("0 2 4 6,1 3 5 7"), "data,fsdp:(1)2"),
        ("data=2,fsdp=2,tensor=2", lists("0 1 4 5,2 3 6 7"), "data,tensor"),
        ("data=2,fsdp=2,tensor=2", lists("0 1 2 3,4 5 6 7"), "fsdp,tensor"),
        ("data=2,fsdp=4", lists("0,1,2,3,4,5,6,7"), ""),
        // The groups run along both parts of an axis.
        ("fsdp=8", iota(8, &[4, 2], &[0, 1]), "fsdp"),
        ("data=2,fsdp=4", iota(4, &[2, 2, 2], &[0, 2, 1]), "fsdp"),
        ("data=2,fsdp=4", lists("0 1,2 3,4 6,5 7"), "none"),
        ("data=2,fsdp=4", lists("0 3,1 2,4 7,5 6"), "none"),
        ("data=2,fsdp=4", lists("1 2,3 4,5 6,7 0"), "none"),
        ("data=2,fsdp=3", lists("0 1,2 3,4 5"), "none"),
        ("data=2,fsdp=4", iota(4, &[8], &[]), "fsdp"),
        ("data=2,fsdp=4", iota(2, &[2, 4], &[1, 0]), "data"),
        ("data=2,fsdp=2,tensor=2", iota(4, &[2, 2, 2], &[1, 0, 2]), "data,tensor"),
        ("data=512,fsdp=12", iota(512, &[512, 12], &[1, 0]), "data"),
        ("data=2,fsdp=4", iota(3, &[8], &[]), "none"),
        ("data=2,fsdp=4", iota(4, &[], &[5]), "none"),
        ("data=2,fsdp=4", DeviceGroups::Unreadable, "none"),
    ];
    for (axes, groups, expected) in cases {
        let mesh = mesh(axes);
        let strides = Strides::of(&groups, mesh.device_count() as u64);
        assert_eq!(text(strides.and_then(|strides| strides.axes(&mesh))), expected, "{axes} {groups:?}");
    }
}

#[test]
fn parts_of_axes_are_read_and_compared() {
    let mesh = mesh("data=2,fsdp=12");
    let part = |text: &str| AxisPart::parse(text, &mesh).unwrap_or_else(|error| panic!("{error}"));
    for text in ["data", "fsdp", "fsdp:(1)2", "fsdp:(2)3", "fsdp:(4)3"] {
        assert_eq!(part(text).to_string(), text);
    }
    for text in ["dta", "fsdp:(5)2", "fsdp:(1)1", "fsdp:(0)2", "fsdp:(2)12", "dta:(1)2"] {
        assert!(AxisPart::parse(text, &mesh).is_err(), "{text}");
    }
    let cases = [
        ("fsdp", "data", false),
        ("fsdp", "fsdp:(2)3", true),
        ("fsdp:(1)2", "fsdp:(2)3", false),
        ("fsdp:(1)4", "fsdp:(2)3", true),
        ("fsdp:(4)3", "fsdp:(2)2", false),
    ];
    for (one, other, expected) in cases {
        assert_eq!(part(one).overlaps(&part(other)), expected, "{one} {other}");
        assert_eq!(part(other).overlaps(&part(one)), expected, "{other} {one}");
    }
    // Device 17 lies at data 1, fsdp 5; of fsdp as 2 x 2 x 3, at 0, 1, 2.
    let places = [("data", 1), ("fsdp", 5), ("fsdp:(1)2", 0), ("fsdp:(2)2", 1), ("fsdp:(4)3", 2)];
    for (text, expected) in places {
        assert_eq!(part(text).place(17, &mesh), Some(expected), "{text}");
    }
    assert_eq!(part("data").place(24, &mesh), None);
    // This is a part of an axis of a mesh whose axes were split.
    let inner = AxisPart { name: "fsdp:(1)4".to_owned(), part: Some((2, 2)) };
    for (text, expected) in [("fsdp", true), ("fsdp:(1)2", false), ("fsdp:(2)2", true), ("fsdp:(4)3", false)] {
        assert_eq!(part(text).overlaps(&inner), expected, "{text}");
    }
}

#[test]
fn pairs_are_shifts() {
    const RING: [(u64, u64); 8] = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)];
    type Case = (&'static str, &'static [(u64, u64)], &'static str, Option<i64>);
    let cases: [Case; 6] = [
        ("data=2,stage=4", &RING, "stage", Some(1)),
        ("data=2,stage=4", &[(1, 0), (2, 1), (3, 2)], "stage", Some(-1)),
        ("data=2,stage=4", &[(0, 4), (4, 0)], "data", Some(1)),
        ("data=2,stage=4", &[(0, 1), (1, 3)], "stage", None),
        ("data=2,stage=4", &[(0, 5)], "data,stage", None),
        ("data=2,stage=4", &[(3, 3)], "", None),
    ];
    for (axes, pairs, expected, shift) in cases {
        let found = pair_axes(pairs, &mesh(axes)).expect("devices of the mesh");
        assert_eq!((text(Some(found.axes)).as_str(), found.shift), (expected, shift), "{pairs:?}");
    }
    assert_eq!(pair_axes(&[(0, 8)], &mesh("data=2,stage=4")), None);
}

#[test]
fn modules_name_their_mesh() {
    let of = |meshes: &str| {
        let map = [("xla.sdy.meshes".to_owned(), meshes.to_owned())].into();
        let frontend_attributes = Some(FrontendAttributes { map });
        mesh_of(&HloModuleProto { frontend_attributes, ..HloModuleProto::default() }).map(|mesh| mesh.to_string())
    };
    assert_eq!(of(r#"{mesh = #sdy.mesh<["data"=2, "fsdp"=4]>}"#).as_deref(), Some("data=2,fsdp=4"));
    assert_eq!(of(r#"{\"mesh\" = #sdy.mesh<[\"x\"=8]>, empty = #sdy.mesh<[]>}"#).as_deref(), Some("x=8"));
    assert_eq!(of(r#"{a = #sdy.mesh<["x"=8]>, b = #sdy.mesh<["y"=4]>}"#), None);
    assert_eq!(of(r#"{a = #sdy.mesh<["x"=2], device_ids=[1, 0]>}"#), None);
    assert_eq!(of("{a = #sdy.mesh<["), None);
}
