//! The import of every op: a module that is imported and emitted again is the same module, and an op that has an
//! instruction of its own comes back as itself.

use meshloom::hlo::text::{TextOptions, print};
use meshloom::import::{ImportError, import};
use meshloom::ir::{Graph, Literal, TensorType, verify};

use crate::computer::{By, emitted};
use crate::harness::{Entry, Run, graph};

/// Ops that are several instructions, whose loop becomes another op, or some of whose results are not read. They come
/// back as other ops of the same values.
const IN_PARTS: [&str; 6] = ["ArgReduce", "ArgReduceWindow", "Attention", "AttentionGradient", "Scan", "TopK"];

/// The program of a graph.
fn text(graph: &Graph) -> String {
    let module = emitted(graph).decode().expect("a module");
    print(&module, &TextOptions::canonical())
}

/// Imports what a graph is emitted as.
fn comes_back(graph: &Graph) -> Result<Graph, ImportError> {
    let imported = import(&emitted(graph).decode().expect("a module"))?;
    assert_eq!((imported.mesh, imported.aliases.as_slice()), (None, &[][..]));
    verify(&imported.graph).unwrap_or_else(|error| panic!("{error}"));
    Ok(imported.graph)
}

/// Checks the op of each case.
pub fn check_import(entries: &[&'static Entry]) {
    for entry in entries {
        let of_types = entry.accepts.iter().map(|accept| (&accept.op, accept.operands.clone(), None));
        let types = |run: &Run| run.operands.iter().map(|operand| operand.ty.clone()).collect::<Vec<TensorType>>();
        let of_values = entry.runs.iter().map(|run| (&run.op, types(run), Some(run)));
        for (op, operands, run) in of_types.chain(of_values) {
            let variant = op.variant();
            let forward = graph(&entry.name, &operands, |builder, inputs| {
                builder.push(op.clone(), inputs).unwrap_or_else(|error| panic!("{error}")).to_vec()
            });
            let found = comes_back(&forward).unwrap_or_else(|error| panic!("{forward}\n{error}"));
            if !IN_PARTS.contains(&variant) {
                assert_eq!(text(&found), text(&forward), "{forward}\nis imported as\n{found}");
            } else if let Some(run) = run {
                let inputs: Vec<Literal> = run.operands.iter().map(|operand| operand.literal()).collect();
                let [found, expected] = [&found, &forward].map(|graph| By::Interpreter.run(graph, &inputs));
                assert_eq!(found, expected, "{forward}");
            }
        }
    }
}
