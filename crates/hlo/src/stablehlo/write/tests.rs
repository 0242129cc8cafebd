use super::{WriteError, WriteOptions, write};
use crate::parse::parse;
use crate::proto::HloModuleProto;

fn module(text: &str) -> HloModuleProto {
    parse(text).unwrap().hlo_module.unwrap()
}

/// The lines of the entry's body, or the error.
fn body(instructions: &str) -> Result<Vec<String>, String> {
    let text = format!("HloModule m\n\nENTRY e {{\n{instructions}\n}}\n");
    let options = WriteOptions { metadata: false, ..WriteOptions::default() };
    let text = write(&module(&text), &options).map_err(|error| error.to_string())?;
    Ok(text.lines().skip(2).take_while(|line| *line != "  }").map(|line| line.trim().to_owned()).collect())
}

#[test]
fn the_whole_of_a_module() {
    let text = "HloModule step, input_output_alias={ {1}: (0, {}, may-alias) }, buffer_donor={ (1, {}) }

%double (x: f32[4]) -> f32[4] {
  %x = f32[4] parameter(0)
  ROOT %sum = f32[4] add(%x, %x)
}

ENTRY %main (x: f32[8], n: s32[]) -> (f32[4], f32[8]) {
  %x = f32[8] parameter(0), sharding={devices=[2]<=[2]}, metadata={op_name=\"x\"}
  %n = s32[] parameter(1)
  %tiled = f32[8] custom-call(%x), custom_call_target=\"Sharding\", sharding={devices=[2]<=[2]}
  %local = f32[4] custom-call(%tiled), custom_call_target=\"SPMDFullToShardShape\", sharding={manual}
  %called = f32[4] call(%local), to_apply=%double, metadata={op_name=\"step/double\" source_file=\"a.py\" source_line=3}
  ROOT %both = (f32[4], f32[8]) tuple(%called, %tiled), sharding={{manual}, {devices=[2]<=[2]}}
}
";
    let written = write(&module(text), &WriteOptions { partitions: 2, ..WriteOptions::default() }).unwrap();
    let call = "{api_version = 1 : i32, has_side_effect = false, backend_config = \"\"}";
    let call = |target| call.replace('{', &format!("<{{call_target_name = \"{target}\", ")).replace('}', "}>");
    let expected = format!(
        r#"module @step attributes {{mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32}} {{
  func.func public @main(%arg0: tensor<8xf32> {{mhlo.sharding = "{{devices=[2]<=[2]}}", tf.aliasing_output = 1 : i32}} loc("x"), %arg1: tensor<i32> {{jax.buffer_donor = true}} loc(unknown)) -> (tensor<4xf32> {{mhlo.sharding = "{{manual}}"}}, tensor<8xf32> {{mhlo.sharding = "{{devices=[2]<=[2]}}"}}) {{
    %0 = "stablehlo.custom_call"(%arg0) {} {{mhlo.sharding = "{{devices=[2]<=[2]}}"}} : (tensor<8xf32>) -> tensor<8xf32> loc(unknown)
    %1 = "stablehlo.custom_call"(%0) {} {{mhlo.sharding = "{{manual}}"}} : (tensor<8xf32>) -> tensor<4xf32> loc(unknown)
    %2 = call @double(%1) : (tensor<4xf32>) -> tensor<4xf32> loc(fused["step/double", "a.py":3:0])
    return %2, %0 : tensor<4xf32>, tensor<8xf32>
  }}
  func.func private @double(%arg0: tensor<4xf32> loc(unknown)) -> (tensor<4xf32>) {{
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32> loc(unknown)
    return %0 : tensor<4xf32>
  }}
}}
"#,
        call("Sharding"),
        call("SPMDFullToShardShape")
    );
    assert_eq!(written, expected);
}

#[test]
fn state_of_loops_is_taken_apart() {
    let text = "HloModule m

more { s = (s32[], (f32[2])) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT l = pred[] compare(i, n), direction=LT }

turn { s = (s32[], (f32[2])) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  p = (f32[2]) get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], (f32[2])) tuple(j, p) }

ENTRY e { i = s32[] parameter(0)
  p = (f32[2]) parameter(1)
  t = (s32[], (f32[2])) tuple(i, p)
  w = (s32[], (f32[2])) while(t), condition=more, body=turn
  q = (f32[2]) get-tuple-element(w), index=1
  ROOT r = f32[2] get-tuple-element(q), index=0 }
";
    let written = write(&module(text), &WriteOptions { metadata: false, ..WriteOptions::default() }).unwrap();
    let expected = "    %0:2 = \"stablehlo.while\"(%arg0, %arg1) ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<2xf32>):
      %1 = stablehlo.constant dense<3> : tensor<i32>
      %2 = \"stablehlo.compare\"(%arg2, %1) <{comparison_direction = #stablehlo<comparison_direction LT>, \
         compare_type = #stablehlo<comparison_type SIGNED>}> : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    }, {
    ^bb0(%arg4: tensor<i32>, %arg5: tensor<2xf32>):
      %3 = stablehlo.constant dense<1> : tensor<i32>
      %4 = stablehlo.add %arg4, %3 : tensor<i32>
      stablehlo.return %4, %arg5 : tensor<i32>, tensor<2xf32>
    }) : (tensor<i32>, tensor<2xf32>) -> (tensor<i32>, tensor<2xf32>)
    return %0#1 : tensor<2xf32>
";
    assert!(written.contains(expected), "{written}");
}

#[test]
fn aliases_that_are_a_must_stand_on_the_module() {
    let text = |result: &str| {
        let root =
            if result.starts_with('(') { "ROOT t = (f32[], f32[]) tuple(x, y)" } else { "ROOT t = f32[] add(x, y)" };
        let index = if result.starts_with('(') { "{1}" } else { "{}" };
        format!(
            "HloModule m, input_output_alias={{ {index}: (1, {{}}, must-alias) }}\n\n\
             ENTRY e {{ x = f32[] parameter(0)\n y = f32[] parameter(1)\n {root} }}\n"
        )
    };
    for (result, index) in [("(f32[], f32[])", "array<i64: 1>"), ("f32[]", "array<i64>")] {
        let written = write(&module(&text(result)), &WriteOptions::default()).unwrap();
        let expected = format!(
            "mhlo.input_output_alias = [{{alias = {{kind = \"must_alias\", parameter_index = array<i64>, \
             parameter_number = 1 : i64}}, output_index = {index}}}]"
        );
        assert!(written.contains(&expected), "{written}");
    }
}

#[test]
fn constants_of_every_kind() {
    let cases = [
        ("pred[2] constant({true, false})", "dense<[true, false]> : tensor<2xi1>"),
        ("s4[3] constant({1, -2, 7})", "dense<[1, -2, 7]> : tensor<3xi4>"),
        ("u4[2] constant({1, 15})", "dense<[1, 15]> : tensor<2xui4>"),
        ("s64[2] constant({-9223372036854775808, 1})", "dense<[-9223372036854775808, 1]> : tensor<2xi64>"),
        ("f32[] constant(1e-10)", "dense<1.0e-10> : tensor<f32>"),
        ("f32[2] constant({-0, 0.1})", "dense<[-0.0, 0.1]> : tensor<2xf32>"),
        ("f32[2] constant({inf, nan})", "dense<[0x7F800000, 0x7FC00000]> : tensor<2xf32>"),
        ("f64[2] constant({5, 5})", "dense<5.0> : tensor<2xf64>"),
        ("bf16[2] constant({1, -inf})", "dense<[1.0, 0xFF80]> : tensor<2xbf16>"),
        ("f8e4m3fn[2] constant({1, 448})", "dense<[0x38, 0x7E]> : tensor<2xf8E4M3FN>"),
        ("c64[2] constant({(1, 2), (3, inf)})", "dense<[(1.0, 2.0), (3.0, 0x7F800000)]> : tensor<2xcomplex<f32>>"),
        ("s32[2,2] constant({{1, 2}, {3, 4}})", "dense<[[1, 2], [3, 4]]> : tensor<2x2xi32>"),
        ("f32[0,3] constant({})", "dense<> : tensor<0x3xf32>"),
    ];
    for (instruction, expected) in cases {
        let lines = body(&format!("ROOT c = {instruction}")).unwrap();
        assert_eq!(lines[0], format!("%0 = stablehlo.constant {expected}"), "{instruction}");
    }
    let numbers: Vec<String> = (0..101).map(|number| number.to_string()).collect();
    let lines = body(&format!("ROOT c = u8[101] constant({{{}}})", numbers.join(", "))).unwrap();
    assert!(
        lines[0].starts_with("%0 = stablehlo.constant dense<\"0x000102") && lines[0].contains("6364\">"),
        "{lines:?}"
    );
}

#[test]
fn what_comes_first_is_waited_for() {
    let lines = body(
        "x = f32[2] parameter(0)
         a = f32[2] sine(x)
         b = f32[2] cosine(x), control-predecessors={a}
         ROOT t = (f32[2], f32[2]) tuple(a, b)",
    );
    let expected = [
        "%0 = stablehlo.sine %arg0 : tensor<2xf32>",
        "%1:2 = \"stablehlo.optimization_barrier\"(%arg0, %0) : (tensor<2xf32>, tensor<2xf32>) -> \
         (tensor<2xf32>, tensor<2xf32>)",
        "%2 = stablehlo.cosine %1#0 : tensor<2xf32>",
        "return %0, %2 : tensor<2xf32>, tensor<2xf32>",
    ];
    assert_eq!(lines.unwrap(), expected);
}

#[test]
fn later_opcodes_are_custom_calls() {
    let lines = body("x = f32[3,5] parameter(0)\nROOT t = (f32[3,2], s32[3,2]) topk(x), k=2, largest=true").unwrap();
    let expected = "%0:2 = \"stablehlo.custom_call\"(%arg0) <{call_target_name = \"mhlo.topk\"}> \
                    {mhlo.attributes = {k = 2 : i64, largest = true}, mhlo.version = 1 : i64} : (tensor<3x5xf32>) -> \
                    (tensor<3x2xf32>, tensor<3x2xi32>)";
    assert_eq!(lines[0], expected);
    let lines = body("x = f32[4] parameter(0)\nROOT t = f32[4] erf(x)").unwrap();
    assert!(lines[0].contains("call_target_name = \"mhlo.erf\"}> {mhlo.attributes = {}"), "{lines:?}");
}

#[test]
fn what_has_no_form_is_named() {
    let cases = [
        (
            "x = f32[4] parameter(0)\ns = f32[4] collective-permute-start(x), source_target_pairs={{0,1}}\n\
             ROOT d = f32[4] collective-permute-done(s)",
            "instruction \"s\" (collective-permute-start) of computation \"e\" has no form in StableHLO: asynchronous",
        ),
        ("x = f32[4] parameter(0)\nROOT b = s32[4] bitcast(x)", "a compiler's passes make it"),
        ("t = token[] after-all()\nROOT i = (f32[4], token[]) infeed(t)", "transfers to the host are not written"),
        (
            "x = f32[4] parameter(0)\nROOT c = f32[4] custom-call(x), custom_call_target=\"f\", \
             api_version=API_VERSION_TYPED_FFI, backend_config=\"a\"",
            "takes a dictionary",
        ),
    ];
    for (instructions, expected) in cases {
        let error = body(instructions).expect_err(instructions);
        assert!(error.contains(expected), "{error}");
    }
}

/// Two regions of each computation are the one below it: 2 to the power of 60 of the last.
#[test]
fn what_would_be_too_long_or_too_deep_is_an_error() {
    let chain = |levels: usize, uses: usize| {
        let mut text = String::from("HloModule m\n\nf0 { x = f32[] parameter(0)\n ROOT y = f32[] negate(x) }\n");
        for level in 1..=levels {
            let call = |index| format!(" y{index} = f32[] map(x), dimensions={{}}, to_apply=f{}\n", level - 1);
            let calls: String = (0..uses).map(call).collect();
            text += &format!("\nf{level} {{ x = f32[] parameter(0)\n{calls} ROOT z = f32[] negate(y0) }}\n");
        }
        text + &format!(
            "\nENTRY e {{ x = f32[] parameter(0)\n ROOT y = f32[] map(x), dimensions={{}}, to_apply=f{levels} }}\n"
        )
    };
    assert!(write(&module(&chain(40, 1)), &WriteOptions::default()).is_ok());
    let error = |levels, uses| write(&module(&chain(levels, uses)), &WriteOptions::default()).unwrap_err();
    assert!(matches!(error(80, 1), WriteError::Deep { .. }), "{}", error(80, 1));
    assert!(matches!(error(60, 2), WriteError::Long { .. }));
}
