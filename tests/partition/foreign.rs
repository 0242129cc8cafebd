//! Programs of JAX, imported and partitioned: they compute what they do on one device, and send what is counted here.

use meshloom::compile::{LowerOptions, lower_module};
use meshloom::hlo::read::{Limits, read};
use meshloom::import::import;
use meshloom::ir::{DType, Literal, TensorType};
use support::interpret::interpret;
use support::spmd::run_local;
use support::{numbers, path};

/// Small values for each input: integers may be indices.
fn inputs(types: impl IntoIterator<Item = TensorType>) -> Vec<Literal> {
    let input = |(seed, ty): (usize, TensorType)| {
        let values = numbers(ty.element_count(), seed as u64);
        Literal::from_fn(ty.clone(), |index| match ty.dtype {
            DType::F32 | DType::BF16 => values[index],
            _ => (index % 2) as f64,
        })
    };
    types.into_iter().enumerate().map(input).collect()
}

fn distance(found: &[Literal], expected: &[Literal]) -> f64 {
    let all = |literals: &[Literal]| literals.iter().flat_map(Literal::to_f64_vec).collect::<Vec<f64>>();
    let (found, expected) = (all(found), all(expected));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

#[test]
fn programs_of_jax() {
    for entry in
        std::fs::read_dir(std::env::var("JAXP").map_or_else(|_| path("tests/foreign/lowered"), Into::into)).unwrap()
    {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".stablehlo.txt") else { continue };
        let module = read(&std::fs::read(&file).unwrap(), &Limits::default()).unwrap().module;
        let lowered = match lower_module(&module, &LowerOptions::default()) {
            Ok(lowered) => lowered,
            Err(error) => {
                println!("{name}: {error}");
                continue;
            }
        };
        let imported = import(&module).unwrap();
        let inputs = inputs(imported.graph.input_types().cloned());
        let expected = interpret(&imported.graph, &inputs);
        let Some(partitioned) = lowered.program.partitioned() else {
            println!("{name}: one device");
            continue;
        };
        let found = run_local(&partitioned.graph, &partitioned.mesh, &inputs).unwrap();
        println!(
            "{name}: {} {:?}",
            distance(&found, &expected),
            meshloom::partition::Ledger::of(&partitioned.graph, &partitioned.mesh).moved_bytes()
        );
    }
}
