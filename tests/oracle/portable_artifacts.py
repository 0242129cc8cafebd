"""Reads the portable artifacts that hlo-dump writes with jaxlib, and compares the programs with those of JAX.

    cargo build --release -p hlo-dump
    python3 tests/oracle/portable_artifacts.py --check

Each program of JAX goes as StableHLO text through hlo-dump, which writes an artifact of it. jaxlib reads that, its
verifier accepts it, and it is the program that jaxlib reads from the text that hlo-dump writes; run on the CPU, it
returns what JAX's own program returns. It makes no file, so that it checks with and without --check. Needs jax (made
with 0.10.2), and hlo-dump in the folder of the build or at HLO_DUMP; skipped without it.
"""

import os
import pathlib
import re
import subprocess
import sys
import time

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src import compiler
from jax._src.interpreters import mlir
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _jax
from jaxlib.mlir.dialects import stablehlo

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = os.environ.get("HLO_DUMP", str(TARGET / "release" / "hlo-dump"))
MESH = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
CONTEXT = mlir.make_ir_context()


def ones(*shape, dtype=jnp.float32):
    count = int(np.prod(shape))
    return jnp.asarray(np.linspace(-1, 1, count).reshape(shape), dtype)


def block(weights, x):
    """A block of a decoder: attention and a product of gates."""
    q, k, v, out, up, down = weights
    normed = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5)
    scores = jnp.einsum("bsd,btd->bst", normed @ q, normed @ k)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -1e9)
    x = x + jax.nn.softmax(scores) @ (normed @ v) @ out
    return x + (jax.nn.silu(x @ up) * (x @ up)) @ down


def step(weights, x):
    """One step of training, over a mesh."""
    weights = [lax.with_sharding_constraint(w, NamedSharding(MESH, P(None, "model"))) for w in weights]
    loss = lambda weights: jnp.mean(lax.scan(lambda x, _: (block(weights, x), None), x, None, 2)[0] ** 2)
    value, slopes = jax.value_and_grad(loss)(weights)
    return value, [w - 0.1 * slope for w, slope in zip(weights, slopes)]


def shard(f, *specs, out):
    return jax.shard_map(f, mesh=MESH, in_specs=specs, out_specs=out, check_vma=False)


def exchange(x):
    summed = lax.psum(x, "data")
    gathered = lax.all_gather(summed, "model", axis=1, tiled=True)
    scattered = lax.psum_scatter(gathered, "model", scatter_dimension=1, tiled=True)
    moved = lax.ppermute(scattered, "data", [(0, 1), (1, 0)])
    return lax.all_to_all(moved, "model", 0, 0, tiled=True)


def constants():
    small = jnp.asarray(np.array([1.5, -2.25, 0.0], jnp.bfloat16.dtype))
    narrow = jnp.asarray(np.array([-8, 7, 3, -1], jnp.int4.dtype))
    table = jnp.asarray(np.arange(400, dtype=np.float32).reshape(20, 20))
    truths = jnp.asarray(np.arange(20) % 3 == 0)
    return small * 2, narrow.astype(jnp.int32), table @ table, jnp.where(truths, 1, 2), jnp.full((64, 64), 3.0)


def programs():
    """The name, the function and the arguments of each program."""
    weights = [ones(16, 16) for _ in range(4)] + [ones(16, 32), ones(32, 16)]
    image, kernel = ones(2, 8, 8, 3), ones(3, 3, 3, 4)
    convolve = lambda x, w: lax.conv_general_dilated(
        x, w, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC"))
    pool = lambda x: jnp.sum(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    yield "step", step, (weights, ones(8, 4, 16))
    yield "convolution", jax.value_and_grad(lambda x, w: jnp.sum(convolve(x, w) ** 2)), (image, kernel)
    yield "pool", jax.grad(pool), (image,)
    yield "sort", lambda x: (lax.sort_key_val(x, x * 2), lax.top_k(x, 3), jnp.argmax(x)), (ones(16),)
    yield "custom_call", lambda x: (jnp.linalg.qr(x), jnp.linalg.cholesky(x @ x.T + jnp.eye(4))), (ones(4, 4),)
    yield "collectives", shard(exchange, P("data", "model"), out=P("data", "model")), (ones(16, 16),)
    yield "slices", lambda x, i: lax.dynamic_update_slice(x, lax.dynamic_slice(x, (i, 0), (2, 3)) * 2, (0, i)), (
        ones(8, 8), jnp.int32(3))
    yield "indexing", jax.grad(lambda x, i: jnp.sum(x[i] ** 3)), (ones(8, 4), jnp.array([1, 5, 1]))
    yield "batched_indexing", jax.vmap(lambda x, i: x.at[i].add(2.0)), (ones(3, 8), jnp.array([1, 5, 1]))
    yield "constants", constants, ()
    yield "complex", lambda x: jnp.fft.ifft(jnp.fft.fft(x) * (1 + 2j)).imag, (ones(8),)
    yield "branches", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda x: lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * x), (0, x))[1]], x), (jnp.int32(2), ones(4))
    yield "random", lambda key: jax.random.uniform(key, (8,)), (jax.random.PRNGKey(7),)
    yield "narrow", lambda x: (x.astype(jnp.float8_e4m3fn).astype(jnp.float32), x.astype(jnp.int4)), (ones(6),)
    yield "precise", lambda x: lax.dot(x, x, precision=lax.DotAlgorithmPreset.F32_F32_F32), (ones(4, 4),)
    yield "triangular", lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True), (
        ones(4, 4) + 3 * jnp.eye(4), ones(4, 2))
    # With a sharding of the other axis within what the reduction applies.
    yield "partly_manual", jax.shard_map(lambda x: lax.psum(x, "data"), mesh=MESH, in_specs=P("data"), out_specs=P(),
                                         axis_names={"data"}), (ones(16, 16),)
    yield "called", lambda x: jax.jit(jnp.tanh)(x) + jax.jit(jnp.tanh)(x + 1), (ones(4),)


def refused():
    """Programs with ops of a dialect above StableHLO, and the name that the refusal has to state."""
    yield "chlo.erf_inv", lambda x: lax.erf_inv(x), (ones(4),)
    yield "chlo.lgamma", lambda x: lax.lgamma(x), (ones(4),)


def shown(text, *options):
    done = subprocess.run([PROGRAM, "show", "-", *options], input=text, capture_output=True)
    return done.stdout if done.returncode == 0 else sys.exit(f"hlo-dump show {options}: {done.stderr.decode()}")


def canonical(module):
    """The text of a module in MLIR's generic form, with its values renamed and without locations."""
    return module.operation.get_asm(print_generic_op_form=True, enable_debug_info=False)


def unnamed(text):
    """HLO text with numbers in the place of names: bytecode has none."""
    text = re.sub(r"([(,] ?)[\w.-]+: ", r"\1: ", text.decode())
    # A text states the configuration of a custom call also where there is none.
    text = text.replace(", backend_config={}", "")
    seen = {}
    return re.sub(r"%[\w.-]+", lambda name: seen.setdefault(name.group(), f"%{len(seen)}"), text)


def executed(module, arguments):
    """The results of a module of one device."""
    device = jax.devices()[0]
    options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
    with CONTEXT:
        compiled = device.client.compile_and_load(module, _jax.DeviceList((device,)), options)
    results = compiled.execute_sharded([jax.device_put(x, device) for x in arguments])
    return [np.asarray(one[0]) for one in results.disassemble_into_single_device_arrays()]


def check(name, function, arguments):
    lowered = jax.jit(function).lower(*arguments)
    text = lowered.as_text(debug_info=True).encode()
    artifact = shown(text, "--emit", "artifact")
    current = stablehlo.get_current_version()
    newest = stablehlo.get_smaller_version("1.20.0", current)
    own = shown(text, "--emit", "stablehlo", "--full").decode()
    with CONTEXT:
        # An artifact states what is usual, and whoever reads it leaves that out.
        theirs = stablehlo.serialize_portable_artifact_str(own, current)
        expected = canonical(stablehlo.deserialize_portable_artifact(CONTEXT, theirs))
        for content in (shown(text, "--emit", "artifact", "--artifact-version", newest), artifact):
            module = stablehlo.deserialize_portable_artifact(CONTEXT, content)
            module.operation.verify()
            if canonical(module) != expected:
                sys.exit(f"{name}: the artifact is not the program of the text")
        located = module.operation.get_asm(enable_debug_info=True)
        lines = len(set(re.findall(r'portable_artifacts\.py":(\d+)', located)))
        own_lines = len(set(re.findall(r'portable_artifacts\.py":(\d+)', own)))
        if lines != own_lines or lines == 0:
            sys.exit(f"{name}: the artifact has {lines} source lines, the text {own_lines}")
    if unnamed(shown(artifact, "--full")) != unnamed(shown(own.encode(), "--full")):
        sys.exit(f"{name}: hlo-dump reads another module from the artifact than from the text")
    if "num_partitions = 1 " in own:
        wanted_results = jax.tree.leaves(jax.jit(function)(*arguments))
        for found, wanted in zip(executed(module, jax.tree.leaves(arguments)), wanted_results, strict=True):
            if not np.array_equal(found, np.asarray(wanted), equal_nan=found.dtype.kind in "fc"):
                sys.exit(f"{name}: it returns {found}, and JAX {wanted}")
    version = artifact.split(b"StableHLO_v")[1].split(b"\0")[0].decode()
    return version, len(artifact), len(theirs), len(text)


def main():
    if not pathlib.Path(PROGRAM).exists():
        print(f"skipped: {PROGRAM} is not built")
        return
    start = time.time()
    for name, function, arguments in programs():
        version, size, theirs, text = check(name, function, arguments)
        print(f"{name}: version {version}, {size} bytes, JAX writes {theirs}, the text has {text}")
    for op, function, arguments in refused():
        text = jax.jit(function).lower(*arguments).as_text().encode()
        done = subprocess.run([PROGRAM, "show", "-", "--emit", "artifact"], input=text, capture_output=True)
        if op in text.decode() and (done.returncode != 2 or op not in done.stderr.decode()):
            sys.exit(f"{op}: expected a refusal with the name of the op, found {done.stderr.decode()!r}")
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
