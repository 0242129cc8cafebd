//! Local graphs for tests: built by hand, run on eight devices.

use meshloom::emit::{EmitOptions, GroupFormat, ProgramForm, emit};
use meshloom::ir::{DType, Graph, Literal, PortInfo, TensorType, verify};
use meshloom::ops::Group;
use meshloom::pjrt::{Array, ArraySpec, Client, CompileOptions, ShardLayout};
use meshloom::sharding::{Axes, Mesh, Spec};

pub fn mesh(text: &str) -> Mesh {
    Mesh::parse(text, 8).expect("a mesh of eight devices")
}

pub fn axes(mesh: &Mesh, names: &[&str]) -> Axes {
    names.iter().map(|name| mesh.axis(name).expect("an axis of the mesh")).collect()
}

pub fn group(mesh: &Mesh, names: &[&str]) -> Group {
    Group::new(mesh, &axes(mesh, names))
}

/// A port whose first dimension is split along these axes.
pub fn rows(mesh: &Mesh, names: &[&str], rank: usize) -> PortInfo {
    let dims = (0..rank).map(|dim| if dim == 0 { axes(mesh, names) } else { Axes::new() });
    PortInfo { spec: Some(Spec::new(dims)), ..PortInfo::default() }
}

pub fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(DType::F32, dims)
}

/// Numbers that are all different, and small enough that sums of many are exact.
pub fn numbers(ty: &TensorType, seed: usize) -> Literal {
    let values: Vec<f32> = (0..ty.element_count()).map(|index| ((index * 7 + seed * 13) % 64) as f32).collect();
    Literal::from_slice(&ty.dims, &values).unwrap()
}

/// Runs a local graph on eight devices with [`numbers`] for inputs; the outputs put together.
pub fn run(client: &Client, graph: &Graph, mesh: &Mesh) -> Vec<Literal> {
    run_in(ProgramForm::Manual, client, graph, mesh, numbers)
}

/// The same in a form, with what `input` gives for the type and the number of an input.
pub fn run_in(
    form: ProgramForm,
    client: &Client,
    graph: &Graph,
    mesh: &Mesh,
    input: impl Fn(&TensorType, usize) -> Literal,
) -> Vec<Literal> {
    run_changed(form, client, graph, mesh, input, |module| module)
}

/// The same of what `change` makes of the module.
pub fn run_changed(
    form: ProgramForm,
    client: &Client,
    graph: &Graph,
    mesh: &Mesh,
    input: impl Fn(&TensorType, usize) -> Literal,
    change: impl FnOnce(Vec<u8>) -> Vec<u8>,
) -> Vec<Literal> {
    verify(graph).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let groups = GroupFormat::Lists;
    let options = EmitOptions { mesh: Some(mesh), partitioned: true, form, groups, ..EmitOptions::default() };
    let module = emit(graph, options).expect("a module");
    let options = CompileOptions::partitioned(mesh.device_count()).with_shardy(form == ProgramForm::Local);
    let executable = client.compile(&change(module.bytes), &options).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let whole = |ty: &TensorType, info: &PortInfo| {
        let spec = info.spec.clone().unwrap_or_else(|| Spec::replicated(ty.rank()));
        let mut ty = ty.clone();
        ty.dims.iter_mut().enumerate().for_each(|(dim, size)| *size *= spec.part_count(mesh, dim));
        let layout = ShardLayout::from_boxes(&ty.dims, spec.boxes(mesh, &ty.dims).unwrap()).unwrap();
        ArraySpec { ty, layout }
    };
    let inputs: Vec<ArraySpec> =
        graph.input_types().zip(graph.input_info()).map(|(ty, info)| whole(ty, info)).collect();
    let outputs: Vec<ArraySpec> =
        graph.output_types().zip(graph.output_info()).map(|(ty, info)| whole(ty, info)).collect();
    let mut arguments: Vec<Array> = (inputs.iter().enumerate())
        .map(|(index, spec)| Array::put(client, &input(&spec.ty, index), &spec.layout).unwrap())
        .collect();
    if module.takes_place {
        let ty = TensorType::new(DType::U32, &[mesh.device_count()]);
        let parts = (0..mesh.device_count()).map(|device| std::iter::once(device..device + 1).collect()).collect();
        let layout = ShardLayout::from_boxes(&ty.dims, parts).unwrap();
        arguments.push(Array::put(client, &Literal::from_fn(ty, |device| device as f64), &layout).unwrap());
    }
    let results = executable.run(&arguments.iter().collect::<Vec<_>>(), &outputs).unwrap();
    results.iter().map(|result| result.get().unwrap()).collect()
}
