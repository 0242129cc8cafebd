//! One program over eight devices: names on dimensions, rules that map them to mesh axes, where the pieces lie, and
//! what moves.
//!
//! ```text
//! cargo run --release --example 04_shard_over_a_mesh
//! ```

use meshloom::Error;
use meshloom::prelude::*;

meshloom::tree! {
    /// The function's inputs. Their paths, `weight` and `x`, are what messages call them.
    struct Inputs<T> {
        weight: T,
        x: T,
    }
}

fn main() -> Result<(), Error> {
    // Devices are numbered row-major: device 5 is data 1, fsdp 1.
    let mesh = Mesh::parse("data=2,fsdp=4", 8)?;
    // Rules map names to mesh axes: the batch is split eight ways, rows of the weight four ways.
    let rules = RuleSets::uniform(Rules::from_pairs(&[("batch", &["data", "fsdp"]), ("embed", &["fsdp"])])?);

    let specs = Inputs {
        weight: Param::new(F32, [8, 4], &["embed", ""], Init::Normal(1.0)).spec,
        x: TensorSpec::new(F32, [16, 8]).with_axes(&["batch", ""]),
    };
    let function = Function::trace("loss_and_gradient", specs.clone(), |Inputs { weight, x }| {
        value_and_grad(weight, |weight| {
            let hidden = x.matmul(weight).with_axes(["batch", ""]);
            hidden.tanh().square().mean(..)
        })
    })?;

    let options = LowerOptions { sharding: Some((&mesh, &rules)), deny_replication: true, ..LowerOptions::default() };
    let lowered = lower(function.graph(), &options)?;
    println!("-- mesh {mesh}; the specs that the rules gave");
    for (&input, info) in lowered.graph().inputs().iter().zip(lowered.graph().input_info()) {
        let spec = info.spec.clone().unwrap_or_default();
        println!("input {} {}: {}", info.path, lowered.graph().ty(input), spec.display(&mesh));
    }

    let client = Client::cpu(mesh.device_count())?;
    let eight = compile(&function, &client, &options)?;
    let values = specs.map(|_, spec| Literal::from_fn(spec.ty.clone(), |index| (index as f64 * 0.7).sin()));
    let arrays = eight.put(&values)?;
    println!("\n-- what each device holds");
    for (device, (weight, x)) in arrays.weight.layout().boxes().iter().zip(arrays.x.layout().boxes()).enumerate() {
        println!("device {device}: weight {weight:?}, x {x:?}");
    }
    println!("\nthe weight's shard on device 1: {:?}", arrays.weight.shard(1)?);

    // The same function on one device: a mesh changes where numbers are, not what they are.
    let one = compile(&function, &client, &LowerOptions::default())?;
    let ((loss, gradient), (loss_one, gradient_one)) = (eight.run(&arrays)?, one.call(&values)?);
    let (gradient, gradient_one) = (gradient.get()?.to_f64_vec(), gradient_one.to_f64_vec());
    let difference = gradient.iter().zip(&gradient_one).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!(
        "\nloss on 8 devices {:?}, on one {loss_one:?}; gradients differ by at most {difference:.1e}",
        loss.get()?
    );

    // meshloom put the collectives in, so they are known before XLA sees the program: `explicit` above. Without it, XLA
    // would partition the program by annotations.
    println!("\n-- collectives\n{}", lowered.collectives());
    Ok(())
}
