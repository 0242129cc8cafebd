"""Golden files of the decoder: loss, every gradient, and four train steps, tied and untied.

What is stored is computed in f64 from the stored f32 parameters and then rounded to f32: the reference is closer to the truth
than any f32 run. The distance of JAX's own f32 run is printed, as the error that a correct f32 program has.

    python tests/oracle/decoder.py            writes tests/oracle/decoder_{untied,tied}.safetensors
    python tests/oracle/decoder.py --check    compares with the files that are there
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_default_matmul_precision", "highest")

import jax.numpy as jnp
import numpy as np

import reference
import tensor_file

MODEL = reference.Model(layers=2, embed=32, heads=4, kv_heads=2, head_dim=8, mlp=48, vocab=64, scan_layers=False)
# The gradient norm is above clip_norm at the first step, so clipping is part of what is checked.
TRAINING = reference.Training(learning_rate=1e-2, warmup=2, steps=10, weight_decay=0.1, clip_norm=1.0)
BATCH, SEQ = 2, 16
SEED = 20


def make_params(model, generator):
    """Normal weights at the scale of their fan-in; norm scales around 1, so that no gradient is special."""
    params = {}
    for path, shape in reference.flatten_shapes(reference.param_shapes(model)).items():
        noise = generator.standard_normal(shape)
        if len(shape) == 1:
            value = 1.0 + 0.2 * noise
        elif path == "embedding":
            value = 0.5 * noise
        else:
            fan_in = np.prod(shape[:-1]) if path.endswith("wo") else shape[0]
            value = noise * fan_in**-0.5
        params[path] = value.astype(np.float32)
    return params


def make_batch(generator):
    """Two packed rows: three segments, and two segments with padding (segment 0, weight 0) behind them.

    Positions restart in each segment. The last token of a segment has no target (weight 0); two weights are fractions.
    """
    lengths = [[5, 8, 3], [7, 5]]
    tokens = generator.integers(0, MODEL.vocab, (BATCH, SEQ)).astype(np.int32)
    targets = np.zeros((BATCH, SEQ), np.int32)
    segment_ids = np.zeros((BATCH, SEQ), np.int32)
    positions = np.zeros((BATCH, SEQ), np.int32)
    weights = np.zeros((BATCH, SEQ), np.float32)
    for row, row_lengths in enumerate(lengths):
        begin = 0
        for segment, length in enumerate(row_lengths, 1):
            end = begin + length
            segment_ids[row, begin:end] = segment
            positions[row, begin:end] = np.arange(length)
            targets[row, begin : end - 1] = tokens[row, begin + 1 : end]
            weights[row, begin : end - 1] = 1.0
            begin = end
        tokens[row, begin:] = 0
    weights[0, 2], weights[1, 8] = 0.5, 0.25
    return {
        "tokens": tokens,
        "targets": targets,
        "segment_ids": segment_ids,
        "positions": positions,
        "weights": weights,
    }


def run(model, params, batch, dtype):
    """Everything the file stores about results, computed in `dtype`."""
    params = reference.unflatten({path: jnp.asarray(p, dtype) for path, p in params.items()})
    value, grads = jax.jit(jax.value_and_grad(lambda p: reference.loss(model, p, batch)))(params)
    results = {"loss": value}
    results |= {f"grad.{path}": g for path, g in reference.flatten(grads).items()}

    step = jax.jit(reference.make_train_step(model, TRAINING))
    state = reference.init_state(params)
    losses, grad_norms, param_norms = [], [], []
    for _ in range(4):
        param_norms.append(jnp.sqrt(sum(jnp.sum(jnp.square(p)) for p in jax.tree.leaves(params))))
        params, state, value, norm = step(params, state, batch)
        losses.append(value)
        grad_norms.append(norm)
    rates = [reference.learning_rate(TRAINING, jnp.int32(t), dtype) for t in range(TRAINING.steps + 2)]
    results |= {
        "grad_norm": grad_norms[0],
        "losses": jnp.stack(losses),
        "grad_norms": jnp.stack(grad_norms),
        "param_norms": jnp.stack(param_norms),
        "learning_rates": jnp.stack(rates),
    }
    for name, result in results.items():
        assert result.dtype == dtype, f"{name} is {result.dtype}, not {dtype}"
    return {name: np.asarray(result) for name, result in results.items()}


def relative_error(value, truth):
    return float(np.linalg.norm(value.astype(np.float64) - truth) / np.linalg.norm(truth))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the files instead of writing them")
    arguments = parser.parse_args()

    for name, tied in [("untied", False), ("tied", True)]:
        model = replace(MODEL, tied_embeddings=tied)
        generator = np.random.default_rng(SEED)
        batch = make_batch(generator)
        params = make_params(model, generator)
        truth = run(model, params, batch, np.float64)
        errors = {
            key: relative_error(value, truth[key]) for key, value in run(model, params, batch, np.float32).items()
        }
        worst = max((key for key in errors if key.startswith("grad.")), key=errors.get)
        print(
            f"{name}: loss {truth['loss']:.6f}, f32 run against f64: loss {errors['loss']:.1e}, worst gradient "
            f"{errors[worst]:.1e} ({worst}), losses {errors['losses']:.1e}, grad_norms {errors['grad_norms']:.1e}"
        )
        print(f"  losses {truth['losses']}, grad_norms {truth['grad_norms']}")

        tensors = {f"param.{path}": value for path, value in params.items()}
        tensors |= {f"batch.{key}": value for key, value in batch.items()}
        tensors |= {key: value.astype(np.float32) for key, value in truth.items()}
        metadata = {"made_by": "tests/oracle/decoder.py"}
        metadata |= {f"model.{key}": str(value).lower() for key, value in asdict(model).items()}
        metadata |= {f"train.{key}": str(value) for key, value in asdict(TRAINING).items()}
        metadata |= {"model.seq": str(SEQ), "train.batch": str(BATCH)}
        path = Path(__file__).parent / f"decoder_{name}.safetensors"
        tensor_file.write_or_check(path, tensors, metadata, arguments.check)


if __name__ == "__main__":
    main()
