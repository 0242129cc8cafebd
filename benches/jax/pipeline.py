"""A circular SPMD pipeline in plain JAX, partitioned by XLA: what meshloom's pipeline is compared with.

The schedule, loop state and shardings are those of MaxText's pipeline (stages S, repeats R, microbatches M): all stages work
at once, as one vmap over a stage dim that is sharded over the mesh axis `stage`; after each iteration the outputs move one
stage to the right. Inputs and outputs share one buffer that travels to the left. Weights are split over `fsdp`, activations
over `data` and `fsdp`. The layer is that of tests/oracle/reference.py. The loss is the mean of the squares of the last
layer's output; its gradients are those of all weights (--check: of the input too).

    --variant plain      not circular: each stage holds its layers, R = 1
    --variant circular   each iteration picks every stage's repeat and gathers it over fsdp
    --variant window     each repeat is gathered once, for all stages; this repeat's weights and the last one's are live
    --variant once       all repeats are gathered before the loop

    python benches/jax/pipeline.py --config B --variant window   one JSON line: seconds, bytes, and with --hlo-dump collectives
    python benches/jax/pipeline.py --check                       every variant against the layers in sequence, S in 2, 4, 8
    python benches/jax/pipeline.py --config B --variant window --serve   as step.py --serve: one step per line on stdin
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "oracle"))

import jax

jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import reference

VARIANTS = ["plain", "circular", "window", "once"]
BATCH_AXES = ("data", "fsdp")


@dataclass(frozen=True)
class Config:
    """Sizes of mesh, schedule and layer."""

    stage: int
    fsdp: int
    data: int
    layers: int
    repeats: int
    microbatches: int
    microbatch: int = 4
    seq: int = 256
    embed: int = 512
    mlp: int = 1536
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 64

    @property
    def layers_per_stage(self):
        return self.layers // (self.repeats * self.stage)

    @property
    def batch(self):
        return self.microbatches * self.microbatch

    @property
    def circular_storage(self):
        """Whether a microbatch that comes back to stage 0 must wait for its turn."""
        return self.repeats > 1 and self.microbatches > self.stage

    def mesh(self):
        axes = ("stage", "data", "fsdp")
        return jax.make_mesh((self.stage, self.data, self.fsdp), axes, axis_types=(AxisType.Auto,) * 3)

    def not_circular(self):
        return replace(self, repeats=1)


CONFIGS = {
    "A": Config(stage=4, fsdp=2, data=1, layers=8, repeats=2, microbatches=8),
    "B": Config(stage=2, fsdp=2, data=2, layers=4, repeats=2, microbatches=4),
    "C": Config(stage=2, fsdp=1, data=1, layers=4, repeats=2, microbatches=8),
}

# Parameters and inputs


# How one layer's weights are split: their embed dim over fsdp, everything else whole.
LAYER_SPECS = {
    "attention_norm": P(None),
    "attention": {
        "wq": P("fsdp", None, None),
        "wk": P("fsdp", None, None),
        "wv": P("fsdp", None, None),
        "wo": P(None, None, "fsdp"),
    },
    "mlp_norm": P(None),
    "mlp": {"gate": P("fsdp", None), "up": P("fsdp", None), "down": P(None, "fsdp")},
}


def specs(*leading, gathered=False):
    """The layer's specs behind those of leading dims."""

    def one(spec):
        return P(*leading, *(None if gathered else axis for axis in spec))

    return jax.tree.map(one, LAYER_SPECS, is_leaf=lambda x: isinstance(x, P))


def layer_shapes(config):
    sizes = dict(embed=config.embed, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim)
    return reference.layer_shapes(reference.Model(layers=1, mlp=config.mlp, vocab=1, **sizes))


def make_weights(config, seed):
    """Stacked weights [repeats, stages, layers per stage, ...]: layer (r * S + s) * P + p lies at [r, s, p]."""
    generator = np.random.default_rng(seed)
    leading = (config.repeats, config.stage, config.layers_per_stage)

    def draw(shape):
        if len(shape) == 1:
            return np.ones(leading + shape, np.float32) + 0.1 * generator.standard_normal(leading + shape, np.float32)
        fan_in = shape[0] if shape[0] == config.embed else np.prod(shape[:-1])
        return generator.standard_normal(leading + shape, np.float32) * np.float32(fan_in**-0.5)

    return reference.map_shapes(draw, layer_shapes(config))


def make_inputs(config, seed):
    """x [batch, seq, embed], positions and segment ids [batch, seq]; rows of two packed segments."""
    generator = np.random.default_rng(seed + 1)
    x = generator.standard_normal((config.batch, config.seq, config.embed), np.float32)
    boundary = generator.integers(1, config.seq, (config.batch, 1))
    index = np.arange(config.seq)[None, :]
    segments = (1 + (index >= boundary)).astype(np.int32)
    positions = np.where(index >= boundary, index - boundary, index).astype(np.int32)
    return x, positions, segments


def read_data(config, path):
    """Weights and inputs from a file of their bytes, one after the other, as benches/pipeline.rs writes them."""
    shapes = reference.flatten_shapes(layer_shapes(config))
    leading = (config.repeats, config.stage, config.layers_per_stage)
    tokens = (config.batch, config.seq)
    with open(path, "rb") as file:

        def read(shape, dtype=np.float32):
            return np.fromfile(file, dtype, int(np.prod(shape))).reshape(shape)

        order = ["attention_norm", *(f"attention.{name}" for name in ["wq", "wk", "wv", "wo"])]
        order += ["mlp_norm", *(f"mlp.{name}" for name in ["gate", "up", "down"])]
        weights = reference.unflatten({name: read(leading + shapes[name]) for name in order})
        return weights, (read((*tokens, config.embed)), read(tokens, np.int32), read(tokens, np.int32))


# The layers


def run_layers(config, x, weights, positions, segments, constrain):
    """The layers of one stage, in sequence; `weights` has a leading dim [layers per stage]."""
    cos, sin = reference.rotary_angles(positions, config.head_dim, x.dtype)
    mask = reference.attention_mask(segments)
    for index in range(config.layers_per_stage):
        own = jax.tree.map(lambda w: w[index], weights)
        h = reference.rms_norm(x, own["attention_norm"])
        x = constrain(x + reference.attention(h, own["attention"], mask, cos, sin))
        x = constrain(x + reference.mlp(reference.rms_norm(x, own["mlp_norm"]), own["mlp"]))
    return x


def sequential_loss(config, weights, inputs):
    """The same layers without a pipeline."""
    x, positions, segments = inputs
    for repeat in range(config.repeats):
        for stage in range(config.stage):
            own = jax.tree.map(lambda w: w[repeat, stage], weights)
            x = run_layers(config, x, own, positions, segments, lambda x: x)
    return jnp.mean(jnp.square(x))


# The pipeline


class Pipeline:
    """One pipeline program over a mesh."""

    def __init__(self, config, mesh, variant, remat=True, scan=True):
        self.config, self.mesh, self.variant, self.remat, self.scan = config, mesh, variant, remat, scan
        self.slots = config.microbatches // config.stage
        self.bubble = config.stage - 1
        self.state_spec = P("stage", BATCH_AXES, None, None)
        self.buffer_spec = P("stage", None, BATCH_AXES, None, None)

    def constrain(self, x, spec):
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def gather(self, weights, *leading):
        """Weights whole over fsdp; how they get there is XLA's."""
        return jax.tree.map(self.constrain, weights, specs(*leading, gathered=True))

    def move(self, x, by):
        """Every stage's part of x to the stage `by` further on, round the ring."""
        count = self.config.stage
        pairs = [(stage, (stage + by) % count) for stage in range(count)]
        step = functools.partial(lax.ppermute, axis_name="stage", perm=pairs)
        return jax.shard_map(step, mesh=self.mesh, in_specs=self.state_spec, out_specs=self.state_spec)(x)

    def at_stage(self, stage, chosen, other):
        index = lax.broadcasted_iota(jnp.int32, other.shape, 0)
        return jnp.where(index == stage, chosen, other)

    def items(self, iteration):
        """The number of the item, over all repeats, that each stage works on [S]; nothing real before 0 and after the last."""
        return jnp.maximum(iteration - jnp.arange(self.config.stage), 0)

    def start(self, x):
        config = self.config
        shape = (config.microbatch, config.seq, config.embed)
        shift = self.constrain(jnp.zeros((config.stage, *shape), x.dtype), self.state_spec)
        state = {"shift": shift, "stream": self.constrain(x.reshape(config.stage, self.slots, *shape), self.buffer_spec)}
        if config.circular_storage:
            stored = jnp.zeros((config.stage, config.microbatches, *shape), x.dtype)
            state |= {"stored": self.constrain(stored, self.buffer_spec), "mover": shift}
        return state

    def stage_inputs(self, state, iteration):
        """What each stage works on: stage 0 takes a new microbatch, or one that has come round; the others what was sent."""
        config, shift = self.config, state["shift"]
        fresh = lax.dynamic_index_in_dim(state["stream"], iteration % self.slots, axis=1, keepdims=False)
        again = shift
        if config.circular_storage:
            again = lax.dynamic_index_in_dim(state["stored"], iteration % config.microbatches, axis=1, keepdims=False)
        first = jnp.where(iteration < config.microbatches, fresh, again)
        return self.constrain(self.at_stage(0, first, shift), self.state_spec)

    def advance(self, state, outputs, iteration):
        """The state after an iteration whose outputs are [S, microbatch, seq, embed]."""
        config = self.config
        # Where nothing goes from the last stage straight to the first, the first is sent zeros.
        wraps = config.repeats > 1 and not config.circular_storage
        sent = self.move(outputs, 1)
        after = {"shift": sent if wraps else self.at_stage(0, jnp.zeros_like(sent), sent)}
        if config.circular_storage:
            slot = (iteration - self.bubble - 1) % config.microbatches
            arrived = self.move(state["mover"], 1)
            after["stored"] = lax.dynamic_update_index_in_dim(state["stored"], arrived, slot, axis=1)
            after["mover"] = outputs
        slot = iteration % self.slots
        leaving = lax.dynamic_index_in_dim(state["stream"], slot, axis=1, keepdims=False)
        moved = self.at_stage(config.stage - 1, outputs, self.move(leaving, -1))
        after["stream"] = lax.dynamic_update_index_in_dim(state["stream"], moved, slot, axis=1)
        return after

    def iterate(self, pick, weights, rows, state, iteration):
        """One iteration of all stages; `pick(weights, iteration)` are the weights [S, P, ...] they use."""
        config = self.config
        x = checkpoint_name(self.stage_inputs(state, iteration), "iteration_input")
        microbatch = self.items(iteration) % config.microbatches
        positions, segments = (self.constrain(row[microbatch], P("stage", None, None)) for row in rows)
        batch_split = functools.partial(self.constrain, spec=P(BATCH_AXES, None, None))

        def stage(x, weights, positions, segments):
            return run_layers(config, x, weights, positions, segments, batch_split)

        outputs = jax.vmap(stage, spmd_axis_name="stage")(x, pick(weights, iteration), positions, segments)
        return self.advance(state, self.constrain(outputs, self.state_spec), iteration)

    def rematerialized(self, function):
        """Only the inputs of iterations are kept for the backward pass."""
        if not self.remat:
            return function
        policy = jax.checkpoint_policies.save_only_these_names("iteration_input")
        return jax.checkpoint(function, prevent_cse=not self.scan, policy=policy)

    def loop(self, body, carry, indices):
        if self.scan:
            return lax.scan(lambda carry, index: (body(carry, index), None), carry, indices)[0]
        for index in indices:
            carry = body(carry, index)
        return carry

    def iterations(self, pick, weights, rows, state, indices):
        body = self.rematerialized(functools.partial(self.iterate, pick))
        return self.loop(lambda state, index: body(weights, rows, state, index), state, indices)

    def pick_plain(self, weights, _iteration):
        return self.gather(jax.tree.map(lambda w: w[0], weights), "stage", None)

    def pick_repeat(self, weights, iteration):
        """Each stage's own repeat, gathered where it is used."""
        repeat = self.items(iteration) // self.config.microbatches
        index = jax.vmap(functools.partial(lax.dynamic_index_in_dim, keepdims=False), in_axes=(1, 0))
        return self.gather(jax.tree.map(lambda w: index(w, repeat), weights), "stage", None)

    def pick_from_window(self, window, iteration):
        """A stage that still works on the last repeat takes its weights, the others the current one's."""
        before, now = window
        count = self.config.microbatches
        current = self.items(iteration) // count == iteration // count

        def one(before, now):
            return jnp.where(current.reshape(-1, *(1,) * (now.ndim - 1)), now, before)

        return jax.tree.map(one, before, now)

    def run_by_repeats(self, weights, rows, state):
        """The sliding window: a loop over repeats; each repeat gathers its weights for all stages once."""
        config = self.config

        def repeat(weights, rows, carry, index):
            state, before = carry
            own = jax.tree.map(lambda w: lax.dynamic_index_in_dim(w, index, keepdims=False), weights)
            now = self.gather(own, "stage", None)
            indices = index * config.microbatches + np.arange(config.microbatches)
            return self.iterations(self.pick_from_window, (before, now), rows, state, indices), now

        body = self.rematerialized(repeat)
        nothing = self.gather(jax.tree.map(lambda w: jnp.zeros_like(w[0]), weights), "stage", None)
        carry = self.loop(lambda carry, index: body(weights, rows, carry, index), (state, nothing), np.arange(config.repeats))
        state, last = carry
        total = config.microbatches * config.repeats
        bubble = total + np.arange(self.bubble)
        # Whoever still works, works on the last repeat.
        return self.iterations(lambda last, _: last, last, rows, state, bubble)

    def run(self, weights, inputs):
        """The last layer's output [batch, seq, embed]."""
        config = self.config
        x, *rows = inputs
        by_microbatch = (config.microbatches, config.microbatch)
        x = self.constrain(x.reshape(*by_microbatch, config.seq, config.embed), P(None, BATCH_AXES, None, None))
        rows = [self.constrain(row, P(None, None)).reshape(*by_microbatch, config.seq) for row in rows]
        state = self.start(x)
        if self.variant == "window":
            state = self.run_by_repeats(weights, rows, state)
        else:
            if self.variant == "once":
                weights = self.gather(weights, None, "stage", None)
            pick = self.pick_plain if config.repeats == 1 else self.pick_repeat
            total = config.microbatches * config.repeats + self.bubble
            state = self.iterations(pick, weights, rows, state, np.arange(total))
        # Slot 0 of the stream is written last by whichever iteration finishes microbatch 0.
        first = (config.microbatches * (config.repeats - 1) + self.bubble) % self.slots
        stream = self.constrain(jnp.roll(state["stream"], -first, axis=1), self.buffer_spec)
        return stream.reshape(inputs[0].shape)

    def loss(self, weights, inputs):
        return jnp.mean(jnp.square(self.run(weights, inputs)))

    def shardings(self):
        def named(tree):
            return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), tree, is_leaf=lambda x: isinstance(x, P))

        return named(specs(None, "stage", None)), named((P(BATCH_AXES, None, None), P(BATCH_AXES, None), P(BATCH_AXES, None)))

    def step(self, input_gradient=False):
        """(weights, inputs) -> (loss, gradients of the weights, or of the weights and x), jitted."""

        def gradients(weights, inputs):
            def loss(weights, x):
                return self.loss(weights, (x, *inputs[1:]))

            return jax.value_and_grad(loss, argnums=(0, 1) if input_gradient else 0)(weights, inputs[0])

        weights, inputs = self.shardings()
        found = (weights, inputs[0]) if input_gradient else weights
        return jax.jit(gradients, in_shardings=(weights, inputs), out_shardings=(None, found))


# Checking


def relative_error(found, expected):
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def check_one(config, variant, remat, scan):
    """The largest relative error of the loss and any gradient."""
    pipeline = Pipeline(config, config.mesh(), variant, remat, scan)
    weights, inputs = make_weights(config, 0), make_inputs(config, 0)
    found = pipeline.step(input_gradient=True)(weights, inputs)

    def loss(weights, x):
        return sequential_loss(config, weights, (x, *inputs[1:]))

    expected = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(weights, inputs[0])
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(relative_error(*pair) for pair in pairs)


def check():
    tiny = dict(microbatch=4, seq=16, embed=32, mlp=48, heads=4, kv_heads=2, head_dim=8)
    worst = 0.0
    for stage, fsdp, data in [(2, 2, 2), (4, 2, 1), (8, 1, 1)]:
        # Twice the stages need circular storage; as many as stages feed the last stage to the first at once.
        for microbatches in [stage, 2 * stage]:
            config = Config(stage, fsdp, data, 3 * stage, 3, microbatches, **tiny)
            cases = [(variant, True, True) for variant in VARIANTS]
            cases += [("window", False, True), ("window", True, False)]
            for variant, remat, scan in cases:
                own = config.not_circular() if variant == "plain" else config
                error = check_one(own, variant, remat, scan)
                worst = max(worst, error)
                form = f"{'remat' if remat else 'no remat'}, {'scanned' if scan else 'unrolled'}"
                print(f"S={stage} M={microbatches} R={own.repeats} {variant}, {form}: {error:.1e}", flush=True)
    if worst > 1e-5:
        sys.exit(f"the pipeline is not the layers in sequence: {worst:.1e}")


# Measuring


def collectives(hlo_dump, text, config):
    """Per kind: static instructions outside and inside loops, executions, MiB of results and of what a device sends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "compiled.txt")
        path.write_text(text)
        mesh = f"stage={config.stage},data={config.data},fsdp={config.fsdp}"
        command = [hlo_dump, "collectives", str(path), "--json", "--mesh", mesh]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    growth = {"all-gather": lambda group: group, "reduce-scatter": lambda group: 1 / group}
    kinds = {}
    for one in found["collectives"]:
        kind = kinds.setdefault(one["kind"], dict(outside=0, in_loop=0, executed=0, result_mib=0.0, moved_mib=0.0))
        kind["in_loop" if one["loop_depth"] else "outside"] += 1
        kind["executed"] += one["executions"]
        result = one["bytes"] * growth.get(one["kind"], lambda _: 1)(one["group_size"])
        kind["result_mib"] += one["executions"] * result / 2**20
        kind["moved_mib"] += one["executions"] * one["moved_bytes"] / 2**20
    return {name: {key: round(value, 1) for key, value in kind.items()} for name, kind in kinds.items()}


class Runner:
    """The compiled step with its arguments on the devices."""

    def __init__(self, pipeline, data=None):
        config = pipeline.config
        values = read_data(config, data) if data else (make_weights(config, 0), make_inputs(config, 0))
        self.weights, self.inputs = jax.device_put(values, pipeline.shardings())
        step = pipeline.step()
        begin = time.perf_counter()
        lowered = step.lower(self.weights, self.inputs)
        middle = time.perf_counter()
        self.compiled = lowered.compile()
        self.lower_seconds = middle - begin
        self.compile_seconds = time.perf_counter() - middle

    def about(self):
        return {
            "lower_seconds": round(self.lower_seconds, 6),
            "compile_seconds": round(self.compile_seconds, 6),
            "temp_bytes": self.compiled.memory_analysis().temp_size_in_bytes,
        }

    def run(self):
        """One step: its seconds and loss."""
        begin = time.perf_counter()
        loss, _ = jax.block_until_ready(self.compiled(self.weights, self.inputs))
        return time.perf_counter() - begin, float(loss)


def serve(runner, warmup):
    for _ in range(warmup):
        runner.run()
    print(f"ready {json.dumps(runner.about())}", flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        seconds, loss = runner.run()
        print(f"{seconds:.6f} {loss:.9g}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=CONFIGS, default="B")
    parser.add_argument("--variant", choices=VARIANTS, default="window")
    parser.add_argument("--no-remat", action="store_true", help="keep all values that the backward pass needs")
    parser.add_argument("--unrolled", action="store_true", help="iterations and repeats each their own operations")
    parser.add_argument("--check", action="store_true", help="compare every variant with the layers in sequence")
    parser.add_argument("--data", help="take weights and inputs from this file (see read_data)")
    parser.add_argument("--hlo", help="write the compiled HLO text to this file")
    parser.add_argument("--hlo-dump", help="meshloom's hlo-dump, to count the collectives")
    parser.add_argument("--steps", type=int, default=0, help="timed steps, one line each")
    parser.add_argument("--warmup", type=int, default=1, help="steps before --serve says ready")
    parser.add_argument("--serve", action="store_true", help="one step per line on stdin")
    arguments = parser.parse_args()
    if arguments.check:
        return check()

    config = CONFIGS[arguments.config]
    if arguments.variant == "plain":
        config = config.not_circular()
    pipeline = Pipeline(config, config.mesh(), arguments.variant, not arguments.no_remat, not arguments.unrolled)
    runner = Runner(pipeline, arguments.data)
    text = runner.compiled.as_text() if arguments.hlo or arguments.hlo_dump else ""
    if arguments.hlo:
        Path(arguments.hlo).write_text(text)
    if arguments.serve:
        return serve(runner, arguments.warmup)

    about = {"bench": "pipeline", "jax": jax.__version__, "config": arguments.config, "variant": arguments.variant}
    about |= {"remat": not arguments.no_remat, "scan": not arguments.unrolled} | runner.about()
    if arguments.hlo_dump:
        about["collectives"] = collectives(arguments.hlo_dump, text, config)
    print(json.dumps(about), flush=True)
    for step in range(1, arguments.steps + 1):
        seconds, loss = runner.run()
        print(json.dumps({"step": step, "seconds": round(seconds, 6), "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
