//! The threads in which virtual devices wait for each other.
#![cfg(target_os = "linux")]

use std::{env, fs};

use meshloom::hlo::parse::parse;
use meshloom::ir::Literal;
use meshloom::pjrt::{Array, Client, ClientOptions, CompileOptions, PjrtError, ShardLayout};
use prost::Message;
use support::program::test_alone;

/// Runs one of the ignored tests below in a process of its own.
fn run_alone(test: &str, threads: &str) -> String {
    let output = test_alone(module_path!(), test).env("PJRT_NPROC", threads).output().expect("a child process");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    text.into_owned()
}

/// A client of eight devices that are in at most two collectives at once.
fn for_two_at_once() -> Client {
    let options = ClientOptions { device_count: Some(8), collectives_at_once: Some(2), ..ClientOptions::default() };
    Client::open(&options).expect("a client of eight devices")
}

/// Eight devices have threads to wait in, however few the environment asks for. It stays as it is.
#[test]
fn devices_have_threads_to_wait_in() {
    for (given, expected) in [("3", 9), ("40", 40)] {
        let text = run_alone("child_threads", given);
        assert!(text.contains(&format!("{expected} threads, PJRT_NPROC={given}\n")), "{text}");
    }
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_threads() {
    let _client = for_two_at_once();
    let tasks = fs::read_dir("/proc/self/task").expect("threads").flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    let count = names.filter(|name| name.starts_with("tf_XLAEigen")).count();
    println!("{count} threads, PJRT_NPROC={}", env::var("PJRT_NPROC").expect("set"));
}

/// Three loops that do not need each other, each with a collective: a device goes on to the next before it is done with
/// one. The program is refused where it could wait forever, and runs with the threads that the error asks for.
#[test]
fn programs_that_could_wait_forever_are_refused() {
    let refused = run_alone("child_loops", "9");
    let expected = "each of the 8 devices of program \"three\" is in up to 3 collectives at once, which takes 17 threads, \
                    and the client has 9; create it with `ClientOptions::collectives_at_once` of 3, or set the environment \
                    variable PJRT_NPROC to 17 or more";
    assert!(refused.contains(expected), "{refused}");
    let run = run_alone("child_loops", "17");
    // Eight devices add up the value ten times.
    assert!(run.contains(&format!("computed {}\n", 8f32.powi(10))), "{run}");
}

#[test]
#[ignore = "run by the test above, in a process of its own"]
fn child_loops() {
    const LOOPS: &str = "HloModule three
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT added = f32[] add(a, b) }
body {
  state = (s32[], s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  last = s32[] get-tuple-element(state), index=1
  value = f32[4] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  sum = f32[4] all-reduce(value), replica_groups={}, to_apply=add
  ROOT result = (s32[], s32[], f32[4]) tuple(next, last, sum)
}
condition {
  before = (s32[], s32[], f32[4]) parameter(0)
  j = s32[] get-tuple-element(before), index=0
  end = s32[] get-tuple-element(before), index=1
  ROOT less = pred[] compare(j, end), direction=LT
}
ENTRY main {
  n = s32[] parameter(0)
  x = f32[4] parameter(1)
  zero = s32[] constant(0)
  two = f32[] constant(2)
  y = f32[4] broadcast(two), dimensions={}
  x2 = f32[4] multiply(x, y)
  x3 = f32[4] add(x2, y)
  s1 = (s32[], s32[], f32[4]) tuple(zero, n, x)
  s2 = (s32[], s32[], f32[4]) tuple(zero, n, x2)
  s3 = (s32[], s32[], f32[4]) tuple(zero, n, x3)
  w1 = (s32[], s32[], f32[4]) while(s1), condition=condition, body=body
  w2 = (s32[], s32[], f32[4]) while(s2), condition=condition, body=body
  w3 = (s32[], s32[], f32[4]) while(s3), condition=condition, body=body
  r1 = f32[4] get-tuple-element(w1), index=2
  r2 = f32[4] get-tuple-element(w2), index=2
  r3 = f32[4] get-tuple-element(w3), index=2
  ROOT all = (f32[4], f32[4], f32[4]) tuple(r1, r2, r3)
}";
    let module = parse(LOOPS).expect("it is well-formed").hlo_module.expect("a module").encode_to_vec();
    let client = for_two_at_once();
    let program = match client.compile(&module, &CompileOptions { num_replicas: 8, ..CompileOptions::default() }) {
        Err(error @ PjrtError::TooFewThreads { .. }) => return println!("{error}"),
        program => program.expect("it compiles"),
    };
    let put =
        |literal: Literal| Array::put(&client, &literal, &ShardLayout::replicated(&literal.ty().dims, 8)).expect("put");
    let [n, x] = [Literal::scalar(10i32), Literal::from_slice(&[4], &[1f32; 4]).expect("four elements")].map(put);
    let results = program.run(&[&n, &x], &[x.spec(), x.spec(), x.spec()]).expect("it runs");
    println!("computed {}", results[0].get().expect("a value").to_vec::<f32>().expect("floats")[0]);
}
