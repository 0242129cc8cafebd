"""JAX programs as compiled by jaxlib for the CPU, with what jaxlib says of their memory and cost.

Each is a dump as XLA writes it: an HloProto of the compiled module and of XLA's buffer assignment. The numbers are those of
`memory_analysis()` and `cost_analysis()`.

    python tests/oracle/memory.py            writes tests/oracle/memory/
    python tests/oracle/memory.py --check    compares with the files that are there

Made with 0.10.2. Another version compiles otherwise: `--check` then wants hlo-dump to say of each new dump what JAX says of it.
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import counting
import foreign
import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
# Paths that are the same on every machine.
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/(?=tests/oracle/)")

import jax.numpy as jnp

FOLDER = Path(__file__).parent / "memory"


def mlp(params, x, y):
    def loss(params):
        h = x
        for weight, bias in params[:-1]:
            h = jax.nn.gelu(h @ weight + bias)
        weight, bias = params[-1]
        return jnp.mean((h @ weight + bias - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def scan_remat(weights, x):
    @jax.checkpoint
    def layer(h, weights):
        up, down = weights
        return h + jnp.tanh(h @ up) @ down, None

    def loss(weights):
        h, _ = jax.lax.scan(layer, x, weights)
        return jnp.sum(h**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, weights, gradients)


def convolution(kernel, x):
    def loss(kernel):
        h = jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.sum(jax.nn.softmax(h) ** 2)

    return jax.grad(loss)(kernel)


def attention(x, weights, mask):
    def loss(weights):
        q, k, v = (jnp.einsum("bte,ehd->bthd", x, weight) for weight in weights)
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        scores = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        return jnp.sum(jnp.einsum("bhts,bshd->bthd", scores, v) ** 2)

    return jax.value_and_grad(loss)(weights)


def branch(which, x):
    def heavy(x):
        return jnp.sin(x) @ x @ x

    return jax.lax.cond(which > 0, heavy, lambda x: x * 2, x) + 1


def unknown_loop(x):
    return jax.lax.while_loop(lambda s: jnp.max(s) < 100, lambda s: s @ s + 1, x)


def conditional_sums(which, x):
    """Sums over two of eight devices; the next branch stops after 0 to 3 sums."""

    def sums(count):
        def body(x):
            for _ in range(count):
                x = jax.lax.psum(x * 1.5, "rep")
            return x

        return body

    def step(which, x):
        return jax.lax.switch(which % 4, [sums(count) for count in range(4)], x) * 2

    whole, split = jax.P(), jax.P(("rep", "mdl"))
    mesh = jax.make_mesh((2, 4), ("rep", "mdl"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    return jax.shard_map(step, mesh=mesh, in_specs=(whole, split), out_specs=split, check_vma=False)(which, x)


def branch_in_loop(which, x):
    """What the branches return is carried; one of them has a loop of its own."""

    def inner(x):
        return jax.lax.while_loop(lambda s: jnp.sum(s) < 7, lambda s: jnp.tanh(s @ s) * 2, x @ x)

    def step(carry, index):
        x, y = carry
        x = jax.lax.cond((index + which) % 3 == 0, inner, lambda x: x + y, x)
        return (x, jnp.sin(x) @ y), jnp.sum(x)

    return jax.lax.scan(step, (x, x + 1), jnp.arange(9))


def shuffles(x, rows):
    ordered = jnp.cumsum(jnp.sort(x, axis=-1), axis=0)[rows]
    noise = jax.random.normal(jax.random.key(0), x.shape)
    return jnp.fft.rfft(ordered).real.sum() + noise.sum()


def f32(*shape):
    return jnp.zeros(shape, jnp.float32)


I32 = jnp.zeros((), jnp.int32)

PROGRAMS = {
    "attention": (attention, (f32(4, 64, 128), [f32(128, 4, 32)] * 3, jnp.zeros((64, 64), bool)), ()),
    "convolution": (convolution, (f32(3, 3, 8, 16), f32(4, 32, 32, 8)), ()),
    "mlp": (mlp, ([(f32(256, 256), f32(256))] * 4, f32(128, 256), f32(128, 256)), (0,)),
    "scan_remat": (scan_remat, ((f32(6, 128, 512), f32(6, 512, 128)), f32(64, 128)), (0,)),
}

# Their memory only: XLA counts an unknown loop once, and of branches the costliest.
CONTROL_FLOW = {
    "branch": (branch, (I32, f32(512, 512)), ()),
    "branch_in_loop": (branch_in_loop, (I32, f32(256, 256)), ()),
    "conditional_sums": (conditional_sums, (I32, f32(1 << 20)), ()),
    "shuffles": (shuffles, (f32(512, 512), jnp.zeros(64, jnp.int32)), ()),
    "unknown_loop": (unknown_loop, (f32(512, 512),), ()),
}


def varint(number):
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out + bytes([number]))


def field(number, message):
    return varint(number << 3 | 2) + varint(len(message)) + message


def compile_program(function, arguments, donated):
    compiled = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
    stats, costs = compiled.memory_analysis(), compiled.cost_analysis()
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    # HloProto.hlo_module and HloProto.buffer_assignment.
    dump = field(1, module) + field(3, stats.serialized_buffer_assignment_proto)
    memory = {
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
    }
    cost = {
        "flops": costs["flops"],
        "transcendentals": costs.get("transcendentals", 0.0),
        "bytes": costs["bytes accessed"],
    }
    return dump, memory, cost


def measure(name, dump, memory, cost):
    """Whether hlo-dump says of a dump what JAX says; XLA adds up operations in f32, and counts each once."""
    with tempfile.NamedTemporaryFile(suffix=".hlo.pb") as file:
        file.write(dump)
        file.flush()
        answers = [counting.answer(command, file.name) for command in ("memory", "cost")]
    if failed := [answer for answer in answers if isinstance(answer, str)]:
        print(f"{name}: {failed[0]}")
        return False
    found = {key: answers[0][key] for key in memory}
    if found != memory:
        print(f"{name}: found {found}, JAX says {memory}")
    is_same = found == memory
    for key in ("flops", "transcendentals") if name in PROGRAMS else ():
        found = sum(one["work"][key] for one in answers[1]["instructions"])
        if not math.isclose(found, cost[key], rel_tol=1e-6):
            print(f"{name}: found {found} {key}, JAX says {cost[key]}")
            is_same = False
    return is_same


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--force", action="store_true", help="write with another version of JAX too")
    arguments = parser.parse_args()
    check = arguments.check
    if not check:
        foreign.refuse_another_version(arguments.force)
    elif not foreign.is_made_with():
        if not Path(counting.PROGRAM).exists():
            sys.exit(f"there is no {counting.PROGRAM}")
        results = [measure(name, *compile_program(*program)) for name, program in (PROGRAMS | CONTROL_FLOW).items()]
        print(f"hlo-dump and JAX agree on {sum(results)} of {len(results)} programs")
        sys.exit(0 if all(results) else 1)
    FOLDER.mkdir(exist_ok=True)
    numbers = {}
    for name, program in (PROGRAMS | CONTROL_FLOW).items():
        dump, memory, cost = compile_program(*program)
        numbers[name] = memory | (cost if name in PROGRAMS else {})
        if not check:
            (FOLDER / f"{name}.hlo.pb").write_bytes(dump)
    text = json.dumps(numbers, indent=2) + "\n"
    if check:
        assert (FOLDER / "expected.json").read_text() == text, "the numbers have changed"
        missing = [name for name in numbers if not (FOLDER / f"{name}.hlo.pb").exists()]
        assert not missing, missing
    else:
        (FOLDER / "expected.json").write_text(text)


if __name__ == "__main__":
    main()
