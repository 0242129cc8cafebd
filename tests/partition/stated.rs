//! Programs of JAX state shardings in many ways, and each is followed or refused. Each case is from JAX's own tests.

use meshloom::compile::{LowerOptions, Lowered, lower_module};
use meshloom::hlo::proto::HloModuleProto;
use meshloom::hlo::read::{Limits, read};
use meshloom::hlo::text::print_sharding;
use meshloom::import::import;
use meshloom::ir::Literal;
use support::interpret::interpret;
use support::spmd::run_local;

/// A program of four devices with a body and the attributes of its ports.
fn module(meshes: &str, ports: &str, body: &str) -> HloModuleProto {
    let text = format!(
        "module @m attributes {{mhlo.num_partitions = 4 : i32}} {{\n{meshes}\nfunc.func public @main{ports} {{\n{body}\n}} }}"
    );
    read(text.as_bytes(), &Limits::default()).unwrap_or_else(|error| panic!("{error}\n{text}")).module
}

const MESH: &str = r#"sdy.mesh @mesh = <["x"=2, "y"=2]>"#;

fn lowered(module: &HloModuleProto) -> Lowered {
    lower_module(module, &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}"))
}

fn refusal(module: &HloModuleProto) -> String {
    lower_module(module, &LowerOptions::default()).expect_err("it is lowered").to_string()
}

/// The specs of the results, once the parts compute what the whole program does.
fn results(module: &HloModuleProto) -> Vec<String> {
    let whole = import(module).expect("a graph").graph;
    let lowered = lowered(module);
    let partitioned = lowered.program.partitioned().expect("several devices");
    let input = |ty: &meshloom::ir::TensorType| Literal::from_fn(ty.clone(), |index| index as f64);
    let inputs: Vec<Literal> = whole.input_types().map(input).collect();
    let found = run_local(&partitioned.graph, &partitioned.mesh, &inputs).expect("whole outputs");
    assert_eq!(found, interpret(&whole, &inputs));
    let info = partitioned.graph.output_info().iter();
    info.map(|info| info.spec.as_ref().expect("a spec").display(&partitioned.mesh).to_string()).collect()
}

/// An open dimension is split as its surroundings are, a closed one is not. The mesh of a constraint may have no axes.
#[test]
fn open_dimensions_are_left_to_propagation() {
    let input = r#"(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})"#;
    for (sharding, expected) in [
        ("@none, [{?}, {?}]", "[x, y]"),
        ("@none, [{?}, {}]", "[x, _]"),
        (r#"@mesh, [{}, {?}]"#, "[_, y]"),
        (r#"@mesh, [{"y", ?}, {?}]"#, "[y, _]"),
        (r#"@mesh, [{"x"}, {?}]"#, "[x, y]"),
    ] {
        let meshes = format!("{MESH}\nsdy.mesh @none = <[]>");
        let body = "%0 = stablehlo.negate %a : tensor<8x4xf32>\n";
        let at_root = format!("%1 = sdy.sharding_constraint %0 <{sharding}> : tensor<8x4xf32>\n");
        let at_root = format!("{body}{at_root}return %1 : tensor<8x4xf32>");
        assert_eq!(
            results(&module(&meshes, &format!("{input} -> tensor<8x4xf32>"), &at_root)),
            [expected],
            "{sharding}"
        );
        // The same as the sharding of a result.
        let ports = format!("{input} -> (tensor<8x4xf32> {{sdy.sharding = #sdy.sharding<{sharding}>}})");
        assert_eq!(
            results(&module(&meshes, &ports, &format!("{body}return %0 : tensor<8x4xf32>"))),
            [expected],
            "{sharding}"
        );
    }
}

/// The order of the axes of one dimension says which part a device has.
#[test]
fn the_order_of_axes_is_kept() {
    for order in [r#""x", "y""#, r#""y", "x""#] {
        let ports = format!(
            "(%a: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{{order}}}]>}}) -> \
             (tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"x\"}}]>}}, \
             tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{{order}}}]>}})"
        );
        let found = results(&module(MESH, &ports, "return %a, %a : tensor<8xf32>, tensor<8xf32>"));
        assert_eq!(found, ["[x]".to_owned(), format!("[({})]", order.replace(['"', ' '], ""))]);
    }
}

/// A second mesh has the same axes over other devices.
#[test]
fn another_order_of_devices_is_refused() {
    let meshes = format!("{MESH}\nsdy.mesh @back = <[\"x\"=2, \"y\"=2], device_ids=[3, 2, 1, 0]>");
    let ports = r#"(%a: tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>})
        -> (tensor<8x2xf32> {sdy.sharding = #sdy.sharding<@back, [{"x"}, {"y"}]>})"#;
    let error = refusal(&module(&meshes, ports, "return %a : tensor<8x2xf32>"));
    assert!(error.ends_with("its tiles are no regular arrangement of 4 devices"), "{error}");
}

/// Partial sums are no whole values on every device.
#[test]
fn partial_sums_are_read_and_refused() {
    for (sharding, text) in [
        (r#"[{"x"}], unreduced={"y"}"#, "{devices=[2,2]<=[4] last_tile_dims={unreduced}}"),
        (r#"[{}], unreduced={"x", "y"}"#, "{unreduced}"),
        (
            r#"[{}], replicated={"x"}, unreduced=max{"y"}"#,
            "{devices=[1,2,2]<=[4] last_tile_dims={replicated, unreduced}}",
        ),
        (r#"[{}], replicated={"x"}"#, "{replicated}"),
    ] {
        let ports = format!(
            "(%a: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}, \
             %b: tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"x\"}}]>}}) -> tensor<8xf32>"
        );
        let module = module(MESH, &ports, "return %a : tensor<8xf32>");
        let instructions = || module.computations.iter().flat_map(|computation| &computation.instructions);
        let parameter = instructions().find(|it| it.opcode == "parameter").expect("a parameter");
        assert_eq!(print_sharding(parameter.sharding.as_ref().expect("a sharding")), text);
        if text.contains("unreduced") {
            let error = refusal(&module);
            assert!(error.contains("a sum over devices that is still to be made"), "{error}");
        } else {
            results(&module);
        }
    }
}

/// A constraint splits a dimension unevenly. The results keep their sizes, as callers know no others.
#[test]
fn results_of_uneven_constraints_keep_their_sizes() {
    let body = r#"%0 = sdy.sharding_constraint %a <@mesh, [{"x", "y"}]> : tensor<7xf32>
        %1 = stablehlo.add %0, %0 : tensor<7xf32>
        return %1, %0 : tensor<7xf32>, tensor<7xf32>"#;
    let module = module(MESH, "(%a: tensor<7xf32>) -> (tensor<7xf32>, tensor<7xf32>)", body);
    assert_eq!(results(&module), ["[_]", "[_]"]);
    // The same at the root, where the constraint is all that is said of the result.
    let body = r#"%0 = stablehlo.negate %a : tensor<6xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{"x", "y"}]> : tensor<6xf32>
        return %1 : tensor<6xf32>"#;
    let ports = r#"(%a: tensor<6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<6xf32>"#;
    let module = self::module(MESH, ports, body);
    assert_eq!(results(&module), ["[x]"]);
}
