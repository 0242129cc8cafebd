"""Writes optim.safetensors: twenty steps of each optimizer under each schedule, as optax computes them.

The gradient of a parameter at step t (from 0) is `curvature * (parameter - target * (t + 1) / 20)`. Results are computed in
f64 from the stored f32 numbers and rounded to f32; the script prints how far optax's own f32 run is from them. Run it with
`--check` to compare with the file instead of writing it.
"""

import argparse
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp
import numpy as np
import optax
from optax.contrib import MuonDimensionNumbers

import tensor_file

STEPS = 20
SETTINGS = {
    "peak": 0.05,
    "warmup": 3,
    "floor": 0.1,
    "decay_steps": 6,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "weight_decay": 0.1,
    "momentum": 0.95,
    "rms": 0.2,
}
# Path, dimensions, rows and columns (none: no matrix; all other dimensions run over matrices), whether it decays.
PARAMETERS = [
    ("embedding", (10, 8), None, False),
    ("norm", (8,), None, False),
    ("layers.up", (4, 8, 16), ((1,), (2,)), True),
    ("layers.wq", (4, 8, 2, 6), ((1,), (2, 3)), True),
    ("layers.wo", (4, 2, 6, 8), ((1, 2), (3,)), False),
    ("layers.experts", (4, 2, 8, 8), ((2,), (3,)), True),
    ("head", (8, 10), None, True),
]


def schedules():
    """The rates of steps 0, 1, .."""
    peak, warmup, floor, last = (SETTINGS[name] for name in ("peak", "warmup", "floor", "decay_steps"))
    rise = optax.linear_schedule(peak / warmup, peak, warmup - 1)
    fall = {
        "cosine": optax.cosine_decay_schedule(peak, STEPS - warmup, floor),
        "linear": optax.linear_schedule(peak, peak * floor, STEPS - warmup),
        "wsd": optax.linear_schedule(peak, peak * floor, last, STEPS - last - warmup),
        "constant": optax.constant_schedule(peak),
    }
    return {name: optax.join_schedules([rise, schedule], [warmup]) for name, schedule in fall.items()}


def run(optimizer, schedule, start, curvature, target):
    """Parameters, state and rates by the paths that they have in the Rust test."""
    decays = {path: decays for path, _, _, decays in PARAMETERS}
    matrices = {path: MuonDimensionNumbers(*axes) for path, _, axes, _ in PARAMETERS if axes and optimizer == "muon"}
    adamw = optax.adamw(
        schedule,
        SETTINGS["beta1"],
        SETTINGS["beta2"],
        SETTINGS["epsilon"],
        weight_decay=SETTINGS["weight_decay"],
        mask=lambda tree: {path: decays[path] for path in tree},
    )
    muon = optax.contrib.muon(
        schedule,
        beta=SETTINGS["momentum"],
        weight_decay=SETTINGS["weight_decay"],
        weight_decay_mask=lambda tree: {path: decays[path] for path in tree},
        consistent_rms=SETTINGS["rms"],
        muon_weight_dimension_numbers=matrices,
    )
    # Muon's own optimizer has Nesterov's momentum for parameters that are not matrices; ours is plain AdamW.
    parts = [(adamw, [path for path in start if path not in matrices]), (muon, list(matrices))]
    params = dict(start)
    states = [optimizer.init({path: params[path] for path in paths}) for optimizer, paths in parts]

    def step(carry, t):
        params, states = carry
        gradients = {path: curvature[path] * (params[path] - target[path] * (t + 1) / STEPS) for path in params}
        after, new_states = dict(params), []
        for (optimizer, paths), state in zip(parts, states):
            if not paths:
                new_states.append(state)
                continue
            own = {path: params[path] for path in paths}
            updates, state = optimizer.update({path: gradients[path] for path in paths}, state, own)
            after |= optax.apply_updates(own, updates)
            new_states.append(state)
        return (after, new_states), schedule(t)

    (params, states), rates = jax.lax.scan(step, (params, states), jnp.arange(STEPS))
    adam = states[0][0]
    prefix = "optimizer.others" if matrices else "optimizer"
    results = {f"params.{path}": value for path, value in params.items()}
    results |= {f"{prefix}.first.{path}": value for path, value in adam.mu.items()}
    results |= {f"{prefix}.second.{path}": value for path, value in adam.nu.items()}
    if matrices:
        mu = states[1].inner_states["muon"].inner_state[0].mu
        results |= {f"optimizer.momentum.{path}": mu[path] for path in matrices}
    return results | {"rates": rates}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    generator = np.random.default_rng(0)
    inputs = {"start": {}, "curvature": {}, "target": {}}
    for path, dims, _, _ in PARAMETERS:
        inputs["start"][path] = generator.normal(0, 0.3, dims).astype(np.float32)
        inputs["curvature"][path] = generator.uniform(0.5, 1.5, dims).astype(np.float32)
        inputs["target"][path] = generator.normal(0, 1.0, dims).astype(np.float32)
    tensors = {f"{name}.{path}": value for name, values in inputs.items() for path, value in values.items()}
    worst = ("", 0.0)
    for optimizer in ("adamw", "muon"):
        for name, schedule in schedules().items():
            of_type = lambda dtype: [{path: jnp.asarray(value, dtype) for path, value in values.items()} for values in inputs.values()]
            exact, rough = (run(optimizer, schedule, *of_type(dtype)) for dtype in (jnp.float64, jnp.float32))
            for path, value in exact.items():
                value = np.asarray(value, np.float64)
                error = np.linalg.norm(np.asarray(rough[path], np.float64) - value) / np.linalg.norm(value)
                worst = max(worst, (f"{optimizer}.{name}.{path}", float(error)), key=lambda found: found[1])
                tensors[f"{optimizer}.{name}.{path}"] = value.astype(np.float32)
    print(f"optax in f32 is off by at most {worst[1]:.1e}, in {worst[0]}")
    metadata = {"made_by": "tests/oracle/optim.py"} | {name: str(value) for name, value in SETTINGS.items()}
    tensor_file.write_or_check(Path(__file__).parent / "optim.safetensors", tensors, metadata, arguments.check)


if __name__ == "__main__":
    main()
