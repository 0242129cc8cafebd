//! Programs call functions of this process, by typed FFI.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use meshloom::hlo::parse::parse;
use meshloom::ir::Literal;
use meshloom::pjrt::*;
use prost::Message;
use support::plugins::cpu_clients;

struct Double;

static CALLS: AtomicUsize = AtomicUsize::new(0);

impl ForeignFunction for Double {
    const NAME: &'static str = "meshloom_test_double";

    /// A call goes on when this has returned.
    fn call(call: ForeignCall) {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            double(call);
        });
    }
}

fn double(mut call: ForeignCall) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let (operands, _) = call.buffers();
    let input: Vec<f32> = operands[0].bytes.as_chunks::<4>().0.iter().map(|four| f32::from_ne_bytes(*four)).collect();
    let is_square = operands[0].dims == [2, 2];
    if input.iter().any(|value| *value < 0.0) {
        return call.finish(Err(CallFailure { code: ErrorCode::Unavailable, message: "a peer is gone".to_owned() }));
    }
    // A call that is dropped unfinished is an error of the program, too.
    if !is_square || call.attribute("by") != Some("two") {
        return;
    }
    let (_, mut results) = call.buffers();
    for (out, value) in results[0].bytes.chunks_exact_mut(4).zip(input) {
        out.copy_from_slice(&(2.0 * value).to_ne_bytes());
    }
    call.finish(Ok(()));
}

#[test]
fn on_every_cpu_plugin() {
    let text = "HloModule double, entry_computation_layout={(f32[2,2]{1,0})->f32[2,2]{1,0}}

ENTRY %main (x: f32[2,2]) -> f32[2,2] {
  %x = f32[2,2]{1,0} parameter(0)
  %y = f32[2,2]{1,0} custom-call(%x), custom_call_target=\"meshloom_test_double\", custom_call_has_side_effect=true, api_version=API_VERSION_TYPED_FFI, backend_config={by = \"two\"}
  ROOT %z = f32[2,2]{1,0} add(%y, %x)
}
";
    let module = parse(text).unwrap_or_else(|error| panic!("{error}")).hlo_module.expect("a module").encode_to_vec();
    for (name, client) in cpu_clients() {
        client.plugin().register::<Double>().unwrap_or_else(|error| panic!("{name}: {error}"));
        let compiled = client.compile(&module, &CompileOptions::default());
        let executable = compiled.unwrap_or_else(|error| panic!("{name}: {error}"));
        let run = |values: [f32; 4]| {
            let literal = Literal::from_slice(&[2, 2], &values).expect("four");
            let x = Buffer::from_literal(client, &literal, 0).expect("put");
            let outputs = executable.execute(&[vec![x]], &ExecuteOptions::default())?;
            outputs[0][0].to_literal()
        };
        let before = CALLS.load(Ordering::Relaxed);
        let found = run([1.0, 2.0, 3.0, 4.0]).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(found, Literal::from_slice(&[2, 2], &[3.0f32, 6.0, 9.0, 12.0]).expect("four"), "{name}");
        assert_eq!(CALLS.load(Ordering::Relaxed), before + 1, "{name}");
        let failed = run([-1.0, 0.0, 0.0, 0.0]).expect_err("it fails").to_string();
        assert!(failed.contains("a peer is gone"), "{name}: {failed}");
    }
}
