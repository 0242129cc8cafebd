"""Programs of JAX through meshloom's plugin: their results are those of plain JAX.

    MESHLOOM_PLUGIN_LIBRARY=target/release/libmeshloom_plugin.so python3 tests/oracle/plugin.py --check

It makes no file, so that it checks with and without --check. Each run is a process of its own: plain JAX, JAX with the wheel of
meshloom-jax unpacked beside it and switched on by a variable, the same with the plugin off, and by the line `enable()`.
It needs a CPU plugin in meshloom's cache (`meshloom doctor` fetches one) or an installed one.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEVICES = 8
TOLERANCE = 1e-5
# Cargo leaves it in the second place when it builds the tests.
PLACES = ["target/release/libmeshloom_plugin.so", "target/release/deps/libmeshloom_plugin.so"]
NAMES = ["matmul", "scan", "shard_map", "in_part", "axis_order", "sorts", "gathers", "complex", "one_device"]
# Those of foreign_programs.py: train steps with manual regions, and others.
STEPS = ["local_sgd", "moe", "pipeline", "scan_remat"]
# Programs that meshloom does not partition.
NOT_REPLACED = ["gathers", "complex", "one_device"]


def programs(folder):
    """Runs the programs, and writes what they give. This is the child process."""
    if os.environ.get("ENABLE_BY_LINE"):
        import meshloom_jax

        meshloom_jax.enable()
    import jax
    import jax.numpy as jnp
    import numpy
    from jax.experimental.layout import Format, Layout
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))

    def put(shape, spec, seed):
        values = numpy.random.default_rng(seed).standard_normal(shape).astype("float32")
        return jax.device_put(values, NamedSharding(mesh, spec))

    def matmul(x, w):
        return jnp.tanh(x @ w)

    def scan(w, x):
        def layer(x, w):
            return jnp.tanh(x @ w), jnp.sum(x)

        def loss(w):
            last, sums = jax.lax.scan(jax.checkpoint(layer), x, w)
            return jnp.mean(last**2) + 1e-3 * jnp.mean(sums)

        return jax.value_and_grad(loss)(w)

    def exchange(x):
        total = jax.lax.psum(x, "data")
        return jax.lax.ppermute(total, "model", [(i, (i + 1) % 4) for i in range(4)])

    # One axis is manual, the other is not.
    def in_part(x, w):
        h = jnp.sin(x) @ w
        shift = jax.shard_map(
            lambda x: jax.lax.ppermute(x, "data", [(0, 1), (1, 0)]) + jax.lax.axis_index("data"),
            mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"})
        return shift(h) * 2

    def axis_order(x):
        moved = jax.lax.with_sharding_constraint(x + jnp.arange(32.0)[:, None], NamedSharding(mesh, P(("model", "data"))))
        return moved * jnp.arange(64.0)

    def sorts(x):
        order = jnp.argsort(x, axis=1)
        values, places = jax.lax.top_k(x, 3)
        pooled = jax.grad(lambda x: jnp.sum(jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID") ** 2))(x)
        return jnp.sort(x, axis=1), order, jnp.argmin(x, axis=1), values, places, jnp.cumsum(x, 1), pooled

    # Rows are split, and it is not known of a sort how to work on some of them.
    def gathers(x):
        return jnp.sort(x, axis=0)

    def fourier(x):
        return jnp.abs(jnp.fft.fft(x))

    shifted = jax.shard_map(exchange, mesh=mesh, in_specs=P("data", "model"), out_specs=P(None, "model"))
    x, w = put((32, 64), P("data", None), 1), put((64, 64), P(None, "model"), 2)
    deep = put((3, 64, 64), P(None, None, "model"), 3)
    swapped = put((32, 64), P(("model", "data")), 4)
    runs = {
        "matmul": (matmul, x, w), "scan": (scan, deep, x), "shard_map": (shifted, x), "in_part": (in_part, x, w),
        "axis_order": (axis_order, swapped), "sorts": (sorts, x), "gathers": (gathers, x), "complex": (fourier, x), "one_device": (matmul, x, w),
    }
    one = jax.devices()[0]
    arrays, said = {}, {"version": jax.__version__, "devices": len(jax.devices())}
    for name, (function, *arguments) in runs.items():
        if name == "one_device":
            arguments = [jax.device_put(numpy.asarray(argument), one) for argument in arguments]
        compiled = jax.jit(function).lower(*arguments).compile()
        results = jax.tree.leaves(compiled(*arguments))
        again = jax.tree.leaves(jax.jit(function)(*arguments))
        for number, (result, second) in enumerate(zip(results, again)):
            numpy.testing.assert_array_equal(result, second)
            arrays[f"{name}_{number}"] = numpy.asarray(result)
        said[name] = {
            "shardings": [str(result.sharding.devices_indices_map(result.shape)) for result in results],
            "collectives": compiled.as_text().count("replica_groups") + compiled.as_text().count("source_target_pairs"),
            "arguments": compiled.memory_analysis().argument_size_in_bytes,
        }
    # A layout that is stated, and layouts that are left to the compiler.
    columns = Format(Layout((1, 0)), x.sharding)

    def laid(x):
        return x * 2

    def chosen(x):
        return x.T

    stated = jax.jit(laid, out_shardings=columns).lower(x).compile()
    auto = jax.jit(chosen, in_shardings=Format(Layout.AUTO), out_shardings=Format(Layout.AUTO))
    auto = auto.lower(jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)).compile()
    arrays["laid_0"] = numpy.asarray(stated(x))
    said["layouts"] = [str(one.output_formats.layout.major_to_minor) for one in (stated, auto)]
    if os.environ.get("WITH_STEPS"):
        steps(arrays)
    numpy.savez(folder / "arrays.npz", **arrays)
    (folder / "said.json").write_text(json.dumps(said))


def steps(arrays):
    """Runs the programs of `foreign_programs`, each once, from numbers of a seed."""
    import foreign_programs
    import jax
    import numpy
    from jax.sharding import AxisType

    for name in STEPS:
        trace, axes = foreign_programs.PROGRAMS[name]
        mesh = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
        lowered = trace(mesh).lower()
        compiled = lowered.compile()
        random = numpy.random.default_rng(5)

        def argument(info, sharding):
            # An integer is the number of a step: that of the last one before replicas take their mean.
            values = random.standard_normal(info.shape) * 0.3 if info.dtype.kind == "f" else numpy.full(info.shape, 4)
            return jax.device_put(values.astype(info.dtype), sharding)

        arguments, _ = jax.tree.map(argument, lowered.args_info, compiled.input_shardings)
        for number, result in enumerate(jax.tree.leaves(compiled(*arguments))):
            arrays[f"{name}_{number}"] = numpy.asarray(result)


def run(name, folder, **variables):
    """What the programs give in a process with these variables: arrays, and what JAX says of the executables."""
    import numpy

    own = folder / name
    own.mkdir()
    dropped = ("MESHLOOM", "JAX_PLATFORMS", "PJRT_NAMES")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    environment |= {"XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}", "TF_CPP_MIN_LOG_LEVEL": "2"} | variables
    child = subprocess.run(
        [*python(), __file__, "--child", str(own)], env=environment, capture_output=True, text=True, timeout=600
    )
    if child.returncode != 0:
        sys.exit(f"{name}: it ended with {child.returncode}\n{child.stdout}{child.stderr}")
    with numpy.load(own / "arrays.npz") as arrays:
        return dict(arrays), json.loads((own / "said.json").read_text()), child.stderr


def python():
    """The command that runs this Python: `PLUGIN_PYTHON`, by words, for one that needs a loader of its own."""
    return os.environ.get("PLUGIN_PYTHON", sys.executable).split()


def check(what, found, expected):
    if found != expected:
        sys.exit(f"{what}: found {found}, expected {expected}")


def wheel(folder):
    """The wheel of meshloom-jax, unpacked: JAX finds its entry point there."""
    spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "python-jax/build_wheel.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    with zipfile.ZipFile(folder / backend.build_wheel(folder)) as built:
        built.extractall(folder / "site")
    return os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH", "")]))


def main():
    import numpy

    built = [path for path in map(ROOT.joinpath, PLACES) if path.is_file()]
    if built:
        newest = max(built, key=lambda path: path.stat().st_mtime)
        os.environ.setdefault("MESHLOOM_PLUGIN_LIBRARY", str(newest))
    if "MESHLOOM_PLUGIN_LIBRARY" not in os.environ:
        sys.exit(f"there is no {PLACES[0]}; build it by `cargo build --release -p meshloom-plugin`")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        path, dump = wheel(folder), folder / "dump"
        plain, plain_said, said = run("plain", folder, PYTHONPATH=path, JAX_PLATFORMS="cpu", WITH_STEPS="1")
        check("a word of meshloom in plain JAX", "meshloom" in said, False)
        through, through_said, said = run(
            "through", folder, PYTHONPATH=path, MESHLOOM="1", MESHLOOM_PLUGIN_DUMP=str(dump), WITH_STEPS="1"
        )
        # Graphs have no complex numbers.
        refusal = "fft"
        check("refusals that are said", said.count(refusal), 1)
        off, off_said, said = run(
            "off", folder, PYTHONPATH=path, JAX_PLATFORMS="meshloom", MESHLOOM_PLUGIN="off", MESHLOOM_PLUGIN_DUMP=str(dump / "off")
        )
        check("a refusal of a plugin that is off", refusal in said, False)
        check("a dump of a plugin that is off", (dump / "off").exists(), False)
        line, line_said, said = run("line", folder, PYTHONPATH=path, ENABLE_BY_LINE="1", MESHLOOM_PLUGIN_LOG="1")
        check("lines of the log for the scan", sum("jit_scan for 8 devices: replaced" in one for one in said.splitlines()) > 0, True)

        check("devices", through_said["devices"], DEVICES)
        check("layouts", through_said["layouts"], off_said["layouts"])
        for name in NAMES:
            if name in NOT_REPLACED:
                check(f"{name}: what JAX says without and with the plugin's eyes", through_said[name], off_said[name])
            check(f"{name}: bytes of arguments", through_said[name]["arguments"], off_said[name]["arguments"])
            check(f"{name}: shardings", through_said[name]["shardings"], plain_said[name]["shardings"])
        for name, expected in plain.items():
            if name.rpartition("_")[0] in NOT_REPLACED:
                numpy.testing.assert_array_equal(through[name], off[name], err_msg=name)
            if name in line:
                numpy.testing.assert_array_equal(through[name], line[name], err_msg=name)
            size = numpy.linalg.norm(expected)
            error = numpy.linalg.norm(through[name] - expected) / (size if size else 1.0)
            check(f"{name}: a relative error of {error}, at most {TOLERANCE}", bool(error <= TOLERANCE), True)

        decisions = [json.loads(path.read_text()) for path in sorted(dump.glob("*/decision.json"))]
        for module, decision in (("jit_matmul", "replaced"), ("jit_scan", "replaced"), ("jit_exchange", "replaced"), ("jit_fourier", "passed_on")):
            found = [one for one in decisions if one["module"] == module and one["devices"] == DEVICES]
            check(f"{module}: the decision in the dump", [one["decision"] for one in found[:1]], [decision])
            check(f"{module}: a reason", [refusal in (one["reason"] or "") for one in found[:1]], [decision == "passed_on"])
        made = {one["module"]: (one["decision"], one["reason"]) for one in decisions}
        check("a layout that is stated", made["jit_laid"], ("replaced", None))
        check("layouts that are open", "leaves layouts to the compiler" in (made["jit_chosen"][1] or ""), True)
        one = [one["reason"] for one in decisions if one["devices"] == 1]
        check("reasons for one device", set(one), {"it runs on one device"})
        unread = [one["reason"] for one in decisions if one["instructions"] is None]
        check("programs that are not read", unread, [])
        print(f"{len(decisions)} programs through the plugin agree with JAX {plain_said['version']}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        programs(pathlib.Path(sys.argv[2]))
    else:
        main()
