"""A checkpoint and a golden file of multi-token prediction, which transformers leaves out.

    python tests/oracle/further.py                writes tests/oracle/further
    python tests/oracle/further.py --check        compares with the folder that is there
    python tests/oracle/further.py --search 500   tries seeds 0..499 for one that rounding changes little

The model is that of families/deepseek_v3 with two more layers, which predict further tokens as DeepSeek-V3 does (arXiv
2412.19437, section 2.2): transformers' own layer over `eh_proj(cat[enorm(embedding), hnorm(stream)])`, then a norm and
the shared head. The stream is what leaves the norm in front of the head.

Rows are packed with documents. The reference computes each document by itself, so nothing of it knows of segments: a
layer sees the tokens of a document that have the further token, and predicts where there is one more.

As in families.py, the reference is computed in f64; the same in f32 is within NOISE of it.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import families  # First: it moves this folder behind the standard library.

import ml_dtypes
import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm

import tensor_file
from families_cases import CASES

FOLDER = Path(__file__).parent / "further"
CASE = CASES["deepseek_v3"]
LAYERS, FURTHER = CASE.config["num_hidden_layers"], 2
SEED = 117
# Smaller than in families.py: nothing here is computed in bf16.
MARGIN = 1e-3
WEIGHT = 0.3
# Documents of each row: some so short that no layer, or only the first, predicts in them.
DOCUMENTS = ([9, 15], [3, 2, 1, 18])
LENGTH = sum(DOCUMENTS[0])
METADATA = {"made_by": "tests/oracle/further.py"}


class Further(nn.Module):
    """What a layer of multi-token prediction has beside a decoder layer."""

    def __init__(self, config):
        super().__init__()
        self.enorm = DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.shared_head = nn.ModuleDict({"norm": DeepseekV3RMSNorm(config.hidden_size, config.rms_norm_eps)})

    def forward(self, embedded, stream):
        return self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(stream)], -1))


class Model(nn.Module):
    """A decoder of LAYERS layers, and FURTHER layers that predict further tokens."""

    def __init__(self, config, dtype):
        super().__init__()
        # transformers makes these layers as well: the last FURTHER ones, which are run by themselves.
        self.decoder = AutoModelForCausalLM.from_config(config, dtype=dtype, **families.EAGER).eval()
        self.further = nn.ModuleList(Further(config).to(dtype) for _ in range(FURTHER))

    def layer(self, number, x):
        decoder = self.decoder.model
        length = x.shape[1]
        places = torch.arange(length)[None]
        hidden = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)[None, None]
        rotary = decoder.rotary_emb(x, places)
        return decoder.layers[number](x, attention_mask=hidden, position_ids=places, position_embeddings=rotary)

    def losses(self, tokens, weights):
        """Of one document: the sums of the weighted losses of the next token, and of what each layer predicts."""
        decoder, head = self.decoder.model, self.decoder.lm_head

        def loss(stream, ahead):
            count = max(len(tokens) - ahead, 0)
            logits = head(stream)[0, :count]
            of_token = nn.functional.cross_entropy(logits, tokens[ahead:], reduction="none")
            return (of_token * weights[ahead - 1 : ahead - 1 + count]).sum()

        x = decoder.embed_tokens(tokens[None])
        for number in range(LAYERS):
            x = self.layer(number, x)
        stream = decoder.norm(x)
        losses = [loss(stream, 1)]
        for depth, further in enumerate(self.further, 1):
            # The last tokens have no further one.
            count = len(tokens) - depth
            if count <= 0:
                losses.append(stream.new_zeros(()))
                continue
            x = further(decoder.embed_tokens(tokens[None, depth:]), stream[:, :count])
            stream = further.shared_head["norm"](self.layer(LAYERS + depth - 1, x))
            losses.append(loss(stream, depth + 1))
        return losses

    def compute(self, batch):
        """The loss, its parts, and gradients by the names of a checkpoint."""
        self.zero_grad()
        sums = [0.0] * (1 + FURTHER)
        for row, documents in enumerate(DOCUMENTS):
            first = 0
            for length in documents:
                tokens = batch["tokens"][row, first : first + length]
                weights = batch["weights"][row, first : first + length]
                sums = [total + part for total, part in zip(sums, self.losses(tokens, weights), strict=True)]
                first += length
        parts = torch.stack(sums) / batch["weights"].sum()
        loss = parts[0] + WEIGHT * parts[1:].mean()
        loss.backward()
        gradients = named(self, lambda parameter: parameter.grad)
        result = {"loss": loss.detach(), "parts": parts.detach()}
        return result | {f"grad.{name}": gradient for name, gradient in gradients.items()}


def named(model, value):
    """Something of each parameter, by its name in a checkpoint."""
    tensors = revert_weight_conversion(
        model.decoder, {name: value(parameter) for name, parameter in model.decoder.named_parameters()}
    )
    for depth, further in enumerate(model.further):
        own = {name: value(parameter) for name, parameter in further.named_parameters()}
        tensors |= {f"model.layers.{LAYERS + depth}.{name}": tensor for name, tensor in own.items()}
    return tensors


def make_config(layers):
    keys = json.loads(json.dumps(CASE.config)) | dict(num_hidden_layers=layers, num_nextn_predict_layers=FURTHER)
    return AutoConfig.for_model(CASE.model_type, **keys)


@torch.no_grad()
def make(seed):
    """A model with random weights, rounded to bf16, and a batch."""
    model = Model(make_config(LAYERS + FURTHER), torch.float32)
    families.fill(model.decoder, CASE, seed)
    generator = np.random.default_rng([seed, 77])
    for name, value in model.further.named_parameters():
        mean, deviation = families.noise_of(name, value.shape, CASE)
        value.copy_(torch.tensor(mean + deviation * generator.standard_normal(tuple(value.shape))).to(torch.bfloat16))
    tokens = generator.integers(0, model.decoder.config.vocab_size, (len(DOCUMENTS), LENGTH))
    weights = generator.choice([0.0, 0.5, 1.0, 1.0], tokens.shape).astype(np.float32)
    segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
    targets = np.roll(tokens, -1, 1)
    for row, documents in enumerate(DOCUMENTS):
        assert sum(documents) == LENGTH
        first = 0
        for number, length in enumerate(documents, 1):
            segments[row, first : first + length] = number
            positions[row, first : first + length] = np.arange(length)
            # The last token of a document has no next one: its target is another document's.
            weights[row, first + length - 1] = 0.0
            first += length
    arrays = dict(tokens=tokens, targets=targets, segment_ids=segments, positions=positions)
    batch = {name: torch.tensor(array) for name, array in arrays.items()}
    return model, batch | {"weights": torch.tensor(weights)}


def in_f64(model):
    exact = Model(model.decoder.config, torch.float64)
    exact.load_state_dict(model.state_dict())
    return exact


def distance(value, truth):
    # An expert without tokens has no gradient.
    return families.distance(value, truth) if truth.any() or value.any() else 0.0


def reference(model, batch):
    """The tensors of the golden file, the largest noise of one, the least margin of a choice, and whether f32 chooses alike."""
    with families.watched(model.decoder) as seen:
        rounded = model.compute(batch)
    with families.f32_is_f64():
        exact = in_f64(model)
        wide = batch | {"weights": batch["weights"].double()}
        with families.watched(exact.decoder) as seen_exact, families.OnlyF64():
            tensors = exact.compute(wide)
    noise = {name: distance(rounded[name].double().numpy(), value.numpy()) for name, value in tensors.items()}
    margin = min(float(margins.min()) for margins in seen["margins"])
    same = all(torch.equal(one, other) for one, other in zip(seen["choices"], seen_exact["choices"], strict=True))
    worst = max(noise, key=noise.get)
    return tensors, (worst, noise[worst]), margin, same


def search(seeds):
    best = 0.0
    for seed in range(seeds):
        _, (worst, noise), margin, same = reference(*make(seed))
        if same and noise < families.NOISE and margin > best:
            best = margin
            print(f"seed {seed}: margin {margin:.1e}, noise {noise:.1e} in {worst}", flush=True)


def write(folder):
    model, batch = make(SEED)
    tensors, (worst, noise), margin, same = reference(model, batch)
    assert same and noise < families.NOISE and margin > MARGIN, f"{same} {worst} {noise} {margin}"
    folder.mkdir(exist_ok=True)
    config = make_config(LAYERS).to_dict()
    config |= dict(architectures=["DeepseekV3ForCausalLM"], dtype="bfloat16")
    families.write_json(folder / "config.json", dict(sorted(config.items())))

    weights = named(model, torch.Tensor.detach)
    biases = {name: value for name, value in model.decoder.named_buffers() if name.endswith("e_score_correction_bias")}
    for depth in range(FURTHER):
        # As in published files, which have copies of what is shared.
        weights[f"model.layers.{LAYERS + depth}.embed_tokens.weight"] = weights["model.embed_tokens.weight"]
        weights[f"model.layers.{LAYERS + depth}.shared_head.head.weight"] = weights["lm_head.weight"]
    arrays = {name: value.numpy().astype(ml_dtypes.bfloat16) for name, value in weights.items()}
    arrays |= {name: value.numpy().astype(np.float32) for name, value in biases.items()}
    (folder / "model.safetensors").write_bytes(tensor_file.encode(arrays, {"format": "pt"}))

    golden = {name: value.numpy().astype(np.float32) for name, value in tensors.items()}
    golden |= {name: value.numpy() for name, value in batch.items()}
    golden = {name: value.astype(np.int32) if value.dtype == np.int64 else value for name, value in golden.items()}
    (folder / "golden.safetensors").write_bytes(tensor_file.encode(golden, METADATA))
    print(f"loss {golden['loss']}, parts {golden['parts']}, margin {margin:.1e}, noise {noise:.1e} in {worst}")


def check():
    with tempfile.TemporaryDirectory() as scratch:
        write(Path(scratch))
        for path in Path(scratch).glob("*.safetensors"):
            new, _ = tensor_file.decode(path.read_bytes())
            old, _ = tensor_file.decode((FOLDER / path.name).read_bytes())
            assert new.keys() == old.keys(), f"other tensors in {path.name}"
            for name, value in new.items():
                error = distance(old[name].astype(np.float64), value.astype(np.float64))
                bound = 1e-6 if path.name == "golden.safetensors" else 0.0
                assert error <= bound, f"{name} differs by {error}"
    print("the folder agrees")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the folder instead of writing it")
    parser.add_argument("--search", type=int, metavar="SEEDS", help="try this many seeds and write nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.search:
        return search(arguments.search)
    return check() if arguments.check else write(FOLDER)


if __name__ == "__main__":
    sys.exit(main())
