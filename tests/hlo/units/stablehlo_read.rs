//! Tests of the HLO that each form of StableHLO text becomes; the programs of JAX are read in `tests/hlo/stablehlo.rs`.

use meshloom::hlo::device_groups::DeviceGroups;
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloModuleProto, HloModuleProtoWithConfig};
use meshloom::hlo::source::{self, Sources};
use meshloom::hlo::stablehlo::{is_mlir, read};
use meshloom::hlo::text::{TextOptions, print, print_sharding};

pub fn found(text: &str) -> HloModuleProtoWithConfig {
    read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn module(text: &str) -> HloModuleProto {
    found(text).hlo_module.unwrap()
}

/// The module as text, without its first line, and without `%`.
fn hlo(text: &str) -> String {
    let text = print(&module(text), &TextOptions { constant_limit: Some(64), ..TextOptions::canonical() });
    assert!(parse(&text).is_ok(), "{text}");
    text.lines().skip(1).collect::<Vec<_>>().join("\n").trim().replace('%', "")
}

/// A program of one function.
fn function(signature: &str, body: &str) -> String {
    format!("module @m {{\nfunc.func public @main{signature} {{\n{body}\n}}\n}}")
}

/// The instructions of such a program's entry, without its parameters, one a line.
fn instructions(signature: &str, body: &str) -> Vec<String> {
    let text = hlo(&function(signature, body));
    let entry = text.split("ENTRY").last().unwrap();
    let lines = entry.lines().skip(1).map(|line| line.trim().trim_start_matches("ROOT "));
    lines.filter(|line| line.contains(" = ") && !line.contains(" parameter(")).map(str::to_owned).collect()
}

fn refused(text: &str) -> (usize, String) {
    match read(text.as_bytes()) {
        Ok(_) => panic!("read: {text}"),
        Err(error) => (error.line, error.message),
    }
}

/// One op with one operand and one result.
fn one(op: &str, from: &str, to: &str) -> String {
    let body = format!("%0 = {op}\nreturn %0 : tensor<{to}>");
    let lines = instructions(&format!("(%x: tensor<{from}>) -> tensor<{to}>"), &body);
    lines.iter().map(|line| line.split_once(" = ").unwrap().1).collect::<Vec<_>>().join("; ")
}

#[test]
fn short_and_generic_forms_are_the_same() {
    let cases = [
        (
            "stablehlo.transpose %x, dims = [1, 0]",
            "transpose\"(%x) <{permutation = array<i64: 1, 0>}>",
            "2x3xf32",
            "3x2xf32",
        ),
        ("stablehlo.reverse %x, dims = [0]", "reverse\"(%x) <{dimensions = array<i64: 0>}>", "4xf32", "4xf32"),
        (
            "stablehlo.broadcast_in_dim %x, dims = [1]",
            "broadcast_in_dim\"(%x) <{broadcast_dimensions = array<i64: 1>}>",
            "3xf32",
            "2x3xf32",
        ),
        (
            "stablehlo.broadcast_in_dim %x, dims = [0, 1]",
            "broadcast_in_dim\"(%x) {broadcast_dimensions = dense<[0, 1]> : tensor<2xi64>}",
            "1x3xf32",
            "2x3xf32",
        ),
        (
            "stablehlo.slice %x [0:2, 1:8:2]",
            "slice\"(%x) <{start_indices = array<i64: 0, 1>, limit_indices = array<i64: 2, 8>, strides = array<i64: 1, 2>}>",
            "2x8xf32",
            "2x4xf32",
        ),
        (
            "stablehlo.reduce_precision %x, format = e5m10",
            "reduce_precision\"(%x) <{exponent_bits = 5 : i32, mantissa_bits = 10 : i32}>",
            "4xf32",
            "4xf32",
        ),
        (
            "stablehlo.fft %x, type = FFT, length = [4]",
            "fft\"(%x) <{fft_type = #stablehlo<fft_type FFT>, fft_length = array<i64: 4>}>",
            "4xcomplex<f32>",
            "4xcomplex<f32>",
        ),
        ("stablehlo.cholesky %x, lower = true", "cholesky\"(%x) <{lower = true}>", "3x3xf32", "3x3xf32"),
        (
            "stablehlo.compare LT, %x, %x, FLOAT",
            "compare\"(%x, %x) <{comparison_direction = #stablehlo<comparison_direction LT>, compare_type = #stablehlo<comparison_type FLOAT>}>",
            "4xf32",
            "4xi1",
        ),
        (
            "stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [HIGHEST, DEFAULT]",
            "dot_general\"(%x, %x) <{dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision DEFAULT>]}>",
            "2x3x3xf32",
            "2x3x3xf32",
        ),
        ("stablehlo.concatenate %x, %x, dim = 0", "concatenate\"(%x, %x) <{dimension = 0 : i64}>", "2xi8", "4xi8"),
    ];
    for (short, generic, from, to) in cases {
        let inputs = vec![format!("tensor<{from}>"); short.matches('%').count()].join(", ");
        let short = one(&format!("{short} : ({inputs}) -> tensor<{to}>"), from, to);
        let generic = one(&format!("\"stablehlo.{generic} : ({inputs}) -> tensor<{to}>"), from, to);
        assert_eq!(short, generic);
    }
}

#[test]
fn ops_become_instructions() {
    let cases = [
        (
            "stablehlo.broadcast_in_dim %x, dims = [0, 1] : (tensor<1x3xf32>) -> tensor<2x3xf32>",
            "1x3xf32",
            "2x3xf32",
            "f32[3] reshape(x); f32[2,3] broadcast(reshape), dimensions={1}",
        ),
        (
            "stablehlo.exponential %x {result_accuracy = #stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<HIGHEST>>} : tensor<2xf32>",
            "2xf32",
            "2xf32",
            "f32[2] exponential(x), result_accuracy={mode=highest}",
        ),
        (
            "stablehlo.convert %x : (tensor<2xf32>) -> tensor<2xf8E4M3FN>",
            "2xf32",
            "2xf8E4M3FN",
            "f8e4m3fn[2] convert(x)",
        ),
        ("stablehlo.convert %x : tensor<2xi4>", "2xi4", "2xi4", "s4[2] convert(x)"),
        ("chlo.erf %x : tensor<2xbf16> -> tensor<2xbf16>", "2xbf16", "2xbf16", "bf16[2] erf(x)"),
        ("chlo.square %x : tensor<2xf32> -> tensor<2xf32>", "2xf32", "2xf32", "f32[2] multiply(x, x)"),
        (
            "chlo.lgamma %x : tensor<2xf32> -> tensor<2xf32>",
            "2xf32",
            "2xf32",
            "f32[2] custom-call(x), custom_call_target=\"chlo.lgamma\"",
        ),
        (
            "\"chlo.ragged_dot\"(%x, %x, %x) <{ragged_dot_dimension_numbers = #chlo.ragged_dot<lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]>}> : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>",
            "2x2xf32",
            "2x2xf32",
            "f32[2,2] ragged-dot(x, x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}",
        ),
        ("mhlo.negate %x : tensor<2xf32>", "2xf32", "2xf32", "f32[2] negate(x)"),
        ("arith.constant dense<2> : tensor<2xi32>", "f32", "2xi32", "s32[2] constant({2, 2})"),
        ("arith.constant 5 : i32", "f32", "i32", "s32[] constant(5)"),
        ("mhlo.copy %x : tensor<2xf32>", "2xf32", "2xf32", "f32[2] copy(x)"),
        ("\"mhlo.erf\"(%x) : (tensor<2xf32>) -> tensor<2xf32>", "2xf32", "2xf32", "f32[2] erf(x)"),
        (
            "chlo.atan %x : tensor<2xf32> -> tensor<2xf32>",
            "2xf32",
            "2xf32",
            "f32[] constant(1); f32[2] broadcast(constant), dimensions={}; f32[2] atan2(x, broadcast)",
        ),
        (
            "chlo.broadcast_add %x, %x : (tensor<1x3xf32>, tensor<1x3xf32>) -> tensor<1x3xf32>",
            "1x3xf32",
            "1x3xf32",
            "f32[1,3] add(x, x)",
        ),
        (
            "stablehlo.broadcast %x, sizes = [2] : (tensor<3xf32>) -> tensor<2x3xf32>",
            "3xf32",
            "2x3xf32",
            "f32[2,3] broadcast(x), dimensions={1}",
        ),
        (
            "stablehlo.einsum %x, %x, config = \"ab,cb->ca\" : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x2xf32>",
            "2x3xf32",
            "2x2xf32",
            "f32[2,2] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}; f32[2,2] transpose(dot), dimensions={1,0}",
        ),
        (
            "stablehlo.negate %x : tensor<?x3xf32, #stablehlo.bounds<2, ?>>",
            "?x3xf32, #stablehlo.bounds<2, ?>",
            "?x3xf32, #mhlo.type_extensions<bounds = [2, ?]>",
            "f32[<=2,3] negate(x)",
        ),
        ("stablehlo.iota dim = 1 : tensor<2x3xui8>", "f32", "2x3xui8", "u8[2,3] iota(), iota_dimension=1"),
        ("stablehlo.complex %x, %x : tensor<2xcomplex<f32>>", "2xf32", "2xcomplex<f32>", "c64[2] complex(x, x)"),
        ("stablehlo.clamp %x, %x, %x : tensor<i32>", "i32", "i32", "s32[] clamp(x, x, x)"),
        (
            "stablehlo.dot %x, %x, precision = [DEFAULT, DEFAULT] : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>",
            "2x2xf32",
            "2x2xf32",
            "f32[2,2] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ),
        (
            "stablehlo.dot_general %x, %x, contracting_dims = [1] x [0], algorithm = <lhs_precision_type = bf16, rhs_precision_type = bf16, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 3, allow_imprecise_accumulation = false> : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32>",
            "2x2xf32",
            "2x2xf32",
            "f32[2,2] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32_x3",
        ),
        (
            "stablehlo.custom_call @foo(%x) {has_side_effect = true, backend_config = \"a\\22b\", api_version = 2 : i32, mhlo.frontend_attributes = {k = \"v\"}, mhlo.sharding = \"{replicated}\"} : (tensor<2xf32>) -> tensor<2xf32>",
            "2xf32",
            "2xf32",
            "f32[2] custom-call(x), custom_call_target=\"foo\", custom_call_has_side_effect=true, api_version=API_VERSION_STATUS_RETURNING, sharding={replicated}, frontend_attributes={k=\"v\"}, backend_config=\"a\\\"b\"",
        ),
        (
            "\"stablehlo.all_to_all\"(%x) <{split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, replica_groups = dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>",
            "4xf32",
            "4xf32",
            "f32[4] all-to-all(x), replica_groups={{0,1},{2}}, dimensions={0}",
        ),
        (
            "\"stablehlo.collective_broadcast\"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 3, type = 0>, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>",
            "4xf32",
            "4xf32",
            "f32[4] collective-broadcast(x), channel_id=3, replica_groups={{0,1}}",
        ),
    ];
    for (op, from, to, expected) in cases {
        assert_eq!(one(op, from, to), expected, "{op}");
    }
}

/// JAX 0.12 writes these: the groups, as [`DeviceGroups`] lists them, are worked out by hand.
#[test]
fn groups_are_along_axes_of_a_mesh() {
    let inlined = "#stablehlo.mesh<axes = [#stablehlo.mesh_axis<name = \"a\", size = 2>, <name = \"b\", size = 4>]>";
    let axis = |rest: &str| format!("#stablehlo.axis_ref<name = {rest}>");
    let cases = [
        ("@m", axis("\"a\""), vec![vec![0, 4], vec![1, 5], vec![2, 6], vec![3, 7]], "{'a'}"),
        (inlined, axis("\"b\""), vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]], "{'b'}"),
        ("@m", format!("{}, {}", axis("\"b\""), axis("\"a\"")), vec![vec![0, 4, 1, 5, 2, 6, 3, 7]], "{'b','a'}"),
        ("@m", axis("\"b\", sub_axis_info = (1)2"), vec![vec![0, 2], vec![1, 3], vec![4, 6], vec![5, 7]], "{'b':(1)2}"),
        ("@plain", axis("\"p\""), vec![vec![0, 1], vec![2, 3]], "{'p'}"),
        ("@back", axis("\"z\""), vec![vec![3, 2, 1, 0]], "{'z'}"),
    ];
    for (mesh, axes, expected, printed) in cases {
        let text = format!(
            "module @m attributes {{mhlo.num_partitions = 8 : i32}} {{
              sdy.mesh @m = #sdy.mesh<[\"a\"=2, \"b\"=4]>
              sdy.mesh @back = <[\"z\"=4], device_ids=[3, 2, 1, 0]>
              \"sdy.mesh\"() {{sym_name = \"plain\", stablehlo.mesh = {{axes = [{{name = \"p\", size = 2 : i64}}, {{name = \"q\", size = 2 : i64}}], device_ids = dense<[0, 2, 1, 3]> : tensor<4xi64>}}}} : () -> ()
              func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
                %0 = \"stablehlo.all_reduce\"(%x) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = #stablehlo.replica_group_mesh_axes<mesh = {mesh}, axes = [{axes}]>, use_global_device_ids}}> ({{
                ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                  %1 = stablehlo.add %a, %b : tensor<f32>
                  stablehlo.return %1 : tensor<f32>
                }}) : (tensor<4xf32>) -> tensor<4xf32>
                return %0 : tensor<4xf32>
              }}
            }}"
        );
        let module = module(&text);
        let reduction = module.computations[1].instructions.iter().find(|it| it.opcode == "all-reduce").unwrap();
        assert_eq!(DeviceGroups::of(reduction).lists().unwrap(), expected, "{mesh} {axes}");
        assert!(hlo(&text).contains(printed), "{}", hlo(&text));
    }
}

/// Custom calls that are collectives, in the words of XLA's `mlir_hlo_to_hlo.cc` and of its
/// `async_collective_custom_call_rewriter.cc`.
#[test]
fn collectives_behind_custom_calls_are_collectives() {
    let ragged = instructions(
        "(%x: tensor<6xf32>, %o: tensor<6xf32>, %i: tensor<3xi32>) -> tensor<6xf32>",
        "%0 = stablehlo.custom_call @ragged_all_to_all(%x, %o, %i, %i, %i, %i) {api_version = 4 : i32, backend_config = {channel_id = 1 : i64, replica_groups = dense<[[0, 1, 2]]> : tensor<1x3xi64>}} : (tensor<6xf32>, tensor<6xf32>, tensor<3xi32>, tensor<3xi32>, tensor<3xi32>, tensor<3xi32>) -> tensor<6xf32>
         return %0 : tensor<6xf32>",
    );
    assert_eq!(
        ragged,
        ["ragged-all-to-all = f32[6] ragged-all-to-all(x, o, i, i, i, i), channel_id=1, replica_groups={{0,1,2}}"]
    );
    let begun = |target: &str, config: &str, to: &str| {
        let config = format!("{{\\22replica_groups\\22: [[0, 1], [2, 3]], \\22channel_id\\22: 1, {config}}}");
        let text = format!(
            "module @m {{
              func.func public @main(%x: tensor<4x4xf32>) -> tensor<{to}> {{
                %0 = stablehlo.custom_call @\"{target}-start\"(%x) {{api_version = 1 : i32, called_computations = [@sum], mhlo.frontend_attributes = {{async_collective_config = \"{config}\"}}}} : (tensor<4x4xf32>) -> tensor<{to}>
                %1 = stablehlo.custom_call @\"{target}-done\"(%0) {{api_version = 1 : i32}} : (tensor<{to}>) -> tensor<{to}>
                return %1 : tensor<{to}>
              }}
              func.func private @sum(%a: tensor<f32>, %b: tensor<f32>) -> tensor<f32> {{
                %0 = stablehlo.add %a, %b : tensor<f32>
                return %0 : tensor<f32>
              }}
            }}"
        );
        let text = if target.contains("reduce") { text } else { text.replace("called_computations = [@sum], ", "") };
        let text = hlo(&text);
        let lines =
            text.split("ENTRY").last().unwrap().lines().filter(|line| line.contains(" = ") && line.contains('-')).map(
                |line| {
                    let line = line.trim().trim_start_matches("ROOT ").split(", frontend_attributes").next().unwrap();
                    line.split_once(" = ").unwrap().1.to_owned()
                },
            );
        lines.collect::<Vec<String>>().join("; ")
    };
    let groups = "channel_id=1, replica_groups={{0,1},{2,3}}";
    assert_eq!(
        begun("all-gather", "\\22all_gather_dimension\\22: 1", "4x8xf32"),
        format!("f32[4,8] all-gather(x), {groups}, dimensions={{1}}")
    );
    assert_eq!(
        begun("all-reduce", "\\22use_global_device_ids\\22: true", "4x4xf32"),
        format!("f32[4,4] all-reduce(x), {groups}, use_global_device_ids=true, to_apply=sum")
    );
    assert_eq!(
        begun("reduce-scatter", "\\22scatter_dimension\\22: 0, \\22tiled\\22: true", "2x4xf32"),
        format!("f32[2,4] reduce-scatter(x), {groups}, dimensions={{0}}, to_apply=sum")
    );
    assert_eq!(
        begun(
            "all-to-all",
            "\\22split_dimension\\22: 0, \\22concat_dimension\\22: 0, \\22split_count\\22: 2",
            "4x4xf32"
        ),
        format!("f32[4,4] all-to-all(x), {groups}, dimensions={{0}}")
    );
    let (_, message) = refused(&function(
        "(%x: tensor<4xf32>) -> tensor<4xf32>",
        "%0 = stablehlo.custom_call @\"all-gather-start\"(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %0 : tensor<4xf32>",
    ));
    assert!(message.contains("async_collective_config is missing"), "{message}");
}

#[test]
fn what_begins_asynchronously_is_there_where_it_begins() {
    let body = "%1 = stablehlo.negate %x : tensor<4xf32>
        %0 = \"stablehlo.async_start\"(%1) ({
        ^bb0(%y: tensor<4xf32>):
          %1 = \"stablehlo.collective_permute\"(%y) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<4xf32>
          stablehlo.return %1 : tensor<4xf32>
        }) : (tensor<4xf32>) -> !stablehlo.future<tensor<4xf32>>
        %2 = \"stablehlo.async_done\"(%0) : (!stablehlo.future<tensor<4xf32>>) -> tensor<4xf32>
        %3 = stablehlo.add %1, %2 : tensor<4xf32>
        return %3 : tensor<4xf32>";
    let lines = instructions("(%x: tensor<4xf32>) -> tensor<4xf32>", body);
    let expected = [
        "negate = f32[4] negate(x)",
        "collective-permute = f32[4] collective-permute(negate), source_target_pairs={{0,1},{1,0}}",
        "add = f32[4] add(negate, collective-permute)",
    ];
    assert_eq!(lines, expected);
    // `mhlo` has those of a compiled module.
    let text = "module {
        func.func @copying(%x: tensor<4xf32>) -> tensor<4xf32> attributes {execution_thread = \"main\"} {
          %0 = mhlo.copy %x : tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %0 = \"mhlo.async_start\"(%x) {called_computation = @copying, execution_thread = \"main\"} : (tensor<4xf32>) -> !mhlo.async_bundle<tuple<tensor<4xf32>>, tensor<4xf32>>
          %1 = \"mhlo.async_done\"(%0) : (!mhlo.async_bundle<tuple<tensor<4xf32>>, tensor<4xf32>>) -> tensor<4xf32>
          return %1 : tensor<4xf32>
        }
      }";
    let module = module(text);
    let found: Vec<&str> = module.computations[1].instructions.iter().map(|it| it.opcode.as_str()).collect();
    assert_eq!(found, ["parameter", "async-start", "async-done"]);
    assert_eq!(module.computations[1].instructions[1].called_computation_ids, [module.computations[0].id]);
}

#[test]
fn values_come_from_the_host_and_go_to_it() {
    let body = "%0 = \"stablehlo.send\"(%x, %t) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 2>, is_host_transfer = true}> : (tensor<3xf32>, !stablehlo.token) -> !stablehlo.token
        %1:2 = \"stablehlo.recv\"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 6, type = 3>, is_host_transfer = true}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
        %2:2 = \"stablehlo.infeed\"(%1#1) <{infeed_config = \"a\"}> : (!stablehlo.token) -> (tensor<f32>, !stablehlo.token)
        %3 = \"stablehlo.outfeed\"(%1#0, %2#1) <{outfeed_config = \"\"}> : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
        return %2#0 : tensor<f32>";
    let lines = instructions("(%x: tensor<3xf32>, %t: !stablehlo.token) -> tensor<f32>", body);
    let found: Vec<&str> = lines.iter().map(|line| line.split_once(" = ").unwrap().1).collect();
    let expected = [
        "(f32[3], u32[], token[]) send(x, t), channel_id=5, is_host_transfer=true",
        "token[] send-done(send), channel_id=5, is_host_transfer=true",
        "(f32[], u32[], token[]) recv(send-done), channel_id=6, is_host_transfer=true",
        "(f32[], token[]) recv-done(recv), channel_id=6, is_host_transfer=true",
        "f32[] get-tuple-element(recv-done), index=0",
        "token[] get-tuple-element(recv-done), index=1",
        "((f32[]), token[]) infeed(get-tuple-element.1), infeed_config=\"a\"",
        "(f32[]) get-tuple-element(infeed), index=0",
        "token[] get-tuple-element(infeed), index=1",
        "f32[] get-tuple-element(get-tuple-element.2), index=0",
        "(f32[]) tuple(get-tuple-element)",
        "token[] outfeed(tuple, get-tuple-element.3), outfeed_shape=(f32[])",
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_scan_has_its_carries_last() {
    let body = "%0:2 = chlo.scan(%x) inits (%i) dimension=0 attributes {is_reverse = true, is_associative = true} {
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %1 = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %1, %1 : tensor<f32>, tensor<f32>
        } : (tensor<4xf32>, tensor<f32>) -> (tensor<4xf32>, tensor<f32>)
        return %0#0 : tensor<4xf32>";
    let lines = instructions("(%x: tensor<4xf32>, %i: tensor<f32>) -> tensor<4xf32>", body);
    let expected = "scan = (f32[4], f32[]) scan(x, i), dimensions={0}, num_carries=1, is_reverse=true, is_associative=true, to_apply=scanned";
    assert_eq!(lines[0], expected);
}

#[test]
fn shardys_own_ops_say_how_values_are_split() {
    let text = "module @m {
        sdy.mesh @m = #sdy.mesh<[\"a\"=2, \"b\"=4]>
        func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{\"a\"}, {\"b\":(1)2}]>}) -> tensor<8x8xf32> {
          %0 = sdy.all_gather [{\"a\"}, {\"b\":(1)2}] %x out_sharding=<@m, [{}, {}]> : tensor<8x8xf32>
          %1 = sdy.all_to_all [{\"a\"}: 0->1] %0 out_sharding=<@m, [{}, {\"a\"}]> : tensor<8x8xf32>
          %2 = sdy.all_reduce max {\"b\":(1)2} %1 out_sharding=<@m, [{}, {\"a\"}]> : tensor<8x8xf32>
          %3 = sdy.func_data_flow_edge %2 {sdy.sharding = #sdy.sharding_per_value<[<@m, [{}, {\"a\"}]>]>} : tensor<8x8xf32>
          %4 = sdy.named_computation<\"f\">(%3) in_shardings=[<@m, [{}, {}]>] out_shardings=[<@m, [{}, {}]>] (%y: tensor<8x8xf32>) {
            %5 = stablehlo.negate %y {sdy.sharding = #sdy.sharding_per_value<[#sdy.sharding<@m, [{}, {}]>]>} : tensor<8x8xf32>
            sdy.return %5 : tensor<8x8xf32>
          } : (tensor<8x8xf32>) -> tensor<8x8xf32>
          return %4 : tensor<8x8xf32>
        }
      }";
    let module = module(text);
    let entry = &module.computations[1].instructions;
    let found: Vec<(&str, String)> = entry
        .iter()
        .map(|it| (it.opcode.as_str(), it.sharding.as_ref().map(|it| print_sharding(it)).unwrap_or_default()))
        .collect();
    let expected = [
        ("parameter", "{devices=[2,2,2]<=[8] last_tile_dim_replicate}"),
        ("copy", "{replicated}"),
        ("copy", "{devices=[1,2,4]<=[8] last_tile_dim_replicate}"),
        ("call", ""),
    ];
    assert_eq!(found, expected.map(|(opcode, sharding)| (opcode, sharding.to_owned())));
    assert_eq!(module.computations[0].name, "f");
    let attributes = &entry[3].frontend_attributes.as_ref().unwrap().map;
    assert_eq!(attributes["xla.sdy.out_shardings"], "#sdy.sharding_per_value<[<@m, [{}, {}]>]>");
}

#[test]
fn constants_in_every_form() {
    let cases = [
        ("dense<1.500000e+00> : tensor<f32>", "f32[] constant(1.5)"),
        ("dense<true> : tensor<i1>", "pred[] constant(true)"),
        ("dense<[true, false]> : tensor<2xi1>", "pred[2] constant({1, 0})"),
        ("dense<[[1, -2], [3, 4]]> : tensor<2x2xi8>", "s8[2,2] constant({ { 1, -2 }, { 3, 4 } })"),
        ("dense<[-8, 7]> : tensor<2xi4>", "s4[2] constant({-8, 7})"),
        ("dense<0xFF800000> : tensor<f32>", "f32[] constant(-inf)"),
        ("dense<[0x7FC0, 1.0]> : tensor<2xbf16>", "bf16[2] constant({nan, 1})"),
        ("dense<0x7E> : tensor<f8E4M3FN>", "f8e4m3fn[] constant(448)"),
        ("dense<(1.0, -2.0)> : tensor<complex<f32>>", "c64[] constant((1, -2))"),
        ("dense<\"0x0000803F00000040\"> : tensor<2xf32>", "f32[2] constant({1, 2})"),
        ("dense<\"0x05\"> : tensor<3xi1>", "pred[3] constant({1, 0, 1})"),
        ("dense<18446744073709551615> : tensor<ui64>", "u64[] constant(18446744073709551615)"),
        ("dense<> : tensor<0x3xf32>", "f32[0,3] constant({  })"),
        ("dense<2> : tensor<4xi32>", "s32[4] constant({2, 2, 2, 2})"),
        (
            "dense<2> : tensor<4000000x4000000xi32>",
            "s32[] constant(2); s32[4000000,4000000] broadcast(constant), dimensions={}",
        ),
        ("dense_resource<__elided__> : tensor<5xf32>", "f32[5] constant({...})"),
        ("dense_resource<weights> : tensor<5xf32>", "f32[5] constant({...})"),
    ];
    for (value, expected) in cases {
        let to = value.rsplit_once("tensor<").unwrap().1.trim_end_matches('>');
        let to = if to.contains("complex") { format!("{to}>") } else { to.to_owned() };
        assert_eq!(one(&format!("stablehlo.constant {value}"), "f32", &to), expected, "{value}");
    }
}

#[test]
fn resources_stand_at_the_end() {
    let body = "%0 = stablehlo.constant dense_resource<w> : tensor<2xf32>\nreturn %0 : tensor<2xf32>";
    let text = function("() -> tensor<2xf32>", body);
    let with =
        |blob: &str| format!("{text}\n{{-# dialect_resources: {{ builtin: {{ v: \"0x00\", w: \"{blob}\" }} }} #-}}");
    assert!(hlo(&with("0x040000000000803F00000040")).contains("constant({1, 2})"));
    assert_eq!(refused(&with("0x040000000000803F0000")).1, "the constant has 6 bytes for 2 elements");
    assert_eq!(refused(&with("0x04")).1, "a resource begins with the four bytes of its alignment");
}

#[test]
fn what_a_region_uses_is_carried_into_it() {
    let body = "%c = stablehlo.constant dense<5> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %0 = stablehlo.while(%iterArg = %n) : tensor<i32>
        cond {
          %1 = stablehlo.compare LT, %iterArg, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %1 : tensor<i1>
        } do {
          %1 = stablehlo.add %iterArg, %m : tensor<i32>
          %2 = stablehlo.subtract %1, %m : tensor<i32>
          %3 = stablehlo.add %2, %one : tensor<i32>
          stablehlo.return %3 : tensor<i32>
        }
        return %0 : tensor<i32>";
    let text = hlo(&function("(%n: tensor<i32>, %m: tensor<i32>) -> tensor<i32>", body));
    let expected = "condition (state: (s32[], s32[])) -> pred[] {
  state = (s32[], s32[]) parameter(0)
  iterArg = s32[] get-tuple-element(state), index=0
  m = s32[] get-tuple-element(state), index=1
  c = s32[] constant(5)
  ROOT compare = pred[] compare(iterArg, c), direction=LT
}";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("ROOT tuple = (s32[], s32[]) tuple(add.1, m)"), "{text}");
    assert!(text.contains("while = (s32[], s32[]) while(tuple), condition=condition, body=body"), "{text}");
    let branches = "%0 = \"stablehlo.if\"(%p) ({
          stablehlo.return %x, %y : tensor<f32>, tensor<f32>
        }, {
          stablehlo.return %y, %y : tensor<f32>, tensor<f32>
        }) : (tensor<i1>) -> (tensor<f32>, tensor<f32>)";
    let signature = "(%p: tensor<i1>, %x: tensor<f32>, %y: tensor<f32>) -> tensor<f32>";
    let lines = instructions(signature, &format!("{}\nreturn %0#1 : tensor<f32>", branches.replace("%0", "%0:2")));
    assert!(lines[1].contains("conditional(p, tuple, y), true_computation=true_branch"), "{lines:?}");
    let (_, message) = refused(&function(signature, &format!("{branches}\nreturn %0#1 : tensor<f32>")));
    assert!(message.contains("it has 1 results and the types of 2"), "{message}");
}

#[test]
fn a_reduction_of_two_values_has_both_results() {
    let short = "%0:2 = stablehlo.reduce(%x init: %i), (%y init: %i) across dimensions = [1] : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>) -> (tensor<2xf32>, tensor<2xf32>)
         reducer(%a: tensor<f32>, %b: tensor<f32>) (%c: tensor<f32>, %d: tensor<f32>)  {
           %1 = stablehlo.add %a, %b : tensor<f32>
           %2 = stablehlo.multiply %c, %d : tensor<f32>
           stablehlo.return %1, %2 : tensor<f32>, tensor<f32>
         }
         return %0#1 : tensor<2xf32>";
    let generic = "%0:2 = \"stablehlo.reduce\"(%x, %y, %i, %i) <{dimensions = array<i64: 1>}> ({
         ^bb0(%a: tensor<f32>, %c: tensor<f32>, %b: tensor<f32>, %d: tensor<f32>):
           %1 = stablehlo.add %a, %b : tensor<f32>
           %2 = stablehlo.multiply %c, %d : tensor<f32>
           stablehlo.return %1, %2 : tensor<f32>, tensor<f32>
         }) : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>) -> (tensor<2xf32>, tensor<2xf32>)
         return %0#1 : tensor<2xf32>";
    let signature = "(%x: tensor<2x3xf32>, %y: tensor<2x3xf32>, %i: tensor<f32>) -> tensor<2xf32>";
    let [short, generic] = [short, generic].map(|body| hlo(&function(signature, body)));
    assert_eq!(short, generic);
    assert!(short.contains("ROOT tuple = (f32[], f32[]) tuple(add, multiply)"), "{short}");
}

#[test]
fn functions_come_before_their_callers_and_once() {
    let text = "module @m {
        func.func public @main(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
          %0 = call @outer(%x) : (tensor<f32>) -> tensor<f32>
          %1:2 = call @inner(%0) : (tensor<f32>) -> (tensor<f32>, tensor<f32>)
          return %1#0, %1#1 : tensor<f32>, tensor<f32>
        }
        func.func private @outer(%x: tensor<f32>) -> tensor<f32> {
          %0:2 = func.call @inner(%x) : (tensor<f32>) -> (tensor<f32>, tensor<f32>)
          %1 = stablehlo.composite \"a.b\" %0#0 {composite_attributes = {k = 1 : i64}, decomposition = @plus, version = 2 : i32} : (tensor<f32>) -> tensor<f32>
          return %1 : tensor<f32>
        }
        func.func private @plus(%x: tensor<f32>) -> tensor<f32> {
          %0 = stablehlo.add %x, %x : tensor<f32>
          return %0 : tensor<f32>
        }
        func.func private @unused(%x: tensor<f32>) -> tensor<f32> {
          return %x : tensor<f32>
        }
        func.func private @\"inner\"(%x: tensor<f32>) -> (tensor<f32>, tensor<f32>) {
          return %x, %x : tensor<f32>, tensor<f32>
        }
      }";
    let module = module(text);
    let names: Vec<&str> = module.computations.iter().map(|computation| computation.name.as_str()).collect();
    assert_eq!(names, ["inner", "plus", "outer", "main"]);
    let composite = &module.computations[2].instructions[4];
    assert!(composite.is_composite);
    let attributes = &composite.frontend_attributes.as_ref().unwrap().map;
    assert_eq!(
        (attributes["composite.name"].as_str(), attributes["composite.attributes"].as_str()),
        ("a.b", "{k = 1 : i64}")
    );
    assert_eq!(module.entry_computation_name, "main");
}

#[test]
fn the_module_says_its_devices_and_which_buffers_are_shared() {
    let text = "module @jit_f attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 2 : i32} {
        func.func public @main(%a: tensor<f32> {tf.aliasing_output = 1 : i32}, %b: tensor<f32> {jax.buffer_donor = true}) -> (tensor<f32>, tensor<f32>) {
          return %b, %a : tensor<f32>, tensor<f32>
        }
      }";
    let found = found(text);
    let (module, config) = (found.hlo_module.unwrap(), found.config.unwrap());
    assert_eq!((config.num_partitions, config.replica_count, module.name.as_str()), (4, 2, "jit_f"));
    let alias = &module.input_output_alias.unwrap().entries[0];
    assert_eq!((alias.output_shape_index.as_slice(), alias.parameter_number), (&[1][..], 0));
    assert_eq!(module.buffer_donor.unwrap().entries[0].parameter_number, 1);
}

#[test]
fn shardings_are_tiles() {
    let cases = [
        ("@m, [{\"a\"}, {}]", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"),
        ("@m, [{}, {\"b\", ?}p1]", "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dim_replicate}"),
        ("@m, [{\"a\", \"b\"}, {}]", "{devices=[8,1]<=[8]}"),
        ("@m, [{\"b\"}, {\"a\"}], replicated={\"c\"}", "{devices=[4,2]<=[2,4]T(1,0)}"),
        ("@m, [{\"b\":(1)2}, {}]", "{devices=[2,1,4]<=[2,2,2]T(1,0,2) last_tile_dim_replicate}"),
        ("@m, [{\"b\":(2)2}, {\"a\"}]", "{devices=[2,2,2]<=[4,2]T(1,0) last_tile_dim_replicate}"),
        ("@m, [{?}, {}]", "{replicated}"),
        ("@reversed, [{\"a\"}, {}]", "{devices=[2,1,2]3,2,1,0 last_tile_dim_replicate}"),
        ("@one, []", "{maximal device=5}"),
        ("mesh<[\"z\"=2]>, [{\"z\"}, {}]", "{devices=[2,1]<=[2]}"),
    ];
    for (sharding, expected) in cases {
        let meshes = "sdy.mesh @m = <[\"a\"=2, \"b\"=4]>
            sdy.mesh @reversed = <[\"a\"=2, \"b\"=2], device_ids=[3, 2, 1, 0]>
            sdy.mesh @one = <[], device_ids=[5]>";
        let text = format!(
            "module {{ {meshes} func.func @main(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<{sharding}>}}) -> tensor<8x8xf32> {{
              return %x : tensor<8x8xf32> }} }}"
        );
        let module = module(&text);
        let instruction = &module.computations[0].instructions[0];
        assert_eq!(print_sharding(instruction.sharding.as_ref().unwrap()), expected, "{sharding}");
        let attribute = &instruction.frontend_attributes.as_ref().unwrap().map["xla.sdy.sharding"];
        assert_eq!(*attribute, format!("#sdy.sharding<{sharding}>"));
    }
}

#[test]
fn locations_are_metadata() {
    let text = "#loc1 = loc(\"x\")
        module @m {
          func.func @main(%x: tensor<f32> loc(\"x\")) -> tensor<f32> {
            %0 = stablehlo.negate %x : tensor<f32> loc(#loc9)
            %1 = stablehlo.negate %0 : tensor<f32> loc(\"b.py\":7:1 to 8:2)
            %2 = stablehlo.negate %1 : tensor<f32> loc(fused<\"pass\">[#loc9, unknown])
            %3 = stablehlo.negate %2 : tensor<f32> loc(#circle)
            return %3 : tensor<f32> loc(unknown)
          } loc(unknown)
        } loc(unknown)
        #circle = loc(callsite(#circle at #circle))
        #loc5 = loc(\"a.py\":3:4 to :9)
        #loc6 = loc(\"f\"(#loc5))
        #loc7 = loc(\"g\"(\"a.py\":10:1))
        #loc9 = loc(\"jit(f)/neg\"(callsite(#loc6 at #loc7)))";
    let module = module(text);
    let sources = Sources::of(&module);
    let said = |at: usize| {
        let instruction = &module.computations[0].instructions[at];
        let stack: Vec<String> =
            sources.stack(instruction).iter().map(|line| format!("{line} {}", line.function)).collect();
        (source::op_name(instruction).to_owned(), stack.join("; "))
    };
    let stated = |name: &str, stack: &str| (name.to_owned(), stack.to_owned());
    assert_eq!(said(0), stated("x", ""));
    assert_eq!(said(1), stated("jit(f)/neg", "a.py:3 f; a.py:10 g"));
    assert_eq!(said(2), stated("", "b.py:7 "));
    assert_eq!(said(3), said(1));
    assert_eq!(said(4), stated("", ""));
}

#[test]
fn refusals_name_the_place_and_what_to_do() {
    let op =
        |op: &str| function("(%x: tensor<4xf32>) -> tensor<4xf32>", &format!("%0 = {op}\nreturn %0 : tensor<4xf32>"));
    let cases = [
        (
            op("stablehlo.ad %x, %x : tensor<4xf32>"),
            3,
            "the op stablehlo.ad is not read (did you mean \"stablehlo.add\"?)",
        ),
        (op("stablehlo.add %x, %y : tensor<4xf32>"), 3, "%y is not defined before this place"),
        (op("stablehlo.add %x, %x#1 : tensor<4xf32>"), 3, "%x has 1 results, and none of number 1"),
        (
            op("stablehlo.convert %x : (tensor<5xf32>) -> tensor<4xf32>"),
            3,
            "%x is f32[4] in HLO's words, and the type says f32[5]",
        ),
        (op("stablehlo.add %x : tensor<4xf32>"), 3, "stablehlo.add: expected 2 operands, found 1"),
        (op("stablehlo.negate %x : tensor<?xf32>"), 3, "lower the function with arguments of fixed shapes"),
        (op("stablehlo.negate %x : tensor<4x!quant.uniform<i8:f32, 0.1>>"), 3, "lower the model without quantization"),
        (op("stablehlo.negate %x : tensor<4xf31>"), 3, "unknown element type \"f31\""),
        (op("stablehlo.negate %x : tensor<4xf32, #sparse.x<4>>"), 3, "a tensor with an encoding"),
        (op("mhlo.add %x : tensor<4xf32>"), 3, "mhlo.add: expected 2 operands, found 1"),
        (op("mhlo.ad %x : tensor<4xf32>"), 3, "the op mhlo.ad is not read (did you mean \"mhlo.add\"?)"),
        (op("scf.for %x = %x to %x step %x iter_args(%x = %x) -> (f32) {"), 3, "the op scf.for is of the dialect scf"),
        (
            op("\"ttir.add\"(%x) : (tensor<4xf32>) -> tensor<4xf32>"),
            3,
            "the op ttir.add is of the dialect ttir, which is not read: StableHLO is",
        ),
        (op("stablehlo.dynamic_iota %x, dim = 0 : (tensor<4xf32>) -> tensor<4xf32>"), 3, "dynamic shapes have no HLO"),
        (op("stablehlo.constant dense<[1.0, 2.0]> : tensor<4xf32>"), 3, "a dimension has size 4, found 2 elements"),
        (op("stablehlo.constant dense<300> : tensor<4xi8>"), 3, "300 does not fit the type of the constant"),
        (op("stablehlo.transpose %x : (tensor<4xf32>) -> tensor<4xf32>"), 3, "the attribute permutation is missing"),
        (
            op("stablehlo.compare LS, %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>"),
            3,
            "expected one of EQ, NE",
        ),
        (op("call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>"), 3, "the text has no function @f"),
        (op("call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>"), 3, "@main calls itself"),
        (op("add %x"), 3, "expected an op with its dialect"),
        (op("sdy.sharding_constraint %x <@m, [{}]> : tensor<4xf32>"), 3, "the module declares no mesh @m"),
        (
            op("\"stablehlo.custom_call\"(%x) <{call_target_name = \"f\"}> : (tensor<4xf32>)"),
            4,
            "expected \"->\" and the types of the results",
        ),
        ("module @m {".to_owned(), 1, "expected an op, like stablehlo.add, found the end of the text"),
        ("module @m { }".to_owned(), 1, "expected a function @main"),
    ];
    for (text, line, expected) in cases {
        let (found, message) = refused(&text);
        assert!(message.contains(expected), "{text}\n{message}");
        assert_eq!(found, line, "{text}\n{message}");
    }
    let aliases: String = (1..60).map(|number| format!("#a{number} = [#a{0}, #a{0}]\n", number - 1)).collect();
    assert!(refused(&format!("#a0 = [1]\n{aliases}module {{ }}")).1.contains("write attributes and types out"));
    let deep = "[".repeat(100_000);
    assert!(refused(&op(&format!("stablehlo.x %x, a = {deep}"))).1.contains("nested more than"));
    let error = read(b"module @m { \xff").unwrap_err();
    assert!(error.message.contains("is not UTF-8"), "{error}");
}

#[test]
fn mlir_is_told_by_its_start() {
    let mlir = [
        "module @m {",
        "module  {",
        "module\n{",
        "\n// a comment\nmodule attributes {a} {",
        "#loc1 = loc(\"x\")\n",
        "!t = tensor<f32>",
        "func.func @f()",
    ];
    let other = ["HloModule m", "#seed = 1", "# module @m", "#!/bin/sh", "[mesh]", "modules", "// only a comment"];
    assert!(mlir.iter().all(|text| is_mlir(text.as_bytes())));
    assert!(!other.iter().any(|text| is_mlir(text.as_bytes())));
}

#[test]
fn regions_nest_deep_and_not_deeper() {
    let nest = |depth: usize| {
        let open = "%0 = \"stablehlo.if\"(%p) ({ ";
        let close = " stablehlo.return %0 : tensor<f32> }, { stablehlo.return %x : tensor<f32> }) : (tensor<i1>) -> tensor<f32>";
        let inner = "%0 = stablehlo.negate %x : tensor<f32>";
        let body = format!("{}{inner}{}\nreturn %0 : tensor<f32>", open.repeat(depth), close.repeat(depth));
        function("(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32>", &body)
    };
    assert_eq!(module(&nest(30)).computations.len(), 61);
    assert!(refused(&nest(1000)).1.contains("nested more than 100 levels deep"));
}

/// Nothing that is cut off or changed in one place makes the reader panic.
#[test]
fn damaged_text_is_an_error_or_a_module() {
    let text = include_str!("sample.txt");
    assert!(read(text.as_bytes()).is_ok(), "{:?}", read(text.as_bytes()));
    let bytes = text.as_bytes();
    for end in 0..bytes.len() {
        assert!(read(&bytes[..end]).is_err() || end > text.rfind('}').unwrap(), "cut off at {end}");
    }
    let mut read_count = 0;
    for place in 0..bytes.len() {
        for other in *b"%#@<>{}[]()\"0,:x-9" {
            let mut changed = bytes.to_vec();
            changed[place] = other;
            if let Ok(found) = read(&changed) {
                read_count += 1;
                print(&found.hlo_module.unwrap(), &TextOptions::parseable());
            }
        }
    }
    assert!(read_count > bytes.len() / 4, "{read_count}");
}
