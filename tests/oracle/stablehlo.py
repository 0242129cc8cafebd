"""Feeds the StableHLO text that hlo-dump makes of modules to the MLIR of jaxlib, and from there back to XLA.

    cargo build --release -p hlo-dump
    python3 tests/oracle/stablehlo.py --check [FILE_OR_FOLDER ...]

Needs jax, and hlo-dump in the folder of the build or at HLO_DUMP; skipped without it. Reads every
snapshot under hlo_snapshots/ and every module of tests/oracle/hlo and tests/foreign; those of `REFUSED` must be refused.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from jax._src.interpreters import mlir
from jaxlib import _jax
from jaxlib.mlir import ir

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = os.environ.get("HLO_DUMP", str(TARGET / "release" / "hlo-dump"))
FOLDERS = ["hlo_snapshots", "tests/oracle/hlo", "tests/foreign"]

# What a compiler has made of a module, and what StableHLO has no words for, by their names.
REFUSED = re.compile(r"\.(opt|optimized|gpu|tpu)\.|/text_(async|attributes|collective|host|layouts|scan)")

CONTEXT = mlir.make_ir_context()


def modules(paths):
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        files = [file for file in files if not {"xla_dump", "profile"} & set(file.parts)]
        for file in files:
            is_graph = file.name.endswith(".graph.snap")
            if file.suffix == ".snap" and not is_graph:
                yield file, file.read_text().split("---\n", 2)[2].encode()
            elif file.suffix in (".txt", ".pb", ".hlo"):
                yield file, file.read_bytes()


def written(module):
    """The text, or why there is none."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(module)
        file.flush()
        command = [PROGRAM, "show", file.name, "--emit", "stablehlo", "--full"]
        done = subprocess.run(command, capture_output=True, text=True)
    return (done.stdout, None) if done.returncode == 0 else (None, done.stderr.strip())


def check(file, text, reason):
    """Why the module is not taken as it should be; None if it is."""
    is_refused = REFUSED.search(str(file)) is not None
    if text is None:
        return None if is_refused and "has no form in StableHLO" in reason else reason
    if is_refused:
        return "it is written, and should be refused"
    try:
        with CONTEXT:
            ir.Module.parse(text).operation.verify()
        _jax.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=False)
    except Exception as error:
        return str(error)
    return None


def main():
    if not pathlib.Path(PROGRAM).exists():
        print(f"skipped: there is no {PROGRAM}")
        return 0
    arguments = [argument for argument in sys.argv[1:] if argument != "--check"]
    paths = [pathlib.Path(argument) for argument in arguments] or [ROOT / folder for folder in FOLDERS]
    count = failures = 0
    files, contents = zip(*modules(paths))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, (text, reason) in zip(files, pool.map(written, contents)):
            count += 1
            problem = check(file, text, reason)
            if problem:
                failures += 1
                print(f"FAIL  {file}: {problem[:800]}")
    print(f"XLA takes {count - failures} of {count} modules in StableHLO, or they are refused as they should be")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
