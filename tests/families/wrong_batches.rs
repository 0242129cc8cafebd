//! Batches that do not fit a decoder: an error of the trace, in whatever form it runs.

use meshloom::ir::DType;
use meshloom::trace::{Function, MapTree, Param, TensorSpec, value_and_grad};
use meshloom::transform::pipeline::{PipelineOptions, Schedule};
use meshloom_nn::{Batch, DecoderConfig};

use super::golden::{CASES, Golden};
use super::meshes::on_mesh;

/// None is taken, and none panics.
#[test]
fn batches_that_do_not_fit_are_errors() {
    let pipeline = PipelineOptions { stages: 2, microbatches: 2, ..PipelineOptions::default() };
    for case in CASES.into_iter().chain(["further"]) {
        let golden = match case {
            "further" => super::further::golden(),
            case => Golden::load(case),
        };
        let plain = DecoderConfig { further_weight: 0.3, ..golden.decoder() };
        let mut piped = DecoderConfig { pipeline: Some(pipeline.clone()), ..plain.clone() };
        piped.architecture.stack.cycles = 3;
        let in_loop = PipelineOptions { schedule: Schedule::OneForwardOneBackward, ..pipeline.clone() };
        for decoder in [
            DecoderConfig { batch_split: true, ..plain.clone() },
            DecoderConfig { scan_layers: false, loss_chunks: 2, ..plain.clone() },
            on_mesh(&DecoderConfig { loss_chunks: 2, ..plain.clone() }, "fsdp=2,expert=2"),
            DecoderConfig { pipeline: Some(in_loop), ..piped.clone() },
            piped,
        ] {
            let right = Batch::<TensorSpec>::specs(4, 8);
            let of = |dtype: DType, dims: &[usize]| TensorSpec::new(dtype, dims);
            for (what, batch) in [
                ("tokens that are no integers", Batch { tokens: of(DType::F32, &[4, 8]), ..right.clone() }),
                ("tokens of a row alone", Batch { tokens: of(DType::S32, &[8]), ..right.clone() }),
                ("no tokens", Batch { tokens: of(DType::S32, &[]), ..right.clone() }),
                ("other positions", Batch { positions: of(DType::S32, &[4, 7]), ..right.clone() }),
                ("a number for segments", Batch { segment_ids: of(DType::S32, &[]), ..right.clone() }),
                ("targets of other rows", Batch { targets: of(DType::S32, &[3, 8]), ..right.clone() }),
                ("a number for weights", Batch { weights: of(DType::F32, &[]), ..right.clone() }),
            ] {
                let params = decoder.parameters().map(|_, param: &Param| param.spec.clone());
                let traced = Function::trace("loss", (params, batch), |(params, batch)| {
                    value_and_grad(params, |params| decoder.loss(&params, &batch))
                });
                let said = traced.map(drop).map_err(|error| error.to_string());
                assert!(said.is_err(), "{case}: {what}");
            }
        }
    }
}
