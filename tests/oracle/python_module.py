"""The Python module hlo_dump over programs of JAX: what it says is what JAX's own objects say.

    HLO_DUMP=target/release/hlo-dump python3 tests/oracle/python_module.py --check

It makes no file, so that it checks with and without --check. Counts are those of the text that JAX prints.
"""

import os
import pathlib
import re
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("HLO_DUMP", str(ROOT / "target/release/hlo-dump"))

import jax
import jax.numpy as jnp
import numpy
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import hlo_dump

MESH = jax.make_mesh((2, 4), ("data", "fsdp"))


def put(shape, spec):
    return jax.device_put(jnp.ones(shape), NamedSharding(MESH, spec))


def loss(w, x):
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def check(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: found {found}, expected {expected}")


def by_jax(text):
    """How many collectives of each kind the compiled text has. The programs here have no loops."""
    kinds = re.findall(r" (all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(", text)
    return {kind: kinds.count(kind) for kind in set(kinds)}


def main():
    arguments = put((64, 64), P("fsdp", None)), put((16, 64), P("data", None))
    step = jax.jit(jax.grad(loss))
    lowered = step.lower(*arguments)
    compiled = lowered.compile()
    found = hlo_dump.collectives(compiled, mesh=MESH)
    counts = found.counts()
    check("kinds", {kind: sum(of_kind.values()) for kind, of_kind in counts.items()}, by_jax(compiled.as_text()))
    check("axes", {axis for of_kind in counts.values() for axis in of_kind}, {"data", "fsdp"})
    line = loss.__code__.co_firstlineno + 1
    sources = {pathlib.Path(one.source).name for one in found}
    check("sources", sources, {f"python_module.py:{line}"})
    hlo_dump.assert_collectives(compiled, counts, mesh=MESH)

    check("lowered", hlo_dump.collectives(lowered).partitioned, False)
    check("its mesh", hlo_dump.collectives(lowered).mesh, "data=2,fsdp=4")
    exported = jax.export.export(step)(*arguments)
    check("exported", len(hlo_dump.collectives(exported)), 0)

    figures, memory = compiled.memory_analysis(), hlo_dump.memory(compiled)
    check("arguments", memory.arguments, figures.argument_size_in_bytes)
    check("outputs", memory.outputs, figures.output_size_in_bytes)

    jax.clear_caches()
    with hlo_dump.watch() as programs:
        step(*arguments).block_until_ready()
        # This one is known by now.
        step(*arguments).block_until_ready()
        numpy.asarray(jax.jit(lambda x: x * 2)(arguments[1]))
    check("watched", [program.name for program in programs], ["jit_loss", "jit__lambda"])
    check("a watched program", hlo_dump.collectives(programs[0], mesh=MESH).counts(), counts)
    check("the same as compiled", hlo_dump.diff(programs[0], compiled).same, True)
    print(f"the module agrees with JAX {jax.__version__}")


if __name__ == "__main__":
    main()
