//! Layers of experts as a pipeline has them: mapped over stages that lie on different devices, in a loop, recomputed.

use std::sync::Arc;

use meshloom::ops::RematPolicy;
use meshloom::trace::{Function, Tensor, VmapOptions, checkpoint, scan, value_and_grad, vmap_with};
use meshloom_nn::{ExpertExchange, MoeConfig, moe};

use super::{interpreted, interpreted_over};
use meshloom::ir::Graph;
use meshloom::trace::TensorSpec;
use support::cases::cases;
use support::experts::*;

const STAGES: usize = 2;
const LAYERS: usize = 3;

/// The gradients of what the stages make, each of its own input with its own layers.
fn stages(config: &MoeConfig, rows: Rows, mapped: bool) -> Arc<Graph> {
    let stacked = |spec: TensorSpec| {
        let mut spec = spec;
        spec.ty.dims.insert(0, LAYERS);
        spec.ty.dims.insert(0, STAGES);
        spec.axes.insert(0, meshloom::ir::Name::default());
        spec.axes.insert(0, meshloom::ir::Name::new("layers"));
        spec
    };
    let params = meshloom::trace::MapTree::map(&parameters(rows.embed, config), |_, spec| stacked(spec.clone()));
    let mut input = stream(rows);
    input.ty.dims.insert(0, STAGES);
    input.axes.insert(0, meshloom::ir::Name::new("activation_stage"));
    let stage = |x: Tensor, params: meshloom_nn::Moe<Tensor>| {
        let layer = |x: Tensor, params| {
            checkpoint(RematPolicy::Full, (x, params), |(x, params)| {
                let (added, loss) = moe(x, &params, config);
                (x + added, loss)
            })
        };
        let (x, losses) = scan(x, params, layer);
        (x, losses.sum(..))
    };
    let function = Function::trace("stages", (input, params), |inputs| {
        value_and_grad(inputs, |(x, params)| {
            let (x, losses) = if mapped {
                vmap_with(VmapOptions::default().named("activation_stage"), (x, params), |(x, params)| stage(x, params))
            } else {
                let pick = |tensor: Tensor, index: usize| {
                    let dims = tensor.dims();
                    tensor.slice(0, index..index + 1).reshape(&dims[1..])
                };
                let all = [0, 1].map(|index| {
                    let params = meshloom::trace::MapTree::map(&params, |_, &tensor| pick(tensor, index));
                    stage(pick(x, index), params)
                });
                let each = |f: fn((Tensor, Tensor)) -> Tensor| meshloom::trace::stack(&all.map(f), 0);
                (each(|pair| pair.0), each(|pair| pair.1))
            };
            x.square().mean(..) + losses.mean(..)
        })
    });
    function.unwrap_or_else(|error| panic!("{error}")).graph().clone()
}

/// Nothing goes from stage to stage, whatever else a mesh has; and the numbers are those of one device.
#[test]
fn stages_keep_to_themselves() {
    let plain = experts(8, 3);
    let rows = Rows { batch: 8, length: 8, embed: 16 };
    let reference = stages(&plain, rows, false);
    let inputs = random_inputs(&reference, 9);
    let expected = interpreted(&reference, &inputs);
    // The stages are not a batch here.
    let batch: &[(&str, &[&str])] = &[
        ("activation_batch", &["data", "fsdp", "expert"]),
        ("activation_batch_no_exp_moe", &["data", "fsdp"]),
        ("layers", &["stage"]),
    ];
    // There are as many slots as tokens.
    let all_slots = Some(8.0 / 3.0);
    let meshes = [
        ("stage=2,fsdp=2,expert=2", 2, 2, 1, None),
        ("stage=2,expert=4", 4, 1, 1, None),
        ("stage=2,expert=2,context=2", 2, 1, 2, None),
        // Twice as many parts of the batch as it is spread over.
        ("stage=2,fsdp=2,context=2", 1, 4, 2, None),
        ("stage=2,expert=4", 4, 1, 1, all_slots),
    ];
    for mesh in meshes {
        let (mesh, expert_groups, batch_parts, sequence_parts, capacity_factor) = mesh;
        let exchange = if capacity_factor.is_some() { ExpertExchange::AllToAll } else { ExpertExchange::Gather };
        let sizes = MoeConfig { expert_groups, batch_parts, sequence_parts, ..plain.clone() };
        let config = MoeConfig { capacity_factor, exchange, ..sizes };
        let graph = stages(&config, rows, true);
        check_equal(mesh, &interpreted_over(&graph, mesh, &rules(batch), &inputs), &expected, 1e-5);
        let lowered = partitioned(&graph, mesh, &rules(batch));
        for lowered in cases("partition stages of experts", usize::from(mesh == meshes[0].0), [&lowered]) {
            check_equal(mesh, &run(lowered, &inputs), &expected, 1e-5);
        }
        let ledger = lowered.collectives();
        // The sum of the loss over all stages is all.
        let over_stages = ledger.over("stage");
        let largest = over_stages.iter().expect("collectives").map(|part| part.bytes).max();
        assert!(largest.unwrap_or(0) <= 8, "{mesh}: {largest:?}");
        assert_eq!(over_stages.inside_loops().count().expect("an axis"), 0, "{mesh}");
    }
}
