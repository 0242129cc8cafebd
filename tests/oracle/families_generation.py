"""What transformers generates from the checkpoints of families.py: `generation.safetensors` in each folder.

`prompt_0` and `prompt_1` are prompts of different lengths, `tokens` `[2, LENGTH]` what greedy search adds to each. It is
made one prompt at a time, with a cache, in f32, and is the same from both in one batch, padded in front. No choice, of a
token or an expert, hangs on less than MARGIN of the spread of logits, or ROUTING of a score, by the model in f64.
"""

import numpy as np
import torch

import tensor_file

# Longer than every window.
LENGTH = 64
PROMPTS = (5, 11)
MARGIN = 1e-3
ROUTING = 3e-5
SEEDS = 400


@torch.no_grad()
def greedy(model, prompts):
    """What greedy search adds to rows of one length, padded in front by zeros, which are no tokens of prompts."""
    longest = max(len(prompt) for prompt in prompts)
    rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    options = dict(do_sample=False, max_new_tokens=LENGTH, min_new_tokens=LENGTH, pad_token_id=0)
    rows, mask = torch.tensor(rows), torch.tensor(mask)
    return model.generate(rows, attention_mask=mask, eos_token_id=None, **options)[:, longest:]


def smallest_margin(logits, tokens):
    """By how much the tokens were chosen, as a share of the spread of all logits; negative if they are others."""
    best = logits.topk(2).values
    margins = (best[:, 0] - best[:, 1]) / logits.std()
    return float(margins.min()) if torch.equal(logits.argmax(-1), tokens) else -1.0


def write(model, exact_logits, route, folder):
    """`exact_logits` computes in f64; `route` says by what margin experts are chosen."""
    for seed in range(SEEDS):
        generator = np.random.default_rng([seed, *folder.name.encode()])
        prompts = [generator.integers(1, model.config.vocab_size, length).tolist() for length in PROMPTS]
        added = torch.cat([greedy(model, [prompt]) for prompt in prompts])
        margin, routing = float("inf"), float("inf")
        for prompt, tokens in zip(prompts, added, strict=True):
            whole = torch.tensor([prompt + tokens.tolist()])
            logits = exact_logits(whole)[0, len(prompt) - 1 : -1]
            margin = min(margin, smallest_margin(logits, tokens))
            routing = min(routing, route(model, whole).margin)
        if margin < MARGIN or routing < ROUTING:
            continue
        assert torch.equal(greedy(model, prompts), added), f"{folder.name}: in a batch, other tokens are generated"
        tensors = {f"prompt_{row}": np.array(prompt, np.int32) for row, prompt in enumerate(prompts)}
        tensors["tokens"] = added.numpy().astype(np.int32)
        metadata = {"made_by": "tests/oracle/families.py"}
        (folder / "generation.safetensors").write_bytes(tensor_file.encode(tensors, metadata))
        different = len(set(added.flatten().tolist()))
        print(f"{folder.name:18} seed {seed}, margins {margin:.1e} and {routing:.1e}, {different} tokens", flush=True)
        return
    raise AssertionError(f"{folder.name}: none of {SEEDS} seeds has prompts whose tokens are chosen by such a margin")
