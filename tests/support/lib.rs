//! Helpers of the test programs: running graphs on the CPU plugin and looking into them, configs, plugins and programs.

pub mod ahead_of_time;
pub mod anchored;
pub mod calibration;
pub mod cases;
pub mod configs;
pub mod counts;
pub mod derivatives;
pub mod devices;
pub mod eight_devices;
pub mod experts;
pub mod host_memory;
pub mod local_graph;
pub mod normal_hlo;
pub mod pjrt_modules;
pub mod plugins;
pub mod program;
pub mod programs;
pub mod quick_compiles;
pub mod random;
pub mod round_trip;
pub mod test_program;
pub mod text_files;

pub use meshloom_interpret as interpret;
pub use meshloom_interpret::spmd;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use insta::internals::SettingsBindDropGuard;
use meshloom::emit::{EmitOptions, emit};
use meshloom::hlo::proto::{HloModuleProto, HloModuleProtoWithConfig};
use meshloom::ir::{Graph, Literal, NodeRef, TensorType, verify};
use meshloom::ops::{Op, Scan};
use meshloom::pjrt::{Array, Client, ClientOptions, CompileOptions, DebugValue, Executable, ShardLayout};
use prost::Message;

/// A path of the repository.
pub fn path(name: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").join(name)
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Snapshots are files of this folder of the repository, called what the test calls them, until the guard is dropped.
pub fn snapshots_in(folder: &str) -> SettingsBindDropGuard {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(path(folder));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind_to_scope()
}

fn client() -> &'static Client {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    CLIENT.get_or_init(|| client_of(1))
}

/// Returns a client with this many virtual CPU devices that keeps its programs: equal modules are compiled once. The
/// thousands of the full tier are not kept, since a process may not map that many pieces of memory.
pub fn client_of(devices: usize) -> Client {
    let keeps_programs = !cases::more_than_few();
    let options = ClientOptions { device_count: Some(devices), keeps_programs, ..ClientOptions::default() };
    Client::open(&options).unwrap_or_else(|error| panic!("{error}"))
}

/// The options of XLA for tests in which the numbers matter, and not the speed: its own passes run as always, but LLVM
/// does not optimize.
pub fn unoptimized() -> BTreeMap<String, DebugValue> {
    [("xla_backend_optimization_level".to_owned(), DebugValue::Int(0))].into()
}

/// A graph compiled for one CPU device.
pub struct Compiled {
    executable: Executable,
    outputs: Vec<TensorType>,
}

pub fn compile(graph: &Graph) -> Compiled {
    verify(graph).unwrap_or_else(|error| panic!("{error}\n{graph}"));
    let module = emit(graph, EmitOptions::default()).expect("a module");
    compile_module(graph, &module.bytes)
}

/// Compiles the module of a graph, or another module with the same outputs.
pub fn compile_module(graph: &Graph, module: &[u8]) -> Compiled {
    let options = CompileOptions { debug_options: unoptimized(), ..CompileOptions::default() };
    let compiled = client().compile(module, &options);
    let executable = compiled.unwrap_or_else(|error| panic!("{error}\n{graph}"));
    Compiled { executable, outputs: graph.output_types().cloned().collect() }
}

impl Compiled {
    pub fn run(&self, inputs: &[Literal]) -> Vec<Literal> {
        let put = |literal: &Literal| {
            Array::put(client(), literal, &ShardLayout::replicated(&literal.ty().dims, 1)).expect("put")
        };
        let arrays: Vec<Array> = inputs.iter().map(put).collect();
        let arguments: Vec<&Array> = arrays.iter().collect();
        let results = self
            .executable
            .execute(&[arguments.iter().map(|array| array.shards()[0].clone()).collect()], &Default::default());
        let results = results.expect("execute").swap_remove(0);
        let array = |(buffer, ty): (_, &TensorType)| {
            Array::from_shards(ty.clone(), ShardLayout::replicated(&ty.dims, 1), vec![buffer]).expect("an output")
        };
        results.into_iter().zip(&self.outputs).map(array).map(|array| array.get().expect("get")).collect()
    }

    /// The module after XLA's passes.
    pub fn optimized(&self) -> HloModuleProto {
        let program = self.executable.optimized_hlo().expect("the optimized module");
        match program.format.as_str() {
            "hlo" => HloModuleProto::decode(program.bytes.as_slice()).expect("a module"),
            _ => {
                let wrapped = HloModuleProtoWithConfig::decode(program.bytes.as_slice()).expect("a module");
                wrapped.hlo_module.expect("a module")
            }
        }
    }

    /// Returns the number of instructions with this opcode in the module after XLA's passes.
    pub fn count(&self, opcode: &str) -> usize {
        let module = self.optimized();
        let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
        instructions.filter(|instruction| instruction.opcode == opcode).count()
    }

    /// The largest size of a window along one dimension in the module after XLA's passes; 0 if there is none.
    pub fn longest_window(&self) -> i64 {
        let module = self.optimized();
        let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
        let windows = instructions.filter_map(|instruction| instruction.window.as_ref());
        windows.flat_map(|window| &window.dimensions).map(|dimension| dimension.size).max().unwrap_or(0)
    }
}

pub fn run(graph: &Graph, inputs: &[Literal]) -> Vec<Literal> {
    compile(graph).run(inputs)
}

/// Numbers that look random, between 0.2 and 1.2, always the same.
pub fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        0.2 + (state >> 11) as f64 / (1u64 << 53) as f64
    };
    next();
    (0..count).map(|_| next()).collect()
}

pub fn f64s(dims: &[usize], seed: u64) -> Literal {
    Literal::from_slice(dims, &numbers(dims.iter().product(), seed)).expect("as many as the dims say")
}

/// Inputs of a graph, all `f64`.
pub fn inputs_of(graph: &Graph) -> Vec<Literal> {
    graph.input_types().enumerate().map(|(index, ty)| f64s(&ty.dims, index as u64 + 1)).collect()
}

/// Calls `f` for each node, those in regions included.
pub fn walk(graph: &Graph, f: &mut dyn FnMut(&Graph, NodeRef<'_>)) {
    for node in graph.nodes() {
        f(graph, node);
        node.op().regions().for_each(|body| walk(body, f));
    }
}

/// Returns the number of nodes whose op has this name, including those in regions.
pub fn count(graph: &Graph, op: &str) -> usize {
    let mut count = 0;
    walk(graph, &mut |_, node| count += usize::from(node.op().name() == op));
    count
}

/// The scans of a graph, not those in regions.
pub fn scans(graph: &Graph) -> Vec<(&Scan, NodeRef<'_>)> {
    let scan = |node: NodeRef<'_>| match node.op() {
        Op::Scan(_) => Some(node.id),
        _ => None,
    };
    let ids: Vec<_> = graph.nodes().filter_map(scan).collect();
    ids.into_iter()
        .filter_map(|id| {
            let node = graph.nodes().nth(id.index())?;
            if let Op::Scan(scan) = node.op() { Some((scan, node)) } else { None }
        })
        .collect()
}

/// For each scan: what comes in and goes out, as text.
pub fn describe_scans(graph: &Graph) -> Vec<String> {
    let describe = |(scan, node): (&Scan, NodeRef<'_>)| {
        let types = |values: &mut dyn Iterator<Item = meshloom::ir::Value>| {
            values.map(|value| graph.ty(value).to_string()).collect::<Vec<_>>().join(" ")
        };
        let (first, second) = (scan.invariant_count, scan.invariant_count + scan.carry_count);
        let operands = node.operands();
        format!(
            "{}invariants [{}] carries [{}] inputs [{}] outputs [{}]",
            if scan.reverse { "reverse " } else { "" },
            types(&mut operands[..first].iter().copied()),
            types(&mut operands[first..second].iter().copied()),
            types(&mut operands[second..].iter().copied()),
            types(&mut node.results().skip(scan.carry_count)),
        )
    };
    scans(graph).into_iter().map(describe).collect()
}
