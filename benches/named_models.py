"""Where each published model fits: writes the tables of docs/named-models.md.

For each model of `model.preset`, a train step is lowered for one target after the other of a short ladder, until what a
device needs at most is no more than it has. That takes no plugin and no hardware:

    cargo build --release --bin hlo-dump --bin meshloom
    python3 benches/named_models.py                              # minutes on one core
    python3 benches/named_models.py --only qwen3                 # the models with this in their names; others stay
    python3 benches/named_models.py --compile --target v5p       # compiles what was found, too: hours for all

What was compiled before stays in the table where target, mesh and batch are the same; it is bold where it is more than
there should be at most. A model that does not compile keeps its row; the script then says why, and ends with status 1.
"""

import argparse
import csv
import json
import pathlib
import math
import re
import sys

from tables import ROOT, answer, compiled_bytes, gib, known_rows, write

PAGE = ROOT / "docs/named-models.md"
COUNTS = ROOT / "tests/oracle/presets.tsv"
BEGIN = "<!-- benches/named_models.py writes this table: {} -->\n"

# Tokens in a row; fewer where a model is made for fewer.
TOKENS = 4096

# Targets from the smallest to the largest, with their devices; and how many devices lie along `tensor` or `expert`.
LADDERS = {
    "v5p": {
        "within": 4,
        "targets": {"2x2x1": 4, "2x2x2": 8, "2x2x4": 16, "2x4x4": 32, "4x4x4": 64, "4x4x8": 128, "8x8x8": 512},
    },
    "h100": {
        "within": 8,
        "targets": {f"1x{hosts}x8": 8 * hosts for hosts in [1, 2, 4, 8, 16, 32, 64, 128]},
    },
}
# More parameters than this are split over `tensor` too.
LARGE = 20e9
# Models whose layers are a pipeline, with the axes beside `fsdp` and the keys of the pipeline.
PIPELINES = {
    "deepseek-v3": {"stage": 8, "expert": 8, "layers": 56, "repeats": 7, "microbatches": 16},
}


def presets():
    """Names, counts and what is apart, in the order of the families; with each model's `config.json`."""
    with open(COUNTS, newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    for row in rows:
        row["config"] = json.loads((ROOT / f"crates/models/src/families/named_models/{row['preset']}.json").read_text())
    return rows


def mesh_on(preset, chip, devices):
    """The mesh on so many devices, the rows of the batch, and the keys of a pipeline; None for too few devices.

    There is a row, in a pipeline of each microbatch, for each device that the batch is split over.
    """
    within = LADDERS[chip]["within"]
    if pipeline := PIPELINES.get(preset["preset"]):
        stages, experts = pipeline["stage"], pipeline["expert"]
        fsdp = devices // (stages * experts)
        keys = [f"pipeline.{key} = {pipeline[key]}" for key in ["layers", "repeats", "microbatches"]]
        axes = {"stage": stages, "fsdp": fsdp, "expert": experts}
        return (axes, pipeline["microbatches"] * fsdp * experts, keys) if fsdp else None
    if preset["model_type"] in ["mixtral", "qwen3_moe", "gpt_oss"]:
        return {"fsdp": devices // within, "expert": within}, devices, []
    if int(preset["parameters"]) > LARGE:
        return {"fsdp": devices // within, "tensor": within}, devices // within, []
    return {"fsdp": devices}, devices, []


def config(preset, target, axes, rows, more):
    """The mesh, the tokens of a row, and the run config."""
    tokens = min(TOKENS, preset["config"].get("max_position_embeddings", TOKENS))
    mesh = ",".join(f"{axis}={size}" for axis, size in axes.items() if size > 1)
    lines = [
        f'model.preset = "{preset["preset"]}"',
        f"model.seq = {tokens}",
        'model.compute_dtype = "bf16"',
        f"train.batch = {rows}",
        f'mesh.axes = "{mesh}"',
        'remat.policy = "full"',
        f'target.topology = "{target}"',
        *more,
    ]
    return mesh, tokens, "".join(f"{line}\n" for line in lines)


def parameters(memory):
    """The elements of the program's parameters, which have their global shapes."""
    total = 0
    for buffer in memory["live_at_peak"]:
        if buffer["kind"] == "argument" and buffer["op_name"].startswith("state.params."):
            total += math.prod(int(size) for size in re.search(r"\[(.*)\]", buffer["shape"])[1].split(",") if size)
    return total


def fitting(binary, preset, chip):
    """The smallest target on which a model fits: the cells of its row but for the compiled one, the run config, what a
    device has, and the number of parameters.
    """
    reason = "it needs more devices"
    for shape, devices in LADDERS[chip]["targets"].items():
        target = f"{chip}:{shape}"
        on = mesh_on(preset, chip, devices)
        if on is None:
            continue
        mesh, tokens, text = config(preset, target, *on)
        try:
            memory = answer(binary, "memory", text, ["--chip", chip])
        except RuntimeError as error:
            reason = error
            continue
        most, has = memory["upper"]["peak"], memory["chip_bytes"]
        reason = f"{mesh} on {target} needs {gib(most)} of {gib(has)}"
        if most <= has:
            batch, share = f"{on[1]:,} x {tokens}", f"{100 * most / has:.0f} %"
            cells = [target, f"`{mesh}`", batch, gib(memory["arguments"]), gib(memory["peak"]), gib(most), share]
            return cells, text, has, parameters(memory)
    raise RuntimeError(f"{preset['preset']} fits on no {chip} of the ladder: {reason}")


def marked(cells):
    """A row; the compiler's figure is bold if it is above the most that is allowed."""
    compiled = cells[-1].strip("*")
    is_more = compiled != "-" and float(compiled.split()[0]) > float(cells[-3].split()[0])
    return [*cells[:-1], f"**{compiled}**" if is_more else compiled]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/release", help="the folder of the programs")
    arguments.add_argument("--only", default="", help="only models with this in their names")
    arguments.add_argument("--target", default="", choices=["", *LADDERS], help="only this chip")
    arguments.add_argument("--compile", action="store_true", help="compiles ahead of time what was found")
    arguments.add_argument("--time-limit", type=int, default=900, help="seconds for each compilation")
    options = arguments.parse_args()
    models, failed = presets(), False
    names = [f"`{preset['preset']}`" for preset in models]
    for chip in LADDERS:
        if options.target not in ["", chip]:
            continue
        begins = [BEGIN.format(chip), BEGIN.format("parameters")]
        known, counts = (known_rows(PAGE, begin) for begin in begins)
        head, found = [], {}
        for name, preset in zip(names, models):
            if options.only not in name:
                continue
            try:
                cells, text, has, count = fitting(options.programs / "hlo-dump", preset, chip)
            except RuntimeError as error:
                failed = True
                print(error, file=sys.stderr, flush=True)
                continue
            head = ["preset", "target", "mesh", "batch", "arguments", "estimate", "at most", f"of {gib(has)}"]
            head.append("compiled")
            before = known.get(name, [])
            # The same program was compiled before.
            compiled = before[-1] if before[1:4] == cells[:3] else "-"
            known[name] = marked([name, *cells, compiled])
            counts[name] = [name, f"{count:,}", f"{int(preset['published']):,}", preset["what is apart"]]
            found[name] = count, text
            print("  ".join(known[name]), flush=True)
        if not found:
            continue
        write(PAGE, begins[0], head, [known[name] for name in names if name in known])
        in_order = [counts[name] for name in names if name in counts]
        write(PAGE, begins[1], ["preset", "parameters", "published", "apart"], in_order)
        # The smallest first: a larger one may take longer than there is time.
        for name in sorted(found, key=lambda name: found[name][0]) if options.compile else []:
            try:
                made = answer(options.programs / "meshloom", "compile", found[name][1], ["--time-limit", str(options.time_limit)])
            except RuntimeError as error:
                failed = True
                print(f"{name}: {error}", file=sys.stderr, flush=True)
                continue
            total = compiled_bytes(made["memory"])
            known[name] = marked([*known[name][:-1], gib(total)])
            print(f"{name}: compiled, {gib(total)} in {made['compile_seconds']:.0f} s", flush=True)
            write(PAGE, begins[0], head, [known[name] for name in names if name in known])
    sys.exit(failed)


if __name__ == "__main__":
    main()
