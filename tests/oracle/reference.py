"""The reference decoder and its train step, in plain JAX. The golden files and the JAX benches both use it.

Parameters are a nested dict; joining the keys with dots gives the paths the Rust side uses. Layers come in two forms:
unrolled, where `layers` is a dict "0", "1", ... (`layers.3.attention.wq`), and scanned, where every layer tensor has a
leading [layers] dim (`layers.attention.wq`). Every computation follows the dtype of the parameters, so the same code is
the f32 program and, with f64 parameters under `jax_enable_x64`, its exact reference.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

NORM_EPSILON = 1e-5
ROTARY_THETA = 10000.0
MASKED = -1e30


@dataclass(frozen=True)
class Model:
    layers: int
    embed: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    tied_embeddings: bool = False
    scan_layers: bool = True
    remat: str = "none"  # none | full | dots


@dataclass(frozen=True)
class Training:
    learning_rate: float = 3e-3
    warmup: int = 20
    steps: int = 200
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    b1: float = 0.9
    b2: float = 0.95
    epsilon: float = 1e-8


# Parameters


def layer_shapes(model):
    """The shapes of one layer's parameters."""
    e, h, k, d, m = model.embed, model.heads, model.kv_heads, model.head_dim, model.mlp
    return {
        "attention_norm": (e,),
        "attention": {"wq": (e, h, d), "wk": (e, k, d), "wv": (e, k, d), "wo": (h, d, e)},
        "mlp_norm": (e,),
        "mlp": {"gate": (e, m), "up": (e, m), "down": (m, e)},
    }


def param_shapes(model):
    """The shapes of all parameters, in the form (scanned or unrolled) that `model` asks for."""
    layer = layer_shapes(model)
    if model.scan_layers:
        layers = map_shapes(lambda shape: (model.layers, *shape), layer)
    else:
        layers = {str(i): layer for i in range(model.layers)}
    shapes = {
        "embedding": (model.vocab, model.embed),
        "layers": layers,
        "final_norm": (model.embed,),
    }
    if not model.tied_embeddings:
        shapes["head"] = (model.embed, model.vocab)
    return shapes


def map_shapes(f, shapes):
    return jax.tree.map(f, shapes, is_leaf=lambda x: isinstance(x, tuple))


def flatten(params):
    """Path -> tensor, in sorted order of the paths' components."""
    leaves, _ = jax.tree.flatten_with_path(params)
    return {".".join(entry.key for entry in path): leaf for path, leaf in leaves}


def unflatten(tensors):
    params = {}
    for path, tensor in tensors.items():
        *parents, name = path.split(".")
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = tensor
    return params


def decays(model):
    """Which parameters decay: those of rank 2 or more, not counting the [layers] dim that scanning adds."""
    stacked = 1 if model.scan_layers else 0
    return {
        path: len(shape) - (stacked if path.startswith("layers.") else 0) >= 2
        for path, shape in flatten_shapes(param_shapes(model)).items()
    }


def flatten_shapes(shapes):
    leaves, _ = jax.tree.flatten_with_path(shapes, is_leaf=lambda x: isinstance(x, tuple))
    return {".".join(entry.key for entry in path): leaf for path, leaf in leaves}


# Forward


def rms_norm(x, scale):
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * lax.rsqrt(mean_square + NORM_EPSILON) * scale


def rotary_angles(positions, head_dim, dtype):
    """cos and sin of position * theta^(-2i/head_dim): [batch, seq, head_dim / 2]."""
    exponent = jnp.arange(head_dim // 2, dtype=dtype) * (-2.0 / head_dim)
    angles = positions.astype(dtype)[..., None] * ROTARY_THETA**exponent
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x, cos, sin):
    """Rotary embedding over the two halves of the last dim of x: [batch, heads, seq, head_dim]."""
    x1, x2 = jnp.split(x, 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


def attention_mask(segment_ids):
    """[batch, 1, 1, query, key]: causal by index in the row, and within one segment."""
    index = jnp.arange(segment_ids.shape[1])
    causal = index[:, None] >= index[None, :]
    same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
    return (causal & same_segment)[:, None, None]


def attention(x, params, mask, cos, sin):
    batch, seq, _ = x.shape
    heads, head_dim = params["wq"].shape[-2:]
    kv_heads = params["wk"].shape[-2]
    # The projections write heads before positions, the order of the batched products below: measured faster on CPU.
    q = rotate(jnp.einsum("bte,ehd->bhtd", x, params["wq"]), cos, sin) * head_dim**-0.5
    k = rotate(jnp.einsum("bse,ekd->bksd", x, params["wk"]), cos, sin)
    v = jnp.einsum("bse,ekd->bksd", x, params["wv"])
    # Query head h uses key/value head h // group: the head dim splits into [kv_heads, group], nothing is repeated.
    q = q.reshape(batch, kv_heads, heads // kv_heads, seq, head_dim)
    scores = jnp.einsum("bkgtd,bksd->bkgts", q, k)
    weights = jax.nn.softmax(jnp.where(mask, scores, MASKED), axis=-1)
    out = jnp.einsum("bkgts,bksd->bkgtd", weights, v).reshape(batch, heads, seq, head_dim)
    return jnp.einsum("bhtd,hde->bte", out, params["wo"])


def mlp(x, params):
    return (jax.nn.silu(x @ params["gate"]) * (x @ params["up"])) @ params["down"]


def layer(x, params, mask, cos, sin):
    x = x + attention(rms_norm(x, params["attention_norm"]), params["attention"], mask, cos, sin)
    return x + mlp(rms_norm(x, params["mlp_norm"]), params["mlp"])


def loss(model, params, batch):
    """The mean over weighted tokens of the cross entropy. `batch`: tokens, targets, segment_ids, positions, weights."""
    embedding = params["embedding"]
    x = embedding.at[batch["tokens"]].get(mode="clip")
    cos, sin = rotary_angles(batch["positions"], model.head_dim, x.dtype)
    mask = attention_mask(batch["segment_ids"])

    def apply(x, layer_params):
        return layer(x, layer_params, mask, cos, sin)

    if model.remat != "none":
        policy = {"full": None, "dots": jax.checkpoint_policies.dots_saveable}[model.remat]
        # Inside a scan nothing can be merged across the loop boundary: the barrier that prevents it is not needed.
        apply = jax.checkpoint(apply, prevent_cse=not model.scan_layers, policy=policy)
    if model.scan_layers:
        x, _ = lax.scan(lambda x, p: (apply(x, p), None), x, params["layers"])
    else:
        for i in range(model.layers):
            x = apply(x, params["layers"][str(i)])

    x = rms_norm(x, params["final_norm"])
    if model.tied_embeddings:
        logits = jnp.einsum("bte,ve->btv", x, embedding)
    else:
        logits = x @ params["head"]
    target_logits = jnp.take_along_axis(logits, batch["targets"][..., None], axis=-1, mode="clip")[..., 0]
    entropy = jax.nn.logsumexp(logits, axis=-1) - target_logits
    weights = batch["weights"].astype(x.dtype)
    return jnp.sum(weights * entropy) / jnp.maximum(jnp.sum(weights), 1.0)


# The train step


def learning_rate(training, step, dtype):
    """Linear warm-up from 0 (step 0 already moves), then a cosine from the peak to a tenth of it. `step` counts from 0."""
    t = step.astype(dtype)
    warm = (t + 1.0) / training.warmup
    progress = jnp.clip((t - training.warmup) / (training.steps - training.warmup), 0.0, 1.0)
    cosine = 0.1 + 0.9 * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return training.learning_rate * jnp.where(t < training.warmup, warm, cosine)


def init_state(params):
    """The optimizer state of zeros; works on arrays and, under `jax.eval_shape`, on shapes."""
    zeros = lambda: jax.tree.map(jnp.zeros_like, params)
    return {"m": zeros(), "v": zeros(), "step": jnp.zeros((), jnp.int32)}


def make_train_step(model, training):
    """(params, state, batch) -> (params, state, loss, grad_norm). The norm is the one before clipping."""
    decay = unflatten({path: training.weight_decay if on else 0.0 for path, on in decays(model).items()})

    def train_step(params, state, batch):
        value, grads = jax.value_and_grad(lambda p: loss(model, p, batch))(params)
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
        clip = training.clip_norm / jnp.maximum(norm, training.clip_norm)
        rate = learning_rate(training, state["step"], norm.dtype)
        step = state["step"] + 1
        correction1 = 1.0 - training.b1 ** step.astype(norm.dtype)
        correction2 = 1.0 - training.b2 ** step.astype(norm.dtype)

        grads = jax.tree.map(lambda g: g * clip, grads)
        m = jax.tree.map(lambda m, g: training.b1 * m + (1.0 - training.b1) * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: training.b2 * v + (1.0 - training.b2) * jnp.square(g), state["v"], grads)

        def update(p, m, v, weight_decay):
            direction = (m / correction1) / (jnp.sqrt(v / correction2) + training.epsilon)
            if weight_decay:
                direction = direction + weight_decay * p
            return p - rate * direction

        params = jax.tree.map(update, params, m, v, decay)
        return params, {"m": m, "v": v, "step": step}, value, norm

    return train_step
