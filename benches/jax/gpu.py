"""GPT-2 and a Llama in JAX on one device: a train step, to stand beside meshloom's in benches/gpu.

    python benches/jax/gpu.py --about                                     JAX's version and its CUDA plugin, as JSON
    python benches/jax/gpu.py --case JSON --parameters FILE --steps 10    runs; prints one JSON line
    python benches/jax/gpu.py --case JSON --hlo FILE                      writes the step's module for CUDA

The bench says with --case what to compute: sizes, rows, microbatches, rematerialization, constants of AdamW. The first
parameters are meshloom's, from a safetensors file of f32; both sides draw the same rows. Parameters and optimizer state
are f32 and donated, activations of the case's type, bf16; norms, scores, softmax, logits and loss f32, with products of
cotangents in bf16.
"""

import argparse
import json
import pathlib
import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

F32 = jnp.float32


# What both models are made of


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def wide_einsum(formula, a, b):
    """A product with an f32 result. Its cotangent is rounded to the operands' type, as meshloom does it."""
    return jnp.einsum(formula, a, b, preferred_element_type=F32)


def wide_einsum_backward(formula, operands, ct):
    _, pull_back = jax.vjp(partial(jnp.einsum, formula), *operands)
    return pull_back(ct.astype(operands[0].dtype))


wide_einsum.defvjp(lambda formula, a, b: (wide_einsum(formula, a, b), (a, b)), wide_einsum_backward)


def attend(query, key, value, mask):
    """Queries `[batch, kv_heads, groups, length, head_dim]`, keys and values `[batch, kv_heads, length, head_dim]`."""
    scores = wide_einsum("bkgtd,bksd->bkgts", query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e30), axis=-1).astype(query.dtype)
    return jnp.einsum("bkgts,bksd->bkgtd", weights, value)


def scan_layers(case, layer, x, layers):
    if case["remat"] == "full":
        # Inside a scan nothing can be merged across the loop boundary: the barrier that prevents it is not needed.
        layer = jax.checkpoint(layer, prevent_cse=False)
    return lax.scan(lambda x, params: (layer(x, params), None), x, layers)[0]


def cross_entropy_sum(logits, targets):
    # By comparing positions, as meshloom does: the backward pass needs no scatter.
    is_target = lax.broadcasted_iota(jnp.int32, logits.shape, 2) == targets[..., None]
    return jnp.sum(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1))


# GPT-2


def gpt2_shapes(case):
    n, e, h, v = case["layers"], case["embed"], case["heads"], case["vocab"]
    norm = lambda *leading: {"scale": (*leading, e), "bias": (*leading, e)}
    dense = lambda inputs, *outputs: {"weight": (n, inputs, *outputs), "bias": (n, *outputs)}
    layers = {"norm1": norm(n), "qkv": dense(e, 3, h, e // h), "out": dense(e, e)}
    layers |= {"norm2": norm(n), "up": dense(e, 4 * e), "down": dense(4 * e, e)}
    return {"tokens": (v, e), "positions": (case["seq"], e), "layers": layers, "norm": norm()}


def layer_norm(x, params):
    return (jax.nn.standardize(x.astype(F32), epsilon=1e-5) * params["scale"] + params["bias"]).astype(x.dtype)


def linear(x, params):
    weight = params["weight"].astype(x.dtype)
    return jnp.tensordot(x, weight, 1) + params["bias"].astype(x.dtype)


def gpt2_logits(case, params, batch):
    dtype = jnp.dtype(case["compute_dtype"])
    table = params["tokens"].astype(dtype)
    x = table[batch["tokens"]] + params["positions"].astype(dtype)
    rows, length, _ = x.shape
    mask = jnp.tril(jnp.ones((length, length), bool))[None]

    def layer(x, p):
        qkv = linear(layer_norm(x, p["norm1"]), p["qkv"])
        query, key, value = (qkv[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        mixed = attend(query[:, :, None], key, value, mask)[:, :, 0].transpose(0, 2, 1, 3)
        x = x + linear(mixed.reshape(x.shape), p["out"])
        return x + linear(jax.nn.gelu(linear(layer_norm(x, p["norm2"]), p["up"])), p["down"])

    x = scan_layers(case, layer, x, params["layers"])
    return wide_einsum("bte,ve->btv", layer_norm(x, params["norm"]), table)


# Llama


def llama_shapes(case):
    n, e, h, k, d, m = (case[key] for key in ("layers", "embed", "heads", "kv_heads", "head_dim", "mlp"))
    attention = {"wq": (n, e, h, d), "wk": (n, e, k, d), "wv": (n, e, k, d), "wo": (n, h, d, e)}
    mlp = {"gate": (n, e, m), "up": (n, e, m), "down": (n, m, e)}
    layers = {"attention_norm": (n, e), "attention": attention, "mlp_norm": (n, e), "mlp": mlp}
    return {"embedding": (case["vocab"], e), "layers": layers, "final_norm": (e,)}


def rms_norm(x, scale):
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(jnp.square(wide), -1, keepdims=True) + 1e-5) * scale).astype(x.dtype)


def rotate(x, cos, sin):
    first, second = jnp.split(x.astype(F32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def llama_logits(case, params, batch):
    dtype = jnp.dtype(case["compute_dtype"])
    table = params["embedding"].astype(dtype)
    x = table[batch["tokens"]]
    rows, length, _ = x.shape
    heads, kv_heads, head_dim = case["heads"], case["kv_heads"], case["head_dim"]
    frequencies = case["rope_theta"] ** (jnp.arange(head_dim // 2, dtype=F32) * (-2.0 / head_dim))
    angles = batch["positions"].astype(F32)[:, None, :, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    segments, index = batch["segment_ids"], jnp.arange(length)
    mask = (index[:, None] >= index) & (segments[:, :, None] == segments[:, None, :])

    def layer(x, p):
        project = lambda weight: jnp.einsum("bte,ehd->bhtd", normal, weight.astype(dtype))
        normal = rms_norm(x, p["attention_norm"])
        query, key = (rotate(project(p["attention"][name]), cos, sin) for name in ("wq", "wk"))
        query = query.reshape(rows, kv_heads, heads // kv_heads, length, head_dim)
        mixed = attend(query, key, project(p["attention"]["wv"]), mask).reshape(rows, heads, length, head_dim)
        x = x + jnp.einsum("bhtd,hde->bte", mixed, p["attention"]["wo"].astype(dtype))
        normal, mlp = rms_norm(x, p["mlp_norm"]), {name: weight.astype(dtype) for name, weight in p["mlp"].items()}
        return x + (jax.nn.silu(normal @ mlp["gate"]) * (normal @ mlp["up"])) @ mlp["down"]

    x = scan_layers(case, layer, x, params["layers"])
    return wide_einsum("bte,ve->btv", rms_norm(x, params["final_norm"]), table)


MODELS = {"gpt2": (gpt2_shapes, gpt2_logits), "llama": (llama_shapes, llama_logits)}


# The train step


def shapes_of(case):
    """The shapes of the parameters by their paths."""
    shapes, _ = MODELS[case["model"]]
    leaves, tree = jax.tree.flatten_with_path(shapes(case), is_leaf=lambda node: isinstance(node, tuple))
    return {".".join(entry.key for entry in path): shape for path, shape in leaves}, tree


def is_matrix(path, shape):
    """Whether it has two dimensions or more, not counting that over layers: then it decays."""
    return len(shape) - path.startswith("layers.") >= 2


def step_flops(case):
    """Of the matrix products: 6 N + 12 L H Q T for each token (PaLM, appendix B). Tied, the embedding is the head."""
    shapes, _ = shapes_of(case)
    is_product = lambda path, shape: is_matrix(path, shape) and path != "positions" and not path.endswith(".bias")
    products = sum(int(np.prod(shape)) for path, shape in shapes.items() if is_product(path, shape))
    attention = 2 * case["layers"] * case["heads"] * case["head_dim"] * case["seq"]
    return 6 * (products + attention) * case["batch"] * case["seq"]


def make_train_step(case):
    _, logits = MODELS[case["model"]]
    shapes, tree = shapes_of(case)
    decay = jax.tree.unflatten(tree, [case["weight_decay"] * is_matrix(*entry) for entry in shapes.items()])
    parts, tokens, b1, b2 = case["microbatches"], case["batch"] * case["seq"], case["beta1"], case["beta2"]

    def loss(params, part):
        return cross_entropy_sum(logits(case, params, part), part["targets"]) / tokens

    def loss_and_gradient(params, batch):
        if parts == 1:
            return jax.value_and_grad(loss)(params, batch)
        # Part `j` has the rows `j`, `parts + j`, ..
        batch = jax.tree.map(lambda leaf: leaf.reshape(-1, parts, leaf.shape[1]).swapaxes(0, 1), batch)
        add = lambda sums, part: (jax.tree.map(jnp.add, sums, jax.value_and_grad(loss)(params, part)), None)
        return lax.scan(add, (jnp.zeros((), F32), jax.tree.map(jnp.zeros_like, params)), batch)[0]

    def train_step(params, state, batch):
        value, gradient = loss_and_gradient(params, batch)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)))
        clip = case["clip_norm"] / jnp.maximum(norm, case["clip_norm"])
        gradient = jax.tree.map(lambda leaf: leaf * clip, gradient)
        step = state["step"] + 1
        first = jax.tree.map(lambda m, g: b1 * m + (1.0 - b1) * g, state["first"], gradient)
        second = jax.tree.map(lambda v, g: b2 * v + (1.0 - b2) * jnp.square(g), state["second"], gradient)
        correction1, correction2 = 1.0 - b1 ** step.astype(F32), 1.0 - b2 ** step.astype(F32)

        def update(param, m, v, weight_decay):
            direction = (m / correction1) / (jnp.sqrt(v / correction2) + case["epsilon"])
            return param - case["learning_rate"] * (direction + weight_decay * param)

        params = jax.tree.map(update, params, first, second, decay)
        return params, {"first": first, "second": second, "step": step}, value

    return jax.jit(train_step, donate_argnums=(0, 1))


def state_of(params):
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)
    return {"first": zeros(), "second": zeros(), "step": jnp.zeros((), jnp.int32)}


# What goes in


def rows_of(case, step):
    """The rows of a step: few tokens often and most seldom, as in text. The bench draws the same in `rows.rs`."""
    rows, seq = case["batch"], case["seq"]
    numbers = np.arange(rows * (seq + 1), dtype=np.uint32) + np.uint32(step * rows * (seq + 1) % 2**32)
    for factor in (0x7FEB352D, 0x846CA68B):
        numbers = (numbers ^ (numbers >> np.uint32(16))) * np.uint32(factor)
    share = (numbers >> np.uint32(16)).astype(np.uint64)
    square = share * share >> np.uint64(16)
    tokens = (square * square * np.uint64(case["vocab"]) >> np.uint64(32)).astype(np.int32).reshape(rows, seq + 1)
    batch = {"tokens": np.ascontiguousarray(tokens[:, :-1]), "targets": np.ascontiguousarray(tokens[:, 1:])}
    if case["model"] == "llama":
        positions = np.broadcast_to(np.arange(seq, dtype=np.int32), (rows, seq))
        batch |= {"segment_ids": np.ones((rows, seq), np.int32), "positions": np.ascontiguousarray(positions)}
    return batch


def read_parameters(case, file):
    shapes, tree = shapes_of(case)
    with open(file, "rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    data = np.memmap(file, np.uint8, "r", 8 + length)

    def read(path, shape):
        about = header[path]
        if about["dtype"] != "F32" or tuple(about["shape"]) != shape:
            sys.exit(f"{path} is {about['dtype']} {about['shape']} in the file, but {shape} here")
        start, end = about["data_offsets"]
        return jax.device_put(data[start:end].view(np.float32).reshape(shape))

    if extra := set(header) - set(shapes) - {"__metadata__"}:
        sys.exit(f"the file has parameters that the model lacks: {', '.join(sorted(extra))}")
    return jax.tree.unflatten(tree, [read(*entry) for entry in shapes.items()])


def about():
    """JAX's version and the file of its CUDA plugin, if it is installed."""
    try:
        import jax_plugins

        folders = [pathlib.Path(folder) for folder in jax_plugins.__path__]
    except ImportError:
        folders = []
    found = [file for folder in folders for file in sorted(folder.glob("xla_cuda*/xla_cuda_plugin.so"))]
    return {"jax": jax.__version__, "cuda_plugin": str(found[-1]) if found else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--about", action="store_true")
    parser.add_argument("--case", type=json.loads)
    parser.add_argument("--parameters")
    parser.add_argument("--hlo")
    parser.add_argument("--warmup", type=int, default=3, help="steps before those that are timed")
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.about:
        print(json.dumps(about()))
        return
    case = arguments.case
    if case is None or not (arguments.hlo or arguments.parameters):
        parser.error("--case is needed, and --parameters or --hlo")
    step = make_train_step(case)
    if arguments.hlo:
        shapes, tree = shapes_of(case)
        params = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(shape, F32) for shape in shapes.values()])
        traced = step.trace(params, jax.eval_shape(state_of, params), rows_of(case, 0))
        module = traced.lower(lowering_platforms=("cuda",)).compiler_ir("hlo")
        pathlib.Path(arguments.hlo).write_bytes(module.as_serialized_hlo_module_proto())
        return

    params = read_parameters(case, arguments.parameters)
    state = state_of(params)
    begin = time.perf_counter()
    options = dict(option.split("=", 1) for option in case["compiler_options"])
    # JAX takes a bool only as one.
    options = {name: {"true": True, "false": False}.get(value, value) for name, value in options.items()}
    compiled = step.lower(params, state, rows_of(case, 0)).compile(compiler_options=options)
    compile_seconds = time.perf_counter() - begin
    losses, seconds = [], []
    for number in range(arguments.warmup + arguments.steps):
        batch = rows_of(case, number)
        begin = time.perf_counter()
        params, state, loss = compiled(params, state, batch)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
    report = {"device": jax.devices()[0].device_kind, "version": f"JAX {jax.__version__}"}
    report |= {"tokens": case["batch"] * case["seq"], "flops": step_flops(case), "compile_seconds": compile_seconds}
    report |= {"losses": losses, "seconds": seconds[arguments.warmup :]}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
