"""JAX programs of pipelines whose schedules have names, for `lowered.py`: written by hand in a shard_map over data=2, stage=4, each
the loss and the gradients of layers in a row."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from foreign_programs import array, f32

STAGES, MICROBATCHES, MICROBATCH, WIDTH = 4, 6, 8, 24
ONWARDS = [(i, i + 1) for i in range(STAGES - 1)]
ROUND = [(i, (i + 1) % STAGES) for i in range(STAGES)]


def backwards(pairs):
    return [(target, source) for source, target in pairs]


def layer(weight, x):
    return jnp.tanh(x @ weight)


def of_stages(mesh):
    """For a function of the weights of a stage, inputs and targets."""
    return functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(None, "stage"), P(None, "data"), P(None, "data")), out_specs=(P(), P(None, "stage")),
        check_vma=False)


def lowered(mesh, step, chunks, microbatches):
    batch = array(mesh, (microbatches, MICROBATCH, WIDTH), None, "data")
    return jax.jit(step).trace(array(mesh, (chunks, STAGES, WIDTH, WIDTH), None, "stage"), batch, batch)


def one_forward_one_backward(mesh):
    """1F1B: microbatch k goes forwards through stage s in tick s + 2 k, and backwards in tick 2 S - 1 - s + 2 k."""

    @of_stages(mesh)
    def step(weights, x, y):
        stage, weight = lax.axis_index("stage"), weights[0, 0]
        nothing = jnp.zeros(x.shape[1:], f32)

        def turn(since):
            """Whether it is that of a microbatch, and its number."""
            return (since >= 0) & (since < 2 * MICROBATCHES) & (since % 2 == 0), jnp.clip(since // 2, 0, MICROBATCHES - 1)

        def tick(carried, t):
            kept, arrived, returned, gradient, total = carried
            (goes, number), (comes, last) = turn(t - stage), turn(t - (2 * STAGES - 1 - stage))

            def forwards(kept):
                mine = jnp.where(stage == 0, x[number], arrived)
                return layer(weight, mine), lax.dynamic_update_index_in_dim(kept, mine, number % STAGES, 0)

            def back(kept, gradient, total):
                out, pull = jax.vjp(layer, weight, kept[last % STAGES])
                error = out - y[last]
                of_weight, of_input = pull(jnp.where(stage == STAGES - 1, error, returned))
                return of_input, gradient + of_weight, total + jnp.where(stage == STAGES - 1, (error**2).sum() / 2, 0)

            returned, gradient, total = lax.cond(comes, back, lambda _, *sums: (nothing, *sums), kept, gradient, total)
            out, kept = lax.cond(goes, forwards, lambda kept: (nothing, kept), kept)
            sent = lax.ppermute(out, "stage", ONWARDS), lax.ppermute(returned, "stage", backwards(ONWARDS))
            return (kept, *sent, gradient, total), None

        start = jnp.zeros((STAGES, *x.shape[1:]), f32), nothing, nothing, jnp.zeros_like(weight), jnp.zeros((), f32)
        (*_, gradient, total), _ = lax.scan(tick, start, jnp.arange(2 * (MICROBATCHES + STAGES - 1)))
        return lax.psum(total, ("data", "stage")), lax.psum(gradient, "data")[None, None]

    return lowered(mesh, step, 1, MICROBATCHES)


CHUNKS, ROUNDS = 2, 2


def orders(stage, microbatches):
    """Megatron-LM's: what a stage does one after the other, as (whether backwards, chunk, microbatch)."""
    groups = range(0, microbatches, STAGES)
    forwards = [(0, chunk, first + i) for first in groups for chunk in range(CHUNKS) for i in range(STAGES)]
    back = [(1, CHUNKS - 1 - chunk, number) for _, chunk, number in forwards]
    ahead = min(len(forwards), 2 * (STAGES - stage - 1) + (CHUNKS - 1) * STAGES)
    pairs = zip(forwards[ahead:], back)
    return forwards[:ahead] + [task for pair in pairs for task in pair] + back[len(back) - ahead:]


def waits_for(stage, task):
    back, chunk, number = task
    if back and (stage, chunk) == (STAGES - 1, CHUNKS - 1):
        return stage, (0, chunk, number)
    before = chunk * STAGES + stage + (1 if back else -1)
    return (before % STAGES, (back, before // STAGES, number)) if before >= 0 else None


def table(microbatches):
    """By tick and stage: 0 nothing, 1 forwards, 2 backwards; then chunk and microbatch."""
    left, done, rows = [orders(stage, microbatches) for stage in range(STAGES)], {}, []
    while any(left):
        row = []
        for stage in range(STAGES):
            task = left[stage][0] if left[stage] else None
            needs = task and waits_for(stage, task)
            ready = task and (needs is None or done.get(needs, len(rows)) < len(rows))
            if ready:
                done[stage, left[stage].pop(0)] = len(rows)
            row.append((1 + task[0], task[1], task[2]) if ready else (0, 0, 0))
        rows.append(row)
    return np.array(rows, np.int32)


def interleaved(mesh):
    """Interleaved 1F1B by a table: in each tick a stage takes one of three branches; what arrives waits for its turn."""
    microbatches = 2 * STAGES
    ticks = table(microbatches)
    # What arrives in a tick is what the neighbours did in the tick before, in the chunk that is next here.
    before = np.concatenate([np.zeros_like(ticks[:1]), ticks[:-1]])
    arrives, returns = np.roll(before, 1, axis=1), np.roll(before, -1, axis=1)
    arrives[:, 0, 1] += 1
    returns[:, STAGES - 1, 1] -= 1

    @of_stages(mesh)
    def step(weights, x, y):
        stage, weight = lax.axis_index("stage"), weights[:, 0]
        nothing = jnp.zeros(x.shape[1:], f32)

        def put(waiting, comes, value, kind):
            is_one = (comes[0] == kind) & (comes[1] >= 0) & (comes[1] < CHUNKS)
            chunk = jnp.clip(comes[1], 0, CHUNKS - 1)
            return jnp.where(is_one, waiting.at[chunk, comes[2]].set(value), waiting)

        def tick(carried, rows):
            inputs, cotangents, arrived, returned, gradient, total = carried
            task, comes, comes_back = (row[stage] for row in rows)
            inputs, cotangents = put(inputs, comes, arrived, 1), put(cotangents, comes_back, returned, 2)
            chunk, number = task[1], task[2]
            mine = jnp.where((stage == 0) & (chunk == 0), x[number], inputs[chunk, number])

            def forwards():
                return layer(weight[chunk], mine), nothing, gradient, total

            def back():
                out, pull = jax.vjp(layer, weight[chunk], mine)
                is_last = (stage == STAGES - 1) & (chunk == CHUNKS - 1)
                error = out - y[number]
                of_weight, of_input = pull(jnp.where(is_last, error, cotangents[chunk, number]))
                return nothing, of_input, gradient.at[chunk].add(of_weight), total + jnp.where(is_last, (error**2).sum() / 2, 0)

            branches = [lambda: (nothing, nothing, gradient, total), forwards, back]
            out, of_input, now, sum_now = lax.switch(task[0], branches)
            sent = lax.ppermute(out, "stage", ROUND), lax.ppermute(of_input, "stage", backwards(ROUND))
            return (inputs, cotangents, *sent, now, sum_now), None

        waiting = jnp.zeros((CHUNKS, microbatches, *x.shape[1:]), f32)
        start = waiting, waiting, nothing, nothing, jnp.zeros_like(weight), jnp.zeros((), f32)
        (*_, gradient, total), _ = lax.scan(tick, start, tuple(map(jnp.asarray, (ticks, arrives, returns))))
        return lax.psum(total, ("data", "stage")), lax.psum(gradient, "data")[:, None]

    return lowered(mesh, step, CHUNKS, microbatches)


def circular(mesh):
    """Circular, as MaxText's: all stages compute in every iteration, with the weights of their repeat; as many microbatches as
    stages go round twice. JAX makes the backward pass."""

    @of_stages(mesh)
    def step(weights, x, y):
        stage = lax.axis_index("stage")

        def loss(weights):
            def iteration(carried, t):
                arrived, total = carried
                item = t - stage
                repeat = jnp.clip(item // STAGES, 0, ROUNDS - 1)
                mine = jnp.where((stage == 0) & (t < STAGES), x[jnp.minimum(t, STAGES - 1)], arrived)
                out = layer(lax.dynamic_index_in_dim(weights[:, 0], repeat, keepdims=False), mine)
                last = item - STAGES * (ROUNDS - 1)
                error = ((out - y[jnp.clip(last, 0, STAGES - 1)]) ** 2).sum() / 2
                total += jnp.where((stage == STAGES - 1) & (last >= 0), error, 0)
                return (lax.ppermute(out, "stage", ROUND), total), None

            start = jnp.zeros(x.shape[1:], f32), jnp.zeros((), f32)
            return lax.scan(iteration, start, jnp.arange(STAGES * ROUNDS + STAGES - 1))[0][1]

        total, gradient = jax.value_and_grad(loss)(weights)
        return lax.psum(total, ("data", "stage")), lax.psum(gradient, "data")

    return lowered(mesh, step, ROUNDS, STAGES)


AXES = {"data": 2, "stage": STAGES}

# Name of a program -> how to trace it on a mesh, and the mesh's axes.
PROGRAMS = {program.__name__: (program, AXES) for program in (circular, interleaved, one_forward_one_backward)}
