"""Shows the symptom that meshloom bisect found: exits with 0 if it shows, with 1 if it does not, with 2 if it cannot be
tried.

    python reproduce.py              # with the CPU compiler of jaxlib (written for 0.10.2)
    python reproduce.py PLUGIN.so    # with a PJRT plugin; the symptom was found with @PLUGIN@

Needs jax and numpy. The module, inputs.safetensors and this file lie in one folder.
"""

import json
import os
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
CASE = json.loads(r'''
@CASE@
''')


def read_inputs():
    """The values of inputs.safetensors by name."""
    import ml_dtypes
    import numpy as np

    of_hlo = {
        "pred": np.bool_, "s4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "f8e4m3fn": ml_dtypes.float8_e4m3fn,
        "f8e5m2": ml_dtypes.float8_e5m2, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32,
        "f64": np.float64,
    }
    for bits in (8, 16, 32, 64):
        of_hlo[f"s{bits}"], of_hlo[f"u{bits}"] = np.dtype(f"int{bits}"), np.dtype(f"uint{bits}")
    data = (FOLDER / "inputs.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    values = {}
    for name, hlo_type in header.pop("__metadata__").items():
        start, end = (8 + length + offset for offset in header[name]["data_offsets"])
        dtype = of_hlo[hlo_type]
        raw = np.frombuffer(data[start:end], np.int8 if hlo_type in ("s4", "u4") else dtype)
        values[name] = raw.astype(dtype).reshape(header[name]["shape"])
    return values


def client_of(plugin, count):
    """The client of a plugin, or of jaxlib's own CPU, with so many devices."""
    import jax
    from jax._src import xla_bridge

    jax.config.update("jax_enable_x64", True)
    if plugin:
        xla_bridge.register_plugin("bisect", library_path=plugin, options={"cpu_device_count": count})
        jax.config.update("jax_platforms", "bisect")
        return xla_bridge.get_backend("bisect")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)
    return xla_bridge.get_backend("cpu")


def run(side, client):
    """Compiles and runs one side; gives the outputs of each device, and the bytes of memory that a device needs."""
    import jax
    import numpy as np
    from jax._src.sharding_impls import GSPMDSharding
    from jaxlib import _hlo, _jax, xla_client

    replicas, partitions = side["devices"]
    count = replicas * partitions
    devices = client.local_devices()[:count]
    module = _hlo.hlo_module_from_text((FOLDER / side["module"]).read_text())
    options = xla_client.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = replicas
    options.num_partitions = build.num_partitions = partitions
    build.use_spmd_partitioning = partitions > 1
    build.use_shardy_partitioner = CASE["shardy"] and partitions > 1
    ids = np.array([device.id for device in devices]).reshape(replicas, partitions)
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    options.env_option_overrides = list(side["options"].items())
    program = _jax.mlir.hlo_to_stablehlo(module.as_serialized_hlo_module_proto())
    executable = client.compile_and_load(program, xla_client.DeviceList(tuple(devices)), options)
    memory = executable.get_compiled_memory_stats()
    needed = (
        memory.argument_size_in_bytes + memory.output_size_in_bytes
        - memory.alias_size_in_bytes + memory.temp_size_in_bytes
    )
    values = read_inputs()
    shardings = executable.get_parameter_shardings() if partitions > 1 else None
    entry = next(line for line in (FOLDER / side["module"]).read_text().splitlines() if line.startswith("ENTRY"))
    arguments = []
    for index, name in enumerate(parameter_names(entry)):
        value = values[name]
        if shardings:
            sharding = GSPMDSharding(devices, shardings[index])
        elif count > 1:
            sharding = GSPMDSharding.get_replicated(devices)
        else:
            sharding = devices[0]
        arguments.append(jax.device_put(value, sharding))
    results = executable.execute_sharded(arguments).disassemble_into_single_device_arrays()
    return [np.asarray(part) for parts in results for part in parts], needed


def parameter_names(entry):
    """`ENTRY %main (x: f32[2], y: f32[]) -> f32[2] {` has x and y."""
    inside = entry[entry.index("(") + 1 : entry.rindex(") ->")]
    names, depth, start = [], 0, 0
    for at, letter in enumerate(inside + ","):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0 and inside[start:at].strip():
            names.append(inside[start:at].split(":")[0].strip().split(" ")[-1].lstrip("%"))
            start = at + 1
    return names


def differs(found, expected):
    """Whether numbers differ by more than the tolerance; NaN is equal to NaN alone."""
    import numpy as np

    if found.dtype.kind in "biu":
        return bool((found != expected).any())
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(expected[np.isfinite(expected)])
    bound = CASE["tolerance"] * (finite.max() if finite.size else 0.0)
    with np.errstate(invalid="ignore"):
        near = (found == expected) | (np.abs(found - expected) <= bound)
    return bool((~near & ~(np.isnan(found) & np.isnan(expected))).any())


def child(plugin):
    """Looks for a symptom that does not end the process: exits with 0 if it shows."""
    import numpy as np

    counts = (replicas * partitions for replicas, partitions in (CASE[side]["devices"] for side in ("suspect", "reference")))
    client = client_of(plugin, max(counts))
    outputs, needed = run(CASE["suspect"], client)
    symptom = CASE["symptom"]
    if symptom == "memory":
        return needed > CASE["memory_limit"]
    if symptom == "not-finite":
        numbers = [output.astype(np.float64) for output in outputs if output.dtype.kind not in "biu"]
        return not all(np.isfinite(output).all() for output in numbers)
    if symptom == "differs":
        expected, _ = run(CASE["reference"], client)
        return any(differs(*pair) for pair in zip(outputs, expected))
    return False


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--child"]
    plugin = arguments[0] if arguments else ""
    if "--child" in sys.argv:
        return 0 if child(plugin) else 1
    command = [sys.executable, __file__, "--child", *arguments]
    # XLA's settings are those of the case.
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    try:
        ended = subprocess.run(command, env=environment, timeout=CASE["seconds"], capture_output=True, text=True)
        crashes = ended.returncode < 0 and (CASE["said"] or "") in ended.stderr
        shows = {"crash": crashes, "hang": False}.get(CASE["symptom"], ended.returncode == 0)
        if not shows and ended.returncode != 1 or "Traceback" in ended.stderr:
            print(ended.stderr[-4000:], file=sys.stderr)
            return 2
    except subprocess.TimeoutExpired:
        shows = CASE["symptom"] == "hang"
    print(f"{CASE['symptom']}: " + ("shows" if shows else "does not show"))
    return 0 if shows else 1


if __name__ == "__main__":
    sys.exit(main())
