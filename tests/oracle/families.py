"""Checkpoints and golden files of model families, as transformers and torch compute them on the CPU.

    python tests/oracle/families.py                    writes every folder under tests/oracle/families
    python tests/oracle/families.py qwen2 mixtral      writes these
    python tests/oracle/families.py norms              writes norms.safetensors alone, which is written with all folders
    python tests/oracle/families.py --check            compares with the folders that are there
    python tests/oracle/families.py --generation       writes generation.safetensors of every folder alone
    python tests/oracle/families.py --search 500 NAME  tries seeds 0..499 for a case that rounding changes little

A folder holds `config.json` and `model.safetensors` as `save_pretrained` writes them, `golden.safetensors`, and
`generation.safetensors` (families_generation.py). Most hold `config.published.json` too: the same model with the keys
that published files of the family have.

The reference is computed in f64, the casts to f32 inside the models' code too, and is stored as f32. The same model in
f32 chooses the same experts, and is within NOISE of the reference in the logits and in each gradient.
"""

import argparse
import copy
import json
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

# Behind the standard library, for torch wants its `profile` and not the script of that name beside this one.
sys.path.append(sys.path.pop(0))

import ml_dtypes
import numpy as np
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import families_generation
import tensor_file
from families_cases import BATCH, CASES, DEFAULT_GAIN, SEQ

FOLDER = Path(__file__).parent / "families"
# The plain loops: the default for experts is a grouped product, which rounds elsewhere in bf16.
EAGER = {"attn_implementation": "eager", "experts_implementation": "eager"}
# No choice of experts may hang on a smaller difference of scores: a correct program would then choose others.
MARGIN = 3e-3
# How far logits and gradients in f32 may be from those in f64, per tensor: readers compare with 1e-5.
NOISE = 3e-6
# Keys that say nothing about the model, or that are names of the same thing.
NOT_COMPARED = {"transformers_version", "dtype", "architectures", "_name_or_path"}


# The model


def make_config(case):
    # A copy: a config writes into the dictionaries that it is given.
    config = AutoConfig.for_model(case.model_type, **json.loads(json.dumps(case.config)))
    assert SEQ <= config.max_position_embeddings
    return config


def noise_of(name, shape, case):
    """The mean and the standard deviation of a parameter's values."""
    if name.endswith("norm.weight"):
        # Gemma's norms multiply by 1 + w.
        return (0.0 if case.model_type.startswith("gemma") else 1.0), 0.3
    if name.endswith("sinks"):
        return 0.0, 1.0
    if name.endswith("e_score_correction_bias"):
        # Enough to change choices (scores are sigmoids), not so much that some experts have no tokens.
        return 0.0, 0.15
    if name.endswith("bias"):
        return 0.0, 0.5
    gain = next((gain for end, gain in case.gains.items() if name.endswith(end)), DEFAULT_GAIN)
    if name.endswith("embed_tokens.weight") and not case.config.get("tie_word_embeddings", "gemma" in case.model_type):
        # Only looked up, so there is no fan-in; small, so that the first norm's epsilon is seen.
        return 0.0, 0.2
    # Experts of gpt-oss are [expert, in, out], all other matrices are [.., out, in].
    fan_in = shape[1] if case.model_type == "gpt_oss" and len(shape) == 3 else shape[-1]
    return 0.0, gain * fan_in**-0.5


@torch.no_grad()
def fill(model, case, seed):
    """Random values, rounded to bf16, for all parameters and stored buffers; returns random tokens."""
    generator = np.random.default_rng([seed, *case.model_type.encode()])
    # No token 0: it is Gemma's padding, whose row of the embedding gets no gradient from being looked up.
    tokens = torch.tensor(generator.integers(1, model.config.vocab_size, (BATCH, SEQ)))
    stored = model.state_dict(keep_vars=True)
    if model.config.tie_word_embeddings:
        del stored["lm_head.weight"]
    for name, value in stored.items():
        mean, deviation = noise_of(name, value.shape, case)
        noise = generator.standard_normal(tuple(value.shape))
        value.copy_(torch.tensor(mean + deviation * noise).to(torch.bfloat16))
    return tokens


def load(folder, dtype=torch.float32, **options):
    """The folder's model, with every tensor on both sides used: transformers itself only warns of others."""
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, **EAGER, **options
    )
    problems = {problem: names for problem, names in report.items() if names}
    assert not problems, f"{folder}: {problems}"
    return model.eval()


# The reference


class OnlyF64(TorchDispatchMode):
    """Fails where an operation gives floats of fewer bits."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        results = function(*arguments, **(options or {}))
        for result in tree_leaves(results):
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                assert result.element_size() == 8, f"{function} gives {result.dtype}"
        return results


@contextmanager
def f32_is_f64():
    """What casts to f32, as norms, softmax, routers and rotation tables do, casts to f64."""
    patch = mock.patch.object
    with patch(torch, "float32", torch.float64), patch(torch, "float", torch.float64):
        with patch(torch.Tensor, "float", torch.Tensor.double):
            yield


def in_f64(model):
    """The model with all that it computes when it is made, rotation tables say, in f64; for `f32_is_f64`."""
    exact = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=torch.float64, **EAGER).eval()
    exact.load_state_dict(model.state_dict())
    return exact


def compute(model, tokens):
    """Logits, loss and gradients, these under the names and in the layouts of a checkpoint: experts one by one."""
    model.zero_grad()
    result = model(tokens, labels=tokens, use_cache=False)
    result.loss.backward()
    gradients = revert_weight_conversion(model, {name: p.grad for name, p in model.named_parameters()})
    tensors = {"logits": result.logits.detach(), "loss": result.loss.detach()}
    return tensors | {f"grad.{name}": gradient for name, gradient in gradients.items()}


@dataclass(frozen=True)
class Reference:
    tensors: dict
    # How far each tensor is in f32.
    noise: dict
    # How many tokens have other experts in f32.
    changed: int

    def worst(self):
        """The name of the gradient with the most noise."""
        return max((name for name in self.noise if name.startswith("grad.")), key=self.noise.get)

    def is_quiet(self):
        return self.changed == 0 and all(noise < NOISE for noise in self.noise.values())


def compute_reference(model, tokens):
    """Computed in f64, and compared with the f32 model itself."""
    routing, rounded = route(model, tokens), compute(model, tokens)
    with f32_is_f64():
        exact = in_f64(model)
        with OnlyF64():
            changed = routing.changed(route(exact, tokens))
            tensors = compute(exact, tokens)
    noise = {name: distance(rounded[name].double().numpy(), value.numpy()) for name, value in tensors.items()}
    return Reference({name: value.to(torch.float32) for name, value in tensors.items()}, noise, changed)


# Routing


def margins(router, logits):
    """By how much each token's choices (of experts, of groups of experts) were made."""

    def margin(scores, chosen):
        if chosen == scores.shape[-1]:
            return scores.new_full(scores.shape[:-1], float("inf"))
        ordered = scores.sort(-1, descending=True).values
        return ordered[:, chosen - 1] - ordered[:, chosen]

    bias = getattr(router, "e_score_correction_bias", None)
    if bias is None:
        # gpt-oss chooses by logits, the others by probabilities.
        return margin(logits if hasattr(router, "bias") else logits.softmax(-1), router.top_k)
    scores = logits.sigmoid() + bias
    grouped = scores.unflatten(-1, (router.num_group, -1))
    of_groups = grouped.topk(2).values.sum(-1)
    kept = torch.zeros_like(of_groups, dtype=bool).scatter(-1, of_groups.topk(router.topk_group).indices, True)
    candidates = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
    return torch.minimum(margin(of_groups, router.topk_group), margin(candidates, router.top_k))


@contextmanager
def watched(model):
    """Collects, of each router that runs, the margins and the sorted choices; of each clamped expert, gates and ups."""
    seen = {"margins": [], "choices": [], "gates": [], "ups": []}
    handles = []

    def routed(router, _, outputs):
        logits, _, chosen = outputs
        seen["margins"].append(margins(router, logits.detach().float()))
        seen["choices"].append(chosen.sort(-1).values)

    def watch_clamp(experts):
        apply_gate = experts._apply_gate

        def wrapped(gate_up):
            seen["gates"].append(gate_up[..., ::2].detach().flatten())
            seen["ups"].append(gate_up[..., 1::2].detach().flatten())
            return apply_gate(gate_up)

        experts._apply_gate = wrapped

    clamped = [module for module in model.modules() if hasattr(module, "limit")]
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter") or type(module).__name__.endswith("TopkRouter"):
            handles.append(module.register_forward_hook(routed))
    for experts in clamped:
        watch_clamp(experts)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
        for experts in clamped:
            del experts._apply_gate


@dataclass(frozen=True)
class Routing:
    margin: float
    choices: list
    # Whether each layer's experts all have tokens.
    complete: bool = True
    # The share of gates and of ups beyond the limit, and how close to it the closest is.
    beyond: tuple | None = None
    closest: float = float("inf")

    def is_safe(self):
        """Whether all is used, and another rounding of f32 changes nothing: at the limit a gradient is there or not."""
        return self.complete and self.margin >= MARGIN and self.closest >= 1e-4

    def changed(self, other):
        """How many tokens, of all layers, have other experts."""
        return sum(int((a != b).any(-1).sum()) for a, b in zip(self.choices, other.choices, strict=True))


def route(model, tokens):
    with watched(model) as seen, torch.no_grad():
        model(tokens, use_cache=False)
    margin = min((float(m.min()) for m in seen["margins"]), default=float("inf"))
    count = getattr(model.config, "num_local_experts", 0)
    complete = all(len(choices.unique()) == count for choices in seen["choices"])
    if not seen["gates"]:
        return Routing(margin, seen["choices"], complete)
    limit = model.config.swiglu_limit
    gates, ups = torch.cat(seen["gates"]).float(), torch.cat(seen["ups"]).float().abs()
    beyond = tuple(float((values > limit).float().mean()) for values in (gates, ups))
    closest = min(float((values - limit).abs().min()) for values in (gates, ups))
    return Routing(margin, seen["choices"], complete, beyond, closest)


def search(name, seeds):
    """Prints quiet seeds whose choices bf16 does not change, each with larger margins, in f32 and bf16, than before."""
    case, best = CASES[name], 0.0
    config = make_config(case)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **EAGER).eval()
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(seeds):
            tokens = fill(model, case, seed)
            routing = route(model, tokens)
            if routing.margin <= best or not routing.is_safe():
                continue
            reference = compute_reference(model, tokens)
            if not reference.is_quiet():
                continue
            model.save_pretrained(scratch)
            rounded = route(load(scratch, torch.bfloat16), tokens)
            margin = min(routing.margin, rounded.margin)
            if margin > best and routing.changed(rounded) == 0:
                best = margin
                print(f"{name}: seed {seed}, margins {routing.margin:.1e}, in bf16 {rounded.margin:.1e}", end=", ")
                print(f"noise {reference.noise[reference.worst()]:.1e}", flush=True)


# The files


def write_checkpoint(case, folder):
    """`config.json` and `model.safetensors` as transformers writes them; returns the tokens."""
    model = AutoModelForCausalLM.from_config(make_config(case), dtype=torch.float32, **EAGER)
    tokens = fill(model, case, case.seed)
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        # Loaded, not cast: what a family keeps in f32 stays in f32, in memory and in the file.
        load(scratch, torch.bfloat16).save_pretrained(folder)
    # It has nothing but token numbers.
    (folder / "generation_config.json").unlink()
    # save_pretrained writes it for its owner only.
    (folder / "model.safetensors").chmod(0o644)
    return tokens


def published_config(case, keys):
    """What `config.json` was before transformers 5: flat RoPE keys, `torch_dtype`, what the family's files have."""
    rope = keys.pop("rope_parameters")
    if "full_attention" in rope:
        keys["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    kind = scaling["rope_type"]
    if case.model_type == "deepseek_v3":
        scaling["type"] = scaling.pop("rope_type")
    keys["rope_theta"] = rope["rope_theta"]
    keys["rope_scaling"] = None if kind == "default" else scaling
    keys["torch_dtype"] = keys.pop("dtype")
    keys["transformers_version"] = "4.57.0"
    keys |= case.published
    for key in case.unpublished:
        keys.pop(key, None)
    return {key: keys[key] for key in sorted(keys)}


def multimodal_config(published):
    """Gemma 3 with images: the text model's keys are nested, those with the default value are left out."""
    defaults = AutoConfig.for_model("gemma3_text").to_dict()
    # The pattern has its default value as well; `defaults` has it as the list of layer types.
    absent = {"architectures", "cache_implementation", "sliding_window_pattern", "torch_dtype", "transformers_version"}
    absent |= {key for key, value in published.items() if key in defaults and defaults[key] == value}
    text = {key: value for key, value in published.items() if key not in absent - {"model_type"}}
    vision = dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=24, image_size=16, patch_size=8)
    vision |= dict(num_attention_heads=2, num_hidden_layers=1, vision_use_head=False)
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 45,
        "eoi_token_index": 46,
        "image_token_index": 47,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 4,
        "model_type": "gemma3",
        "text_config": text,
        "torch_dtype": published["torch_dtype"],
        "transformers_version": published["transformers_version"],
        "vision_config": vision,
    }


def check_same_config(config, other, name):
    """Every attribute of `config` is that of `other`, which may have more: keys that transformers does not know."""

    def attributes(config):
        return {key: value for key, value in without_type(config.to_dict()).items() if key not in NOT_COMPARED}

    def without_type(value):
        # The old name of rope_type, kept beside it.
        if isinstance(value, dict):
            return {key: without_type(item) for key, item in value.items() if key != "type"}
        return value

    expected, actual = attributes(config), attributes(other)
    different = {key: (value, actual.get(key)) for key, value in expected.items() if actual.get(key) != value}
    assert not different, f"{name}: {different}"


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def write_configs(case, folder):
    """The other forms of the folder's config, which transformers resolves to the same."""
    if case.published is None:
        return
    config = AutoConfig.from_pretrained(folder)
    published = published_config(case, json.loads((folder / "config.json").read_text()))
    path = folder / "config.published.json"
    write_json(path, published)
    check_same_config(config, AutoConfig.from_pretrained(path), path)
    if case.model_type == "gemma3_text":
        path = folder / "config.multimodal.json"
        write_json(path, multimodal_config(published))
        check_same_config(config, AutoConfig.from_pretrained(path).text_config, path)


def check_as_stored(model, folder):
    """The checkpoint has the weights of the model, under names and in layouts that gradients have too."""
    weights = revert_weight_conversion(model, {name: p.detach() for name, p in model.named_parameters()})
    stored, _ = tensor_file.decode((folder / "model.safetensors").read_bytes())
    buffers = {name for name, _ in model.named_buffers()}
    assert weights.keys() == stored.keys() - buffers, f"{folder}: {weights.keys() ^ stored.keys()}"
    for name, weight in weights.items():
        assert np.array_equal(weight.numpy(), stored[name].astype(np.float32)), f"{folder}: {name}"


def write_golden(case, folder, tokens):
    """`golden.safetensors`, from the folder's checkpoint; returns what to print about it."""
    model = load(folder)
    check_as_stored(model, folder)
    routing = route(model, tokens)
    assert routing.is_safe(), f"{folder.name}: search for another seed than one with {routing}"
    reference = compute_reference(model, tokens)
    worst = reference.worst()
    assert reference.is_quiet(), f"{folder.name}: {reference.changed} choices change, noise {reference.noise[worst]}"
    tensors = {"tokens": tokens.to(torch.int32)} | reference.tensors

    rounded = load(folder, torch.bfloat16)
    changed = routing.changed(route(rounded, tokens))
    assert changed == 0, f"{folder.name}: {changed} choices change in bf16: search for another seed"
    with torch.no_grad():
        tensors["logits_bf16"] = rounded(tokens, use_cache=False).logits.float()

    if case.published is not None:
        config = AutoConfig.from_pretrained(folder / "config.published.json")
        with torch.no_grad():
            same = load(folder, config=config)(tokens, use_cache=False).logits
            assert torch.equal(same, model(tokens, use_cache=False).logits), f"{folder.name}: published differs"

    tensors = {name: value.numpy() for name, value in tensors.items()}
    for name, value in tensors.items():
        assert np.isfinite(value).all() and value.any(), f"{folder.name}: {name} is zero or not finite"
    metadata = {"made_by": "tests/oracle/families.py"}
    (folder / "golden.safetensors").write_bytes(tensor_file.encode(tensors, metadata))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": float(tensors["loss"]),
        "spread": float(tensors["logits"].std()),
        "bf16": distance(tensors["logits_bf16"], tensors["logits"]),
        "margin": routing.margin,
        "noise": reference.noise["logits"],
        "worst": reference.noise[worst],
        "name": worst.removeprefix("grad.").removeprefix("model.").removesuffix(".weight"),
        "beyond": "{:.1%} of gates, {:.1%} of ups clamped".format(*routing.beyond) if routing.beyond else "",
    }


def distance(value, truth):
    return float(np.linalg.norm(value - truth) / np.linalg.norm(truth))


def write_folder(name, folder):
    case = CASES[name]
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    tokens = write_checkpoint(case, folder)
    write_configs(case, folder)
    facts = write_golden(case, folder, tokens)
    write_generation(folder)

    # What a reader of the folder gets.
    golden, _ = tensor_file.decode((folder / "golden.safetensors").read_bytes())
    with torch.no_grad():
        logits = load(folder)(torch.tensor(golden["tokens"]).long(), use_cache=False).logits.numpy()
    assert distance(logits, golden["logits"]) < NOISE, f"{name}: read back, it is another model"

    size = {path.name: path.stat().st_size for path in folder.iterdir()}
    print(
        f"{name:18} {facts['parameters']:7} {size['model.safetensors']:8} {size['golden.safetensors']:8} "
        f"{facts['loss']:7.4f} {facts['spread']:7.3f} {facts['bf16']:8.1e} {facts['margin']:8.1e} "
        f"{facts['noise']:8.1e} {facts['worst']:8.1e} {facts['name']} {facts['beyond']}",
        flush=True,
    )
    return sum(size.values())


def write_generation(folder):
    model = load(folder)

    @torch.no_grad()
    def exact_logits(tokens):
        with f32_is_f64():
            return in_f64(model)(tokens, use_cache=False).logits

    families_generation.write(model, exact_logits, route, folder)


def check_folder(name):
    """Compares a folder with what is made now. bf16 is rounded otherwise by other processors, so its bound is wide."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / name
        write_folder(name, made)
        assert {p.name for p in made.iterdir()} == {p.name for p in (FOLDER / name).iterdir()}, f"{name}: other files"
        for path in made.glob("*.json"):
            new, old = json.loads(path.read_text()), json.loads((FOLDER / name / path.name).read_text())
            assert new | {"transformers_version": ""} == old | {"transformers_version": ""}, f"{name}: {path.name}"
        for path in made.glob("*.safetensors"):
            new, _ = tensor_file.decode(path.read_bytes())
            old, _ = tensor_file.decode((FOLDER / name / path.name).read_bytes())
            assert new.keys() == old.keys(), f"{name}: other tensors in {path.name}"
            for key, value in new.items():
                assert value.dtype == old[key].dtype and value.shape == old[key].shape, f"{name}: {key}"
                bound = 1e-1 if key == "logits_bf16" else 1e-6 if path.name == "golden.safetensors" else 0.0
                error = distance(old[key].astype(np.float64), value.astype(np.float64))
                assert error <= bound, f"{name}: {key} differs by {error}"


def write_norms(check):
    """`norms.safetensors`: norms in bf16, which families round at different places."""
    generator = np.random.default_rng(7)

    def random(mean, deviation, *shape):
        return torch.tensor(mean + deviation * generator.standard_normal(shape)).to(torch.bfloat16)

    # Rows from far below the root of epsilon to far above, of elements within two orders of magnitude.
    sizes = 10.0 ** (np.arange(-4, 2)[:, None] + generator.uniform(-1, 1, (6, 40)))
    x = random(0.0, sizes, 6, 40)
    weight, weight_minus_one = random(1.0, 0.3, 40), random(0.0, 0.3, 40)
    tensors = {"x": x, "weight": weight, "weight_minus_one": weight_minus_one}
    for name, norm, weight in (
        ("llama", LlamaRMSNorm(40, eps=1e-5), weight),
        ("gpt_oss", GptOssRMSNorm(40, eps=1e-5), weight),
        ("gemma", Gemma2RMSNorm(40, eps=1e-6), weight_minus_one),
    ):
        norm.weight.data = weight
        tensors[name] = norm(x).detach()
        assert tensors[name].dtype == torch.bfloat16, name
    different = int((tensors["llama"] != tensors["gpt_oss"]).sum())
    assert different > 20, f"{different} elements tell where llama and gpt-oss round"
    metadata = {
        "made_by": "tests/oracle/families.py",
        "llama": "LlamaRMSNorm(x, weight), eps 1e-5: rounded to bf16, then times the weight",
        "gpt_oss": "GptOssRMSNorm(x, weight), eps 1e-5: times the weight in f32, then rounded",
        "gemma": "Gemma2RMSNorm(x, weight_minus_one), eps 1e-6: times 1 + weight in f32, then rounded",
    }
    arrays = {name: value.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for name, value in tensors.items()}
    tensor_file.write_or_check(FOLDER / "norms.safetensors", arrays, metadata, check)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="cases or `norms`, all if none is named")
    parser.add_argument("--check", action="store_true", help="compare with the folders instead of writing them")
    parser.add_argument("--generation", action="store_true", help="write generation.safetensors alone")
    parser.add_argument("--search", type=int, metavar="SEEDS", help="try this many seeds and write nothing")
    arguments = parser.parse_args()
    names = arguments.names or [*CASES, "norms"]
    # One thread: sums are then in one order.
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    if arguments.search:
        for name in names:
            search(name, arguments.search)
        return
    if arguments.generation:
        for name in names:
            if name != "norms":
                write_generation(FOLDER / name)
        return
    if "norms" in names:
        names.remove("norms")
        write_norms(arguments.check)
    if not names:
        return
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    print(
        f"{'':18} {'params':>7} {'model':>8} {'golden':>8} {'loss':>7} {'spread':>7} {'bf16':>8} {'margin':>8} "
        f"{'f32':>8} gradient furthest in f32"
    )
    if arguments.check:
        for name in names:
            check_folder(name)
        print(f"{len(names)} folders agree")
    else:
        print(f"{sum(write_folder(name, FOLDER / name) for name in names)} bytes")


if __name__ == "__main__":
    main()
