"""The cases of families.py: a small model for each family that has every path of it."""

from dataclasses import dataclass, field

# Rows and tokens of a row.
BATCH, SEQ = 2, 24


@dataclass(frozen=True)
class Case:
    model_type: str
    config: dict
    seed: int = 0
    # Standard deviations times sqrt(fan-in), by the end of a parameter's name; DEFAULT_GAIN for the others.
    gains: dict = field(default_factory=dict)
    # Keys that a published file has and `save_pretrained` does not write (or writes otherwise); None: no such file.
    published: dict | None = None
    # Keys that `save_pretrained` writes and a published file does not have.
    unpublished: tuple = ()


# Wide enough that attention and logits are far from uniform.
DEFAULT_GAIN = 1.5
# For cases whose gradients suffer from attention to nearly one token.
SOFTER = {"q_proj.weight": 1.0, "k_proj.weight": 1.0}

# Windows are shorter than SEQ, head_dim is not embed / heads where the family has such a key, and theta is seldom the
# default.
SMALL = dict(hidden_size=32, num_attention_heads=2, head_dim=12, vocab_size=48, max_position_embeddings=64)
BOS_EOS = dict(bos_token_id=1, eos_token_id=2)
GEMMA_IDS = dict(pad_token_id=0, bos_token_id=2, eos_token_id=1)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    # With 6 frequencies one is kept, one is between, and four are divided.
    original_max_position_embeddings=96,
)
# mscale and mscale_all_dim differ, so that rotations are scaled as well as scores: in published files they are equal.
DEEPSEEK_ROPE = dict(
    rope_type="yarn",
    rope_theta=10000.0,
    factor=40.0,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=0.7,
    # With 4 frequencies two are kept, one is between, and one is divided.
    original_max_position_embeddings=4096,
)
GPT_OSS_ROPE = dict(
    rope_type="yarn",
    rope_theta=150000.0,
    factor=32.0,
    beta_fast=32.0,
    beta_slow=1.0,
    truncate=False,
    original_max_position_embeddings=4096,
)
DEEPSEEK = dict(
    hidden_size=32,
    vocab_size=48,
    num_attention_heads=2,
    num_key_value_heads=2,
    intermediate_size=40,
    kv_lora_rank=12,
    qk_nope_head_dim=10,
    qk_rope_head_dim=8,
    v_head_dim=14,
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
    # The checkpoint has no tensors of multi-token prediction.
    num_nextn_predict_layers=0,
    bos_token_id=0,
    eos_token_id=1,
)
DEEPSEEK_PUBLISHED = dict(
    ep_size=1, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc", aux_loss_alpha=0.001, seq_aux=True
)
DEEPSEEK_UNPUBLISHED = ("head_dim", "qk_head_dim", "rope_interleave", "output_router_logits", "pad_token_id")

CASES = {
    "llama2": Case(
        "llama",
        SMALL
        | BOS_EOS
        | dict(
            num_hidden_layers=2,
            intermediate_size=44,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        ),
        gains=SOFTER,
        published={},
        unpublished=("attention_bias", "attention_dropout", "mlp_bias", "pad_token_id"),
    ),
    "llama3": Case(
        "llama",
        SMALL
        | BOS_EOS
        | dict(
            num_hidden_layers=3,
            intermediate_size=40,
            num_key_value_heads=1,
            vocab_size=56,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters=LLAMA3_ROPE,
        ),
        gains=SOFTER,
        published={},
        unpublished=("pad_token_id",),
    ),
    # No head_dim: it is embed / heads.
    "qwen2": Case(
        "qwen2",
        BOS_EOS
        | dict(
            hidden_size=40,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=52,
            max_position_embeddings=64,
            num_hidden_layers=3,
            intermediate_size=44,
            use_sliding_window=True,
            sliding_window=7,
            max_window_layers=1,
            rope_parameters=dict(rope_type="default", rope_theta=30000.0),
        ),
        gains=SOFTER,
        published={},
        unpublished=("layer_types", "pad_token_id"),
    ),
    "qwen3": Case(
        "qwen3",
        SMALL
        | BOS_EOS
        | dict(
            num_hidden_layers=3,
            intermediate_size=48,
            num_key_value_heads=1,
            tie_word_embeddings=True,
            max_window_layers=1,
            rope_parameters=dict(rope_type="default", rope_theta=20000.0),
        ),
        # A window that is not in use.
        published=dict(use_sliding_window=False, sliding_window=5),
        unpublished=("layer_types", "pad_token_id"),
    ),
    "qwen3_moe": Case(
        "qwen3_moe",
        SMALL
        | BOS_EOS
        | dict(
            num_hidden_layers=2,
            intermediate_size=40,
            moe_intermediate_size=20,
            num_key_value_heads=1,
            num_experts=8,
            num_experts_per_tok=3,
            norm_topk_prob=True,
            rope_parameters=dict(rope_type="default", rope_theta=20000.0),
        ),
        seed=7698,
        published=dict(num_experts=8),
        unpublished=("num_local_experts", "pad_token_id"),
    ),
    "qwen3_moe_plain": Case(
        "qwen3_moe",
        SMALL
        | BOS_EOS
        | dict(
            num_hidden_layers=3,
            intermediate_size=40,
            moe_intermediate_size=16,
            num_key_value_heads=2,
            num_experts=6,
            num_experts_per_tok=2,
            norm_topk_prob=False,
            mlp_only_layers=[0],
            rope_parameters=dict(rope_type="default", rope_theta=20000.0),
        ),
        seed=1613,
    ),
    "mistral": Case(
        "mistral",
        SMALL
        | BOS_EOS
        | dict(
            num_hidden_layers=2,
            intermediate_size=52,
            num_key_value_heads=1,
            rms_norm_eps=1e-5,
            sliding_window=9,
            rope_parameters=dict(rope_type="default", rope_theta=20000.0),
        ),
        published={},
        unpublished=("pad_token_id",),
    ),
    "mixtral": Case(
        "mixtral",
        SMALL
        | BOS_EOS
        | dict(
            num_hidden_layers=2,
            intermediate_size=24,
            num_key_value_heads=1,
            num_local_experts=8,
            num_experts_per_tok=2,
            rms_norm_eps=1e-5,
            rope_parameters=dict(rope_type="default", rope_theta=20000.0),
        ),
        seed=954,
        gains=SOFTER,
        published={},
        unpublished=("pad_token_id",),
    ),
    "gemma2": Case(
        "gemma2",
        SMALL
        | GEMMA_IDS
        | dict(
            num_hidden_layers=4,
            intermediate_size=40,
            num_key_value_heads=1,
            sliding_window=7,
            query_pre_attn_scalar=7,
            attn_logit_softcapping=4.0,
            final_logit_softcapping=6.0,
            rope_parameters=dict(rope_type="default", rope_theta=20000.0),
        ),
        # Logits of the size of the cap.
        gains={"embed_tokens.weight": 4.0},
        published=dict(hidden_act="gelu_pytorch_tanh", cache_implementation="hybrid", sliding_window_size=7),
        unpublished=("layer_types", "tie_word_embeddings", "use_bidirectional_attention"),
    ),
    "gemma3_text": Case(
        "gemma3_text",
        SMALL
        | GEMMA_IDS
        | dict(
            num_hidden_layers=8,
            intermediate_size=40,
            num_key_value_heads=1,
            sliding_window=6,
            query_pre_attn_scalar=20,
            rope_parameters=dict(
                sliding_attention=dict(rope_type="default", rope_theta=1000.0),
                full_attention=dict(rope_type="linear", rope_theta=20000.0, factor=8.0),
            ),
        ),
        seed=36,
        published=dict(cache_implementation="hybrid", sliding_window_pattern=6),
        unpublished=("layer_types", "tie_word_embeddings", "use_bidirectional_attention", "_sliding_window_pattern"),
    ),
    "deepseek_v3": Case(
        "deepseek_v3",
        DEEPSEEK
        | dict(
            max_position_embeddings=163840,
            num_hidden_layers=4,
            first_k_dense_replace=2,
            moe_intermediate_size=12,
            # Groups of three, so that the sum of the best two is not the sum of all.
            n_routed_experts=12,
            n_group=4,
            topk_group=2,
            num_experts_per_tok=3,
            n_shared_experts=1,
            q_lora_rank=20,
            rope_parameters=DEEPSEEK_ROPE,
        ),
        seed=3941,
        # Two scales of mscale make scores large already, and routed experts count 2.5 times.
        gains={
            "q_a_proj.weight": 1.0,
            "q_b_proj.weight": 0.6,
            "kv_a_proj_with_mqa.weight": 1.0,
            "kv_b_proj.weight": 1.0,
            "o_proj.weight": 1.0,
            "up_proj.weight": 1.0,
            "experts.gate_up_proj": 1.5,
            "experts.down_proj": 0.6,
        },
        published=DEEPSEEK_PUBLISHED,
        unpublished=DEEPSEEK_UNPUBLISHED,
    ),
    "deepseek_v3_plain": Case(
        "deepseek_v3",
        DEEPSEEK
        | dict(
            max_position_embeddings=64,
            num_hidden_layers=3,
            first_k_dense_replace=1,
            moe_intermediate_size=12,
            n_routed_experts=8,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            n_shared_experts=2,
            q_lora_rank=None,
            rope_parameters=dict(rope_type="default", rope_theta=10000.0),
        ),
        seed=928,
        gains={"q_proj.weight": 0.7, "experts.down_proj": 0.6},
        published=DEEPSEEK_PUBLISHED,
        unpublished=DEEPSEEK_UNPUBLISHED,
    ),
    "gpt_oss": Case(
        "gpt_oss",
        SMALL
        | BOS_EOS
        | dict(
            max_position_embeddings=131072,
            num_hidden_layers=4,
            intermediate_size=20,
            num_key_value_heads=1,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=7,
            rope_parameters=GPT_OSS_ROPE,
        ),
        seed=193,
        # So wide that some gates and some ups are beyond the limit of 7; what comes out of that is damped.
        gains={"q_proj.weight": 0.8, "k_proj.weight": 0.8, "experts.gate_up_proj": 4.0, "experts.down_proj": 0.15},
        published=dict(experts_per_token=2, initial_context_length=4096),
        unpublished=("num_experts", "pad_token_id", "swiglu_alpha"),
    ),
}
