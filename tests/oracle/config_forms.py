"""Writes config_forms.json: what transformers makes of `config.json` files that leave keys out, or have nulls in them.

For each `model_type`: `missing`, the config of a file without any other key; `base`, small sizes; `full`, the config of
a file with these; and `forms`: further keys, with what changes in the config, or `refused` where transformers makes no
config of them, or a model of the config that computes no logits. The test is `tests/families/config_forms.rs`.

Any Python with torch and transformers will do (made with torch 2.15.0 and transformers 5.24.0). Run with `--check` to
compare with the file instead of writing it.
"""

import argparse
import copy
import json
import sys
from pathlib import Path

# Behind the standard library, for torch wants its `profile` and not the script of that name beside this one.
sys.path.append(sys.path.pop(0))

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

PATH = Path(__file__).parent / "config_forms.json"
SMALL = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=8, num_attention_heads=4,
    max_position_embeddings=64, pad_token_id=None,
)  # fmt: skip
GROUPED = SMALL | dict(num_key_value_heads=2)
EXPERTS = dict(num_experts_per_tok=2)
BASES = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED | dict(head_dim=16),
    "qwen3_moe": GROUPED | EXPERTS | dict(num_experts=4, moe_intermediate_size=16),
    "mistral": GROUPED,
    # Without head_dim, transformers fails over yarn.
    "mixtral": GROUPED | EXPERTS | dict(head_dim=8, num_local_experts=4),
    "gemma2": GROUPED | dict(head_dim=16),
    "gemma3_text": GROUPED | dict(head_dim=16),
    "deepseek_v3": SMALL
    | EXPERTS
    | dict(
        n_routed_experts=16, moe_intermediate_size=16, kv_lora_rank=8, q_lora_rank=12, qk_rope_head_dim=4,
        qk_nope_head_dim=8, v_head_dim=8, num_key_value_heads=4,
    ),
    "gpt_oss": GROUPED | EXPERTS | dict(head_dim=16, num_local_experts=4),
}  # fmt: skip
# Keys that say nothing of what a model computes.
NOT_COMPARED = {
    "_name_or_path", "architectures", "attention_dropout", "bos_token_id", "chunk_size_feed_forward", "dtype",
    "eos_token_id", "id2label", "initializer_range", "is_encoder_decoder", "label2id", "num_mtp_layers",
    "num_nextn_predict_layers", "output_attentions", "output_hidden_states", "output_router_logits", "pad_token_id",
    "pretraining_tp", "problem_type", "return_dict", "router_aux_loss_coef", "router_jitter_noise",
    "transformers_version", "use_cache", "model_type",
}  # fmt: skip
LINEAR = dict(rope_type="linear", factor=4.0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3_OF_32 = LLAMA3 | dict(original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0)
DEFAULT = dict(rope_type="default", rope_theta=5000.0)
# Rotary frequencies of families that have one kind of them.
ROPE = [
    dict(rope_theta=777.0),
    dict(rope_theta=None),
    dict(rope_theta=None, rope_parameters=DEFAULT),
    dict(rope_theta=777.0, rope_parameters=DEFAULT),
    dict(rope_theta=777.0, rope_parameters=dict(rope_type="default")),
    dict(rope_parameters=dict(rope_theta=900.0)),
    dict(rope_parameters=dict(rope_theta=None)),
    dict(rope_parameters={}),
    dict(rope_parameters=None),
    dict(rope_scaling=None),
    dict(rope_scaling={}),
    dict(rope_scaling=LINEAR),
    dict(rope_scaling=LINEAR, rope_theta=777.0),
    dict(rope_scaling=LINEAR, rope_parameters=DEFAULT),
    dict(rope_scaling={}, rope_parameters=DEFAULT),
    dict(rope_scaling=None, rope_parameters=DEFAULT),
    dict(rope_scaling=LINEAR | dict(rope_theta=55.0), rope_theta=777.0, rope_parameters=DEFAULT),
    dict(rope_scaling=dict(type="linear", factor=4.0)),
    dict(rope_scaling=dict(type="yarn", rope_type="linear", factor=4.0)),
    dict(rope_scaling=dict(rope_type=None, factor=4.0)),
    dict(rope_scaling=dict(type="linear")),
    dict(rope_scaling=dict(rope_type="linear", factor=None)),
    dict(rope_scaling=LLAMA3),
    dict(rope_scaling=LLAMA3 | dict(original_max_position_embeddings=32)),
    dict(rope_scaling=LLAMA3 | dict(original_max_position_embeddings=32), original_max_position_embeddings=16),
    dict(rope_scaling=LLAMA3 | dict(low_freq_factor=None)),
    dict(rope_scaling=YARN),
    dict(rope_scaling=YARN | dict(original_max_position_embeddings=16)),
    dict(rope_scaling=YARN | dict(original_max_position_embeddings=16, factor=None)),
    dict(rope_scaling=dict(rope_type="yarn", original_max_position_embeddings=16)),
    dict(rope_scaling=YARN | dict(attention_factor=1.5)),
    dict(rope_scaling=YARN | dict(attention_factor=None, mscale=0.7, mscale_all_dim=1.3)),
    dict(rope_scaling=YARN | dict(mscale=0.7)),
    dict(rope_scaling=YARN | dict(mscale=0.0, mscale_all_dim=1.0)),
    dict(rope_scaling=YARN | dict(beta_fast=8.0, beta_slow=2.0, truncate=False)),
    dict(rope_scaling=YARN | dict(beta_fast=None, beta_slow=0, truncate=None)),
    dict(rope_parameters=YARN | dict(rope_theta=300.0)),
    dict(partial_rotary_factor=1.0),
]
ROPE_BY_KIND = [
    dict(rope_theta=777.0),
    dict(rope_theta=None),
    dict(rope_local_base_freq=33.0),
    dict(rope_local_base_freq=None),
    dict(rope_theta=777.0, rope_local_base_freq=33.0, rope_scaling=LINEAR),
    dict(rope_scaling=LINEAR),
    dict(rope_scaling=None),
    dict(rope_scaling={}),
    dict(rope_scaling=dict(type="linear", factor=4.0)),
    dict(rope_scaling=YARN | dict(rope_theta=55.0)),
    dict(rope_parameters=None),
    dict(rope_parameters={}),
    dict(rope_parameters={}, rope_theta=777.0, rope_local_base_freq=33.0),
    dict(rope_parameters={}, rope_scaling=LINEAR),
    dict(rope_parameters=DEFAULT),
    dict(rope_parameters=dict(full_attention=DEFAULT)),
    dict(rope_parameters=dict(full_attention=None, sliding_attention=DEFAULT)),
    dict(rope_parameters=dict(full_attention=LINEAR, sliding_attention=DEFAULT), rope_theta=777.0),
    dict(rope_parameters=dict(full_attention=DEFAULT, sliding_attention=LINEAR), rope_scaling=YARN),
    dict(rope_parameters=dict(full_attention=LINEAR), rope_scaling={}),
    dict(rope_parameters=dict(full_attention=LINEAR), rope_scaling=None),
    dict(rope_parameters=dict(full_attention=dict(rope_theta=None))),
    dict(rope_parameters=dict(full_attention=dict(type="linear", factor=2.0))),
    dict(rope_parameters=dict(full_attention=LLAMA3, sliding_attention=LLAMA3_OF_32)),
]
SLIDING, FULL = "sliding_attention", "full_attention"
ALTERNATING = [FULL, SLIDING] * 4
QWEN_WINDOWS = [
    dict(use_sliding_window=True),
    dict(use_sliding_window=True, max_window_layers=3),
    dict(use_sliding_window=True, max_window_layers=0, sliding_window=5),
    dict(use_sliding_window=True, max_window_layers=3, sliding_window=None),
    dict(use_sliding_window=False, max_window_layers=3, sliding_window=5),
    dict(use_sliding_window=True, sliding_window=5, layer_types=ALTERNATING),
    dict(use_sliding_window=False, sliding_window=5, layer_types=ALTERNATING),
    dict(use_sliding_window=True, sliding_window=5, layer_types=None, max_window_layers=2),
]
WINDOWS = [dict(sliding_window=5), dict(layer_types=ALTERNATING), dict(layer_types=[FULL] * 8, sliding_window=None)]
FURTHER = {
    "llama": [
        dict(head_dim=12),
        dict(num_attention_heads=5, num_key_value_heads=5, head_dim=8),
        dict(rms_norm_eps=1e-3),
    ],
    "qwen2": QWEN_WINDOWS + [dict(tie_word_embeddings=True)],
    "qwen3": QWEN_WINDOWS + [dict(head_dim=8)],
    "qwen3_moe": [
        dict(head_dim=16),
        dict(use_sliding_window=True, sliding_window=5),
        dict(use_sliding_window=True, sliding_window=None),
        dict(num_local_experts=6),
        dict(num_local_experts=6, num_experts=5),
        dict(mlp_only_layers=[0, 2]),
        dict(mlp_only_layers=[0, 2], decoder_sparse_step=2),
        dict(norm_topk_prob=True),
    ],
    "mistral": [dict(sliding_window=5), dict(head_dim=16)],
    "mixtral": [
        dict(sliding_window=5),
        dict(head_dim=None),
        dict(num_experts=6),
        dict(num_experts=6, num_local_experts=5),
    ],
    "gemma2": WINDOWS
    + [
        dict(num_attention_heads=5, num_key_value_heads=5),
        dict(query_pre_attn_scalar=7, attn_logit_softcapping=4.0, final_logit_softcapping=6.0),
        dict(attn_logit_softcapping=None, final_logit_softcapping=None),
        dict(use_bidirectional_attention=False),
    ],
    "gemma3_text": WINDOWS
    + [
        dict(num_attention_heads=5, num_key_value_heads=5),
        dict(sliding_window_pattern=3),
        dict(sliding_window_pattern=None),
        dict(_sliding_window_pattern=3),
        dict(sliding_window_pattern=2, layer_types=ALTERNATING),
        dict(attn_logit_softcapping=4.0, final_logit_softcapping=6.0, query_pre_attn_scalar=7),
        # No layer without a window: the section of the others counts for nothing.
        dict(num_hidden_layers=2),
    ],
    "deepseek_v3": [
        dict(num_key_value_heads=128),
        dict(q_lora_rank=None, num_key_value_heads=None),
        dict(n_routed_experts=12, n_group=4, topk_group=2),
        dict(num_local_experts=32),
        dict(n_shared_experts=2, routed_scaling_factor=1.5, norm_topk_prob=False, rope_interleave=False),
        dict(first_k_dense_replace=0),
        dict(n_group=1, topk_group=1),
        dict(rope_scaling=dict(type="yarn", factor=4.0, mscale=1.0, mscale_all_dim=1.0)),
        dict(rope_scaling=dict(type="yarn", factor=4.0, mscale_all_dim=0.8)),
        dict(rope_scaling=LINEAR | dict(mscale_all_dim=0.8)),
        dict(rope_parameters=dict(rope_type="default", factor=4.0, mscale_all_dim=0.8)),
    ],
    "gpt_oss": WINDOWS + [dict(num_experts=6), dict(attention_bias=False), dict(swiglu_limit=5.0)],
}


def resolved(model_type, keys):
    """The config of these keys, with what a model of it makes of them."""
    config = AutoConfig.for_model(model_type, **copy.deepcopy(keys))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        # Longer than the windows that files here have.
        model(torch.ones(1, 12, dtype=torch.long), use_cache=False)
    return compared(config)


def compared(config):
    return {key: value for key, value in config.to_dict().items() if key not in NOT_COMPARED}


def form(model_type, base, full, keys):
    try:
        found = resolved(model_type, base | keys)
    except Exception as error:
        print(f"{model_type} {keys}: {type(error).__name__}", flush=True)
        return {"keys": keys, "refused": type(error).__name__}
    assert full.keys() <= found.keys(), full.keys() - found.keys()
    return {"keys": keys, "changes": {key: found[key] for key in found if found[key] != full.get(key, KeyError)}}


def family(model_type):
    missing, base = compared(AutoConfig.for_model(model_type)), BASES[model_type]
    full = resolved(model_type, base)
    rope = ROPE_BY_KIND if model_type == "gemma3_text" else ROPE
    nulls = [{key: None} for key in missing if key not in ("rope_parameters", "_sliding_window_pattern")]
    forms = [form(model_type, base, full, keys) for keys in nulls + rope + FURTHER[model_type]]
    return {"missing": missing, "base": base, "full": full, "forms": forms}


def text(families):
    """One line for each form."""
    lines = ["{"]
    for number, (model_type, family) in enumerate(families.items()):
        forms = family.pop("forms")
        lines += [f'"{model_type}": {{']
        lines += [f'"{key}": {json.dumps(value)},' for key, value in family.items()]
        lines += ['"forms": [', ",\n".join(json.dumps(form) for form in forms), "]"]
        lines += ["}" if number + 1 == len(families) else "},"]
    return "\n".join([*lines, "}"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    found = text({model_type: family(model_type) for model_type in BASES})
    if not arguments.check:
        PATH.write_text(found)
    elif PATH.read_text() != found:
        raise SystemExit(f"{PATH.name} differs")


if __name__ == "__main__":
    main()
