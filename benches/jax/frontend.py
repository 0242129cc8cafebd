"""How long JAX takes from a Python function to the bytes of a program not yet compiled: trace, lower, serialize.

The program is the train step (value_and_grad, global-norm clipping, AdamW) of a Llama-3-405B-shaped decoder; only shapes
exist, nothing is allocated or compiled. Each run builds the step function anew, so that JAX's caches of whole functions do not
hit; its caches of its own library functions stay warm, in JAX's favour. `first` is the run in a fresh process, what a
person waits for; `best` and `median` are over the runs after it.

    python benches/jax/frontend.py                                    scanned 126; unrolled 16, 64, 126
    python benches/jax/frontend.py --layers 126 --scan --remat full   one case

Prints one JSON line per case. `seconds` covers trace + lower + StableHLO bytecode, which is what JAX hands to PJRT;
`hlo_proto` is the further time to convert that to a serialized HloModuleProto, not counted in `seconds`.
"""

import argparse
import gc
import io
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "oracle"))

CASES = [(126, "scan"), (16, "unrolled"), (64, "unrolled"), (126, "unrolled")]


def run_once(model, training, batch, seq):
    """Seconds per stage and bytes of one trace, from new function objects."""
    import jax
    import jax.numpy as jnp
    import reference

    # The arguments' shapes are the model's description, not the program: they are made outside the clock.
    params = reference.map_shapes(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), reference.param_shapes(model))
    state = {"m": params, "v": params, "step": jax.ShapeDtypeStruct((), jnp.int32)}
    integers = jax.ShapeDtypeStruct((batch, seq), jnp.int32)
    data = {name: integers for name in ["tokens", "targets", "segment_ids", "positions"]}
    data["weights"] = jax.ShapeDtypeStruct((batch, seq), jnp.float32)

    gc.collect()
    times = [time.perf_counter()]
    step = jax.jit(reference.make_train_step(model, training), donate_argnums=(0, 1))
    traced = step.trace(params, state, data)
    times.append(time.perf_counter())
    lowered = traced.lower()
    times.append(time.perf_counter())
    stablehlo = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(stablehlo)
    times.append(time.perf_counter())
    hlo = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    times.append(time.perf_counter())

    trace, lower, bytecode, hlo_proto = (end - begin for begin, end in zip(times, times[1:]))
    return {
        "seconds": trace + lower + bytecode,
        "trace": trace,
        "lower": lower,
        "stablehlo": bytecode,
        "hlo_proto": hlo_proto,
        "stablehlo_bytes": stablehlo.tell(),
        "hlo_proto_bytes": len(hlo),
    }


def run_case(arguments):
    import jax
    import reference

    jax.config.update("jax_platforms", "cpu")
    model = reference.Model(
        layers=arguments.layers,
        embed=16384,
        heads=128,
        kv_heads=8,
        head_dim=128,
        mlp=53248,
        vocab=128256,
        scan_layers=arguments.scan,
        remat=arguments.remat,
    )
    jax.devices()  # The backend starts before the clock does.
    runs = [run_once(model, reference.Training(), arguments.batch, arguments.seq) for _ in range(arguments.runs + 1)]
    first, rest = runs[0], runs[1:] or runs
    best = min(rest, key=lambda run: run["seconds"])
    line = {
        "bench": "frontend",
        "jax": jax.__version__,
        "layers": arguments.layers,
        "form": "scan" if arguments.scan else "unrolled",
        "remat": arguments.remat,
        "runs": len(rest),
        "first": first["seconds"],
        "median": statistics.median(run["seconds"] for run in rest),
        "best": best["seconds"],
    }
    line |= {f"best_{key}": best[key] for key in ["trace", "lower", "stablehlo", "hlo_proto"]}
    line |= {key: best[key] for key in ["stablehlo_bytes", "hlo_proto_bytes"]}
    print(json.dumps({key: round(v, 6) if isinstance(v, float) else v for key, v in line.items()}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--layers", type=int, help="one case with this many layers; without it, the four standard cases"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--scan", dest="scan", action="store_true", default=True, help="scan over stacked layers (default)"
    )
    form.add_argument("--unrolled", dest="scan", action="store_false", help="every layer its own operations")
    parser.add_argument("--remat", choices=["none", "full", "dots"], default="none")
    parser.add_argument("--runs", type=int, default=5, help="timed runs after the first")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=8192)
    arguments = parser.parse_args()
    if arguments.layers is not None:
        run_case(arguments)
        return
    # A process per case: what one case leaves in JAX's caches must not help the next one.
    for layers, form in CASES:
        command = [sys.executable, os.path.abspath(__file__), f"--layers={layers}", f"--{form}"]
        command += [f"--{key}={getattr(arguments, key)}" for key in ["remat", "runs", "batch", "seq"]]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
