"""The decoder train step in JAX on one CPU device: seconds per step, to stand beside meshloom's.

The model is the default of the run config (4 scanned layers, embed 256, seq 256, batch 16, f32). The step is jitted with its
parameters and optimizer state donated; a step's seconds run from the call to the moment all its results are ready.

    python benches/jax/step.py --steps 20     one JSON line about compilation, then one per step
    python benches/jax/step.py --serve        compiles and warms up, prints `ready`, then for each line on stdin runs one
                                              step and prints its seconds; ends at the end of the input or at `quit`

With --serve another program alternates its own steps with these, so that both see the same machine. Only protocol lines go to
stdout there: the `ready` line is `ready <compile seconds>`, the others are `<seconds> <loss>`.
"""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "oracle"))

import jax

jax.config.update("jax_platforms", "cpu")

import numpy as np

import reference

MODEL = reference.Model(layers=4, embed=256, heads=8, kv_heads=4, head_dim=32, mlp=768, vocab=256)


def make_params(model, seed):
    """Seeded normal weights scaled by fan-in; norm scales of one."""
    generator = np.random.default_rng(seed)
    params = {}
    for path, shape in reference.flatten_shapes(reference.param_shapes(model)).items():
        if path.endswith("norm"):
            value = np.ones(shape)
        elif path == "embedding":
            value = 0.02 * generator.standard_normal(shape)
        else:
            own = shape[1:] if path.startswith("layers.") and model.scan_layers else shape
            fan_in = np.prod(own[:-1]) if path.endswith("wo") else own[0]
            value = generator.standard_normal(shape) * fan_in**-0.5
        params[path] = value.astype(np.float32)
    return reference.unflatten(params)


def make_batch(model, batch, seq, seed):
    """Random tokens in rows of two packed segments each."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, model.vocab, (batch, seq + 1)).astype(np.int32)
    boundary = generator.integers(1, seq, (batch, 1))
    index = np.arange(seq)[None, :]
    return {
        "tokens": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "segment_ids": (1 + (index >= boundary)).astype(np.int32),
        "positions": np.where(index >= boundary, index - boundary, index).astype(np.int32),
        "weights": (index != boundary - 1).astype(np.float32),
    }


class Trainer:
    """The compiled step with the state it goes on from."""

    def __init__(self, model, training, batch, seq, seed):
        self.params = jax.device_put(make_params(model, seed))
        self.state = jax.device_put(reference.init_state(self.params))
        self.batch = jax.device_put(make_batch(model, batch, seq, seed))
        step = jax.jit(reference.make_train_step(model, training), donate_argnums=(0, 1))
        begin = time.perf_counter()
        lowered = step.lower(self.params, self.state, self.batch)
        middle = time.perf_counter()
        self.step = lowered.compile()
        self.lower_seconds = middle - begin
        self.compile_seconds = time.perf_counter() - middle

    def run(self):
        """One step: its seconds, loss and gradient norm."""
        begin = time.perf_counter()
        results = jax.block_until_ready(self.step(self.params, self.state, self.batch))
        seconds = time.perf_counter() - begin
        self.params, self.state, loss, norm = results
        return seconds, float(loss), float(norm)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3, help="steps before --serve says ready")
    parser.add_argument("--serve", action="store_true", help="one step per line on stdin")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--layers", type=int, default=MODEL.layers)
    parser.add_argument("--unrolled", action="store_true", help="every layer its own operations instead of a scan")
    parser.add_argument("--remat", choices=["none", "full", "dots"], default="none")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    model = replace(MODEL, layers=arguments.layers, scan_layers=not arguments.unrolled, remat=arguments.remat)
    trainer = Trainer(model, reference.Training(), arguments.batch, arguments.seq, arguments.seed)
    if arguments.serve:
        for _ in range(arguments.warmup):
            trainer.run()
        print(f"ready {trainer.compile_seconds:.6f}", flush=True)
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            seconds, loss, _ = trainer.run()
            print(f"{seconds:.6f} {loss:.9g}", flush=True)
        return

    about = {"bench": "step", "jax": jax.__version__, "devices": jax.device_count()}
    about |= {"lower_seconds": round(trainer.lower_seconds, 6), "compile_seconds": round(trainer.compile_seconds, 6)}
    print(json.dumps(about), flush=True)
    for step in range(1, arguments.steps + 1):
        seconds, loss, norm = trainer.run()
        line = {"step": step, "seconds": round(seconds, 6), "loss": loss, "grad_norm": norm}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
