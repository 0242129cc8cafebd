//! Programs that the tests of other concerns run on the CPU, for hardware that is not there.

use meshloom::analysis::{Devices, collectives};
use meshloom::compile::{LowerOptions, lower};
use meshloom::emit::{Annotation, EmitOptions, ProgramForm, emit};
use meshloom::hlo::PlatformKind;
use meshloom::hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto};
use meshloom::ir::DType::{BF16, F32, S32};
use meshloom::ir::Graph;
use meshloom::kernels::{AttentionKernel, ExpertsKernel, KernelUse, Kernels};
use meshloom::pjrt::{CompileOptions, DeviceDescription, MemoryStats, ProgramFormat};
use meshloom::sharding::{DevicePlace, Mesh, device_order};
use meshloom::trace::{Function, TensorSpec, ragged_dot, value_and_grad, vmap};
use meshloom_mosaic::CALL_TARGET;
use meshloom_nn::{AttentionOptions, MoeConfig, causal_attention_with, moe};
use support::ahead_of_time::described;
use support::configs::{NARROW, config, explicit_step};
use support::devices::tpus;
use support::experts::{Rows, experts, partitioned, rules, with_gradients};
use support::programs::{annotated_layers, of_two_operands};

use crate::workers::{self, step};

fn compile(target: &str, module: &[u8], options: &CompileOptions) -> MemoryStats {
    let compiled = workers::compile(target, module, options);
    compiled.unwrap_or_else(|error| panic!("{error}")).memory_stats().expect("stats")
}

pub fn several_operands(target: &str) {
    let mesh = Mesh::parse("a=2,b=4", 8).expect("a mesh");
    let options = EmitOptions { mesh: Some(&mesh), partitioned: true, ..EmitOptions::default() };
    let module = emit(&of_two_operands(&mesh, true), options).expect("a module");
    compile(target, &module.bytes, &CompileOptions::partitioned(8));
}

/// A partitioned train step, its collectives combined. In StableHLO it takes the same memory.
pub fn a_partitioned_step(target: &str) {
    let lowered = explicit_step(&["mesh.axes=\"data=2,fsdp=4\""]);
    assert!(lowered.collectives().iter().expect("a ledger").any(|entry| entry.operand_count > 1));
    let options = CompileOptions::partitioned(8).with_shardy(lowered.annotation().is_shardy());
    let [hlo, stablehlo] = [ProgramFormat::Hlo, ProgramFormat::StableHlo]
        .map(|format| compile(target, &lowered.module.bytes, &options.clone().with_format(format)));
    assert_eq!((stablehlo.arguments, stablehlo.outputs, stablehlo.aliased), (hlo.arguments, hlo.outputs, hlo.aliased));
}

pub fn every_dialect(target: &str) {
    for annotation in [Annotation::Tiles, Annotation::ShardyAttributes, Annotation::ShardyNamed] {
        let lowered = annotated_layers(Some(annotation));
        for format in [ProgramFormat::Hlo, ProgramFormat::StableHlo] {
            // It is refused: plugins lose named shardings in StableHLO.
            if (annotation, format) == (Annotation::ShardyNamed, ProgramFormat::StableHlo) {
                continue;
            }
            let shardy = lowered.annotation().is_shardy();
            let options = CompileOptions::partitioned(8).with_shardy(shardy).with_format(format);
            assert!(compile(target, &lowered.module.bytes, &options).arguments > 0, "{annotation:?} {format:?}");
        }
    }
}

/// A block of experts and its gradients.
pub fn experts_and_gradients(target: &str) {
    let config = MoeConfig { expert_groups: 2, batch_parts: 4, ..experts(8, 2) };
    let graph = with_gradients(&config, Rows { batch: 16, length: 16, embed: 16 }, moe);
    let lowered = partitioned(&graph, "data=2,fsdp=2,expert=2", &rules(&[]));
    compile(target, &lowered.module.bytes, &CompileOptions::partitioned(8));
}

/// The compiled program of one device.
fn compiled(target: &str, graph: &Graph, kernels: Kernels) -> HloModuleProto {
    let options = LowerOptions { kernels, ..LowerOptions::default() };
    let lowered = lower(graph, &options).expect("it lowers");
    let compiled = workers::compile(target, &lowered.module.bytes, &CompileOptions::default());
    let compiled = compiled.unwrap_or_else(|error| panic!("{target}: {error}"));
    compiled.optimized_hlo().expect("a program").decode().expect("a module")
}

/// A grouped product and its gradients, in loops that copy no more of the matrices than the one of a turn.
pub fn grouped_products(target: &str, kind: PlatformKind) {
    const GROUPS: usize = 16;
    let spec = |dims: &[usize]| TensorSpec::new(BF16, dims);
    let specs = (spec(&[8192, 512]), spec(&[GROUPS, 512, 256]), TensorSpec::new(S32, [GROUPS]));
    let function = Function::trace("grouped", specs, |(rows, matrices, sizes)| {
        value_and_grad((rows, matrices), |(rows, matrices)| {
            ragged_dot(rows, matrices, sizes).convert(F32).square().sum(..)
        })
    });
    let module = compiled(target, function.unwrap_or_else(|error| panic!("{error}")).graph(), Kernels::portable(kind));
    let bodies: Vec<&HloComputationProto> = module
        .computations
        .iter()
        .flat_map(|computation| &computation.instructions)
        .filter(|instruction| instruction.opcode == "while")
        .flat_map(|instruction| &instruction.called_computation_ids)
        .filter_map(|id| module.computations.iter().find(|computation| computation.id == *id))
        .collect();
    assert!(bodies.len() >= 6, "three loops, each of a condition and a body: {}", bodies.len());
    for instruction in bodies.iter().flat_map(|body| &body.instructions) {
        let dims = instruction.shape.as_ref().map(|shape| &shape.dimensions[..]).unwrap_or_default();
        let is_copy = instruction.opcode.starts_with("copy") || instruction.opcode == "transpose";
        assert!(!is_copy || dims.first() != Some(&(GROUPS as i64)), "{target}: {}: {dims:?}", instruction.name);
    }
}

/// A grouped product and its gradients by kernels, with the lists of what they visit.
pub fn grouped_products_by_kernels(target: &str) {
    const GROUPS: usize = 16;
    for (dtype, inner, columns) in [(BF16, 512, 384), (F32, 96, 256)] {
        let specs = (
            TensorSpec::new(dtype, [2, 4096, inner]),
            TensorSpec::new(dtype, [GROUPS, inner, columns]),
            TensorSpec::new(S32, [2, GROUPS]),
        );
        let function = Function::trace("grouped", specs, |(rows, matrices, sizes)| {
            value_and_grad((rows, matrices), |(rows, matrices)| {
                let product = vmap((rows, sizes), |(rows, sizes)| ragged_dot(rows, matrices, sizes));
                product.convert(F32).square().sum(..)
            })
        });
        let kernels = Kernels { experts: ExpertsKernel::Mosaic, ..Kernels::portable(PlatformKind::Tpu) };
        let module = compiled(target, function.unwrap_or_else(|error| panic!("{error}")).graph(), kernels);
        assert_eq!(kernel_calls(&module, CALL_TARGET), 3, "{target}: {dtype}: a product and two gradients");
    }
}

/// Attention by cuDNN and its gradient. This shows that the plugin reads the configurations, and no more: it builds
/// cuDNN's graphs only with the device at hand, and takes operands here that cuDNN does not.
pub fn the_form_of_cudnn_attention(target: &str) {
    let specs = [8, 2, 2].map(|heads| TensorSpec::new(BF16, [2, 1024, heads, 128]));
    let function = Function::trace("attention", (specs[0].clone(), specs[1].clone(), specs[2].clone()), |operands| {
        value_and_grad(operands, |(query, key, value)| {
            let options = AttentionOptions { window: Some(256), ..AttentionOptions::default() };
            causal_attention_with(query, key, value, &options).convert(F32).square().sum(..)
        })
    });
    let kernels = Kernels { attention: AttentionKernel::Cudnn, ..Kernels::portable(PlatformKind::Cuda) };
    let module = compiled(target, function.unwrap_or_else(|error| panic!("{error}")).graph(), kernels);
    for call in ["__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"] {
        assert_eq!(kernel_calls(&module, call), 1, "{target}: {call}");
    }
}

fn kernel_calls(module: &HloModuleProto, target: &str) -> usize {
    let instructions = module.computations.iter().flat_map(|computation| &computation.instructions);
    instructions.filter(|instruction| instruction.custom_call_target == target).count()
}

/// A decoder with routed experts.
const ROUTED: [&str; 11] = [
    "model.family=mixtral",
    "model.layers=2",
    "model.embed=256",
    "model.heads=4",
    "model.kv_heads=2",
    "model.head_dim=64",
    "model.family.experts=12",
    "model.family.experts_per_token=2",
    "model.family.moe_mlp=128",
    "model.seq=1024",
    "train.batch=8",
];

/// A decoder with routed experts, whose devices have a part of the experts and of the sequence: attention and all
/// products of experts are kernels, and what they visit is found when the program runs.
pub fn a_decoder_by_kernels(target: &str) {
    let topology = format!("target.topology={target}");
    let cases = [
        ("mesh.axes=fsdp=2,expert=2", "kernels.context=gather"),
        ("mesh.axes=expert=2,context=2", "kernels.context=gather"),
        ("mesh.axes=fsdp=2,context=2", "kernels.context=ring"),
    ];
    for (axes, more) in cases {
        let config = config(&[&ROUTED, &[axes, more, &topology]]);
        let step = step(format_args!("{axes}, {more}"), &config);
        let kernels = &step.lowered.kernels;
        let of_data = |used: &KernelUse| used.how.contains("that data say");
        assert!(kernels.iter().all(|used| used.implementation == "mosaic"), "{axes}: {kernels:?}");
        assert_eq!(kernels.iter().any(of_data), axes.contains("context"), "{axes}: {kernels:?}");
        let module = step.compiled.optimized_hlo().expect("a program").decode().expect("a module");
        // An attention and its two gradients; three products of experts, each with two gradients.
        assert!(kernel_calls(&module, CALL_TARGET) >= 3 + 9, "{axes}: {} kernels", kernel_calls(&module, CALL_TARGET));
        let experts = if axes.contains("expert") { 6 } else { 12 };
        let is_product = |instruction: &&HloInstructionProto| ["dot", "convolution"].contains(&&instruction.opcode[..]);
        for computation in &module.computations {
            for product in computation.instructions.iter().filter(is_product) {
                let dims = product.shape.as_ref().map(|shape| &shape.dimensions[..]).unwrap_or_default();
                // The gradient of a masked product for the matrices, all at once: `[experts, inner, columns]`.
                let sizes: Vec<i64> = dims.iter().copied().filter(|&size| size > 1).collect();
                let is_masked = sizes.len() == 3 && sizes[0] == experts;
                assert!(!is_masked, "{axes}: {}: {dims:?}", product.name);
            }
        }
    }
}

/// A train step with the products of experts as `ragged-dot`, in the local form: libtpu makes a kernel of each, and no
/// product over masked rows.
pub fn a_decoder_by_ragged_dot(target: &str) {
    let how = ["kernels.experts=ragged-dot", "mesh.axes=fsdp=2,expert=2"];
    let config = config(&[&ROUTED, &how, &[&format!("target.topology={target}")]]);
    let step = step("ragged-dot", &config);
    assert_eq!(step.lowered.form, ProgramForm::Local);
    let of_experts = step.lowered.kernels.iter().filter(|used| used.op.starts_with("ragged-dot"));
    assert!(of_experts.clone().count() > 0 && of_experts.clone().all(|used| used.implementation == "ragged-dot"));
    let module = step.compiled.optimized_hlo().expect("a program").decode().expect("a module");
    let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
    let is_kernel = |instruction: &&HloInstructionProto| {
        instruction.custom_call_target == CALL_TARGET && instruction.name.contains("ragged-dot")
    };
    let kernels = instructions().filter(is_kernel).count();
    assert!(kernels >= 9, "{target}: three products of experts, each with two gradients: {kernels}");
    for product in instructions().filter(|instruction| ["dot", "convolution"].contains(&&instruction.opcode[..])) {
        let dims = product.shape.as_ref().map(|shape| &shape.dimensions[..]).unwrap_or_default();
        let sizes: Vec<i64> = dims.iter().copied().filter(|&size| size > 1).collect();
        assert!(sizes.len() != 3 || sizes[0] != 6, "{target}: {}: {dims:?}", product.name);
    }
}

/// A train step in the local form has the collectives of the other once compiled.
pub fn the_local_form(target: &str) {
    let manual = explicit_step(&["mesh.axes=\"data=2,fsdp=2\"", "target.devices=4"]);
    let mesh = manual.emitted_mesh().expect("a mesh");
    let compiled = |form: ProgramForm| {
        let options = EmitOptions {
            mesh: Some(mesh),
            aliases: &manual.aliases,
            partitioned: true,
            form,
            ..EmitOptions::default()
        };
        let module = emit(manual.emitted(), options).expect("a module");
        let options = CompileOptions::partitioned(4).with_shardy(form == ProgramForm::Local);
        let compiled = workers::compile(target, &module.bytes, &options);
        let compiled = compiled.unwrap_or_else(|error| panic!("{target}, {form:?}: {error}"));
        let module = compiled.optimized_hlo().expect("a program").decode().expect("a module");
        collectives(&module, Devices::partitioned(4)).moved_bytes()
    };
    assert_eq!(compiled(ProgramForm::Local), compiled(ProgramForm::Manual), "{target}");
}

/// The order of devices goes into the device assignment of what is compiled.
pub fn the_order_of_devices() {
    let target = "tpu7x:2x2x1:slices=2";
    let places: Vec<DevicePlace> = described(target).devices.iter().map(DeviceDescription::place).collect();
    assert_eq!(places, tpus([2, 2, 1], 2, 2), "the plugin's devices are those that the tests of orders have");
    let own = ["model.layers=1", "mesh.axes=data=2,fsdp=8", "mesh.dcn=fsdp=2", &format!("target.topology={target}")];
    let step = step("two slices", &config(&[NARROW, &own]));
    let mesh = Mesh::parse("data=2,fsdp=8", 16).and_then(|mesh| mesh.with_dcn("fsdp=2")).expect("a mesh");
    let expected = device_order(&mesh, &places).expect("an order");
    assert_ne!(expected[..8], *(100_000..100_008).collect::<Vec<_>>(), "another order than the plugin's");
    assert_eq!(step.compiled.device_assignment, [expected]);
}
