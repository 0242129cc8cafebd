"""Lowered JAX programs in two languages: as StableHLO with Shardy's annotations, and as HLO.

    python3 tests/oracle/lowered.py           rewrites tests/foreign/lowered
    python3 tests/oracle/lowered.py --check   compares with what is there and writes nothing

Needs jax (made with 0.10.2). The programs are in `foreign_programs.py`, `lowered_programs.py` and `schedule_programs.py`;
`tests/hlo/stablehlo.rs` reads both files of each and holds that the analyses find the same.

| file | made by |
|---|---|
| PROGRAM.stablehlo.txt | `lowered.as_text()` |
| PROGRAM.hlo.txt | `lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)` |
| fsdp_mlp.debug.stablehlo.txt | `lowered.as_text(debug_info=True)`: with locations |
| convolution.generic.stablehlo.txt | the same module in MLIR's generic form, with locations |
"""

import argparse
import difflib
import os
import pathlib
import sys

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax.sharding import Mesh

import foreign
import foreign_programs
import lowered_programs
import schedule_programs

STORED = foreign.STORED / "lowered"
FOREIGN = ["fsdp_mlp", "local_sgd", "moe", "pipeline", "scan_remat"]
PROGRAMS = lowered_programs.PROGRAMS | schedule_programs.PROGRAMS


def traced(name):
    if name in FOREIGN:
        return foreign.traced(name, jax.devices())
    program, axes = PROGRAMS[name]
    return program(Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes)) if axes else None)


def made():
    """The files, by name."""
    # The nearest frames of the user's program for an op, by a path that is the same on every machine.
    jax.config.update("jax_traceback_in_locations_limit", 2)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/(?=tests/oracle/)")
    files = {}
    for name in [*FOREIGN, *PROGRAMS]:
        lowered = traced(name).lower()
        files[f"{name}.stablehlo.txt"] = lowered.as_text()
        files[f"{name}.hlo.txt"] = lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)
        if name == "fsdp_mlp":
            files[f"{name}.debug.stablehlo.txt"] = lowered.as_text(debug_info=True)
        if name == "convolution":
            module = lowered.compiler_ir("stablehlo").operation
            files[f"{name}.generic.stablehlo.txt"] = module.get_asm(print_generic_op_form=True, enable_debug_info=True)
    return files


def without_positions(name, text):
    """What is left where Python's version does not decide: no locations."""
    return [line.split(" loc(")[0] for line in text.splitlines() if not line.startswith("#loc")]


def check(files):
    failures = 0
    for name in sorted({*files, *(path.name for path in STORED.iterdir())}):
        stored = STORED / name
        if name not in files or not stored.exists():
            found = ["not stored" if name in files else "no longer made"]
        else:
            texts = [without_positions(name, text) for text in (stored.read_text(), files[name])]
            found = list(difflib.unified_diff(*texts, "stored", "made", n=0, lineterm=""))
        failures += bool(found)
        for line in found:
            print(f"{stored.relative_to(foreign.ROOT)}: {line}")
    print(f"{failures} of the modules differ" if failures else "the modules are what is stored")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    arguments = parser.parse_args()
    files = made()
    if arguments.check:
        sys.exit(1 if check(files) else 0)
    STORED.mkdir(exist_ok=True)
    for name, text in files.items():
        (STORED / name).write_text(text if text.endswith("\n") else text + "\n")


if __name__ == "__main__":
    main()
