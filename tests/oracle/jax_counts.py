"""Counts of collectives by hlo-dump, in every form that JAX has of a program, against counts by hand and by XLA's own text.

    HLO_DUMP=target/release/hlo-dump python3 tests/oracle/jax_counts.py --check [PROGRAM ...]
    COUNTS_OF=v5e,v5p,v6e,tpu7x,gpu python3 tests/oracle/jax_counts.py --check --keep FOLDER

Needs jax (0.10.2 to 0.12.0.1); it makes no golden file. The programs, with the counts by hand, are in `counted_programs.py`.

| form | held against |
|---|---|
| StableHLO: text, with locations, bytecode, an export and its portable artifact; HLO not yet compiled: text and proto | the count by hand: kind, axes, executions and bytes of each collective |
| compiled: text and proto | the collectives in XLA's text, which `collectives_in` finds for itself; and for each kind and axes the bytes in all, by hand. XLA merges collectives and splits them |

COUNTS_OF says for whom to compile: by default for the CPU, `gpu` for eight H100. Ahead of time that needs the plugins of
meshloom's cache, or TPU_LIBRARY_PATH and CUDA_PLUGIN_PATH, and takes a minute or two for each.
"""

import argparse
import importlib.util
import io
import os
import pathlib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import foreign

TOPOLOGIES = {"v5e": "v5e:2x4", "v5p": "v5p:2x2x2", "v6e": "v6e:2x4", "tpu7x": "tpu7x:2x2x1"}
COUNTS_OF = os.environ.get("COUNTS_OF", "cpu").split(",")
if set(TOPOLOGIES) & set(COUNTS_OF):
    os.environ.setdefault("TPU_LIBRARY_PATH", foreign.plugin("tpu"))
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import jax
import numpy as np
from jax.sharding import Mesh

from counted_programs import PROGRAMS
from counting import PROGRAM, collectives_in, counted, sums, unordered

# A TPU multiplies numbers of f32 as bf16 otherwise, and gathers them so.
jax.config.update("jax_default_matmul_precision", "highest")


def devices():
    """Eight devices of each target, by its name."""
    from jax.experimental import topologies

    found = {}
    if "cpu" in COUNTS_OF:
        found["cpu"] = jax.devices()
    for name in filter(TOPOLOGIES.get, COUNTS_OF):
        found[name] = topologies.get_topology_desc(TOPOLOGIES[name], "tpu").devices
    if "gpu" in COUNTS_OF:
        from jax._src import xla_bridge

        xla_bridge.register_plugin("cuda", library_path=foreign.plugin("gpu"))
        found["gpu"] = topologies.get_topology_desc("", "cuda", target_config=foreign.H100, topology="1x1x8").devices
    return found


def lowered_forms(program, lowered, jitted, arguments, platforms):
    """The forms of a program that is not compiled."""
    module = lowered.compiler_ir("stablehlo").operation
    bytecode = io.BytesIO()
    module.write_bytecode(bytecode)
    hlo = lowered.compiler_ir("hlo")
    yield "stablehlo.mlir", lowered.as_text()
    yield "locations.mlir", lowered.as_text(debug_info=True)
    yield "bytecode.mlirbc", bytecode.getvalue()
    yield "unoptimized.txt", lowered.as_text("hlo")
    yield "unoptimized.pb", hlo.as_serialized_hlo_module_proto()
    if program.is_exported:
        unchecked = [jax.export.DisabledSafetyCheck.custom_call("ragged_all_to_all")]
        exported = jax.export.export(jitted, platforms=platforms, disabled_checks=unchecked)(*arguments)
        yield "artifact.mlirbc", exported.mlir_module_serialized
        if importlib.util.find_spec("flatbuffers"):
            yield "export.bin", bytes(exported.serialize())


def by_hand(program, platform):
    """The count of a compiled program by hand, if there is one."""
    for key in (platform, "tpu" if platform in TOPOLOGIES else platform, "all"):
        if key in program.compiled:
            return program.compiled[key]
    return None if program.automatic else program.lowered


def forms(name, platform, devices_):
    """The forms of a program as (form, content, the collectives in it, their sums by hand)."""
    program = PROGRAMS[name]
    is_compiled = not {platform, "tpu" if platform in TOPOLOGIES else platform} & set(program.without)
    if platform != "cpu" and not is_compiled:
        return
    mesh = Mesh(np.array(devices_).reshape(tuple(program.axes.values())), tuple(program.axes))
    function, arguments = program.make(mesh)
    jitted = function if hasattr(function, "lower") else jax.jit(function, donate_argnums=program.donated)
    platforms = (program.lowers_for,) if program.lowers_for else None
    lowered = jitted.trace(*arguments).lower(lowering_platforms=platforms) if platforms else jitted.lower(*arguments)
    if platform == "cpu":
        for form, content in lowered_forms(program, lowered, jitted, arguments, platforms):
            yield form, content, program.lowered, None
    if is_compiled:
        compiled = lowered.compile()
        module, = compiled.runtime_executable().hlo_modules()
        text, hand = compiled.as_text(), by_hand(program, platform)
        found = collectives_in(text, program.axes, program.loops)
        yield f"{platform}.txt", text, found, hand
        yield f"{platform}.pb", module.as_serialized_hlo_module_proto(), found, hand


def problem(path, axes, expected, hand):
    """Why hlo-dump's count of a file is wrong; None if it is right."""
    found = counted(path, axes)
    if isinstance(found, str):
        return found
    if unordered(found) != unordered(expected):
        return f"found {unordered(found)}\n    expected {unordered(expected)}"
    if hand is not None and sums(found) != sums(hand):
        return f"in all {sums(found)}\n    by hand {sums(hand)}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="it always checks")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the modules")
    parser.add_argument("programs", nargs="*", help="only these programs")
    arguments = parser.parse_args()
    if not pathlib.Path(PROGRAM).exists():
        print(f"skipped: there is no {PROGRAM}")
        return 0
    names = arguments.programs or list(PROGRAMS)
    looks, failures = [], 0
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = arguments.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for platform, of_platform in devices().items():
            for name in names:
                for form, content, expected, hand in forms(name, platform, of_platform):
                    path = folder / f"{name}.{form}"
                    path.write_bytes(content if isinstance(content, bytes) else content.encode())
                    looks.append((path.name, pool.submit(problem, path, PROGRAMS[name].axes, expected, hand)))
        for name, look in looks:
            if why := look.result():
                failures += 1
                print(f"FAIL  {name}: {why}")
    print(f"{len(looks) - failures} of {len(looks)} forms of {len(names)} programs count as they should (JAX {jax.__version__})")
    return 1 if failures or not looks else 0


if __name__ == "__main__":
    sys.exit(main())
