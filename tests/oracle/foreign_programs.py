"""The JAX programs whose modules `foreign.py` stores: train steps, each on eight devices with two named mesh axes.

The sizes are small and unlike each other, so that the bytes of a collective say which array it moves.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

f32 = jnp.float32


def array(mesh, shape, *spec):
    """An argument: f32[shape], sharded."""
    return jax.ShapeDtypeStruct(shape, f32, sharding=NamedSharding(mesh, P(*spec)))


def constrained(mesh, x, *spec):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))


def descend(parameters, gradients):
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)


# Rows, model and hidden width of the two FSDP programs.
ROWS, MODEL, HIDDEN = 64, 16, 48
LAYERS = 5


def fsdp_mlp(mesh):
    """Mesh data=2, fsdp=4. One MLP: weights sharded over fsdp and gathered where they are used, rows over both axes."""

    def loss(parameters, x, y):
        with jax.named_scope("mlp"):
            up = constrained(mesh, parameters["up"])
            down = constrained(mesh, parameters["down"])
            predicted = jnp.tanh(x @ up) @ down
        with jax.named_scope("loss"):
            return jnp.mean((predicted - y) ** 2)

    rows = array(mesh, (ROWS, MODEL), ("data", "fsdp"))
    parameters = {
        "up": array(mesh, (MODEL, HIDDEN), "fsdp"),
        "down": array(mesh, (HIDDEN, MODEL), "fsdp"),
    }
    return jit_step(mesh, loss, parameters, (rows, rows), "fsdp_mlp")


def scan_remat(mesh):
    """Mesh data=2, fsdp=4. The MLP, five layers of it in a scan, each recomputed in the backward pass, and
    the gradients as sharded as the weights."""

    @jax.custom_vjp
    def gathered(weight):
        return constrained(mesh, weight)

    # Without it JAX wants the gradients whole on every device, which is what it wanted of the weights.
    gathered.defvjp(lambda weight: (gathered(weight), None), lambda _, gradient: (constrained(mesh, gradient, "fsdp"),))

    def layer(x, weights):
        with jax.named_scope("layer"):
            up, down = gathered(weights["up"]), gathered(weights["down"])
            x = x + jnp.tanh(x @ up) @ down
        return constrained(mesh, x, ("data", "fsdp")), None

    def loss(parameters, x, y):
        predicted, _ = lax.scan(jax.checkpoint(layer), x, parameters)
        with jax.named_scope("loss"):
            return jnp.mean((predicted - y) ** 2)

    rows = array(mesh, (ROWS, MODEL), ("data", "fsdp"))
    parameters = {
        "up": array(mesh, (LAYERS, MODEL, HIDDEN), None, "fsdp"),
        "down": array(mesh, (LAYERS, HIDDEN, MODEL), None, "fsdp"),
    }
    return jit_step(mesh, loss, parameters, (rows, rows), "scan_remat")


STAGES, MICROBATCHES, MICROBATCH, WIDTH = 4, 6, 8, 24


def pipeline(mesh):
    """Mesh data=2, stage=4. A GPipe schedule in a shard_map: a scan over iterations with a ring of ppermutes over stage."""

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P("stage"), P(None, "data"), P(None, "data")), out_specs=P())
    def loss(weight, x, y):
        stage = lax.axis_index("stage")
        ring = [(i, (i + 1) % STAGES) for i in range(STAGES)]

        def iteration(carried, t):
            arrived, total = carried
            with jax.named_scope("stage"):
                mine = jnp.where(stage == 0, x[jnp.minimum(t, MICROBATCHES - 1)], arrived)
                out = jnp.tanh(mine @ weight[0])
            with jax.named_scope("loss"):
                finished = t - (STAGES - 1)
                error = jnp.mean((out - y[jnp.maximum(finished, 0)]) ** 2)
                total += jnp.where((stage == STAGES - 1) & (finished >= 0), error, 0)
            with jax.named_scope("send"):
                return (lax.ppermute(out, "stage", ring), total), None

        everywhere = functools.partial(lax.pcast, axis_name=("data", "stage"), to="varying")
        start = (everywhere(jnp.zeros(x.shape[1:], f32)), everywhere(jnp.zeros((), f32)))
        (_, total), _ = lax.scan(iteration, start, jnp.arange(MICROBATCHES + STAGES - 1))
        return lax.psum(total, ("data", "stage")) / (2 * MICROBATCHES)

    batch = array(mesh, (MICROBATCHES, MICROBATCH, WIDTH), None, "data")
    weight = array(mesh, (STAGES, WIDTH, WIDTH), "stage")
    return jit_step(mesh, loss, weight, (batch, batch), "pipeline")


EXPERTS, EXPERT_HIDDEN, MOE_LAYERS = 8, 40, 3


def moe(mesh):
    """Mesh data=2, expert=4. Three layers of experts in a scan: tokens go to their experts and back by two all_to_alls. Every
    expert has a slot for every token, most of them empty."""

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=({"router": P(), "up": P(None, "expert"), "down": P(None, "expert")},
                                            P(("data", "expert")), P(("data", "expert"))), out_specs=P())
    def loss(parameters, x, y):
        def layer(x, weights):
            with jax.named_scope("router"):
                scores = jnp.tanh(x @ weights["router"]).T[:, :, None]
                gates = jnp.where(scores == scores.max(axis=0), scores, 0)
            with jax.named_scope("dispatch"):
                received = lax.all_to_all(gates * x[None], "expert", 0, 1, tiled=True)
            with jax.named_scope("experts"):
                hidden = jnp.tanh(jnp.einsum("ecd,edf->ecf", received, weights["up"]))
                computed = jnp.einsum("ecf,efd->ecd", hidden, weights["down"])
            with jax.named_scope("combine"):
                returned = lax.all_to_all(computed, "expert", 1, 0, tiled=True)
                return returned.sum(axis=0), None

        predicted, _ = lax.scan(layer, x, parameters)
        with jax.named_scope("loss"):
            return lax.pmean(jnp.mean((predicted - y) ** 2), ("data", "expert"))

    rows = array(mesh, (ROWS, MODEL), ("data", "expert"))
    parameters = {
        "router": array(mesh, (MOE_LAYERS, MODEL, EXPERTS)),
        "up": array(mesh, (MOE_LAYERS, EXPERTS, MODEL, EXPERT_HIDDEN), None, "expert"),
        "down": array(mesh, (MOE_LAYERS, EXPERTS, EXPERT_HIDDEN, MODEL), None, "expert"),
    }
    return jit_step(mesh, loss, parameters, (rows, rows), "moe")


PERIOD = 5


def local_sgd(mesh):
    """Mesh diloco=2, fsdp=4. Two replicas descend on their own, in a shard_map; after every fifth step a branch takes their mean. The
    counter of steps is an argument."""
    of_replicas = P("diloco", "fsdp")

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(), of_replicas, P(("diloco", "fsdp"))), out_specs=of_replicas, check_vma=False)
    def descend_and_sync(step, weight, x):
        with jax.named_scope("descend"):
            whole = lax.all_gather(weight[0], "fsdp", tiled=True)
            gradient = x.T @ jnp.tanh(x @ whole)
            weight = weight - 0.1 * lax.psum_scatter(gradient, "fsdp", tiled=True)[None]
        with jax.named_scope("sync"):
            return lax.cond((step + 1) % PERIOD == 0, lambda w: lax.pmean(w, "diloco"), lambda w: w, weight)

    def local_sgd(step, weight, x):
        return step + 1, descend_and_sync(step, weight, x)

    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, P()))
    weight = array(mesh, (2, MODEL, HIDDEN), "diloco", "fsdp")
    return jax.jit(local_sgd, donate_argnums=1).trace(step, weight, array(mesh, (ROWS, MODEL), ("diloco", "fsdp")))


def small(mesh):
    """Mesh data=8. Rows over all devices, their sum everywhere: the program of the dump folder."""

    def f(x, w):
        return jnp.tanh(x @ w).sum(axis=0)

    return jax.jit(f, out_shardings=NamedSharding(mesh, P())).trace(
        array(mesh, (ROWS, MODEL), "data"), array(mesh, (MODEL, MODEL)))


def jit_step(mesh, loss, parameters, batch, name):
    """The train step, traced: loss and parameters after one step of gradient descent."""

    def step(parameters, x, y):
        value, gradients = jax.value_and_grad(loss)(parameters, x, y)
        return value, descend(parameters, gradients)

    step.__name__ = name
    shardings = jax.tree.map(lambda parameter: parameter.sharding, parameters)
    outputs = (NamedSharding(mesh, P()), shardings)
    return jax.jit(step, out_shardings=outputs, donate_argnums=0).trace(parameters, *batch)


# Name of a program -> how to trace it on a mesh, and the mesh's axes.
PROGRAMS = {
    "fsdp_mlp": (fsdp_mlp, {"data": 2, "fsdp": 4}),
    "moe": (moe, {"data": 2, "expert": 4}),
    "pipeline": (pipeline, {"data": 2, "stage": 4}),
    "scan_remat": (scan_remat, {"data": 2, "fsdp": 4}),
    "small": (small, {"data": 8}),
    # Behind the others: XLA numbers modules in the order in which they are compiled.
    "local_sgd": (local_sgd, {"diloco": 2, "fsdp": 4}),
}
