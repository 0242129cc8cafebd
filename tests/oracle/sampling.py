"""The golden file of sampling options: the distributions that transformers' logits processors leave.

    python tests/oracle/sampling.py           writes sampling.safetensors
    python tests/oracle/sampling.py --check   compares it with what is made now

`logits` is `[ROWS, TOKENS]`, the last row with equal numbers; `options` has a row for each setting: temperature, top-k,
top-p and min-p, with 0 for one that is left out. `probabilities` is `[settings, ROWS, TOKENS]`, in f64 and stored as f32.
"""

import argparse
import sys
from pathlib import Path

# Behind the standard library, for torch wants its `profile` and not the script of that name beside this one.
sys.path.append(sys.path.pop(0))

import numpy as np
import torch
from transformers import GenerationConfig
from transformers.generation.utils import GenerationMixin

import tensor_file

FILE = Path(__file__).parent / "sampling.safetensors"
ROWS, TOKENS = 4, 40
OPTIONS = [
    (1.0, 0, 0.0, 0.0),
    (0.6, 0, 0.0, 0.0),
    (1.7, 0, 0.0, 0.0),
    (1.0, 1, 0.0, 0.0),
    (1.0, 7, 0.0, 0.0),
    (1.0, 10, 0.0, 0.0),
    (1.0, 100, 0.0, 0.0),
    (1.0, 0, 0.05, 0.0),
    (1.0, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.0),
    (1.0, 0, 0.0, 0.2),
    (1.0, 0, 0.0, 1.0),
    (1.0, 7, 0.6, 0.0),
    (0.8, 12, 0.9, 0.1),
    (2.5, 20, 0.7, 0.3),
]


class Processors(GenerationMixin):
    """What makes the list of processors, in transformers' order, with no model behind it."""

    def __init__(self):
        self.config = type("Config", (), {"is_encoder_decoder": False})()


def distribution(logits, options):
    temperature, top_k, top_p, min_p = options
    config = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p or 1.0,
        min_p=min_p or None,
    )
    processors = Processors()._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
    return processors(torch.zeros(ROWS, 1, dtype=torch.long), logits).softmax(-1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    logits = np.random.default_rng(3).standard_normal((ROWS, TOKENS)) * np.array([[0.5], [1.5], [4.0], [2.0]])
    # Whole numbers: many are equal.
    logits[-1] = logits[-1].round()
    logits = logits.astype(np.float32)
    wide = torch.tensor(logits).double()
    probabilities = np.stack([distribution(wide, options).numpy() for options in OPTIONS]).astype(np.float32)
    tensors = {"logits": logits, "options": np.array(OPTIONS, np.float32), "probabilities": probabilities}
    tensor_file.write_or_check(FILE, tensors, {"made_by": "tests/oracle/sampling.py"}, arguments.check)


if __name__ == "__main__":
    main()
