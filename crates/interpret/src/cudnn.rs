//! cuDNN's fused attention as its documentation describes it, in plain loops of `f64`.
//!
//! Source: NVIDIA, "cuDNN Frontend: Attention"; Dao, "FlashAttention-2", arXiv 2307.08691, algorithm 2.

use meshloom::ir::Literal;
use meshloom::ops::CustomCall;

pub const FORWARD: &str = "__cudnn$fmhaSoftmax";
pub const BACKWARD: &str = "__cudnn$fmhaSoftmaxBackward";

/// The configuration of a call, and its sizes.
struct Attention {
    scale: f64,
    causal: bool,
    window: usize,
    batch: usize,
    heads: usize,
    kv_heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
}

impl Attention {
    fn new(call: &CustomCall, operands: &[&Literal]) -> Attention {
        let config: serde_json::Value = serde_json::from_str(&call.config).expect("a configuration");
        let config = &config["cudnn_fmha_backend_config"];
        let causal = match config["mask_type"].as_str() {
            Some("CAUSAL") => true,
            Some("NO_MASK") => false,
            other => panic!("mask {other:?}"),
        };
        let (query, key) = (&operands[0].ty().dims, &operands[1].ty().dims);
        assert_eq!(operands[2].ty().dims, *key, "values are as wide as keys");
        Attention {
            scale: config["fmha_scale"].as_f64().expect("a scale"),
            causal,
            window: config["sliding_window_length"].as_u64().expect("a window") as usize,
            batch: query[0],
            heads: query[1],
            kv_heads: key[1],
            queries: query[2],
            keys: key[2],
            width: query[3],
        }
    }

    /// The row of a query, of a head of queries.
    fn query(&self, row: usize, head: usize, query: usize) -> usize {
        (row * self.heads + head) * self.queries + query
    }

    /// The row of a key, of the head that a head of queries uses.
    fn key(&self, row: usize, head: usize, key: usize) -> usize {
        (row * self.kv_heads + head / (self.heads / self.kv_heads)) * self.keys + key
    }

    /// Each query with the rows of the keys that it sees.
    fn pairs(&self) -> Vec<(usize, Vec<usize>)> {
        let sees = |query: usize, key: usize| {
            (!self.causal || key <= query) && (self.window == 0 || query < key + self.window)
        };
        let mut all = Vec::new();
        for row in 0..self.batch {
            for head in 0..self.heads {
                for query in 0..self.queries {
                    let keys = (0..self.keys).filter(|&key| sees(query, key));
                    all.push((self.query(row, head, query), keys.map(|key| self.key(row, head, key)).collect()));
                }
            }
        }
        all
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}

/// The results of a call; none if it is of another target.
pub fn apply(call: &CustomCall, operands: &[&Literal]) -> Option<Vec<Literal>> {
    let target = call.target.text();
    if *target != *FORWARD && *target != *BACKWARD {
        return None;
    }
    let of = Attention::new(call, operands);
    let numbers: Vec<Vec<f64>> = operands.iter().map(|literal| literal.to_f64_vec()).collect();
    let at = |operand: usize, row: usize| &numbers[operand][row * of.width..][..of.width];
    let score = |query: usize, key: usize| of.scale * dot(at(0, query), at(1, key));
    let mut results: Vec<Vec<f64>> = call.results.iter().map(|ty| vec![0.0; ty.element_count()]).collect();
    let row_of = |row: usize| row * of.width..(row + 1) * of.width;
    for (query, keys) in of.pairs() {
        if *target == *FORWARD {
            let total: f64 = keys.iter().map(|&key| score(query, key).exp()).sum();
            results[1][query] = total.ln();
            for key in keys {
                add(&mut results[0][row_of(query)], score(query, key).exp() / total, at(2, key));
            }
            continue;
        }
        let (stats, ct, mixed) = (numbers[3][query], at(4, query), at(5, query));
        let flow = dot(ct, mixed);
        for key in keys {
            let weight = (score(query, key) - stats).exp();
            let score_ct = of.scale * weight * (dot(ct, at(2, key)) - flow);
            add(&mut results[0][row_of(query)], score_ct, at(1, key));
            add(&mut results[1][row_of(key)], score_ct, at(0, query));
            add(&mut results[2][row_of(key)], weight, ct);
        }
    }
    let literal = |(ty, numbers): (_, Vec<f64>)| Literal::from_fn(Clone::clone(ty), |index| numbers[index]);
    Some(call.results.iter().zip(results).map(literal).collect())
}
