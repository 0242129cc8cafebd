use meshloom::hlo::internals::opcodes;
use meshloom::hlo::parse::parse;
use meshloom::hlo::proto::{HloComputationProto, HloInstructionProto, HloModuleProto, ShapeProto};
use meshloom::hlo::stablehlo::{WriteError, WriteOptions, read, write, write_artifact};
use meshloom::hlo::text::{TextOptions, print};

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

/// The text of a module, and what is read of it, which has the same text.
fn there_and_back(text: &str) -> (String, String) {
    let written = write(&module(text), &WriteOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let found = read(written.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{written}")).hlo_module.unwrap();
    assert_eq!(write(&found, &WriteOptions::default()).as_ref(), Ok(&written));
    (written, print(&found, &TextOptions::canonical()).replace('%', ""))
}

/// Instructions whose text the reader could make something else of.
#[test]
fn what_is_read_has_the_same_text() {
    let cases = [
        ("erf(x)", "erf(x)"),
        ("tan(x)", "tan(x)"),
        ("exponential(x), result_accuracy={mode=highest}", "exponential(x), result_accuracy={mode=highest}"),
        (
            "tanh(x), result_accuracy={tolerance={atol=1e-05,rtol=0,ulps=2}}",
            "tanh(x), result_accuracy={tolerance={atol=1e-05,rtol=0,ulps=2}}",
        ),
        ("copy(x), sharding={replicated}", "custom-call(x), custom_call_target=\"Sharding\", sharding={replicated}"),
        ("rng(a, b), distribution=rng_uniform", "rng(a, b), distribution=rng_uniform"),
        (
            "batch-norm-inference(x, v, v, v, v), epsilon=1e-05, feature_index=1",
            "batch-norm-inference(x, v, v, v, v), epsilon=1e-05, feature_index=1",
        ),
    ];
    for (instruction, expected) in cases {
        let (written, found) = there_and_back(&format!(
            "HloModule m\n\nENTRY e {{\nx = f32[4,8] parameter(0)\na = f32[] parameter(1)\nb = f32[] parameter(2)\n\
             v = f32[8] parameter(3)\nROOT y = f32[4,8] {instruction}\n}}\n"
        ));
        let expected = expected.replace("(x", "(arg0").replace("(a, b", "(arg1, arg2").replace(", v", ", arg3");
        assert!(found.contains(&expected), "{written}\n{found}");
        assert_eq!(found.matches(" constant(").count(), 0, "{found}");
    }
    let several = [
        ("(f32[4,2], s32[4,2]) topk(x), k=2, largest=false", "k=2, largest=false"),
        (
            "(f32[4,8], f32[8], f32[8]) batch-norm-training(x, v, v), epsilon=0.5, feature_index=1",
            "epsilon=0.5, feature_index=1",
        ),
        (
            "(f32[4,8], f32[8], f32[8]) batch-norm-grad(x, v, v, v, x), epsilon=0.5, feature_index=1",
            "epsilon=0.5, feature_index=1",
        ),
    ];
    for (instruction, expected) in several {
        let (written, found) = there_and_back(&format!(
            "HloModule m\n\nENTRY e {{\nx = f32[4,8] parameter(0)\nv = f32[8] parameter(1)\nROOT y = {instruction}\n}}\n"
        ));
        assert!(found.contains(expected), "{written}\n{found}");
    }
}

/// A branch repeats small constants, a large splat is a scalar that is broadcast: as the reader has both.
#[test]
fn constants_are_where_the_reader_has_them() {
    let (written, found) = there_and_back(
        "HloModule m

one { t = (f32[], f32[40]) parameter(0)
  a = f32[] get-tuple-element(t), index=0
  b = f32[40] get-tuple-element(t), index=1
  c = f32[40] broadcast(a), dimensions={}
  ROOT s = f32[40] add(b, c) }

two { t = (f32[], f32[40]) parameter(0)
  ROOT b = f32[40] get-tuple-element(t), index=1 }

ENTRY e { p = pred[] parameter(0)
  a = f32[] constant(2)
  b = f32[40] constant({3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, \
         3, 3, 3, 3, 3, 3, 3, 3})
  t = (f32[], f32[40]) tuple(a, b)
  ROOT y = f32[40] conditional(p, t, t), true_computation=one, false_computation=two }
",
    );
    assert_eq!(written.matches("constant dense<2.0> : tensor<f32>").count(), 3, "{written}");
    assert!(written.contains("constant dense<3.0> : tensor<f32>"), "{written}");
    assert!(found.contains("f32[40] broadcast(constant.1), dimensions={}"), "{found}");
    assert!(found.contains("conditional(arg0, broadcast, broadcast)"), "{found}");
}

/// Functions may be called what the reader calls regions.
#[test]
fn functions_keep_their_names() {
    let (written, found) = there_and_back(
        "HloModule m

add { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y) }

reducer { x = f32[8] parameter(0)
  zero = f32[] constant(0)
  ROOT y = f32[] reduce(x, zero), dimensions={0}, to_apply=add }

reducer.1 { x = f32[8] parameter(0)
  ROOT y = f32[] call(x), to_apply=reducer, is_composite=true, frontend_attributes={composite.attributes={k = 1 : i64},\
      composite.name=\"a.b\",composite.version=\"3\"} }

ENTRY e { x = f32[8] parameter(0)
  ROOT y = f32[] call(x), to_apply=reducer.1 }
",
    );
    assert!(written.contains("func.func private @reducer.1(") && written.contains("@reducer("), "{written}");
    let composite = "is_composite=true, frontend_attributes={composite.attributes={k = 1 : i64},composite.name=\"a.b\",\
                     composite.version=\"3\"}";
    assert!(found.contains(composite), "{found}");
}

#[test]
fn layouts_are_read_back() {
    let header = "entry_computation_layout={(f32[2,3]{0,1}, f32[4]{0:S(5)})->(f32[2,3]{0,1}, f32[4]{0})}";
    let (written, found) = there_and_back(&format!(
        "HloModule m, {header}

ENTRY e {{ x = f32[2,3]{{1,0}} parameter(0)
  y = f32[4]{{0:S(5)}} parameter(1)
  z = f32[4]{{0}} negate(y)
  ROOT t = (f32[2,3]{{1,0}}, f32[4]{{0}}) tuple(x, z) }}
"
    ));
    assert_eq!(written.matches("mhlo.layout_mode = \"{0,1}\"").count(), 2, "{written}");
    assert!(written.contains("mhlo.memory_kind = \"pinned_host\""), "{written}");
    let module = read(written.as_bytes()).unwrap().hlo_module.unwrap();
    let text = print(&module, &TextOptions::parseable());
    assert!(text.contains(header) && text.contains("f32[4]{0:S(5)} parameter(1)"), "{text}\n{found}");
}

#[test]
fn aliases_are_read_back() {
    let (_, found) = there_and_back(
        "HloModule m, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, must-alias) }

ENTRY e { x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT t = (f32[], f32[]) tuple(x, y) }
",
    );
    let aliases = "input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, must-alias) }";
    assert!(found.contains(aliases), "{found}");
}

#[test]
fn opcodes_without_a_form() {
    let is_refused = |opcode: &&str| {
        let shape = Some(ShapeProto { element_type: 11, ..ShapeProto::default() });
        let instruction = HloInstructionProto { opcode: (*opcode).to_owned(), id: 1, shape, ..Default::default() };
        let computation = HloComputationProto { instructions: vec![instruction], root_id: 1, ..Default::default() };
        let module = HloModuleProto { computations: vec![computation], ..HloModuleProto::default() };
        let error = write(&module, &WriteOptions::default()).err();
        // These are the beginnings of the advice in the errors.
        let instead = [
            "a compiler's passes make it",
            "transfers to the host are not written",
            "asynchronous operations are made by a compiler's passes",
            "no op of StableHLO does the same",
        ];
        matches!(error, Some(WriteError::NoForm { reason, .. }) if instead.iter().any(|it| reason.starts_with(it)))
    };
    let refused: Vec<&str> = opcodes().filter(is_refused).collect();
    let expected = "add-dependency all-gather-done all-gather-start all-reduce-done all-reduce-start async-done \
                    async-start async-update bitcast collective-permute-done collective-permute-start copy-done \
                    copy-start domain dynamic-reshape fusion infeed mulhi outfeed ragged-all-to-all recv recv-done \
                    rng-get-and-update-state scaled-dot scan send send-done stochastic-convert";
    assert_eq!(refused.join(" "), expected);
}

/// The version of the artifact of an entry's body, as its first bytes state it, or the error.
fn artifact_version(instructions: &str, asked: Option<&str>) -> Result<String, String> {
    let text = format!("HloModule m\n\nENTRY e {{\n{instructions}\n}}\n");
    let version = asked.map(|version| version.parse().map_err(|error| format!("{error}"))).transpose()?;
    let written = write_artifact(&module(&text), &WriteOptions::default(), version);
    let written = written.map_err(|error| error.to_string())?;
    let (magic, rest) = written.split_at(4);
    assert_eq!(magic, b"ML\xefR");
    let maker = rest[1..].split(|&byte| byte == 0).next().unwrap();
    Ok(String::from_utf8(maker.to_vec()).unwrap())
}

#[test]
fn artifacts_have_the_oldest_version_that_knows_all() {
    let of = |opcode: &str, ty: &str| format!("x = {ty} parameter(0)\n ROOT y = {ty} {opcode}(x)");
    let version = |instructions: String, asked| artifact_version(&instructions, asked);
    assert_eq!(version(of("tanh", "f32[2]"), None), Ok("StableHLO_v1.0.0".to_owned()));
    assert_eq!(version(of("tan", "f32[2]"), None), Ok("StableHLO_v1.4.0".to_owned()));
    assert_eq!(version(of("negate", "s2[2]"), None), Ok("StableHLO_v1.2.0".to_owned()));
    assert_eq!(version(of("tan", "f32[2]"), Some("1.9.3")), Ok("StableHLO_v1.9.3".to_owned()));
    let refused = version(of("tan", "f32[2]"), Some("1.0.0")).unwrap_err();
    assert!(refused.contains("\"y\" (tan)") && refused.contains("came with version 1.4.0"), "{refused}");
    let refused = version(of("tan", "f32[2]"), Some("0.9.0")).unwrap_err();
    assert_eq!(refused, "expected a version from 1.0.0 to 1.20.0, found \"0.9.0\"");
    let call = "x = f32[2] parameter(0)\n ROOT y = f32[2] custom-call(x), custom_call_target=\"chlo.erf_inv\"";
    let refused = artifact_version(call, None).unwrap_err();
    assert!(refused.contains("stands for the op \"chlo.erf_inv\""), "{refused}");
}
