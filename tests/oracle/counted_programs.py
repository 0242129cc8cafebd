"""JAX programs on eight devices, with what each communicates, counted by hand from the program.

A row of a count is `(kind, axes, times, bytes)`: the bytes of the operands on one device in one execution. `times` is None
where a condition decides, and a number in a branch is the most. Where the compiler chooses (automatic sharding, and types that a backend
does not add), `compiled` states what it must come to, or nothing is stated and XLA's own text is counted.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P

f32, bf16, i32, i8, f8 = jnp.float32, jnp.bfloat16, jnp.int32, jnp.int8, jnp.float8_e4m3fn
MESH = {"data": 2, "fsdp": 4}
SLICES = {"dcn": 2, "data": 2, "fsdp": 2}

# Kinds.
GATHER, REDUCE, SCATTER, EXCHANGE, PERMUTE = "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute"


@dataclasses.dataclass
class Counted:
    """A program: `make(mesh)` gives the function and its arguments; `lowered` is the count of the program as JAX hands it over."""

    make: object
    lowered: list
    axes: dict
    # The count of the compiled program where it is another one by hand, by platform or for all ("all").
    compiled: dict
    # Whether XLA's partitioner makes collectives of its own: then only its own text can say how many.
    automatic: bool
    donated: tuple = ()
    # How often its loops run, from the outermost one inwards.
    loops: tuple = ()
    # Platforms that do not compile it.
    without: tuple = ()
    # Whether jax.export takes it.
    is_exported: bool = True
    # The one platform that JAX lowers it for, if it does not for a CPU.
    lowers_for: str | None = None


PROGRAMS = {}


def counted(*lowered, axes=MESH, compiled=None, automatic=False, **others):
    def record(make):
        PROGRAMS[make.__name__] = Counted(make, list(lowered), axes, compiled or {}, automatic, **others)
        return make

    return record


def array(mesh, shape, *spec, dtype=f32):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))


def manual(mesh, inputs, outputs, **options):
    """shard_map without the check that results are the same where they should be: programs here are counted, not run."""
    options.setdefault("check_vma", False)
    return functools.partial(jax.shard_map, mesh=mesh, in_specs=inputs, out_specs=outputs, **options)


def ring(size, step=1):
    return [(index, (index + step) % size) for index in range(size)]


# Data, weights and activations.


@counted((REDUCE, "data", 1, 128 * 256 * 4))
def data_parallel(mesh):
    @manual(mesh, (P(), P("data")), P())
    def step(w, x):
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * lax.pmean(gradient, "data")

    return step, (array(mesh, (128, 256)), array(mesh, (64, 128), "data"))


@counted((REDUCE, "data", 1, 128 * 256 * 4))
def checked_gradient(mesh):
    """The gradient of what all devices share is summed by the transpose of its broadcast."""

    @manual(mesh, (P(), P("data")), P(), check_vma=True)
    def step(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)

    return step, (array(mesh, (128, 256)), array(mesh, (64, 128), "data"))


# On a v6e the gradient's minor dimension is the split one, which a reduce-scatter does not split.
@counted((GATHER, "fsdp", 1, 32 * 256 * 4), (SCATTER, "fsdp", 1, 128 * 256 * 4),
         compiled={"v6e": [(GATHER, "fsdp", 1, 32 * 256 * 4), (REDUCE, "fsdp", 1, 128 * 256 * 4)]})
def gathered_weight(mesh):
    @manual(mesh, (P("fsdp"), P(("data", "fsdp"))), P("fsdp"))
    def step(w, x):
        return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ lax.all_gather(w, "fsdp", tiled=True)) ** 2))(w)

    return step, (array(mesh, (128, 256), "fsdp"), array(mesh, (64, 128), ("data", "fsdp")))


LAYERS = 5


@counted((GATHER, "fsdp", 5, 32 * 128 * 4), (GATHER, "fsdp", 5, 32 * 128 * 4), (SCATTER, "fsdp", 5, 128 * 128 * 4),
         (REDUCE, "data", 1, 5 * 32 * 128 * 4), loops=(5,))
def remat_layers(mesh):
    """Layers gather their weight forward, again backward, and scatter its gradient."""

    @manual(mesh, (P(None, "fsdp"), P(("data", "fsdp"))), P(None, "fsdp"))
    def step(weights, x):
        @jax.checkpoint
        def layer(x, w):
            return jnp.tanh(x @ lax.all_gather(w, "fsdp", tiled=True)), None

        gradient = jax.grad(lambda weights: jnp.sum(lax.scan(layer, x, weights)[0] ** 2))(weights)
        return lax.psum(gradient, "data")

    return step, (array(mesh, (LAYERS, 128, 128), None, "fsdp"), array(mesh, (64, 128), ("data", "fsdp")))


@counted((SCATTER, "data", 1, 256 * 384 * 4), (GATHER, "data", 1, 128 * 384 * 4))
def sharded_update(mesh):
    """The gradient is scattered, each device updates its part, and the parts are gathered."""

    @manual(mesh, (P(), P("data"), P("data")), (P(), P("data")))
    def step(w, moment, x):
        gradient = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
        moment = 0.9 * moment + lax.psum_scatter(gradient, "data", tiled=True)
        return w - 0.1 * lax.all_gather(jnp.sign(moment), "data", tiled=True), moment

    return step, (array(mesh, (256, 384)), array(mesh, (256, 384), "data"), array(mesh, (64, 256), "data"))


@counted((REDUCE, "fsdp", 1, 32 * 256 * 4))
def tensor_parallel(mesh):
    @manual(mesh, (P("data"), P(None, "fsdp"), P("fsdp")), P("data"))
    def step(x, up, down):
        return lax.psum(jnp.tanh(x @ up) @ down, "fsdp")

    return step, (array(mesh, (64, 256), "data"), array(mesh, (256, 512), None, "fsdp"), array(mesh, (512, 256), "fsdp"))


@counted((GATHER, "fsdp", 1, 32 * 256 * 4), (SCATTER, "fsdp", 1, 128 * 256 * 4))
def sequence_parallel(mesh):
    @manual(mesh, (P(("data", "fsdp")), P(None, "fsdp"), P("fsdp")), P(("data", "fsdp")))
    def step(x, up, down):
        whole = lax.all_gather(x, "fsdp", tiled=True)
        return lax.psum_scatter(jnp.tanh(whole @ up) @ down, "fsdp", tiled=True)

    return step, (array(mesh, (256, 256), ("data", "fsdp")), array(mesh, (256, 512), None, "fsdp"), array(mesh, (512, 256), "fsdp"))


@counted((REDUCE, "fsdp", 1, 32 * 256 * 4), (REDUCE, "fsdp", 1, 32 * 256 * 4))
def custom_rules(mesh):
    """One sum forward, and one backward, by derivatives that a person wrote."""

    @jax.custom_vjp
    def enter(x):
        return x

    enter.defvjp(lambda x: (x, None), lambda _, gradient: (lax.psum(gradient, "fsdp"),))

    @jax.custom_vjp
    def leave(x):
        return lax.psum(x, "fsdp")

    leave.defvjp(lambda x: (leave(x), None), lambda _, gradient: (gradient,))

    @manual(mesh, (P("data"), P(None, "fsdp"), P("fsdp")), P("data"))
    def step(x, up, down):
        return jax.grad(lambda x: jnp.sum(leave(jnp.tanh(enter(x) @ up) @ down) ** 2))(x)

    return step, (array(mesh, (64, 256), "data"), array(mesh, (256, 512), None, "fsdp"), array(mesh, (512, 256), "fsdp"))


@counted((EXCHANGE, "fsdp", 3, 64 * 128 * 4), (EXCHANGE, "fsdp", 3, 64 * 128 * 4), loops=(3,))
def experts(mesh):
    """Three layers send rows to their experts and back."""

    @manual(mesh, (P(("data", "fsdp")), P(None, "fsdp")), P(("data", "fsdp")))
    def step(x, weights):
        def layer(x, w):
            sent = lax.all_to_all(x.reshape(4, 16, 128), "fsdp", 0, 1)
            back = lax.all_to_all(jnp.tanh(sent @ w[0]), "fsdp", 1, 0)
            return x + back.reshape(64, 128), None

        return lax.scan(layer, x, weights)[0]

    return step, (array(mesh, (512, 128), ("data", "fsdp")), array(mesh, (3, 4, 128, 128), None, "fsdp"))


@counted(("ragged-all-to-all", "fsdp", 1, 64 * 128 * 4), without=("cpu",))
def ragged_experts(mesh):
    @manual(mesh, (P("fsdp"), P("fsdp"), P("fsdp")), P("fsdp"))
    def step(x, out, sizes):
        starts = jnp.cumsum(sizes) - sizes
        return lax.ragged_all_to_all(x, out, starts, sizes, starts, sizes, axis_name="fsdp")

    return step, (array(mesh, (256, 128), "fsdp"), array(mesh, (512, 128), "fsdp"), array(mesh, (16,), "fsdp", dtype=i32))


@counted((PERMUTE, "fsdp", 7, 32 * 128 * 4), (REDUCE, "fsdp", 1, 7 * 32 * 128 * 4), loops=(7,))
def pipeline(mesh):
    @manual(mesh, (P(None, "data"), P("fsdp")), P(None, "data"))
    def step(batches, w):
        def tick(carry, batch):
            carry = jnp.where(lax.axis_index("fsdp") == 0, batch, carry)
            carry = jnp.tanh(carry @ w[0])
            return lax.ppermute(carry, "fsdp", ring(4)), carry

        return lax.psum(lax.scan(tick, jnp.zeros((32, 128)), batches)[1], "fsdp")

    return step, (array(mesh, (7, 64, 128), None, "data"), array(mesh, (4, 128, 128), "fsdp"))


@counted((PERMUTE, "fsdp", 4, 128 * 256 * 4), (PERMUTE, "fsdp", 4, 128 * 128 * 4), loops=(4,))
def ring_attention(mesh):
    """Keys and values go round; the fourth step's are home again."""

    @manual(mesh, (P("fsdp"),) * 3, P("fsdp"))
    def step(q, k, v):
        def turn(carry, _):
            k, v, total, norm = carry
            weights = jnp.exp(q @ k.T)
            total, norm = total + weights @ v, norm + weights.sum(1)
            return (lax.ppermute(k, "fsdp", ring(4)), lax.ppermute(v, "fsdp", ring(4)), total, norm), None

        (_, _, total, norm), _ = lax.scan(turn, (k, v, jnp.zeros((128, 128)), jnp.zeros(128)), None, length=4)
        return total / norm[:, None]

    return step, (array(mesh, (512, 256), "fsdp"), array(mesh, (512, 256), "fsdp"), array(mesh, (512, 128), "fsdp"))


@counted((REDUCE, "fsdp", 1, 32 * 256 * 4))
def embedding(mesh):
    """Each device looks up the rows that it has."""

    @manual(mesh, (P("fsdp"), P("data")), P("data"))
    def step(table, tokens):
        mine = tokens - lax.axis_index("fsdp") * 128
        rows = table[jnp.clip(mine, 0, 127)]
        return lax.psum(jnp.where(((mine >= 0) & (mine < 128))[:, None], rows, 0), "fsdp")

    return step, (array(mesh, (512, 256), "fsdp"), array(mesh, (64,), "data", dtype=i32))


@counted((GATHER, "fsdp", 1, 8 * 128 * 4), (GATHER, "fsdp", 1, 8 * 128 * 4))
def best_of_all(mesh):
    """Each device's best 128, values and indices, and the best 128 of these."""

    @manual(mesh, (P("data", "fsdp"),), (P("data"), P("data")))
    def step(scores):
        values, indices = lax.top_k(scores, 128)
        values = lax.all_gather(values, "fsdp", axis=1, tiled=True)
        indices = lax.all_gather(indices + lax.axis_index("fsdp") * 1024, "fsdp", axis=1, tiled=True)
        values, chosen = lax.top_k(values, 128)
        return values, jnp.take_along_axis(indices, chosen, 1)

    return step, (array(mesh, (16, 4096), "data", "fsdp"),)


# Loops and branches.


@counted((REDUCE, "fsdp", 15, 1024 * 4), (PERMUTE, "data", 5, 1024 * 4), loops=(5, 3))
def nested_scans(mesh):
    @manual(mesh, (P("data"),), P("data"))
    def step(x):
        def inner(x, _):
            return lax.psum(jnp.sin(x), "fsdp"), None

        def outer(x, _):
            return lax.ppermute(lax.scan(inner, x, None, length=3)[0], "data", ring(2)), None

        return lax.scan(outer, x, None, length=5)[0]

    return step, (array(mesh, (2048,), "data"),)


@counted((REDUCE, "data,fsdp", None, 4), (GATHER, "fsdp", None, 1024 * 4))
def unknown_loop(mesh):
    @manual(mesh, (P(("data", "fsdp")),), P(("data", "fsdp")))
    def step(x):
        def go_on(x):
            return lax.psum(jnp.sum(x), ("data", "fsdp")) < 100

        return lax.while_loop(go_on, lambda x: x + lax.all_gather(x, "fsdp").sum(0), x)

    return step, (array(mesh, (8192,), ("data", "fsdp")),)


@counted((REDUCE, "fsdp", 1, 2048 * 4))
def one_branch(mesh):
    @manual(mesh, (P(), P("data")), P("data"))
    def step(which, x):
        return lax.cond(which > 0, lambda x: lax.psum(x * 2, "fsdp"), lambda x: x - 1, x)

    return step, (array(mesh, (), dtype=i32), array(mesh, (4096,), "data"))


# Axes.


@counted((REDUCE, "fsdp", 1, 256 * 256 * 4), compiled={"all": [(REDUCE, "fsdp", 1, 128 * 256 * 4)]}, automatic=True)
def partly_manual(mesh):
    """Manual along fsdp, automatic along data, along which the shapes are whole until XLA has partitioned it."""

    @manual(mesh, (P("fsdp"),), P(), axis_names={"fsdp"}, check_vma=True)
    def gather(x):
        return lax.psum(x, "fsdp")

    def step(x):
        return gather(x) * 2

    return step, (array(mesh, (1024, 256), ("fsdp", "data")),)


@counted((REDUCE, "dcn,fsdp", 1, 64 * 128 * 4), (GATHER, "dcn,data,fsdp", 1, 64 * 128 * 4),
         (SCATTER, "data,fsdp", 1, 512 * 128 * 4), axes=SLICES)
def several_axes(mesh):
    @manual(mesh, (P(("dcn", "data", "fsdp")),), (P(), P(), P()))
    def step(x):
        whole = lax.all_gather(x, ("dcn", "data", "fsdp"), tiled=True)
        return lax.psum(x, ("dcn", "fsdp")), whole, lax.psum_scatter(whole, ("data", "fsdp"), tiled=True)

    return step, (array(mesh, (512, 128), ("dcn", "data", "fsdp")),)


@counted((GATHER, "fsdp,dcn", 1, 1024 * 4), (EXCHANGE, "fsdp,data", 1, 64 * 128 * 4), axes=SLICES)
def swapped_axes(mesh):
    @manual(mesh, (P(("fsdp", "dcn")), P(None, ("fsdp", "data"))), (P(), P(("fsdp", "data"))))
    def step(x, y):
        return lax.all_gather(x, ("fsdp", "dcn"), tiled=True), lax.all_to_all(y, ("fsdp", "data"), 0, 1, tiled=True)

    return step, (array(mesh, (4096,), ("fsdp", "dcn")), array(mesh, (64, 512), None, ("fsdp", "data")))


@counted((REDUCE, "fsdp:(2)2", 1, 1024 * 4), (GATHER, "fsdp:(1)2", 1, 1024 * 4))
def axis_groups(mesh):
    @manual(mesh, (P("fsdp"),), P("fsdp"))
    def step(x):
        near, far = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
        x = lax.psum(x, "fsdp", axis_index_groups=near)
        return lax.all_gather(x, "fsdp", axis_index_groups=far, tiled=True)

    return step, (array(mesh, (4096,), "fsdp"),)


@counted((SCATTER, "data,fsdp", 1, 256 * 128 * 4), (REDUCE, "dcn", 1, 64 * 128 * 4), (GATHER, "data,fsdp", 1, 64 * 128 * 4),
         axes=SLICES)
def over_slices(mesh):
    """A sum over slices in three steps, so that the slow links carry a quarter."""

    @manual(mesh, (P("dcn"),), P())
    def step(x):
        part = lax.psum_scatter(x, ("data", "fsdp"), tiled=True)
        return lax.all_gather(lax.psum(part, "dcn"), ("data", "fsdp"), tiled=True)

    return step, (array(mesh, (512, 128), "dcn"),)


@counted((REDUCE, "all", 1, 1024 * 4), (PERMUTE, "all", 1, 1024 * 4), axes={"all": 8}, without=("tpu", "gpu"), is_exported=False)
def mapped(mesh):
    """jax.pmap, which compiles for the devices that are here alone."""
    return jax.pmap(lambda x: lax.psum(x, "all") / 8 + lax.ppermute(x, "all", ring(8)), axis_name="all"), (
        jax.ShapeDtypeStruct((8, 1024), f32),)


# Element types and kinds.


@counted((GATHER, "fsdp", 1, 128 * 256 * 1), (GATHER, "fsdp", 1, 128 * 4))
def quantized_int8(mesh):
    @manual(mesh, (P("fsdp"), P("fsdp"), P("data")), P("data"))
    def step(w, scales, x):
        w, scales = lax.all_gather(w, "fsdp", tiled=True), lax.all_gather(scales, "fsdp", tiled=True)
        return x @ (w.astype(f32) * scales[:, None])

    return step, (array(mesh, (512, 256), "fsdp", dtype=i8), array(mesh, (512,), "fsdp"), array(mesh, (64, 512), "data"))


# A CPU adds them as f32.
@counted((REDUCE, "data", 1, 128 * 256 * 2), (SCATTER, "fsdp", 1, 128 * 256 * 2),
         compiled={"cpu": [(REDUCE, "data", 1, 128 * 256 * 4), (SCATTER, "fsdp", 1, 128 * 256 * 4)]})
def half_precision(mesh):
    @manual(mesh, (P("data"),), (P(), P("fsdp")))
    def step(x):
        return lax.psum(x, "data"), lax.psum_scatter(x * 2, "fsdp", tiled=True)

    return step, (array(mesh, (256, 256), "data", dtype=bf16),)


# A CPU moves them as f16.
@counted((PERMUTE, "data", 1, 128 * 256 * 1), (EXCHANGE, "fsdp", 1, 128 * 256 * 1),
         compiled={"cpu": [(PERMUTE, "data", 1, 128 * 256 * 2), (EXCHANGE, "fsdp", 1, 128 * 256 * 2)]})
def eight_bit_floats(mesh):
    @manual(mesh, (P("data"),), (P("data"), P("data")))
    def step(x):
        x = (x * 3).astype(f8)
        return lax.ppermute(x, "data", ring(2)), lax.all_to_all(x, "fsdp", 0, 1, tiled=True)

    return step, (array(mesh, (256, 256), "data"),)


@counted((REDUCE, "data", 1, 1024 * 4), (REDUCE, "fsdp", 1, 2048 * 4), (REDUCE, "data,fsdp", 1, 4))
def extremes(mesh):
    @manual(mesh, (P("data"), P("fsdp")), (P(), P(), P()))
    def step(x, y):
        return lax.pmax(x, "data"), lax.pmin(y, "fsdp"), lax.pmean(jnp.sum(x) * jnp.sum(y), ("data", "fsdp"))

    return step, (array(mesh, (2048,), "data"), array(mesh, (8192,), "fsdp", dtype=i32))


@counted(("collective-broadcast", "fsdp", 1, 1024 * 4), without=("cpu", "tpu"), lowers_for="cuda")
def broadcast(mesh):
    @manual(mesh, (P("fsdp"),), P())
    def step(x):
        return lax.pbroadcast(x, ("fsdp",), 2)

    return step, (array(mesh, (4096,), "fsdp"),)


# What stands beside collectives.


@counted((REDUCE, "fsdp", 1, 1024 * 4))
def random_noise(mesh):
    @manual(mesh, (P("data"),), P("data"))
    def step(x):
        key = jax.random.fold_in(jax.random.key(0), lax.axis_index("fsdp"))
        return lax.psum(x + jax.random.normal(key, x.shape), "fsdp")

    return step, (array(mesh, (2048,), "data"),)


@counted((REDUCE, "fsdp", 1, 1024 * 4), without=("tpu", "gpu"), is_exported=False)
def printing(mesh):
    """Callbacks need a device's host, so that nobody compiles this ahead of time."""

    @manual(mesh, (P("data"),), P("data"))
    def step(x):
        x = lax.psum(x, "fsdp")
        jax.debug.print("sum {}", x[0])
        return x * 2

    return step, (array(mesh, (2048,), "data"),)


# Automatic sharding: nothing communicates before XLA has partitioned the program.


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


@counted(automatic=True, compiled={"all": [(REDUCE, "data", 1, 128 * 256 * 4)]}, donated=(0,))
def donated_weights(mesh):
    return lambda w, x: w - 0.1 * jax.grad(loss)(w, x), (array(mesh, (128, 256)), array(mesh, (64, 128), "data"))


# The weight is gathered and its gradient scattered; a CPU has no reduce-scatter. For a tpu7x the first product is split along what
# it sums over: rows are exchanged for columns, sums are added up, and the derivative of what they are is gathered.
@counted(automatic=True, compiled={
    "cpu": [(GATHER, "fsdp", 1, 32 * 256 * 4), (REDUCE, "fsdp", 1, 128 * 256 * 4), (REDUCE, "data", 1, 32 * 256 * 4)],
    "tpu": [(GATHER, "fsdp", 1, 32 * 256 * 4), (SCATTER, "fsdp", 1, 128 * 256 * 4), (REDUCE, "data", 1, 32 * 256 * 4)],
    "tpu7x": [(EXCHANGE, "fsdp", 1, 8 * 128 * 4), (REDUCE, "fsdp", 1, 32 * 256 * 4), (GATHER, "fsdp", 1, 8 * 256 * 4),
              (REDUCE, "data", 1, 32 * 256 * 4)]})
def automatic_fsdp(mesh):
    def step(w, x):
        gradient = jax.grad(loss)(w, x)
        return lax.with_sharding_constraint(w - gradient, NamedSharding(mesh, P("fsdp")))

    return step, (array(mesh, (128, 256), "fsdp"), array(mesh, (64, 128), ("data", "fsdp")))


@counted(automatic=True)
def uneven(mesh):
    """Rows that the axes do not divide."""

    def step(x):
        part = lax.with_sharding_constraint(x[:1001] * 2, NamedSharding(mesh, P("fsdp")))
        return jnp.cumsum(part, 0)

    return step, (array(mesh, (1024, 128), "fsdp"),)


@counted(automatic=True)
def sorting(mesh):
    return lambda x: (jnp.sort(x, axis=0), jnp.argsort(x[:, 0])), (array(mesh, (64, 128), "fsdp"),)


@counted(automatic=True)
def gathering_rows(mesh):
    return lambda table, rows: table[rows], (array(mesh, (512, 128), "fsdp"), array(mesh, (64,), "data", dtype=i32))
