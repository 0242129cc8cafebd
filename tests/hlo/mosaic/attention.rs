//! The kernels of attention, interpreted, against attention written down plainly.

use super::numbers::{Random, assert_near, bound, distance};
use meshloom::hlo::DType;
use meshloom_mosaic::KernelError;
use meshloom_mosaic::attention::{Attention, Blocks, EDGE, LOWEST, Order, Pairs};
use support::cases::cases;
use support::interpret::mosaic::{Array, run, run_kernel};

/// The number of entries of the lists after the pairs that count.
const SPARE: usize = 2;

/// An attention of one block of each, without options.
fn plain(dtype: DType, queries: usize, keys: usize) -> Attention {
    Attention {
        dtype,
        batch: 1,
        heads: 2,
        kv_heads: 2,
        queries,
        keys,
        width: 16,
        value_width: 16,
        blocks: Blocks { query: queries.min(128), key: keys.min(128) },
        scale: 0.5,
        causal: false,
        window: None,
        softcap: None,
        segments: false,
        places: false,
        sinks: false,
    }
}

/// The operands of an attention.
struct Input {
    query: Array,
    key: Array,
    value: Array,
    cotangent: Array,
    /// The segments of queries and of keys, `[batch, ..]`.
    segments: [Vec<f64>; 2],
    sinks: Vec<f64>,
    /// The place of the first token of each block of queries and of keys.
    starts: [Vec<i32>; 2],
    /// The place of each token of queries and of keys, all rows alike.
    places: [Vec<i32>; 2],
}

impl Input {
    fn new(of: &Attention, seed: u64) -> Input {
        let random = &mut Random::new(seed);
        let mut array = |heads, length, width| random.array(of.dtype, &[of.batch, heads, length, width]);
        let (query, key) = (array(of.heads, of.queries, of.width), array(of.kv_heads, of.keys, of.width));
        let value = array(of.kv_heads, of.keys, of.value_width);
        let cotangent = array(of.heads, of.queries, of.value_width);
        // Long runs of equal segments; only queries or only keys have some of them.
        let mut segments = |length: usize, offset: usize| -> Vec<f64> {
            let run = length / 3 + 1;
            (0..of.batch)
                .flat_map(|_| {
                    let shift = random.below(run);
                    (0..length).map(move |index| ((index + shift) / run + offset) as f64)
                })
                .collect()
        };
        let segments = [segments(of.queries, 0), segments(of.keys, 1)];
        let sinks = random.array(DType::F32, &[of.heads]).data().to_vec();
        let input =
            Input { query, key, value, cotangent, segments, sinks, starts: of.starts(), places: [vec![], vec![]] };
        let starts = of.starts();
        input.starting_at(of, starts)
    }

    /// With other first places of blocks.
    fn starting_at(mut self, of: &Attention, starts: [Vec<i32>; 2]) -> Input {
        self.places = [Input::places(&starts[0], of.blocks.query), Input::places(&starts[1], of.blocks.key)];
        self.starts = starts;
        self
    }

    fn places(starts: &[i32], block: usize) -> Vec<i32> {
        starts.iter().flat_map(|&start| (0..block as i32).map(move |index| start + index)).collect()
    }

    fn pairs(&self, of: &Attention, order: Order) -> Pairs {
        if of.places {
            return Input::all_pairs(of, order);
        }
        of.pairs(&self.starts[0], &self.starts[1], order).expect("pairs")
    }

    /// The operands that all kernels take first.
    fn operands(&self, of: &Attention, pairs: &Pairs) -> Vec<Array> {
        let mut operands = Vec::new();
        let mut lists = [&pairs.query_block, &pairs.key_block, &pairs.flags].map(Clone::clone).to_vec();
        if of.places {
            operands.push(Array::new(DType::S32, &[], &[pairs.len() as f64]));
            // A kernel that read the entries after the counted pairs would leave the arrays.
            lists.iter_mut().for_each(|list| list.extend([i32::MAX; SPARE]));
        } else {
            lists.extend(self.starts.clone());
        }
        operands.extend(lists.iter().map(|list| Array::scalars(list)));
        operands.extend([&self.query, &self.key, &self.value].map(Array::clone));
        let dims = [[of.batch, 1, of.queries], [of.batch, of.keys, 1]];
        let mut of_tokens = |numbers: &[Vec<f64>; 2]| {
            let arrays = dims.iter().zip(numbers).map(|(dims, data)| Array::new(DType::S32, dims, data));
            operands.extend(arrays);
        };
        if of.segments {
            of_tokens(&self.segments);
        }
        if of.places {
            let of_all = |places: &Vec<i32>| places.repeat(of.batch).into_iter().map(f64::from).collect();
            of_tokens(&[of_all(&self.places[0]), of_all(&self.places[1])]);
        }
        operands
    }

    /// All pairs of blocks, with the flags that are right whatever the places are.
    fn all_pairs(of: &Attention, order: Order) -> Pairs {
        let blind = Attention { causal: false, window: None, ..of.clone() };
        let [query, key] = of.starts();
        let mut pairs = blind.pairs(&query, &key, order).expect("pairs");
        pairs.flags.iter_mut().for_each(|flags| *flags |= EDGE);
        pairs
    }
}

/// The results of an attention and of its gradient.
struct Output {
    mixed: Vec<f64>,
    log_total: Vec<f64>,
    /// The cotangents of query, key and value.
    cotangents: [Vec<f64>; 3],
}

/// Attention written down plainly, in `f64`.
fn reference(of: &Attention, input: &Input) -> Output {
    let (width, value_width) = (of.width, of.value_width);
    let places = &input.places;
    let [query, key, value, given] = [&input.query, &input.key, &input.value, &input.cotangent].map(Array::data);
    let mut output = Output {
        mixed: vec![0.0; given.len()],
        log_total: vec![f64::from(LOWEST); given.len() / value_width],
        cotangents: [query, key, value].map(|operand| vec![0.0; operand.len()]),
    };
    for (row, log_total) in output.log_total.iter_mut().enumerate() {
        let (head, t) = (row / of.queries, row % of.queries);
        let (batch, head) = (head / of.heads, head % of.heads);
        let first = (batch * of.kv_heads + head / of.group()) * of.keys;
        let seen = |s: &usize| {
            let apart = places[0][t] - places[1][*s];
            (!of.causal || apart >= 0)
                && of.window.is_none_or(|window| apart < window as i32)
                && (!of.segments || input.segments[0][batch * of.queries + t] == input.segments[1][batch * of.keys + s])
        };
        let keys: Vec<usize> = (0..of.keys).filter(seen).map(|s| first + s).collect();
        let q = &query[row * width..][..width];
        let products: Vec<f64> = keys.iter().map(|s| dot(q, &key[s * width..]) * f64::from(of.scale)).collect();
        let bent = |x: f64| of.softcap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh());
        let scores: Vec<f64> = products.iter().map(|&x| bent(x)).collect();
        let sink = of.sinks.then(|| input.sinks[head]);
        let highest = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
        if highest == f64::NEG_INFINITY {
            continue;
        }
        let total: f64 = scores.iter().copied().chain(sink).map(|x| (x - highest).exp()).sum();
        *log_total = highest + total.ln();
        let weights: Vec<f64> = scores.iter().map(|x| (x - *log_total).exp()).collect();
        let ct = &given[row * value_width..][..value_width];
        let flows: Vec<f64> = keys.iter().map(|s| dot(ct, &value[s * value_width..])).collect();
        let flow = dot(&weights, &flows);
        for (index, &s) in keys.iter().enumerate() {
            add(&mut output.mixed[row * value_width..], &value[s * value_width..][..value_width], weights[index]);
            add(&mut output.cotangents[2][s * value_width..], ct, weights[index]);
            let slope = of.softcap.map_or(1.0, |cap| 1.0 - (scores[index] / f64::from(cap)).powi(2));
            let back = weights[index] * (flows[index] - flow) * slope * f64::from(of.scale);
            add(&mut output.cotangents[0][row * width..], &key[s * width..][..width], back);
            add(&mut output.cotangents[1][s * width..], q, back);
        }
    }
    output
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sums: &mut [f64], numbers: &[f64], factor: f64) {
    sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += factor * number);
}

/// Runs the three kernels, the gradient on what the forward pass gave.
fn kernels(of: &Attention, input: &Input) -> Vec<Array> {
    let pairs = input.pairs(of, Order::Queries);
    let length = |pairs: &Pairs| pairs.len() + if of.places { SPARE } else { 0 };
    let forward = of.forward(length(&pairs)).expect("a kernel");
    let mut operands = input.operands(of, &pairs);
    if of.sinks {
        operands.push(Array::new(DType::F32, &[of.heads, 1, 1], &input.sinks));
    }
    let mut results = run_kernel(&forward, &operands);
    let rows = results[0].data().chunks(of.value_width).zip(input.cotangent.data().chunks(of.value_width));
    let flow: Vec<f64> = rows.map(|(mixed, ct)| dot(mixed, ct)).collect();
    let flow = Array::new(DType::F32, &results[1].ty().dims, &flow);
    let given = [input.cotangent.clone(), results[1].clone(), flow];
    for order in [Order::Queries, Order::Keys] {
        let pairs = input.pairs(of, order);
        let kernel = match order {
            Order::Queries => of.backward_queries(length(&pairs)),
            Order::Keys => of.backward_keys(length(&pairs)),
        };
        let operands: Vec<Array> = input.operands(of, &pairs).into_iter().chain(given.clone()).collect();
        let kernel = kernel.expect("a kernel");
        results.extend(run_kernel(&kernel, &operands));
    }
    results
}

#[track_caller]
fn check_input(what: &str, of: &Attention, input: &Input) {
    let results = kernels(of, input);
    let Output { mixed, log_total, cotangents: [query, key, value] } = reference(of, input);
    let names = ["mixed", "log_total", "query", "key", "value"];
    for ((name, actual), expected) in names.iter().zip(&results).zip([mixed, log_total, query, key, value]) {
        assert_near(&format!("{what}: {name} of {of:?}"), actual, &expected, bound(of.dtype));
    }
}

#[track_caller]
fn check(what: &str, of: &Attention) {
    check_input(what, of, &Input::new(of, 7));
}

const BOTH: [DType; 2] = [DType::F32, DType::BF16];

#[test]
fn one_block() {
    for dtype in BOTH {
        check("one block", &plain(dtype, 48, 32));
    }
}

#[test]
fn several_blocks() {
    for dtype in cases("hlo kernels of several blocks", 1, BOTH) {
        check("several blocks", &plain(dtype, 256, 384));
    }
}

#[test]
fn causal_in_blocks_of_several_sizes() {
    let causal = |dtype, length, [query, key]: [usize; 2]| Attention {
        causal: true,
        blocks: Blocks { query, key },
        ..plain(dtype, length, length)
    };
    let sizes = [[256, 64], [128, 256], [256, 16]].map(|sizes| causal(DType::F32, 512, sizes));
    let even = [causal(DType::BF16, 384, [128, 128]), causal(DType::F32, 512, [128, 128])];
    let all = sizes.into_iter().chain(even).chain([causal(DType::F32, 512, [512, 512])]);
    cases("hlo kernels by sizes of blocks", 2, all).iter().for_each(|of| check("causal", of));
}

#[test]
fn windows() {
    let causal = |dtype, window| Attention { causal: true, window: Some(window), ..plain(dtype, 384, 384) };
    let both_sides = Attention { window: Some(100), ..plain(DType::F32, 256, 384) };
    let all = [
        causal(DType::F32, 129),
        causal(DType::F32, 1),
        causal(DType::F32, 100),
        both_sides,
        causal(DType::F32, 128),
        causal(DType::BF16, 100),
        causal(DType::F32, 300),
    ];
    cases("hlo kernels with windows", 3, all).iter().for_each(|of| check("a window", of));
}

#[test]
fn softcap() {
    let all = BOTH.into_iter().flat_map(|dtype| {
        let causal = Attention { softcap: Some(30.0), causal: true, ..plain(dtype, 256, 256) };
        [Attention { softcap: Some(0.7), ..plain(dtype, 128, 256) }, causal]
    });
    cases("hlo kernels with softcaps", 2, all).iter().for_each(|of| check("softcap", of));
}

#[test]
fn sinks() {
    for dtype in BOTH {
        check("sinks", &Attention { sinks: true, causal: true, window: Some(40), ..plain(dtype, 256, 256) });
    }
}

#[test]
fn grouped_heads_and_wider_values() {
    let all = BOTH.into_iter().flat_map(|dtype| {
        let heads = Attention { batch: 2, heads: 6, kv_heads: 2, ..plain(dtype, 256, 256) };
        let wider = Attention { value_width: 40, causal: true, ..heads.clone() };
        let narrower = Attention { width: 24, value_width: 8, kv_heads: 1, ..heads.clone() };
        [heads, narrower, wider]
    });
    cases("hlo kernels by widths", 2, all).iter().for_each(|of| check("heads and widths", of));
}

/// Some queries see nothing: they give zeros, and pass nothing back.
#[test]
fn segments() {
    let all = BOTH.into_iter().rev().flat_map(|dtype| {
        let causal = Attention { segments: true, causal: true, sinks: true, ..plain(dtype, 256, 256) };
        [causal, Attention { batch: 2, segments: true, ..plain(dtype, 256, 384) }]
    });
    cases("hlo kernels with segments", 2, all).iter().for_each(|of| check("segments", of));
}

#[test]
fn random_forms() {
    for seed in cases("hlo kernels of random forms", 5, 0..24) {
        let random = &mut Random::new(seed + 3);
        let one_in = |random: &mut Random, n| random.below(n) == 0;
        let kv_heads = 1 + random.below(2);
        let blocks = Blocks { query: 128 * (1 + random.below(2)), key: 64 * (1 + random.below(3)) };
        let of = Attention {
            batch: 1 + random.below(2),
            heads: kv_heads * (1 + random.below(3)),
            kv_heads,
            queries: blocks.query * (1 + random.below(2)),
            keys: blocks.key * (1 + random.below(4)),
            width: 8 * (1 + random.below(4)),
            value_width: 8 * (1 + random.below(4)),
            blocks,
            scale: 0.2 + random.below(10) as f32 / 10.0,
            causal: !one_in(random, 3),
            window: one_in(random, 2).then(|| 1 + random.below(300)),
            softcap: one_in(random, 2).then(|| 0.5 + random.below(10) as f32),
            segments: one_in(random, 2),
            sinks: one_in(random, 2),
            ..plain(BOTH[random.below(2)], 1, 1)
        };
        check_input(&format!("form {seed}"), &of, &Input::new(&of, seed));
    }
}

/// Blocks need not be in order: here those of a device that has the first and the last part of a sequence, with the
/// keys of all devices in the order in which these have them.
#[test]
fn blocks_in_another_order() {
    let all = [(true, Some(200)), (true, None), (false, Some(200))];
    for (causal, window) in cases("hlo kernels of blocks in another order", 1, all) {
        let of = Attention { causal, window, kv_heads: 1, ..plain(DType::F32, 256, 512) };
        let starts = [vec![0, 384], vec![0, 384, 128, 256]];
        check_input("another order", &of, &Input::new(&of, 5).starting_at(&of, starts));
    }
}

/// The place of each token is an operand: here any, several tokens at one place.
#[test]
fn places_that_are_data() {
    let forms = [
        (true, None, false),
        (true, Some(200), true),
        (false, Some(50), false),
        (false, None, true),
        (true, Some(9999), false),
    ];
    // The second type begins with another form.
    let all = (0..10).map(|number| (BOTH[number / 5], forms[(number + number / 5) % 5]));
    for (dtype, (causal, window, segments)) in cases("hlo kernels with places", 2, all) {
        let random = &mut Random::new(9);
        let of = Attention { causal, window, segments, batch: 2, heads: 4, places: true, ..plain(dtype, 256, 384) };
        let mut input = Input::new(&of, 5);
        input.places = [of.queries, of.keys].map(|count| (0..count).map(|_| random.below(400) as i32).collect());
        check_input("places", &of, &input);
    }
}

/// A device whose queries all come before its keys has nothing to compute, but has results.
#[test]
fn blocks_that_see_nothing_are_written() {
    let of = Attention { causal: true, ..plain(DType::F32, 256, 256) };
    let input = Input::new(&of, 5).starting_at(&of, [vec![0, 128], vec![1000, 64]]);
    let pairs = input.pairs(&of, Order::Queries);
    assert_eq!(
        (&pairs.query_block[..], &pairs.key_block[..], &pairs.flags[..]),
        (&[0, 1][..], &[1, 1][..], &[15, 15][..])
    );
    check_input("blocks that see nothing", &of, &input);
    let input = input.starting_at(&of, [vec![0, 128], vec![1000, 2000]]);
    let results = kernels(&of, &input);
    for index in [0, 2, 3, 4] {
        assert!(results[index].data().iter().all(|&number| number == 0.0));
    }
    assert!(results[1].data().iter().all(|&number| number == f64::from(LOWEST)));
}

/// Pairs are those that someone sees something in, once each.
#[test]
fn pairs_are_those_with_something_to_see() {
    let of = Attention { causal: true, window: Some(130), ..plain(DType::F32, 512, 512) };
    let [query, key] = of.starts();
    let by_queries = of.pairs(&query, &key, Order::Queries).expect("pairs");
    let listed = |pairs: &Pairs| {
        let mut list: Vec<_> = pairs.query_block.iter().copied().zip(pairs.key_block.iter().copied()).collect();
        list.sort_unstable();
        list
    };
    let expected = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)];
    assert_eq!(listed(&by_queries), expected);
    assert_eq!(listed(&of.pairs(&query, &key, Order::Keys).expect("pairs")), expected);
    assert_eq!(by_queries.flags, [15, 13, 14, 13, 12, 14, 13, 12, 14]);
    let all = Attention { causal: false, window: None, ..of.clone() }.pairs(&query, &key, Order::Keys);
    assert_eq!(all.expect("pairs").flags, [5, 4, 4, 6].repeat(4));
    let error = of.pairs(&query[1..], &key, Order::Keys);
    assert_eq!(error, Err(KernelError::Count { what: "query_start", actual: 3, expected: 4 }));
}

/// The results of the interpreter depend on every part of the text: each of these changes must be seen.
#[test]
fn wrong_kernels_are_found() {
    let of = Attention { causal: true, sinks: true, softcap: Some(2.0), ..plain(DType::F32, 256, 256) };
    let input = Input::new(&of, 5);
    let pairs = input.pairs(&of, Order::Queries);
    let kernel = of.forward(pairs.len()).expect("a kernel");
    let mut operands = input.operands(&of, &pairs);
    operands.push(Array::new(DType::F32, &[of.heads, 1, 1], &input.sinks));
    let expected = reference(&of, &input).mixed;
    let mixed = |text: &str| distance(run(text, &operands, &kernel.results)[0].data(), &expected);
    assert!(mixed(&kernel.text) <= bound(of.dtype));
    let changes = [
        ("math.tanh", "math.exp"),
        ("arith.divf", "arith.mulf"),
        ("predicate = 5 : i64", "predicate = 4 : i64"),
        ("value = 5.0e-1 : f32", "value = 5.1e-1 : f32"),
        ("dimensions = array<i32: 0>", "dimensions = array<i32: 1>"),
        ("#vector.kind<add>", "#vector.kind<maximumf>"),
        ("value = dense<1.0e0>", "value = dense<0.0e0>"),
    ];
    for (from, to) in changes {
        assert!(kernel.text.contains(from), "the kernel has no {from}");
        let distance = mixed(&kernel.text.replace(from, to));
        assert!(distance.is_nan() || distance > 1e-3, "{to} for {from} is only {distance:e} away");
    }
}

/// The plain form's gradient is the slope of its result.
#[test]
fn the_reference_has_the_right_slopes() {
    let of = Attention {
        heads: 4,
        value_width: 8,
        causal: true,
        segments: true,
        sinks: true,
        softcap: Some(1.5),
        ..plain(DType::F32, 16, 16)
    };
    let input = Input::new(&of, 11);
    let value = |input: &Input| dot(&reference(&of, input).mixed, input.cotangent.data());
    let slopes = reference(&of, &input).cotangents;
    for (index, slopes) in slopes.iter().enumerate() {
        let direction = Random::new(23).array(DType::F32, &[slopes.len()]);
        // In `f64`, which holds small steps.
        let moved = |step: f64| {
            let mut input = Input::new(&of, 11);
            let operand =
                [&mut input.query, &mut input.key, &mut input.value].into_iter().nth(index).expect("an operand");
            let data: Vec<f64> = operand.data().iter().zip(direction.data()).map(|(x, d)| x + step * d).collect();
            let dims = operand.ty().dims.clone();
            *operand = Array::new(DType::F64, &dims, &data);
            value(&input)
        };
        let step = 1e-4;
        let (measured, expected) = ((moved(step) - moved(-step)) / (2.0 * step), dot(slopes, direction.data()));
        assert!(
            (measured - expected).abs() <= 1e-6 * expected.abs().max(1.0),
            "operand {index}: {measured} against {expected}"
        );
    }
}

/// The gradient of sinks is what the documentation says: `-sum(exp(sink - log_total) * flow)`.
#[test]
fn the_gradient_of_sinks_is_as_documented() {
    let of = Attention { causal: true, sinks: true, ..plain(DType::F32, 16, 16) };
    let input = || Input::new(&of, 11);
    let Output { mixed, log_total, .. } = reference(&of, &input());
    let given = input().cotangent;
    for head in 0..of.heads {
        let sink = input().sinks[head];
        let flow =
            |row: usize| dot(&mixed[row * of.value_width..][..of.value_width], &given.data()[row * of.value_width..]);
        let rows = head * of.queries..(head + 1) * of.queries;
        let expected: f64 = rows.map(|row| -(sink - log_total[row]).exp() * flow(row)).sum();
        let moved = |step: f64| {
            let mut input = input();
            input.sinks[head] += step;
            dot(&reference(&of, &input).mixed, given.data())
        };
        let measured = (moved(1e-4) - moved(-1e-4)) / 2e-4;
        let near = 1e-6 * expected.abs().max(1.0);
        assert!((measured - expected).abs() <= near, "head {head}: {measured} against {expected}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let of = plain(DType::F32, 256, 256);
    let heads = Attention { heads: 3, ..of.clone() };
    assert_eq!(heads.forward(4), Err(KernelError::Heads { heads: 3, kv_heads: 2 }));
    let odd = Attention { queries: 300, ..of.clone() };
    let refused = |error: KernelError| matches!(error, KernelError::Blocks { operand: "query", .. });
    assert!(odd.backward_keys(4).is_err_and(refused));
    let narrow = Attention { blocks: Blocks { query: 64, key: 128 }, ..of.clone() };
    let error = narrow.forward(4).map(|kernel| kernel.results);
    assert_eq!(error, Err(KernelError::Tiles { operand: "log_total", axis: 3, size: 64, tile: 128 }));
    assert_eq!(of.forward(0).map(|_| ()), Err(KernelError::Empty { kernel: "attention" }));
    let error = of.forward(100_000).map(|_| ());
    assert_eq!(error, Err(KernelError::Scalars { kernel: "attention", count: 300_004, limit: 250_000 }));
    let half = Attention { dtype: DType::F16, ..of.clone() };
    assert_eq!(half.forward(4).map(|_| ()), Err(KernelError::Element { element: "f16" }));
    for wrong in [
        Attention { softcap: Some(0.0), ..of.clone() },
        Attention { scale: f32::NAN, ..of.clone() },
        Attention { window: Some(0), ..of.clone() },
        Attention { blocks: Blocks { query: 0, key: 128 }, ..of.clone() },
    ] {
        let error = wrong.forward(4).map(|_| ()).expect_err("a wrong option");
        assert!(matches!(error, KernelError::Range { .. }), "{error}");
    }
}

/// Blocks pad little, and are large.
#[test]
fn blocks_are_large_and_pad_little() {
    let of = |dtype, width, queries, keys| {
        let blocks = Blocks::new(dtype, width, width, queries, keys);
        (blocks.query, blocks.key, blocks.padded_queries(queries), blocks.padded_keys(keys))
    };
    assert_eq!(of(DType::BF16, 128, 4096, 4096), (512, 512, 4096, 4096));
    assert_eq!(of(DType::BF16, 128, 640, 768), (384, 384, 768, 768));
    assert_eq!(of(DType::BF16, 512, 4096, 100), (256, 128, 4096, 128));
    assert_eq!(of(DType::F32, 128, 1, 1000), (128, 256, 128, 1024));
    assert_eq!(of(DType::F32, 256, 200, 300), (128, 128, 256, 384));
}
