"""Feeds every HLO text under hlo_snapshots/ to XLA's own parser; fails on any that it does not read.

    python3 tests/oracle/check_snapshots.py [FOLDER]

Needs jax (made with 0.10.2). A snapshot is a header between two lines `---`, then the text.
"""

import pathlib
import sys

try:
    from jaxlib import _hlo as hlo
except ImportError:  # before jaxlib 0.9
    from jax._src.lib import xla_client

    hlo = xla_client._xla

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "hlo_snapshots"
    # A `.graph.snap` is a graph in our own text form.
    files = sorted(file for file in folder.rglob("*.snap") if not file.name.endswith(".graph.snap"))
    failures = 0
    for file in files:
        parts = file.read_text().split("---\n", 2)
        text = parts[2] if len(parts) == 3 and not parts[0] else ""
        try:
            if not text.startswith("HloModule "):
                raise ValueError("the snapshot holds no HLO module")
            hlo.hlo_module_from_text(text)
        except Exception as error:
            failures += 1
            print(f"FAIL  {file.relative_to(folder)}: {str(error)[:800]}")
    print(f"XLA's parser reads {len(files) - failures} of {len(files)} snapshots")
    return 1 if failures or not files else 0


if __name__ == "__main__":
    sys.exit(main())
