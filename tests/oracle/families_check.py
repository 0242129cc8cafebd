"""Loads a checkpoint folder with transformers and says how far its logits are from a golden file's.

    python tests/oracle/families_check.py DIR GOLDEN.safetensors

For folders that meshloom wrote, by hand. Prints norm(logits - golden) / norm(golden), in f32 with plain attention, and
exits with an error if a tensor is missing, has no place or has another shape: transformers only warns of those.
"""

import argparse
import sys

# Behind the standard library, for torch wants its `profile` and not the script of that name beside this one.
sys.path.append(sys.path.pop(0))

import torch
import transformers
from transformers import AutoModelForCausalLM

import tensor_file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="DIR", help="config.json and *.safetensors")
    parser.add_argument("golden", metavar="GOLDEN.safetensors", help="a file that families.py wrote")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    with open(arguments.golden, "rb") as file:
        golden, _ = tensor_file.decode(file.read())
    model, report = AutoModelForCausalLM.from_pretrained(
        arguments.folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    with torch.no_grad():
        logits = model.eval()(torch.tensor(golden["tokens"]).long(), use_cache=False).logits
    expected = torch.tensor(golden["logits"])
    print(f"{float((logits - expected).norm() / expected.norm()):.2e}")
    problems = [f"{problem}: {sorted(names)}" for problem, names in report.items() if names]
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
