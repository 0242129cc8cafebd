"""Lists the scripts of this folder whose inputs have changed since they last passed.

    python3 tests/oracle/digests.py            the scripts whose digest is not that of digests.txt, a line each
    python3 tests/oracle/digests.py --all      all scripts that check something
    python3 tests/oracle/digests.py --write    writes digests.txt: only after the listed scripts have passed

The inputs of a script are its source and that of the modules of this folder that it imports, the golden files whose names
begin with its own, and what READS lists. Only the standard library is needed.
"""

import hashlib
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
DIGESTS = FOLDER / "digests.txt"

# Scripts that check without being told to.
CHECKS_ALWAYS = ["check_snapshots.py"]

# Files and folders that a script reads besides, relative to the repository.
READS = {
    "check_snapshots.py": ["hlo_snapshots"],
    "foreign.py": ["tests/foreign"],
    "hlo_parse.py": ["hlo_snapshots", "crates/hlo/src/parse", "crates/hlo/src/syntax"],
    "hlo_text.py": ["crates/hlo/src/text", "crates/hlo/src/text.rs", "crates/hlo/src/number.rs", "crates/hlo/src/syntax"],
    "jax_counts.py": ["crates/analysis/src/collectives", "crates/analysis/src/axes.rs", "crates/hlo/src/stablehlo/read"],
    "lowered.py": ["tests/foreign/lowered"],
    "plugin.py": ["crates/plugin/src", "python-jax/meshloom_jax", "python-jax/build_wheel.py", "python-jax/pyproject.toml"],
    "portable_artifacts.py": ["crates/hlo/src/stablehlo"],
    "presets.py": ["crates/models/src/families/named_models"],
    "python_module.py": ["python/hlo_dump"],
    "second_order.py": ["tests/compiler/second_order.rs"],
    "stablehlo.py": ["hlo_snapshots", "tests/oracle/hlo", "tests/foreign", "crates/hlo/src/stablehlo"],
}


def scripts():
    """All scripts that check something."""
    return [path for path in sorted(FOLDER.glob("*.py"))
            if path.name in CHECKS_ALWAYS or (path != FOLDER / "digests.py" and "--check" in path.read_text())]


def modules(path, known):
    """The script and the modules of this folder that it imports, and they import."""
    if path not in known:
        known.add(path)
        for name in re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.MULTILINE):
            if (FOLDER / f"{name}.py").exists():
                modules(FOLDER / f"{name}.py", known)
    return known


def files(path):
    """All files below a path, or the file itself."""
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts]


def digest(script):
    """The SHA-256 over names and contents of the inputs."""
    own = [path for path in FOLDER.iterdir() if path.name.split(".")[0].split("_")[0] == script.stem.split("_")[0]
           and path.suffix != ".py"] if script.stem not in ("hlo_parse", "hlo_text") else \
        [FOLDER / ("hlo_written" if script.stem == "hlo_parse" else "hlo")]
    read = [ROOT / path for path in READS.get(script.name, [])]
    missing = [path for path in read if not path.exists()]
    if missing:
        sys.exit(f"{script.name} reads {missing[0].relative_to(ROOT)}, which is not there: change READS")
    inputs = modules(script, set()) | {file for path in own + read for file in files(path)}
    total = hashlib.sha256()
    for file in sorted(inputs):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        total.update(f"{file.relative_to(ROOT).as_posix()} {content}\n".encode())
    return total.hexdigest()


def main():
    unknown = set(sys.argv[1:]) - {"--all", "--write"}
    if unknown:
        sys.exit(f"{sorted(unknown)}: only --all and --write are known")
    known = dict(line.split()[::-1] for line in DIGESTS.read_text().splitlines()) if DIGESTS.exists() else {}
    found = {script.name: digest(script) for script in scripts()}
    if "--write" in sys.argv:
        DIGESTS.write_text("".join(f"{digest}  {name}\n" for name, digest in found.items()))
        return
    for name, digest_now in found.items():
        if "--all" in sys.argv or known.get(name) != digest_now:
            print(f"tests/oracle/{name}")


if __name__ == "__main__":
    main()
