//! The ledger: what a partitioned program communicates and needs, as data to assert on. And what it says of an op that
//! cannot work on parts.
//!
//! ```text
//! cargo run --release --example 08_read_the_ledger
//! ```

use meshloom::Error;
use meshloom::compile::Lowered;
use meshloom::partition::CollectiveKind::{AllGather, AllReduce, ReduceScatter};
use meshloom::partition::PartitionError;
use meshloom::prelude::*;

const DEPTH: usize = 6;
const WIDTH: usize = 32;
const BATCH: usize = 64;

/// A stack of layers as a loop, a loss, and a step of gradient descent.
fn step(weights: Tensor, x: Tensor) -> (Tensor, Tensor) {
    let (loss, gradient) = value_and_grad(weights, |weights| {
        let layer = |x: Tensor, weight: Tensor| scope("layer", || x + x.matmul(weight).tanh());
        let y = scan(x, weights, |x, weight| (layer(x, weight).with_axes(["batch", ""]), ())).0;
        scope("loss", || y.square().mean(..))
    });
    (loss, weights - gradient * 0.1)
}

fn partition(function: &meshloom::ir::Graph, aliases: &[(usize, usize)], deny: bool) -> Result<Lowered, Error> {
    let mesh = Mesh::parse("data=2,fsdp=4", 8)?;
    let rules: [(&str, &[&str]); 2] = [("batch", &["data", "fsdp"]), ("embed", &["fsdp"])];
    let rules = RuleSets::uniform(Rules::from_pairs(&rules)?);
    let options = LowerOptions {
        sharding: Some((&mesh, &rules)),
        aliases: aliases.to_vec(),
        deny_replication: deny,
        ..LowerOptions::default()
    };
    lower(function, &options)
}

fn main() -> Result<(), Error> {
    let weights = Param::new(F32, [WIDTH, WIDTH], &["embed", ""], Init::Normal(0.1)).stacked(DEPTH).spec;
    let x = TensorSpec::new(F32, [BATCH, WIDTH]).with_axes(&["batch", ""]);
    let function = Function::trace("step", (weights, x), |(weights, x)| step(weights, x))?;
    let lowered = partition(function.graph(), &[(1, 0)], true)?;

    let ledger = lowered.collectives();
    println!("-- all of it\n{ledger}");

    // Filters chain; a sum ends the chain. Bytes are those of the operands on one device, of all executions.
    let (part, whole) = (4 * WIDTH * WIDTH / 4, 4 * WIDTH * WIDTH);
    let gathers = ledger.kind(AllGather).over("fsdp").inside_loops();
    assert_eq!(gathers.forward().count()?, 1, "each layer's weight is gathered where it is used");
    assert_eq!(gathers.backward().count()?, 1, "and again for the gradient of its input");
    assert_eq!(gathers.executions()?, 2 * DEPTH as u64);
    assert_eq!(gathers.bytes()?, (2 * DEPTH * part) as u64);
    let scatters = ledger.kind(ReduceScatter).over_exactly(&["fsdp"]).in_scope("layer");
    assert_eq!(scatters.inside_loops().bytes()?, (DEPTH * whole) as u64, "gradients, to where the weights lie");
    let sums = ledger.kind(AllReduce).over("data");
    assert_eq!(sums.inside_loops().count()?, 0, "data parallelism adds up once, behind the loop");
    println!("\n-- gathered in the loop\n{gathers}");

    // A name that is not there is an error, not an empty selection.
    let mistake = ledger.over("fdsp").count().map_or_else(|error| error.to_string(), |count| count.to_string());
    println!("\n-- a slip of the pen: {mistake}");

    let json = serde_json::to_string_pretty(&scatters).unwrap_or_else(|error| error.to_string());
    println!("\n-- as JSON\n{json}");

    let memory = lowered.memory()?;
    println!("\n-- memory of one device\n{memory}");
    assert_eq!(memory.peak, memory.arguments + memory.outputs - memory.aliased + memory.temporaries);

    // Sorting needs the whole of a dimension. Here it is split, so every device is given all of it: a warning, or an
    // error.
    let rows = TensorSpec::new(F32, [BATCH, WIDTH]).with_axes(&["batch", ""]);
    let sorted = Function::trace("sorted", rows, |x| scope("rank", || x.sort(0)))?;
    println!("\n-- what cannot be split");
    for warning in partition(sorted.graph(), &[], false)?.warnings() {
        println!("warning: {warning}");
    }
    match partition(sorted.graph(), &[], true) {
        Err(error @ Error::Partition(PartitionError::Replication { .. })) => println!("denied: {error}"),
        Err(error) => return Err(error),
        Ok(_) => println!("nothing had to be gathered"),
    }
    Ok(())
}
