"""What XLA's backends make of emitted collectives: writes the table of docs/compiled-collectives.md.

Compiles example configs ahead of time with `meshloom compile`. That needs no hardware, only the plugins:

    cargo build --release --bin hlo-dump --bin meshloom
    target/release/meshloom doctor --fetch tpu --fetch cuda
    python3 benches/collectives.py                  # every row: about an hour on one core
    python3 benches/collectives.py --only psdp      # the rows with this in them; the others stay

A row that does not compile stays as it is. The script then says why, and ends with status 1.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/compiled-collectives.md"
BEGIN, END = "<!-- benches/collectives.py writes this table -->\n", "<!-- end of the table -->\n"
HEAD = "| config | mesh | target | emitted | compiled | ratio | more than emitted |\n|---|---|---|---|---|---|---|\n"

# Eight devices of each family; a chip of tpu7x has two.
EIGHT = ["v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1", "h100:1x1x8"]
# The default model over the meshes for which the preset of rules is made.
MESHES = ["data=2,fsdp=4", "data=8", "fsdp=8", "fsdp=4,tensor=2", "fsdp=2,context=4", "data=2,fsdp=2,tensor=2"]
SMALL = ["psdp", "pipeline-bsw", "pipeline-4-stages", "diloco", "streaming-diloco"]
OWN_TARGET = ["gemma2-2b-diloco-tpu7x", "llama-8b-psdp-v5e", "llama-8b-32k-v5p", "llama-70b-v5p", "deepseek-v5p"]
ROWS = (
    [("default", mesh, target) for mesh in MESHES for target in EIGHT]
    + [(config, None, target) for config in SMALL for target in EIGHT]
    + [(config, None, None) for config in OWN_TARGET]
)


def human(count):
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"]:
        if count < 1024 or unit == "TiB":
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
        count /= 1024


def more(kinds, emitted):
    """The kinds that the compiled program sends more of than was emitted, if that is a hundredth of all."""
    found = []
    for kind in kinds:
        change = kind["compiled"]["moved_bytes"] - kind["emitted"]["moved_bytes"]
        if change > emitted / 100:
            found.append(f"{kind['kind']} over `{kind['axes']}`, {human(change)}")
    return "; ".join(found)


def row(binary, config, mesh, target, seconds):
    """A line of the table, or why there is none."""
    command = [binary, "compile", f"examples/configs/{config}.toml", "--json", "--time-limit", str(seconds)]
    if target:
        command += ["--target", target]
    if mesh:
        command += ["--set", f"mesh.axes={mesh}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode != 0:
        return None, ran.stderr.strip()
    answer = json.loads(ran.stdout)
    sums = answer["compiled_as_emitted"]
    emitted, compiled = (sums["all"][side]["moved_bytes"] for side in ["emitted", "compiled"])
    sent = [human(emitted), human(compiled), f"{compiled / emitted:.3f}", more(sums["by_kind"], emitted)]
    return [config, f"`{answer['mesh']}`", answer["target"], *sent], None


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/release", help="the folder of the programs")
    arguments.add_argument("--only", default="", help="only rows whose config, mesh and target have this in them")
    arguments.add_argument("--time-limit", type=int, default=1500, help="seconds for each compilation")
    options = arguments.parse_args()
    before, rest = PAGE.read_text().split(BEGIN)
    table, after = rest.split(END)
    # A row is known by its first three cells.
    known = {tuple(cells[:3]): cells for cells in ([c.strip() for c in l[1:-1].split("|")] for l in table.splitlines()[2:])}
    failed = False
    for config, mesh, target in ROWS:
        if options.only not in " ".join(filter(None, [config, mesh, target])):
            continue
        cells, error = row(options.programs / "meshloom", config, mesh, target, options.time_limit)
        if error is not None:
            failed = True
            print(f"{config} {mesh or ''} {target or ''}: {error}", file=sys.stderr, flush=True)
            continue
        known[tuple(cells[:3])] = cells
        print("  ".join(cells), flush=True)
        lines = "".join(f"| {' | '.join(cells)} |\n" for cells in known.values())
        PAGE.write_text(before + BEGIN + HEAD + lines + END + after)
    sys.exit(failed)


if __name__ == "__main__":
    main()
