//! Details that the comparison with transformers sees: each wrong one makes it fail.

use meshloom::ir::Literal;
use meshloom_nn::{
    Activation, Architecture, AttentionConfig, FeedForwardConfig, GroupedConfig, LatentConfig, LayerConfig, MoeConfig,
    NormWeight, RopePairs, RopeScaling, Scoring,
};
use support::eight_devices::relative_error;

use super::golden::{BOUND, Golden, interpreted};

/// A wrong detail makes logits differ by this at least: far more than what rounding may.
const SEEN: f64 = 30.0 * BOUND;

fn grouped(architecture: &mut Architecture, change: impl Fn(usize, &mut GroupedConfig)) {
    numbered(architecture, |number, layer| {
        if let AttentionConfig::Grouped(grouped) = &mut layer.attention {
            change(number, grouped);
        }
    });
}

fn latent(architecture: &mut Architecture, change: impl Fn(&mut LatentConfig)) {
    numbered(architecture, |_, layer| {
        if let AttentionConfig::Latent(latent) = &mut layer.attention {
            change(latent);
        }
    });
}

fn routed(architecture: &mut Architecture, change: impl Fn(&mut MoeConfig)) {
    numbered(architecture, |_, layer| {
        if let FeedForwardConfig::Routed(routed) = &mut layer.feed_forward {
            change(routed);
        }
    });
}

/// Changes layers by their number, or by that of their place in the cycle.
fn numbered(architecture: &mut Architecture, mut change: impl FnMut(usize, &mut LayerConfig)) {
    let mut number = 0;
    architecture.stack.for_each(|layer| {
        change(number, layer);
        number += 1;
    });
}

fn rope_scaling(architecture: &mut Architecture, change: impl Fn(&mut RopeScaling)) {
    numbered(architecture, |_, layer| match &mut layer.attention {
        AttentionConfig::Grouped(grouped) => change(&mut grouped.rope.scaling),
        AttentionConfig::Latent(latent) => change(&mut latent.rope.scaling),
    });
}

type Change = fn(&mut Architecture);

const EPSILON: (&str, Change) =
    ("the epsilon of norms", |architecture| numbered(architecture, |_, layer| layer.norm.epsilon *= 1e3));
const THETA: (&str, Change) = ("the base of frequencies", |architecture| {
    numbered(architecture, |_, layer| match &mut layer.attention {
        AttentionConfig::Grouped(grouped) => grouped.rope.theta *= 2.0,
        AttentionConfig::Latent(latent) => latent.rope.theta *= 2.0,
    });
});
const SCALE: (&str, Change) =
    ("the scale of scores", |architecture| grouped(architecture, |_, attention| attention.scale *= 1.02));
const NO_SCALING: (&str, Change) = ("frequencies that are not stretched", |architecture| {
    rope_scaling(architecture, |scaling| *scaling = RopeScaling::None)
});
const WINDOW: (&str, Change) = ("a window one longer", |architecture| {
    grouped(architecture, |_, attention| attention.window = attention.window.map(|window| window + 1));
});
const SHORT_WINDOW: (&str, Change) = ("a window one shorter", |architecture| {
    grouped(architecture, |_, attention| attention.window = attention.window.map(|window| window - 1));
});
const NO_WINDOW: (&str, Change) =
    ("no window", |architecture| grouped(architecture, |_, attention| attention.window = None));
const NO_BIAS: (&str, Change) =
    ("no biases", |architecture| grouped(architecture, |_, attention| attention.bias = false));
const NO_HEAD_NORMS: (&str, Change) =
    ("no norms of queries and keys", |architecture| grouped(architecture, |_, attention| attention.head_norms = None));
const OTHER_WEIGHTS: (&str, Change) = ("weights normalized, or not", |architecture| {
    routed(architecture, |experts| experts.normalize_weights = !experts.normalize_weights);
});
const FEWER_EXPERTS: (&str, Change) =
    ("an expert less", |architecture| routed(architecture, |experts| experts.experts_per_token -= 1));
const PLAIN_NORMS: (&str, Change) = ("norms without one plus", |architecture| {
    numbered(architecture, |_, layer| layer.norm.weight = NormWeight::Plain);
});
const NO_NORMS_BEHIND: (&str, Change) =
    ("no norms behind blocks", |architecture| numbered(architecture, |_, layer| layer.norms_behind = false));
const EMBEDDING: (&str, Change) = ("embeddings as they are", |architecture| architecture.embedding_scale = 1.0);
const OTHER_ACTIVATION: (&str, Change) = ("another activation", |architecture| {
    numbered(architecture, |_, layer| match &mut layer.feed_forward {
        FeedForwardConfig::Dense { activation, .. } => {
            *activation = if *activation == Activation::Silu { Activation::GeluTanh } else { Activation::Silu };
        }
        FeedForwardConfig::Routed(routed) => routed.activation = Activation::GeluTanh,
    });
});

/// For each family what must be right, by what is wrong instead.
fn details() -> Vec<(&'static str, Vec<(&'static str, Change)>)> {
    vec![
        ("llama2", vec![EPSILON, THETA, SCALE, OTHER_ACTIVATION]),
        (
            "llama3",
            vec![
                THETA,
                NO_SCALING,
                ("every frequency stretched", |architecture| {
                    rope_scaling(architecture, |scaling| *scaling = RopeScaling::Linear { factor: 8.0 });
                }),
                ("short wavelengths from elsewhere", |architecture| {
                    rope_scaling(architecture, |scaling| {
                        if let RopeScaling::Llama3 { high_frequency, .. } = scaling {
                            *high_frequency *= 2.0;
                        }
                    });
                }),
            ],
        ),
        ("qwen2", vec![NO_BIAS, WINDOW, SHORT_WINDOW, NO_WINDOW]),
        ("qwen3", vec![NO_HEAD_NORMS, EPSILON]),
        ("qwen3_moe", vec![OTHER_WEIGHTS, FEWER_EXPERTS, NO_HEAD_NORMS, OTHER_ACTIVATION]),
        ("qwen3_moe_plain", vec![OTHER_WEIGHTS]),
        ("mistral", vec![WINDOW, SHORT_WINDOW, NO_WINDOW]),
        ("mixtral", vec![OTHER_WEIGHTS, FEWER_EXPERTS]),
        (
            "gemma2",
            vec![
                PLAIN_NORMS,
                NO_NORMS_BEHIND,
                EMBEDDING,
                OTHER_ACTIVATION,
                WINDOW,
                SHORT_WINDOW,
                ("the scale of a head", |architecture| {
                    grouped(architecture, |_, attention| attention.scale = (attention.head_dim as f64).powf(-0.5));
                }),
                ("scores without a cap", |architecture| {
                    grouped(architecture, |_, attention| attention.softcap = None);
                }),
                ("logits without a cap", |architecture| architecture.logit_cap = None),
                ("the other layers slide", |architecture| {
                    architecture.stack.cycle.reverse();
                }),
                ("the last norm without one plus", |architecture| {
                    architecture.final_norm.weight = NormWeight::Plain;
                }),
            ],
        ),
        (
            "gemma3_text",
            vec![
                PLAIN_NORMS,
                NO_NORMS_BEHIND,
                EMBEDDING,
                NO_HEAD_NORMS,
                NO_SCALING,
                WINDOW,
                SHORT_WINDOW,
                ("one base for all layers", |architecture| {
                    grouped(architecture, |_, attention| attention.rope.theta = 1e6);
                }),
                ("frequencies stretched in all layers", |architecture| {
                    rope_scaling(architecture, |scaling| *scaling = RopeScaling::Linear { factor: 8.0 });
                }),
            ],
        ),
        (
            "deepseek_v3",
            vec![
                THETA,
                NO_SCALING,
                OTHER_WEIGHTS,
                FEWER_EXPERTS,
                ("pairs that are halves", |architecture| {
                    latent(architecture, |attention| attention.rope.pairs = RopePairs::Halves);
                }),
                ("scores that are not sharper", |architecture| {
                    latent(architecture, |attention| {
                        let dims = attention.nope_head_dim + attention.rope_head_dim;
                        attention.scale = (dims as f64).powf(-0.5);
                    });
                }),
                ("no groups", |architecture| routed(architecture, |experts| experts.groups = None)),
                ("choices without a bias", |architecture| {
                    routed(architecture, |experts| experts.choice_bias = false);
                }),
                ("weights that are not scaled", |architecture| {
                    routed(architecture, |experts| experts.weight_scale = 1.0);
                }),
                ("a softmax", |architecture| routed(architecture, |experts| experts.scoring = Scoring::Softmax)),
                ("no shared experts", |architecture| routed(architecture, |experts| experts.shared_experts = 0)),
            ],
        ),
        ("deepseek_v3_plain", vec![THETA, OTHER_WEIGHTS]),
        (
            "gpt_oss",
            vec![
                NO_BIAS,
                NO_SCALING,
                OTHER_WEIGHTS,
                OTHER_ACTIVATION,
                WINDOW,
                SHORT_WINDOW,
                ("no sinks", |architecture| grouped(architecture, |_, attention| attention.sinks = false)),
                ("no bias of the result", |architecture| {
                    grouped(architecture, |_, attention| attention.output_bias = false);
                }),
                ("a router without a bias", |architecture| {
                    routed(architecture, |experts| experts.router_bias = false);
                }),
                ("experts without biases", |architecture| routed(architecture, |experts| experts.biases = false)),
                ("gates that are not clamped", |architecture| {
                    routed(architecture, |experts| experts.activation = Activation::Clamped { limit: 1e6 });
                }),
                ("a ramp at whole pairs", |architecture| {
                    rope_scaling(architecture, |scaling| {
                        if let RopeScaling::Yarn { truncate, .. } = scaling {
                            *truncate = true;
                        }
                    });
                }),
                ("cosines that are not scaled", |architecture| {
                    rope_scaling(architecture, |scaling| {
                        if let RopeScaling::Yarn { magnitude, .. } = scaling {
                            *magnitude = 1.0;
                        }
                    });
                }),
                ("the other layers slide", |architecture| {
                    architecture.stack.cycle.reverse();
                }),
            ],
        ),
    ]
}

/// Returns the relative error of the logits of the first row against those of transformers.
fn error_of_one_row(golden: &Golden) -> f64 {
    let (graph, inputs) = golden.logits_alone(&golden.decoder(), &golden.rows(1));
    let results = interpreted(&graph, &inputs);
    let found = results.first().map(Literal::to_f64_vec).expect("logits");
    relative_error(&found, &golden.logits("logits")[..found.len()])
}

/// Each wrong detail changes the logits of one row, which are correct if no detail is wrong. The interpreter computes
/// them.
#[test]
fn wrong_details_are_seen() {
    let mut missed = Vec::new();
    for (case, changes) in details() {
        let right = Golden::load(case);
        let error = error_of_one_row(&right);
        assert!(error <= BOUND, "{case}, where every detail is correct: {error:.1e}");
        for (what, change) in changes {
            let mut golden = Golden::load(case);
            change(&mut golden.published.architecture);
            assert_ne!(golden.published.architecture, right.published.architecture, "{case}: {what} changes nothing");
            let error = error_of_one_row(&golden);
            println!("{case}: {what}: {error:.1e}");
            if error.is_nan() || error < SEEN {
                missed.push(format!("{case}: {what}: {error:.1e}"));
            }
        }
    }
    assert_eq!(missed, Vec::<String>::new());
}
