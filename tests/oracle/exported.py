"""Has transformers load folders that `meshloom export` wrote, and compares their logits with golden files.

    meshloom import tests/oracle/families/llama3 /tmp/checkpoint
    meshloom export /tmp/checkpoint /tmp/exported/llama3
    python tests/oracle/exported.py /tmp/exported/llama3 ...

The name of a folder is that of a case of tests/oracle/families. Fails if a logit tensor differs by more than 1e-5, norm
of the difference over norm of the reference, or if transformers reports tensors that are missing or left over.
"""

import sys
from pathlib import Path

# Behind the standard library, for torch wants its `profile` and not the script of that name beside this one.
sys.path.append(sys.path.pop(0))

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

GOLDENS = Path(__file__).parent / "families"
BOUND = 1e-5


def error(folder):
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], f"{folder}: {kind}: {report[kind]}"
    golden = load_file(GOLDENS / folder.name / "golden.safetensors")
    with torch.no_grad():
        found = model(torch.tensor(golden["tokens"].astype(np.int64)), use_cache=False).logits.numpy()
    expected = golden["logits"].reshape(found.shape)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def main():
    for folder in map(Path, sys.argv[1:]):
        found = error(folder)
        print(f"{folder.name}: {found:.1e}")
        assert found <= BOUND, f"{folder}: off by {found:.1e}"


if __name__ == "__main__":
    main()
