"""Writes presets.tsv: parameters of the published models of crates/models/src/families/named_models, counted by
transformers.

Each `config.json` becomes a model on torch's meta device (no memory, no downloads); a tied head counts once. The count
must be the published one. What is published is the number of elements in the checkpoint, which can hold more than the
decoder's parameters: `apart` is the number of the others, computed here from the config, so that for every model

    parameters = published - apart

All published counts are exact. Any Python with torch and transformers will do (made with torch 2.15.0 and transformers
5.24.0). Run with `--check` to compare with the file instead of writing it.
"""

# Where the numbers in the configs come from, beside the model cards. Each preset was compared with all its sources.
# `copy`: the source has the published file, or one much like it.
#
# | source | presets |
# |---|---|
# | ai-dynamo/aiconfigurator | copy of llama-3.1-*, mixtral-*, deepseek-v3, gpt-oss-* and qwen3-* but for 4b and 14b |
# |   aic-core/src/aiconfigurator_core/model_configs/*_config.json | |
# | Girafboy/pytorchKQI | copy of llama-2-*, llama-3-8b, gemma-2-2b, gemma-2-9b; |
# |   example/evaluate.py | of Qwen2-7B and Qwen2-72B, which are as qwen2.5-7b and qwen2.5-72b |
# | mlc-ai/mlc-llm | copy of llama-3.1-{8b,70b}, llama-3.2-*, mistral-*, mixtral-8x7b, gemma-2-*, |
# |   python/mlc_llm/model/model_preset.py | gemma-3-1b, qwen3-{0.6b,1.7b} (instruct models); llama-2-*, |
# | | Qwen2-0.5B, Qwen2-7B |
# | NVIDIA-NeMo/Megatron-Bridge | copy of llama-3.2-1b, gemma-2-*, gemma-3-{1b,4b,27b} |
# |   tests/unit_tests/models/llama/test_llama_bridge.py, tests/unit_tests/models/gemma/test_gemma{2,3}_bridge.py | |
# | NVIDIA/TensorRT-LLM | copy of gemma-3-1b, gemma-3-27b (fewer layers) |
# |   tests/unittest/_torch/modeling/test_modeling_gemma3.py | |
# | modelscope/DiffSynth-Studio | copy of gemma-3-12b, every default written out |
# |   diffsynth/models/ltx2_text_encoder.py | |
# | Lightning-AI/litgpt | shapes of llama-*, qwen2.5-*, qwen3-*, mistral-*, mixtral-*, gemma-* |
# |   litgpt/config.py | |
# | AI-Hypercomputer/maxtext | shapes of all but llama-3.2-*, qwen2.5-{0.5b,32b,72b}, mistral-7b-v0.3, |
# |   src/maxtext/configs/models/*.yml | gemma-3-1b |
#
# Where sources differ, the published file was followed:
# - litgpt leaves eps of Gemma at its default (1e-5; published 1e-6), and cuts mistral-7b-v0.1 to its window;
# - the vocabulary of mixtral-8x22b is 32000 in the base model, 32768 in the instruct model (litgpt, maxtext);
# - that of gemma-3-{4b,12b,27b} is 262208 (token 262144 stands for an image), 262144 in litgpt and maxtext;
# - rope_theta of mistral-7b-v0.1 is 10000; maxtext has that of later versions;
# - query_pre_attn_scalar of gemma-2-9b is 256, the width of a head; hf_model_configs.py of maxtext has 224, the width
#   of the model over its heads;
# - qwen3-30b-a3b and qwen3-235b-a22b are of April 2025: those of July (2507, in maxtext) have a larger rope_theta.
# Base models are meant; those of qwen3-* and gemma-3-* are the instruct models (they differ in the end of text, qwen3-*
# also in the positions), and of llama-3.3-70b and gpt-oss-* there is no other.

import argparse
import json
import sys
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Callable

# torch imports Python's own `profile`, which must not be the script of that name in this folder.
sys.path = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

import torch
from transformers import AutoConfig, AutoModelForCausalLM

PATH = Path(__file__).parent / "presets.tsv"
CONFIGS = Path(__file__).parents[2] / "crates/models/src/families/named_models"
COLUMNS = ("preset", "model_type", "parameters", "published", "exactness", "source", "apart", "what is apart")


def nothing(config, model):
    return 0


def rotary_frequencies(config, model):
    """The files of Llama 2 hold a table of rotary frequencies for each layer."""
    return config.num_hidden_layers * config.hidden_size // config.num_attention_heads // 2


def head_copy(config, model):
    """The head is tied, but written to the file a second time."""
    return config.vocab_size * config.hidden_size


def gemma_3_vision(config, model):
    """A SigLIP encoder of 27 layers on patches of 14 x 14 pixels of 896 x 896, and the norm and product after it."""
    width, mlp, layers, patch, patches = 1152, 4304, 27, 14 * 14 * 3, (896 // 14) ** 2
    attention = 4 * (width * width + width)
    layer = attention + width * mlp + mlp + mlp * width + width + 2 * (width + width)
    encoder = patch * width + width + patches * width + layers * layer + 2 * width
    return encoder + width + width * config.hidden_size


def deepseek_file(config, model):
    """What the file has beside the parameters of the 671B: a layer of multi-token prediction, scales, router biases.

    That layer is one like the last, with a product of twice the width, three norms and copies of embedding and head.
    Each matrix of a layer, except the router's and that product, has a scale for each block of 128 x 128.
    """
    block_rows, block_columns = config.quantization_config["weight_block_size"]
    layers = [[(name, parameter.shape) for name, parameter in layer.named_parameters()] for layer in model.model.layers]
    layers.append(layers[-1])
    scales = sum(
        prod(shape[:-2]) * -(-shape[-2] // block_rows) * -(-shape[-1] // block_columns)
        for layer in layers
        for name, shape in layer
        if len(shape) > 1 and name != "mlp.gate.weight"
    )
    # One for each expert of each router. They follow the load, no gradient: transformers has them as buffers.
    biases = (len(layers) - config.first_k_dense_replace) * config.n_routed_experts
    width = config.hidden_size
    layer = sum(prod(shape) for _, shape in layers[-1])
    extra = layer + 2 * width * width + 3 * width + 2 * config.vocab_size * width
    return scales + biases + extra


ROTARY = (rotary_frequencies, "rotary frequencies in the file")
HEAD = (head_copy, "the tied head in the file a second time")
VISION = (gemma_3_vision, "vision encoder and projector")
DEEPSEEK = (deepseek_file, "multi-token prediction (the model card: 671B without), fp8 scales, router biases")


@dataclass
class Published:
    count: int
    # The model on the Hugging Face Hub whose number it is (`safetensors.total` in its API). Base and instruct models
    # have the same.
    source: str
    apart: tuple[Callable, str] = (nothing, "")


# The numbers were not read from the API itself but from public files that quote it: debaditc/kvfit,
# scripts/build_registry.py, has most of them. keras-team/keras-hub, keras_hub/src/models/*/*_presets.py, has most
# without what is apart. deepseek-ai/DeepSeek-V3, README_WEIGHTS.md, says 671B, and 11.5B for multi-token prediction.
PUBLISHED = {
    "llama-2-7b": Published(6_738_417_664, "meta-llama/Llama-2-7b-hf", ROTARY),
    "llama-2-70b": Published(68_976_653_312, "meta-llama/Llama-2-70b-hf", ROTARY),
    "llama-3-8b": Published(8_030_261_248, "meta-llama/Meta-Llama-3-8B-Instruct"),
    "llama-3.1-8b": Published(8_030_261_248, "meta-llama/Llama-3.1-8B"),
    "llama-3.1-70b": Published(70_553_706_496, "meta-llama/Llama-3.1-70B"),
    "llama-3.1-405b": Published(405_853_388_800, "meta-llama/Llama-3.1-405B"),
    "llama-3.2-1b": Published(1_235_814_400, "meta-llama/Llama-3.2-1B-Instruct"),
    "llama-3.2-3b": Published(3_212_749_824, "meta-llama/Llama-3.2-3B-Instruct"),
    "llama-3.3-70b": Published(70_553_706_496, "meta-llama/Llama-3.3-70B-Instruct"),
    "qwen2.5-0.5b": Published(494_032_768, "Qwen/Qwen2.5-0.5B-Instruct"),
    "qwen2.5-7b": Published(7_615_616_512, "Qwen/Qwen2.5-7B-Instruct"),
    "qwen2.5-32b": Published(32_763_876_352, "Qwen/Qwen2.5-32B-Instruct"),
    "qwen2.5-72b": Published(72_706_203_648, "Qwen/Qwen2.5-72B-Instruct"),
    "qwen3-0.6b": Published(751_632_384, "Qwen/Qwen3-0.6B", HEAD),
    "qwen3-1.7b": Published(2_031_739_904, "Qwen/Qwen3-1.7B", HEAD),
    "qwen3-4b": Published(4_022_468_096, "Qwen/Qwen3-4B"),
    "qwen3-8b": Published(8_190_735_360, "Qwen/Qwen3-8B"),
    "qwen3-14b": Published(14_768_307_200, "Qwen/Qwen3-14B"),
    "qwen3-32b": Published(32_762_123_264, "Qwen/Qwen3-32B"),
    "qwen3-30b-a3b": Published(30_532_122_624, "Qwen/Qwen3-30B-A3B"),
    "qwen3-235b-a22b": Published(235_093_634_560, "Qwen/Qwen3-235B-A22B"),
    "mistral-7b-v0.1": Published(7_241_732_096, "mistralai/Mistral-7B-v0.1"),
    "mistral-7b-v0.3": Published(7_248_023_552, "mistralai/Mistral-7B-v0.3"),
    "mixtral-8x7b": Published(46_702_792_704, "mistralai/Mixtral-8x7B-Instruct-v0.1"),
    "mixtral-8x22b": Published(140_620_634_112, "mistral-community/Mixtral-8x22B-v0.1"),
    "gemma-2-2b": Published(2_614_341_888, "google/gemma-2-2b-it"),
    "gemma-2-9b": Published(9_241_705_984, "google/gemma-2-9b-it"),
    "gemma-2-27b": Published(27_227_128_320, "google/gemma-2-27b-it"),
    "gemma-3-1b": Published(999_885_952, "google/gemma-3-1b-it"),
    "gemma-3-4b": Published(4_300_079_472, "google/gemma-3-4b-it", VISION),
    "gemma-3-12b": Published(12_187_325_040, "google/gemma-3-12b-it", VISION),
    "gemma-3-27b": Published(27_432_406_640, "google/gemma-3-27b-it", VISION),
    "deepseek-v3": Published(684_531_386_000, "deepseek-ai/DeepSeek-V3", DEEPSEEK),
    # Weights of four bits count one each, their scales not at all. OpenAI's model card has 20.9B and 116.8B.
    "gpt-oss-20b": Published(20_914_757_184, "openai/gpt-oss-20b"),
    "gpt-oss-120b": Published(116_829_156_672, "openai/gpt-oss-120b"),
}


def row(preset):
    values = json.loads((CONFIGS / f"{preset}.json").read_text())
    model_type = values.pop("model_type")
    config = AutoConfig.for_model(model_type, **values)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    # `parameters` yields a tensor that two modules share once.
    parameters = sum(parameter.numel() for parameter in model.parameters())
    published = PUBLISHED[preset]
    compute, what = published.apart
    apart = compute(config, model)
    if parameters != published.count - apart:
        raise SystemExit(f"{preset}: {parameters:,} parameters, but {published.count:,} - {apart:,} are published")
    source = f"safetensors.total of {published.source}"
    fields = (preset, model_type, parameters, published.count, "exact", source, apart, what)
    print(f"{preset}: {parameters:,}", flush=True)
    return "\t".join(map(str, fields))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    files = {path.stem for path in CONFIGS.glob("*.json")}
    if files != PUBLISHED.keys():
        raise SystemExit(f"configs and published counts differ: {sorted(files ^ PUBLISHED.keys())}")
    text = "\n".join(["\t".join(COLUMNS), *map(row, PUBLISHED)]) + "\n"
    if not arguments.check:
        PATH.write_text(text)
    elif PATH.read_text() != text:
        raise SystemExit(f"{PATH.name} differs")


if __name__ == "__main__":
    main()
