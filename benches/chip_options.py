"""What each of the chips' compiler options hides: writes the tables of docs/compiler-options.md.

For each chip, a decoder is compiled ahead of time without options, with the chip's options, and without
one of them at a time; then with them and other options of published lists (TRIED). `meshloom compile --overlap` says how much of the
transfers is hidden. That needs no hardware, only the plugins:

    cargo build --release --bin hlo-dump --bin meshloom
    target/release/meshloom doctor --fetch tpu --fetch cuda
    python3 benches/chip_options.py                  # more than an hour on one core
    python3 benches/chip_options.py --target v5e:2x4
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/compiler-options.md"
HEAD = "| options | hidden | the device waits | computing | temporaries |\n|---|---|---|---|---|\n"

# Llama 3 8B with four of its layers: the layers are a loop, so more of them change the length of the step alone.
CONFIG = "examples/configs/llama-8b-32k-v5p.toml"
SIZES = ["model.layers=4", "model.seq=4096", "train.batch=16", "mesh.axes=data=2,fsdp=2,tensor=2"]

PIPELINING = [
    "xla_enable_async_collective_permute=true",
    "xla_tpu_enable_ag_backward_pipelining=true",
    "xla_tpu_enable_data_parallel_all_reduce_opt=true",
    "xla_tpu_data_parallel_opt_different_sized_ops=true",
]

# Options of published lists that not every chip has, by the names that the page gives them.
GROUPS = {
    "pipelining": PIPELINING,
    "fusion": [
        *PIPELINING,
        "xla_enable_async_all_gather=true",
        "xla_tpu_enable_async_collective_fusion=true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
        "xla_tpu_enable_async_collective_fusion_multiple_steps=true",
        "xla_tpu_overlap_compute_collective_tc=true",
    ],
    "reductions": [
        "xla_enable_async_all_reduce=true",
        "xla_enable_async_reduce_scatter_fusion=true",
        "xla_tpu_enable_async_collective_fusion_fuse_all_reduce=true",
        "xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter=true",
        "xla_tpu_enable_async_collective_fusion_while_loops=true",
    ],
    "SparseCores": [
        "xla_tpu_enable_sparse_core_collective_offload_all_gather=true",
        "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter=true",
        "xla_tpu_enable_sparse_core_collective_offload_all_reduce=true",
    ],
}

# Groups and single options that are tried beside a chip's own.
TRIED = {
    "v5e:2x4": ["fusion", "reductions"],
    "v5p:2x2x2": ["pipelining", "xla_tpu_scoped_vmem_limit_kib=98304"],
    "v6e:2x4": ["pipelining", "xla_tpu_scoped_vmem_limit_kib=98304"],
    "tpu7x:2x2x1": ["SparseCores", "pipelining", "xla_tpu_scoped_vmem_limit_kib=98304"],
    "h100:1x1x8": [
        "xla_gpu_enable_latency_hiding_scheduler=true",
        "xla_gpu_experimental_parallel_collective_overlap_limit=2",
        "xla_gpu_all_gather_combine_threshold_bytes=268435456",
    ],
}


def compiled(binary, target, options, seconds):
    """The answer of `meshloom compile`; options of None are the chip's."""
    command = [binary, "compile", CONFIG, "--target", target, "--overlap", "--json", "--time-limit", str(seconds)]
    for setting in SIZES:
        command += ["--set", setting]
    if options is not None:
        command += ["--set", 'target.compiler_preset=false']
        command += ["--set", f"target.compiler_options={json.dumps(options)}"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip().splitlines()[-1])
    return json.loads(ran.stdout)


def line(name, answer):
    overlap = answer["overlap"]
    total = overlap["total"]
    share = 100 * (1 - total["exposed_seconds"] / total["seconds"])
    waiting, computing = (1000 * overlap[key] for key in ["waiting_seconds", "computing_seconds"])
    gib = answer["memory"]["temporary"] / 2**30
    return f"| {name} | {share:.1f} % of {1000 * total['seconds']:.0f} ms | {waiting:.1f} ms | {computing:.0f} ms | {gib:.2f} GiB |"


def table(binary, target, seconds):
    """The lines of a target's table."""
    whole = compiled(binary, target, None, seconds)
    own = whole["compiler_options"]
    lines = [line("the chip's options", whole), line("none", compiled(binary, target, [], seconds))]
    print(target, *lines, sep="\n", flush=True)
    # Where all of them together change nothing, none is looked at by itself.
    runs = []
    if lines[0].split("|")[2:] != lines[1].split("|")[2:]:
        runs = [(f"without `{it}`", [other for other in own if other != it]) for it in own]
    for more in TRIED[target]:
        runs.append((f"with {more if more in GROUPS else f'`{more}`'} too", own + GROUPS.get(more, [more])))
    for name, options in runs:
        try:
            lines.append(line(name, compiled(binary, target, options, seconds)))
        except RuntimeError as error:
            lines.append(f"| {name} | does not compile | | | |")
            print(error, file=sys.stderr)
        print(lines[-1], flush=True)
    return lines


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/release", help="the folder of the programs")
    arguments.add_argument("--target", default="", help="only this target")
    arguments.add_argument("--time-limit", type=int, default=900, help="seconds for each compilation")
    options = arguments.parse_args()
    for target in TRIED:
        if options.target not in ["", target]:
            continue
        lines = table(options.programs / "meshloom", target, options.time_limit)
        begin, end = f"<!-- benches/chip_options.py writes this table: {target} -->\n", "<!-- end of the table -->\n"
        before, rest = PAGE.read_text().split(begin)
        _, after = rest.split(end, 1)
        PAGE.write_text(before + begin + HEAD + "".join(f"{it}\n" for it in lines) + end + after)


if __name__ == "__main__":
    main()
