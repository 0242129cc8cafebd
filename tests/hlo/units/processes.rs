use meshloom::hlo::mesh::{Mesh, MeshError};

fn mesh(text: &str) -> Mesh {
    Mesh::parse(
        text,
        text.split(',').map(|axis| axis.split_once('=').expect("=").1.parse::<usize>().expect("a size")).product(),
    )
    .expect("a mesh")
}

#[test]
fn major_axes_cross_processes() {
    let cut = |text: &str, processes: usize| {
        let mesh = mesh(text);
        let (mesh, _) = mesh.cut_into(&mesh.at_processes(processes)?).expect("room for its axes");
        let crossing: Vec<String> =
            mesh.axes().filter(|&axis| mesh.crosses(axis, processes)).map(|axis| mesh.name(axis).to_owned()).collect();
        Ok::<_, MeshError>((mesh.to_string(), crossing.join(","), mesh.within_process(processes).device_count()))
    };
    let owned = |(mesh, crossing, devices): (&str, &str, usize)| Ok((mesh.to_owned(), crossing.to_owned(), devices));
    assert_eq!(cut("data=2,fsdp=4", 2), owned(("data=2,fsdp=4", "data", 4)));
    assert_eq!(cut("data=2,fsdp=4", 4), owned(("data=2,fsdp:(1)2=2,fsdp:(2)2=2", "data,fsdp:(1)2", 2)));
    assert_eq!(cut("data=2,fsdp=4", 8), owned(("data=2,fsdp=4", "data,fsdp", 1)));
    assert_eq!(cut("data=2,one=1,fsdp=4", 1), owned(("data=2,one=1,fsdp=4", "", 8)));
    assert_eq!(cut("stage=1,fsdp=4", 2), owned(("stage=1,fsdp:(1)2=2,fsdp:(2)2=2", "fsdp:(1)2", 2)));
    assert!(matches!(cut("data=3,fsdp=4", 2), Err(MeshError::Processes { axis: Some(_), .. })));
    assert!(matches!(cut("data=3,fsdp=4", 5), Err(MeshError::Processes { axis: None, .. })));
}
