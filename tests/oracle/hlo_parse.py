"""Compares meshloom's HLO text parser with XLA's.

    python3 tests/oracle/hlo_parse.py --check    what XLA's parser makes of the texts is what is stored and what ours makes of them
    python3 tests/oracle/hlo_parse.py --write    rewrites the stored modules, tests/oracle/hlo_written/*.pb

Needs jax (made with 0.10.2) and, for --check, cargo. The texts under tests/oracle/hlo_written are written by hand, in forms that XLA
reads and does not print. `--check` reads with both parsers these texts and every snapshot under hlo_snapshots; XLA prints what it has
read, and what it reads of the text that we print of what we have read: both are the same (but for metadata and the order of
computations, which reading renumbers).
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    from jaxlib import _hlo as hlo
except ImportError:  # before jaxlib 0.9
    from jax._src.lib import xla_client

    hlo = xla_client._xla

ROOT = pathlib.Path(__file__).resolve().parents[2]
WRITTEN = ROOT / "tests" / "oracle" / "hlo_written"


def texts():
    """Yields (name, text)."""
    for file in sorted(WRITTEN.glob("*.hlo")):
        yield file.stem, file.read_text()
    for file in sorted((ROOT / "hlo_snapshots").rglob("*.snap")):
        text = file.read_text().split("---\n", 2)[2]
        if text.startswith("HloModule "):
            yield "snapshot_" + "_".join(file.relative_to(ROOT / "hlo_snapshots").with_suffix("").parts), text


def options():
    result = hlo.HloPrintOptions()
    result.print_large_constants = True
    result.print_metadata = False
    return result


def parts(serialized):
    """XLA's text of a module: the header, then the computations in an order of their own."""
    module = hlo.HloModule.from_serialized_hlo_module_proto(serialized)
    # XLA's parser takes -0 for the integer and forgets its sign; ours keeps it.
    text = re.sub(r"(?<=[{(, ])-0(?=[}), ])", "0", module.to_string(options()))
    header, *computations = text.split("\n\n")
    return [header] + sorted(computations)


def read(text):
    return hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def write():
    for old in WRITTEN.glob("*.pb"):
        old.unlink()
    for name, text in texts():
        if not name.startswith("snapshot_"):
            (WRITTEN / f"{name}.pb").write_bytes(read(text))


def check(folder):
    failures = 0
    cases = dict(texts())
    for name, text in cases.items():
        (folder / f"{name}.hlo").write_text(text)
    environment = dict(os.environ, MESHLOOM_HLO_FOLDER=str(folder))
    subprocess.run(["cargo", "test", "--quiet", "--release", "--workspace", "--test", "hlo", "--", "--ignored", "--exact", "hlo::parse::parse_folder"],
                   cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    for name, text in cases.items():
        theirs = parts(read(text))
        found = {
            "our module": lambda: parts((folder / f"{name}.parsed").read_bytes()),
            "our text": lambda: parts(read((folder / f"{name}.printed").read_text())),
        }
        if "{...}" in text:
            # We leave out the elements that the text leaves out, and XLA's messages cannot.
            del found["our module"]
        if (WRITTEN / f"{name}.pb").exists():
            found["the stored module"] = lambda: parts((WRITTEN / f"{name}.pb").read_bytes())
        elif not name.startswith("snapshot_"):
            found["the stored module"] = lambda: "is missing"
        for what, ours in found.items():
            try:
                ours = ours()
            except Exception as error:
                ours = [f"XLA does not read it: {str(error)[:800]}"]
            if ours != theirs:
                failures += 1
                lines = zip("\n".join(ours).splitlines(), "\n".join(theirs).splitlines())
                pair = next(((a, b) for a, b in lines if a != b), (len(ours), len(theirs)))
                print(f"FAIL  {name}: {what} is another\n    ours  {str(pair[0])[:800]}\n    XLA's {str(pair[1])[:800]}")
    print(f"{len(cases)} texts, {failures} differences")
    return failures or not cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        write()
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return 1 if check(pathlib.Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
