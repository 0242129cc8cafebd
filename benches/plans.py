"""How near the estimate of a step is to published runs, and what the search finds: writes the tables of docs/plan.md.

For each published run, its train step is lowered with its mesh and batch, and estimated. For each case of the search,
all plans are searched. That takes no plugin and no hardware:

    cargo build --release --bin hlo-dump --bin meshloom
    python3 benches/plans.py --table runs         # seconds
    python3 benches/plans.py --table searches     # minutes
    python3 benches/plans.py --table searches --only 8B --compile
    python3 benches/plans.py --table cycles       # compiles the plans for v5p that the table of searches has

`--compile` compiles the plans that were found ahead of time, too, for the compiler's own figure of memory. What was
compiled before stays in the table where the plan is the same.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from tables import ROOT, answer, compiled_bytes, gib, known_rows, write

PAGE = ROOT / "docs/plan.md"
BEGIN = "<!-- benches/plans.py writes this table: {} -->\n"

# Published runs: model, target, rows and tokens of a batch, mesh, what is recomputed, other keys, seconds of a step, model
# operations by their source as a part of the peak rate, and in what the run differs. Sources: docs/plan.md.
OFFLOADED = "saves more than `full`, on the host"
SAVED = "saves more than `full`"
CUDNN = "cuDNN's attention"
RUNS = [
    ("llama-2-70b", "v5p:4x8x8", 1024, 4096, "fsdp=256", "full", {}, 23.68, 0.654, SAVED + "; 256 chips are likely, not stated"),
    ("mixtral-8x7b", "v5p:4x4x8", 4608, 4096, "fsdp=128", "full", {}, 50.69, 0.526, "weights in bf16; 128 chips by its shape"),
    ("llama-3.1-8b", "v6e:16x16", 1024, 8192, "fsdp=256", "full", {}, 4.546, 0.455, OFFLOADED),
    ("llama-3.1-70b", "v6e:16x16", 1280, 8192, "fsdp=256", "full", {}, 42.656, 0.503, OFFLOADED),
    ("llama-3.1-405b", "v6e:16x16:slices=2", 512, 8192, "fsdp=512", "full", {"mesh.dcn": "fsdp=2"}, 54.803, 0.386, OFFLOADED),
    ("mixtral-8x7b", "v6e:16x16", 3072, 4096, "fsdp=256", "full", {}, 13.484, 0.352, OFFLOADED + "; experts have a capacity"),
    ("llama-3.1-70b", "tpu7x:4x4x4", 256, 8192, "fsdp=128", "full", {}, 12.20, 0.52, SAVED),
    ("llama-3.1-405b", "tpu7x:4x8x8", 1536, 8192, "fsdp=512", "full", {}, 98.34, 0.55, OFFLOADED),
    ("deepseek-v3", "tpu7x:4x4x8", 2048, 4096, "fsdp=256", "full", {}, 27.02, 0.26, ""),
    ("qwen3-235b-a22b", "tpu7x:4x8x8", 8192, 4096, "fsdp=512", "full", {}, 30.87, 0.27, ""),
    ("gpt-oss-120b", "tpu7x:4x4x4", 1280, 8192, "data=2,fsdp=64", "full", {}, 14.93, 0.16, OFFLOADED),
    ("llama-3.1-8b", "h100:1x1x8", 128, 8192, "fsdp=4,context=2", "none", {"train.microbatches": 32}, 12.27, None, CUDNN),
    # 6,667 tokens a second and GPU.
    ("llama-3.1-8b", "h100:1x1x8", 16, 8192, "fsdp=8", "dots", {}, 2.458, 0.39,
     CUDNN + "; recomputes every other product; memory of 2.4 TB/s, 500 W"),
    ("llama-3.1-70b", "h100:1x8x8", 128, 8192, "stage=4,replica=2,context=2,tensor=4", "none",
     {"pipeline.schedule": "interleaved", "pipeline.chunks": 5, "pipeline.repeats": 1, "pipeline.layers_per_stage": 4,
      "pipeline.microbatches": 64, "pipeline.weights": "gather-once"}, 14.66, None, CUDNN),
    ("llama-3.1-70b", "h100:1x16x8", 256, 8192, "fsdp=128", "full", {}, 15.563, None, CUDNN + "; " + SAVED),
]  # fmt: skip

# Cases of the search: a run config, or a model with rows and tokens of a batch; the target, and Gbit/s of the network.
SEARCHES = {
    "Llama 3.1 8B on 8 H100": (("llama-3.1-8b", 128, 8192), "h100:1x1x8", None),
    "Llama 3.1 70B on 64 H100": (("llama-3.1-70b", 128, 8192), "h100:1x8x8", None),
    "Llama 3 70B on 128 v5p": ("examples/configs/llama-70b-v5p.toml", "v5p:4x4x8", None),
    "Llama 3 70B on 512 v5p": ("examples/configs/llama-70b-v5p.toml", "v5p:8x8x8", None),
    "DeepSeek-V3 on 512 v5p": ("examples/configs/deepseek-v5p.toml", "v5p:8x8x8", None),
    "Gemma 2 2B on two slices": (("gemma-2-2b", 16, 8192), "tpu7x:2x2x1:slices=2", 25),
}


def config(model, rows, tokens, target, keys):
    lines = {"model.preset": model, "model.seq": tokens, "model.compute_dtype": "bf16", "train.batch": rows}
    lines |= {"target.topology": target} | keys
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())


def runs(options):
    """Rows of the table of published runs."""
    for model, target, rows, tokens, mesh, remat, more, published, stated, differs in RUNS:
        if options.only not in model:
            continue
        text = config(model, rows, tokens, target, {"mesh.axes": mesh, "remat.policy": remat} | more)
        found = answer(options.programs / "meshloom", "plan", text, ["--search", "--most", "1"])["configured"]
        schedule = f", {more['pipeline.schedule']}" if "pipeline.schedule" in more else ""
        ratio = found["seconds"] / published
        yield [
            f"`{model}`", target, f"{rows:,} x {tokens}", f"`{mesh}`{schedule}", f"{published:.2f} s",
            f"{found['seconds']:.2f} s", f"{ratio:.2f}", f"{100 * stated:.0f} %" if stated else "-",
            f"{100 * found['mfu'] * ratio:.1f} %", f"{100 * found['mfu']:.1f} %", differs,
        ]  # fmt: skip


def search(options, model, target, network):
    """What a search finds, and the config with the best plan."""
    text = (ROOT / model).read_text() if isinstance(model, str) else config(*model, target, {})
    more = ["--search", "--target", target, "--top", "1", "--most", str(options.most)]
    more += ["--network", str(network)] if network else []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "best.toml")
        found = answer(options.programs / "meshloom", "plan", text, [*more, "--write", str(path)])
        return found, path.read_text()


def rows_of(table, make, cases):
    """Makes the rows of a table, one for each case: anew where it is asked for, else the row that is there."""

    def rows(options):
        known = known_rows(PAGE, BEGIN.format(table))
        for name, case in cases.items():
            if options.only in name:
                yield make(options, name, case, known.get(name))
            elif name in known:
                yield known[name]

    return rows


def searched(options, name, case, known):
    """A row of the table of searches."""
    found, with_plan = search(options, *case)
    best = found["plans"][0]
    written = found["configured"] if isinstance(case[0], str) else None
    lowered = f"{found['lowered']:,}" + (", more are left" if found["ended_early"] else "")
    row = [
        name, f"{found['considered']:,}", lowered, f"`{' '.join(best['settings'])}`", f"{best['seconds']:.2f} s",
        f"{100 * best['mfu']:.1f} %", gib(best["bytes"]), "-", f"{written['seconds']:.2f} s" if written else "-",
    ]  # fmt: skip
    if known and known[3] == row[3]:
        row[7] = known[7]
    if options.compile:
        made = answer(options.programs / "meshloom", "compile", with_plan, ["--time-limit", str(options.time_limit)])
        row[7] = gib(compiled_bytes(made["memory"]))
    print(f"{name}: {found['seconds']:.0f} s", file=sys.stderr, flush=True)
    return row


# The clock of a TPU v5p, in which libtpu counts: Google Cloud's documentation of the chip, 459 TFLOP/s of four matrix
# units of 128 x 128 in each of two cores.
V5P_HZ = 459e12 / (2 * 4 * 2 * 128 * 128)
# The part of its rates that a kernel is taken to reach if libtpu states no cycles for it.
REACHED = 0.8


def counted(options, name, case, _):
    """A row of the table of the compiler's own estimates."""
    found, with_plan = search(options, *case)
    best = found["plans"][0]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "compiled.pb")
        limit = ["--time-limit", str(options.time_limit), "--output", str(path)]
        made = answer(options.programs / "meshloom", "compile", with_plan, limit)
        words = [options.programs / "hlo-dump", "cost", str(path), "--chip", "v5p", "--json"]
        cost = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    # Of what says nothing, copies run beside the others, and calls without operations are marks of the compiler's.
    kernels = [(it["total"], it["seconds"]) for it in cost["instructions"] if not it["work"]["link_bytes"]]
    stated = sum(total.get("cycles", 0) for total, _ in kernels) / V5P_HZ
    others = [seconds["serial"] for total, seconds in kernels if not total.get("cycles") and total["flops"]]
    others = sum(others) / REACHED
    print(f"{name}: compiled in {made['compile_seconds']:.0f} s", file=sys.stderr, flush=True)
    return [
        name, f"`{' '.join(best['settings'])}`", f"{best['computing']:.2f} s", f"{stated:.2f} s", f"{others:.2f} s",
        f"{best['computing'] / (stated + others):.2f}",
    ]  # fmt: skip


TABLES = {
    "runs": (runs, ["model", "target", "batch", "mesh", "published", "estimated", "ratio", "MFU, stated",
                    "MFU, published", "MFU, estimated", "the run differs"]),
    "searches": (
        rows_of("searches", searched, SEARCHES),
        ["case", "considered", "lowered", "plan", "step", "MFU", "memory at most", "compiled", "as configured"],
    ),
    "cycles": (
        rows_of("cycles", counted, {name: case for name, case in SEARCHES.items() if case[1].startswith("v5p")}),
        ["case", "plan", "computing, estimated", "by libtpu's cycles", "other kernels", "ratio"],
    ),
}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/release", help="the folder of the programs")
    arguments.add_argument("--table", choices=TABLES, required=True, help="which table")
    arguments.add_argument("--only", default="", help="only rows with this in their first column")
    arguments.add_argument("--most", type=int, default=4000, help="the most plans that are lowered in a search")
    arguments.add_argument("--compile", action="store_true", help="compiles ahead of time what was found")
    arguments.add_argument("--time-limit", type=int, default=900, help="seconds for each compilation")
    options = arguments.parse_args()
    make, head = TABLES[options.table]
    rows = []
    for row in make(options):
        rows.append(row)
        print("  ".join(row), flush=True)
    if options.table == "runs" and options.only:
        return
    write(PAGE, BEGIN.format(options.table), head, rows)


if __name__ == "__main__":
    main()
