//! Random numbers, sorting, selection, grouped products and convolutions as a user calls them, against JAX's values
//! (tests/oracle/library.safetensors), and what a draw costs in nodes.

use std::collections::BTreeMap;

use meshloom::compile::{LowerOptions, compile, lower};
use meshloom::ir::{DType, Graph, Literal, TensorType};
use meshloom::ops::{CustomCall, CustomCallApi};
use meshloom::pjrt::Client;
use meshloom::trace::*;
use meshloom_nn::{Dropout, dropout};
use safetensors::{Dtype, SafeTensors};
use support::anchored::run;
use support::cases::every_case;

/// Returns the last stored tensors of a case, as traced ones. `x` are all its stored tensors, the inputs first.
fn computation(case: &str, key: Key<Tensor>, x: &[Tensor]) -> Option<Vec<Tensor>> {
    let (kind, suffix) = case.rsplit_once('_').unwrap_or((case, ""));
    let dtype = DType::from_name(suffix).unwrap_or(DType::F32);
    let one = match (kind, case) {
        ("uniform", _) => key.uniform(dtype, [4, 6]),
        // Scaled exactly: on CPUs with arithmetic of f16, XLA may multiply and add in one rounding.
        ("uniform_in", "uniform_in_f16") => key.uniform_in(dtype, [4, 6], -2.0..2.0),
        ("uniform_in", _) => key.uniform_in(dtype, [4, 6], -2.0..3.0),
        ("normal", _) => key.normal(dtype, [16, 16]),
        ("gumbel", _) => key.gumbel(dtype, [4, 6]),
        ("exponential", _) => key.exponential(dtype, [4, 6]),
        ("truncated_normal", _) => key.truncated_normal(dtype, [16, 16], -1.0..2.0),
        ("fold_in", _) => key.fold_in(suffix.parse::<u32>().ok()?).into_data(),
        (_, "bits_scalar") => key.bits(DType::U32, []),
        (_, "bits_rank4") => key.bits(DType::U32, [2, 1, 3, 4]),
        ("bits", _) => key.bits(dtype, [3, 5]),
        (_, "key") => Key::new(0x1234_5678_9abc_def0).into_data(),
        (_, "split") => {
            let keys: [Key<Tensor>; 5] = key.split();
            stack(&keys.map(Key::into_data), 0)
        }
        (_, "bernoulli") => key.bernoulli(0.3, [64]),
        (_, "categorical") => {
            let logits: Vec<f32> = (0..30).map(|index| (-2.0 + 4.0 / 29.0 * f64::from(index)) as f32).collect();
            key.categorical(constant(Literal::from_slice(&[6, 5], &logits).ok()?))
        }
        (_, "randint_s32") => key.randint(DType::S32, [24], -5..17),
        (_, "randint_s32_whole") => key.randint(DType::S32, [24], i32::MIN.into()..1 << 31),
        (_, "randint_s32_empty") => key.randint(DType::S32, [24], 4..4),
        (_, "randint_u32") => key.randint(DType::U32, [24], 3..4_000_000_000),
        (_, "randint_u8") => key.randint(DType::U8, [24], 0..256),
        (_, "randint_s8") => key.randint(DType::S8, [24], -128..100),
        (_, "randint_s64") => key.randint(DType::S64, [24], -1_000_000_000_000_000..100_000_000_000_000_000),
        (_, "randint_u64") => key.randint(DType::U64, [24], 1..1_000_000_000_000_000_000),
        (_, "permutation") => key.permutation(100),
        (_, "shuffle") => key.shuffle(arange(DType::F32, 14).reshape([7, 2])),
        (_, "argsort_descending") => x[0].argsort_descending(-1),
        (_, "sort") => {
            let positions = iota(DType::S32, x[0].dims(), 1);
            return Some(sort_together(&[x[0], positions], 1, 1));
        }
        (_, "sort_two_keys") => {
            let positions = iota(DType::S32, x[0].dims(), 1);
            return Some(sort_together(&[x[0], x[1], positions], -1, 2));
        }
        (_, "top_k") => {
            let (values, places) = x[0].top_k(12);
            return Some(vec![values, places]);
        }
        ("ragged_rows", _) => ragged_dot(x[0], x[1], x[2]),
        // The gradient in the matrices is the contracted form.
        ("ragged_contracted", _) => {
            let [groups] = x[2].shape();
            let matrices = zeros(DType::F32, [groups, x[0].dim(1), x[1].dim(1)]);
            vjp(matrices, |matrices| ragged_dot(x[0], matrices, x[2]), |_| x[1]).1
        }
        (_, "causal_depthwise") => causal_depthwise_convolution(x[0], x[1]),
        _ => return None,
    };
    Some(vec![one])
}

/// Relative error allowed; 0 for equal bits (but for NaN). Logarithms and roots are the backend's own.
fn tolerance(case: &str) -> f64 {
    match case.rsplit_once('_') {
        Some(("normal" | "gumbel", "bf16")) => 2f64.powi(-8),
        Some(("normal" | "gumbel", "f16")) => 2f64.powi(-10),
        Some(("normal" | "gumbel" | "truncated_normal" | "exponential", "f32")) => 1e-6,
        Some(("normal" | "gumbel" | "truncated_normal" | "exponential", "f64")) => 1e-14,
        _ => 0.0,
    }
}

fn difference(found: &Literal, expected: &Literal, tolerance: f64) -> Option<String> {
    if found.ty() != expected.ty() {
        return Some(format!("expected {}, found {}", expected.ty(), found.ty()));
    }
    if tolerance == 0.0 && found.bytes() == expected.bytes() {
        return None;
    }
    let pairs = found.to_f64_vec().into_iter().zip(expected.to_f64_vec()).enumerate();
    for (index, (found, expected)) in pairs {
        let exact = found.to_bits() == expected.to_bits();
        let near = tolerance > 0.0 && (found - expected).abs() <= tolerance * expected.abs();
        if !(exact || near || found.is_nan() && expected.is_nan()) {
            return Some(format!("element {index} is {found:?} instead of {expected:?}"));
        }
    }
    None
}

fn stored() -> BTreeMap<String, Vec<Literal>> {
    let bytes = std::fs::read(support::path("tests/oracle/library.safetensors")).expect("the file");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let literal = |name: &str| {
        let view = file.tensor(name).ok()?;
        let dtype = match view.dtype() {
            Dtype::BOOL => DType::Pred,
            Dtype::I8 => DType::S8,
            Dtype::I32 => DType::S32,
            Dtype::I64 => DType::S64,
            Dtype::U8 => DType::U8,
            Dtype::U16 => DType::U16,
            Dtype::U32 => DType::U32,
            Dtype::U64 => DType::U64,
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            other => panic!("{name} is of type {other:?}"),
        };
        Literal::from_bytes(TensorType::new(dtype, view.shape()), view.data()).ok()
    };
    let mut cases = BTreeMap::new();
    for name in file.names() {
        let case = name.split('.').next().expect("a case").to_owned();
        let tensors = (0..).map_while(|index| literal(&format!("{case}.{index}"))).collect();
        cases.insert(case, tensors);
    }
    cases
}

#[test]
fn values_are_those_of_jax() {
    let cases = stored();
    assert!(cases.len() >= 50, "only {} cases", cases.len());
    let tensors: Vec<Literal> = cases.values().flatten().cloned().collect();
    let specs: Vec<TensorSpec> =
        tensors.iter().map(|tensor| TensorSpec::new(tensor.ty().dtype, &tensor.ty().dims)).collect();
    let mut counts = Vec::new();
    let function = Function::trace("library", (Key::spec(), specs), |(key, tensors)| {
        let mut tensors = &tensors[..];
        let mut outputs = Vec::new();
        for (case, stored) in &cases {
            let (own, rest) = tensors.split_at(stored.len());
            tensors = rest;
            let results = computation(case, key, own).unwrap_or_else(|| panic!("case {case} is not computed"));
            counts.push(results.len());
            outputs.extend(results);
        }
        outputs
    });
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    let compiled = compile(&function, &Client::cpu(1).expect("a client"), &LowerOptions::default()).expect("compiles");
    let outputs = compiled.call(&(Key::from_seed(42), tensors)).expect("runs");
    let mut outputs = outputs.into_iter();
    let mut problems = Vec::new();
    for ((case, stored), count) in cases.iter().zip(counts) {
        for (index, expected) in stored[stored.len() - count..].iter().enumerate() {
            let found = outputs.next().expect("as many outputs");
            let difference = difference(&found, expected, tolerance(case));
            problems.extend(difference.map(|difference| format!("{case} {index}: {difference}")));
        }
    }
    assert!(problems.is_empty(), "{} problems\n{}", problems.len(), problems.join("\n"));
}

/// Nodes of a function of a key.
fn nodes(draw: impl FnOnce(Key<Tensor>) -> Tensor) -> usize {
    let function = Function::trace("draw", Key::spec(), draw).unwrap_or_else(|error| panic!("{error}"));
    function.graph().total_node_count()
}

/// A draw is as many nodes whatever its sizes; two more for each further dimension and its stride.
#[test]
fn draws_cost_the_same_whatever_the_shape() {
    type Draw = fn(Key<Tensor>, &[usize]) -> Tensor;
    let draws: [(&str, Draw, usize); 5] = [
        ("bits", |key, dims| key.bits(DType::U32, dims), 14),
        ("uniform", |key, dims| key.uniform(DType::F32, dims), 21),
        ("bernoulli", |key, dims| key.bernoulli(0.1, dims), 23),
        ("normal", |key, dims| key.normal(DType::F32, dims), 30),
        ("gumbel", |key, dims| key.gumbel(DType::F32, dims), 31),
    ];
    let mut found = Vec::new();
    for (name, draw, expected) in draws {
        let count = nodes(|key| draw(key, &[2, 3]));
        assert_eq!(nodes(|key| draw(key, &[4096, 8192])), count, "{name}");
        assert_eq!(nodes(|key| draw(key, &[4096, 2, 8192])), count + 4, "{name}");
        found.push((name, count, expected));
    }
    let differing: Vec<_> = found.iter().filter(|(_, count, expected)| count != expected).collect();
    assert!(differing.is_empty(), "{differing:?}");
}

/// Keys and types that do not fit are refused by name.
#[test]
fn wrong_draws_are_refused_by_name() {
    let refusal = |draw: fn(Key<Tensor>) -> Tensor| {
        Function::trace("refused", Key::spec(), draw).map(drop).expect_err("no draw").to_string()
    };
    type Draw = fn(Key<Tensor>) -> Tensor;
    let cases: [(Draw, &str); 6] = [
        (|key| key.split_stacked(3).uniform(DType::F32, []), "one key, u32[2]; run over a stack of keys with `scan`"),
        (|key| key.uniform(DType::S32, []), "the type of a random number: expected bf16, f16, f32 or f64, found s32"),
        (|key| key.bits(DType::F32, []), "the type of random bits: expected an unsigned integer type, found f32"),
        (|key| key.randint(DType::F32, [], 0..3), "the type of random integers: expected an integer type, found f32"),
        (|_| Key::from_data(zeros(DType::S32, [2])).into_data(), "the words of a key: expected u32[2], found s32[2]"),
        (|key| key.shuffle(zeros(DType::F32, [])), "what is shuffled: expected a tensor with a dimension, found f32[]"),
    ];
    for (draw, message) in cases {
        let error = refusal(draw);
        assert!(error.contains(message), "{error:?} has no {message:?}");
        assert!(error.contains("tests/compiler/library.rs"), "{error:?} does not say where");
    }
}

/// A scan over a stack of keys draws what the keys draw one by one.
#[test]
fn a_scan_runs_over_keys() {
    let function = Function::trace("scanned", Key::spec(), |key| {
        let (_, scanned) = scan(zeros(DType::F32, []), key.split_stacked(4), |sum, key: Key<Tensor>| {
            (sum, key.normal(DType::F32, [3]))
        });
        let keys: [Key<Tensor>; 4] = key.split();
        (scanned, stack(&keys.map(|key| key.normal(DType::F32, [3])), 0))
    });
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    let found = support::run(function.graph(), &Key::from_seed(1).leaves());
    assert_eq!(found[0], found[1]);
}

/// A batch of keys draws the values that the keys draw one by one; so does a batch of any other argument of a draw.
#[test]
fn draws_are_batched() {
    let function = Function::trace("batched", Key::spec(), |key| {
        let keys = key.split_stacked(3);
        let apart: [Key<Tensor>; 3] = key.split();
        let logits = key.fold_in(9).normal(DType::F32, [3, 5]);
        let batched = vmap((keys, logits), |(key, logits): (Key<Tensor>, Tensor)| {
            let [first, second] = key.split();
            (first.normal(DType::F32, [2, 2]), second.permutation(6), key.fold_in(4).categorical(logits))
        });
        let mut index = 0;
        let each = apart.map(|key| {
            let [first, second] = key.split();
            let own = logits.index(index);
            index += 1;
            [first.normal(DType::F32, [2, 2]), second.permutation(6), key.fold_in(4).categorical(own)]
        });
        let stacked = [0, 1, 2].map(|part| stack(&each.map(|drawn| drawn[part]), 0));
        (vec![batched.0, batched.1, batched.2], stacked.to_vec())
    });
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    let found = support::run(function.graph(), &Key::from_seed(3).leaves());
    assert_eq!(found[..3], found[3..]);
}

/// Dropped elements are zero, the rest is scaled up, and the gradient is dropped alike; folding in another number drops
/// other elements. Rows that are worked on together with others, in another order, drop the same elements; equal rows
/// drop others.
#[test]
fn dropout_goes_by_the_number_of_a_row() {
    let spec = |count: usize| {
        (Key::spec(), (TensorSpec::new(DType::F32, [count, 4, 8]), TensorSpec::new(DType::S32, [count])))
    };
    let of = |numbers: &[i32]| {
        let count = numbers.len();
        let function = Function::trace("dropout", spec(count), |(key, (x, rows))| {
            Dropout { rate: 0.5, attention_rate: 0.0, key, rows }.apply(x)
        });
        let function = function.unwrap_or_else(|error| panic!("{error}"));
        let ones = Literal::from_fn(TensorType::new(DType::F32, &[count, 4, 8]), |_| 1.0);
        let inputs = (Key::from_seed(5), (ones, Literal::vector(numbers)));
        let rows = run(function.graph(), &inputs.leaves())[0].to_vec::<f32>().expect("f32");
        rows.chunks(32).map(<[f32]>::to_vec).collect::<Vec<_>>()
    };
    let whole = of(&[0, 1, 2, 3, 4, 5]);
    assert_eq!(of(&[4, 1]), [whole[4].clone(), whole[1].clone()]);
    assert_eq!(of(&[3]), [whole[3].clone()]);
    // Row 0 alone is the plain draw, which golden files hold.
    let plain = Function::trace("dropout", spec(1), |(key, (x, _))| dropout(x, 0.5, key));
    let ones = Literal::from_fn(TensorType::new(DType::F32, &[1, 4, 8]), |_| 1.0);
    let inputs = (Key::from_seed(5), (ones, Literal::vector(&[7i32])));
    let first = run(plain.expect("it traces").graph(), &inputs.leaves());
    assert_eq!(first[0].to_vec::<f32>().expect("f32"), whole[0]);
    assert!((0..6).all(|row| (0..row).all(|other| whole[row] != whole[other])), "rows drop alike: {whole:?}");
    let wrong = Function::trace("dropout", spec(3), |(key, (x, rows))| {
        Dropout { rate: 0.5, attention_rate: 0.0, key, rows: rows.slice(0, 0..2) }.apply(x)
    });
    let message = wrong.expect_err("two numbers for three rows").to_string();
    assert!(message.contains("for each row of at most 2^32 elements of u32[3,4,8] one number"), "{message}");
}

#[test]
fn dropout_keeps_its_share() {
    const COUNT: usize = 4096;
    let specs = (Key::spec(), TensorSpec::new(DType::F32, [COUNT]));
    let function = Function::trace("dropout", specs, |(key, x)| {
        let first = Dropout { rate: 0.25, attention_rate: 0.0, key, rows: arange(DType::U32, COUNT) };
        let gradient = grad(x, |x| first.at(1).apply(x).sum(..));
        vec![first.at(1).apply(x), gradient, first.at(2).apply(x), dropout(x, 0.0, key), dropout(x, 1.0, key)]
    });
    let function = function.unwrap_or_else(|error| panic!("{error}"));
    let ones = Literal::vector(&[1f32; COUNT]);
    let outputs = run(function.graph(), &(Key::from_seed(5), ones.clone()).leaves());
    let values: Vec<f32> = outputs[0].to_vec().expect("f32");
    assert!(values.iter().all(|&value| value == 0.0 || value == 1.0 / 0.75), "{values:?}");
    let kept = values.iter().filter(|&&value| value > 0.0).count();
    // Binomial: a deviation of 28.
    assert!(kept.abs_diff(COUNT * 3 / 4) < 5 * 28, "{kept} of {COUNT} are kept");
    assert_eq!(outputs[1], outputs[0]);
    let both: Vec<f32> = outputs[2].to_vec().expect("f32");
    let agreeing = values.iter().zip(&both).filter(|(first, second)| first == second).count();
    // Independent draws agree where both keep or both drop: 10/16 of the places.
    assert!(agreeing.abs_diff(COUNT * 10 / 16) < 5 * 31, "{agreeing} of {COUNT} agree");
    assert_eq!(outputs[3], ones);
    assert_eq!(outputs[4], Literal::vector(&[0f32; COUNT]));
}

/// A custom call that does something besides returning results stays: unread, twice the same, and in a loop where it
/// was.
#[test]
fn side_effects_are_kept() {
    let calls = |has_side_effect: bool| {
        let call = CustomCall {
            api: CustomCallApi::StatusReturning,
            has_side_effect,
            ..CustomCall::new("TopK", [TensorType::new(DType::F32, &[2, 2]), TensorType::new(DType::S32, &[2, 2])])
        };
        let function = Function::trace("effects", TensorSpec::new(DType::F32, [2, 5]), |x| {
            custom_call(call.clone(), &[x]);
            custom_call(call.clone(), &[x]);
            let count = |sum: Tensor, number: Tensor| {
                custom_call(call.clone(), &[x]);
                (sum + number, ())
            };
            scan(zeros(DType::F32, []), arange(DType::F32, 3), count).0
        });
        let function = function.unwrap_or_else(|error| panic!("{error}"));
        let lowered = lower(function.graph(), &LowerOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        if has_side_effect || every_case("compiler side effects") {
            lowered.compile(&Client::cpu(1).expect("a client")).expect("compiles");
        }
        let of = |graph: &Graph| graph.nodes().filter(|node| node.op().name() == "custom-call").count();
        let inside =
            lowered.graph().nodes().flat_map(|node| node.op().regions().map(|body| of(body)).collect::<Vec<_>>());
        [of(lowered.graph()), inside.sum()]
    };
    assert_eq!(calls(true), [2, 1]);
    assert_eq!(calls(false), [0, 0]);
}
