"""Lowered JAX programs in two languages: as StableHLO with Shardy's annotations, and as HLO.

    python3 tests/oracle/lowered.py           rewrites tests/foreign/lowered
    python3 tests/oracle/lowered.py --check   compares with what is there and writes nothing

Needs jax (made with 0.10.2). Another version prints other texts: `--check` then wants hlo-dump to find the stored program's
collectives in every form of the new one. The programs are in `foreign_programs.py`, `lowered_programs.py` and `schedule_programs.py`;
`tests/hlo/stablehlo.rs` reads both files of each and holds that the analyses find the same.

| file | made by |
|---|---|
| PROGRAM.stablehlo.txt | `lowered.as_text()` |
| PROGRAM.hlo.txt | `lowered.compiler_ir("hlo").as_hlo_text(print_large_constants=True)` |
| fsdp_mlp.debug.stablehlo.txt | `lowered.as_text(debug_info=True)`: with locations |
| convolution.generic.stablehlo.txt | the same module in MLIR's generic form, with locations |
| PROGRAM.mlirbc, PROGRAM.artifact.mlirbc | of some programs the same module, without locations, as MLIR bytecode and as a portable artifact |
"""

import argparse
import difflib
import io
import os
import pathlib
import sys
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax.sharding import Mesh
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import counting
import foreign
import foreign_programs
import lowered_programs
import schedule_programs

STORED = foreign.STORED / "lowered"
FOREIGN = ["fsdp_mlp", "local_sgd", "moe", "pipeline", "scan_remat"]
BYTECODE = ["control", "embedding", "fsdp_mlp"]
PROGRAMS = lowered_programs.PROGRAMS | schedule_programs.PROGRAMS


def axes_of(name):
    return foreign_programs.PROGRAMS[name][1] if name in FOREIGN else PROGRAMS[name][1] or {"all": 1}


def traced(name):
    if name in FOREIGN:
        return foreign.traced(name, jax.devices())
    program, axes = PROGRAMS[name]
    return program(Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes)) if axes else None)


def bytecode(module):
    """A module without locations as bytecode, and as a portable artifact, beside which other dialects may stand."""
    with module.context:
        plain = ir.Module.parse(module.operation.get_asm(enable_debug_info=False))
        written = io.BytesIO()
        plain.operation.write_bytecode(written)
    artifact = _jax.mlir.serialize_portable_artifact(written.getvalue(), stablehlo.get_current_version(), True)
    return {"mlirbc": written.getvalue(), "artifact.mlirbc": artifact}


def text_of(name, content):
    """The text of bytecode, as MLIR prints it."""
    if isinstance(content, str):
        return content
    with mlir.make_ir_context():
        if ".artifact." in name:
            return str(_jax.mlir.deserialize_portable_artifact(content))
        return str(ir.Module.parse(content))


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
        if name in BYTECODE:
            forms = bytecode(lowered.compiler_ir("stablehlo"))
            files |= {f"{name}.{form}": content for form, content in forms.items()}
    return files


def without_positions(text):
    """What is left where Python's version does not decide: no locations."""
    return [line.split(" loc(")[0] for line in text.splitlines() if not line.startswith("#loc")]


def check(files):
    failures = 0
    for name in sorted({*files, *(path.name for path in STORED.iterdir())}):
        stored = STORED / name
        if name not in files or not stored.exists():
            found = ["not stored" if name in files else "no longer made"]
        else:
            before = stored.read_bytes() if stored.suffix == ".mlirbc" else stored.read_text()
            texts = [without_positions(text_of(name, content)) for content in (before, files[name])]
            found = list(difflib.unified_diff(*texts, "stored", "made", n=0, lineterm=""))
        failures += bool(found)
        for line in found:
            print(f"{stored.relative_to(foreign.ROOT)}: {line}")
    print(f"{failures} of the modules differ" if failures else "the modules are what is stored")
    return failures


def count(files):
    """Holds the collectives in modules of another version against those of the stored ones: how many differ."""
    if not pathlib.Path(counting.PROGRAM).exists():
        print(f"skipped: there is no {counting.PROGRAM}")
        return 0
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = pathlib.Path(folder) / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            program = name.split(".")[0]
            expected, found = (counting.counted(path, axes_of(program)) for path in (STORED / f"{program}.hlo.txt", path))
            if isinstance(found, str) or counting.unordered(found) != counting.unordered(expected):
                failures += 1
                print(f"{name}: found {found}, expected {expected}")
    print(f"hlo-dump counts {len(files) - failures} of {len(files)} modules as those that are stored")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--force", action="store_true", help="write with another version of JAX too")
    arguments = parser.parse_args()
    if not arguments.check:
        foreign.refuse_another_version(arguments.force)
    files = made()
    if arguments.check:
        compare = check if foreign.is_made_with() else count
        sys.exit(1 if compare(files) else 0)
    STORED.mkdir(exist_ok=True)
    for name, content in files.items():
        if isinstance(content, bytes):
            (STORED / name).write_bytes(content)
        else:
            (STORED / name).write_text(content if content.endswith("\n") else content + "\n")


if __name__ == "__main__":
    main()
