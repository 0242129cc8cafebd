"""HLO modules that meshloom did not make: JAX programs, as lowered, partitioned and optimized.

    python3 tests/oracle/foreign.py           rewrites tests/foreign
    python3 tests/oracle/foreign.py --check   compares with what is there and writes nothing

Needs jax (made with 0.10.2). The programs are in `foreign_programs.py`; what is in their modules, counted by hand from the
programs' sizes, is in `tests/foreign/expected.toml`, and `tests/hlo/foreign.rs` holds hlo-dump's tables against that.

| file | form |
|---|---|
| PROGRAM.unoptimized.txt, .pb | before the first pass; HloModuleProto |
| PROGRAM.partitioned.txt, .pb | after the SPMD partitioner, from a dump of the CPU compiler; HloProto |
| PROGRAM.optimized.txt, .pb | as the CPU compiler leaves it; HloModuleProtoWithConfig |
| PROGRAM.tpu.txt, .pb | compiled ahead of time for TPU v5e:2x4; HloModuleProto |
| PROGRAM.gpu.txt, .pb | compiled ahead of time for eight H100; HloModuleProto |
| xla_dump/ | a folder as XLA writes it |

The last two need the plugins of meshloom's cache, or TPU_LIBRARY_PATH and CUDA_PLUGIN_PATH; without one its modules are left alone.
`--check` wants the unoptimized and partitioned modules to be the same but for source positions, which Python's version decides. What is
compiled depends on the machine (its vector width, its cores) and on the plugin: there the collectives must be the same.
Another version of JAX than MADE_WITH makes other modules of the same programs. `--check` then compares nothing that is stored: hlo-dump
must count in them what `expected.toml` says. `--force` writes files with such a version.
"""

import argparse
import collections
import difflib
import glob
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import counting

ROOT = pathlib.Path(__file__).resolve().parents[2]
STORED = ROOT / "tests" / "foreign"
# The version of JAX whose modules are stored here, under `lowered`, and in `tests/oracle/memory`.
MADE_WITH = "0.10.2"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "meshloom" / "plugins"

# Which forms of what is compiled ahead of time are stored: all of them would be too large.
AHEAD = {
    "tpu": {"fsdp_mlp": ("txt", "pb"), "pipeline": ("txt", "pb"), "scan_remat": ("txt",)},
    "gpu": {"fsdp_mlp": ("txt", "pb"), "pipeline": ("txt", "pb"), "scan_remat": ("pb",)},
}
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 device_address_bits: 64
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  pcie_bandwidth: 34359738368 device_vendor: "NVIDIA Corporation" name: "NVIDIA H100 80GB HBM3"
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
}
platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3"
"""


def plugin(platform):
    """Where the plugin of a platform is, if anywhere."""
    variable, pattern = {
        "tpu": ("TPU_LIBRARY_PATH", "libtpu-*/libtpu.so"),
        "gpu": ("CUDA_PLUGIN_PATH", "jax-cuda12-pjrt-*/jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
    }[platform]
    return os.environ.get(variable) or next(iter(sorted(glob.glob(str(CACHE / pattern)))), None)


# In a process of its own: one platform's modules.


def make(platform, folder):
    """Writes the modules of a platform into a folder."""
    if platform == "tpu":
        os.environ["TPU_LIBRARY_PATH"] = plugin("tpu")
        os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import jax

    # The nearest frames of the user's program for an instruction, by a path that is the same on every machine.
    jax.config.update("jax_traceback_in_locations_limit", 2)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/(?=tests/oracle/)")
    if platform == "cpu":
        make_cpu(folder)
    else:
        make_ahead(platform, folder)


def traced(name, devices):
    import foreign_programs
    import numpy as np
    from jax.sharding import Mesh

    program, axes = foreign_programs.PROGRAMS[name]
    return program(Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes)))


# Which forms of what the CPU compiler makes are stored, if not all: a larger program would be large, and one more need not be in every form.
FORMS = {"moe": {"unoptimized": ("txt",)}, "local_sgd": {"unoptimized": (), "partitioned": ("txt",), "optimized": ("txt",)}}


def make_cpu(folder):
    import foreign_programs
    import jax

    # A relative path, since XLA writes it into what it dumps.
    os.chdir(folder)
    for name in foreign_programs.PROGRAMS:
        lowered = traced(name, jax.devices()).lower()
        dump = pathlib.Path("xla_dump" if name == "small" else f"dump_{name}")
        options = {"xla_dump_to": str(dump), "xla_dump_hlo_as_text": True, "xla_dump_hlo_as_proto": True}
        if name == "small":
            lowered.compile(options)
            tidy(dump)
            continue
        compiled = lowered.compile(options | {"xla_dump_hlo_pass_re": "spmd-partitioning"})
        text, = (path.read_text() for path in dump.glob("*.before_optimizations.txt"))
        proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
        forms = FORMS.get(name, {})
        write(name, "unoptimized", text, proto, forms.get("unoptimized", ("txt", "pb")))
        partitioned, = dump.glob("*.after_spmd-partitioning*.hlo.pb")
        text = partitioned.with_name(partitioned.name.removesuffix(".hlo.pb") + ".txt").read_text()
        write(name, "partitioned", text, partitioned.read_bytes(), forms.get("partitioned", ("txt", "pb")))
        module, = compiled.runtime_executable().hlo_modules()
        proto = with_config(module.as_serialized_hlo_module_proto())
        write(name, "optimized", compiled.as_text(), proto, forms.get("optimized", ("txt", "pb")))
        shutil.rmtree(dump)


def make_ahead(platform, folder):
    from jax.experimental import topologies

    if platform == "tpu":
        devices = topologies.get_topology_desc("v5e:2x4", "tpu").devices
    else:
        from jax._src import xla_bridge

        xla_bridge.register_plugin("cuda", library_path=plugin("gpu"))
        devices = topologies.get_topology_desc("", "cuda", target_config=H100, topology="1x1x8").devices
    os.chdir(folder)
    for name, forms in AHEAD[platform].items():
        compiled = traced(name, devices).lower().compile()
        module, = compiled.runtime_executable().hlo_modules()
        write(name, platform, compiled.as_text(), module.as_serialized_hlo_module_proto(), forms)


def write(name, stage, text, proto, forms=("txt", "pb")):
    if "txt" in forms:
        pathlib.Path(f"{name}.{stage}.txt").write_text(text)
    if "pb" in forms:
        pathlib.Path(f"{name}.{stage}.pb").write_bytes(proto)


def with_config(module):
    """A HloModuleProtoWithConfig, which JAX never hands out: the module, and a config of its 8 partitions (`xla.proto`)."""
    config = bytes([4 << 3, 1, 5 << 3, 8, 7 << 3, 1])  # replica_count, num_partitions, use_spmd_partitioning
    return field(1, module) + field(2, config)


def field(number, payload):
    size, length = bytearray(), len(payload)
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2]) + bytes(size) + bytes([length]) + payload


def tidy(dump):
    """Leaves out what is of one machine: its code."""
    for path in dump.rglob("*"):
        if path.suffix in (".o", ".ll"):
            path.unlink()
    for path in dump.iterdir():
        if path.is_dir():
            shutil.rmtree(path)


# Comparing.

COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\(")
MEMBERS = re.compile(r"(replica_groups|source_target_pairs|device_ids)=[^a-z]*(?:mesh\[.*?\].*?\{.*?\})?")


def collectives(text):
    """What a module moves, in its order: shapes and members, without layouts and names."""
    found = []
    for line in text.splitlines():
        match = COLLECTIVE.search(line)
        if match:
            shape = re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", match[1])
            found.append((match[2], shape, [m[0] for m in MEMBERS.finditer(line)]))
    return sorted(map(str, found))


def as_text(path):
    """The text of a stored module of any form."""
    if path.suffix == ".txt":
        return path.read_text()
    from jaxlib import _hlo

    data = path.read_bytes()
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    return _hlo.HloModule.from_serialized_hlo_module_proto(module_of(path, data)).to_string(options)


POSITIONS = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*| (?:stack_frame_id|source_\w+)=[^ }]+", re.M)


def module_of(path, data):
    """The HloModuleProto in a file, which in the two other forms is the first field of a message."""
    wrapped = "partitioned" in path.name or path.name.endswith(("optimized.pb", ".hlo.pb")) and "unoptimized" not in path.name
    if not wrapped:
        return data
    length, shift, position = 0, 0, 1
    while True:
        byte = data[position]
        length |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return data[position:position + length]


def differences(made, stored):
    if made.name.split(".")[1] in ("unoptimized", "partitioned"):
        texts = [POSITIONS.sub("", as_text(path)).splitlines() for path in (stored, made)]
        return list(difflib.unified_diff(*texts, "stored", "made", n=0, lineterm=""))
    ours, theirs = collectives(as_text(stored)), collectives(as_text(made))
    return [] if ours == theirs else [f"stored {ours}", f"made {theirs}"]


def check(folder):
    failures = 0
    for made in sorted(folder.rglob("*.*")):
        stored = STORED / made.relative_to(folder)
        if made.parent.name == "xla_dump" and not made.name.endswith(("_optimizations.txt", ".hlo.pb")):
            found = []
        elif not stored.exists():
            found = ["not stored"]
        else:
            found = differences(made, stored)
        failures += bool(found)
        for line in found:
            print(f"{stored.relative_to(ROOT)}: {line}")
    print(f"{failures} of the modules differ" if failures else "the modules are what is stored")
    return failures


def is_made_with():
    """Whether this is the JAX whose modules are stored. Says so if not."""
    version = importlib.metadata.version("jax")
    if version != MADE_WITH:
        print(f"JAX {version} makes other modules than {MADE_WITH}, with which the stored ones are made: they are counted")
    return version == MADE_WITH


def refuse_another_version(is_forced):
    """Golden files change with the version of JAX only if somebody wants them to."""
    if not is_forced and not is_made_with():
        sys.exit("nothing is written; --force does, and MADE_WITH of foreign.py says which version the files are of")


def count(folder):
    """Holds what hlo-dump counts in modules of another version against the counts by hand: how many differ."""
    if not pathlib.Path(counting.PROGRAM).exists():
        print(f"skipped: there is no {counting.PROGRAM}")
        return 0
    checked = failures = 0
    for module in tomllib.loads((STORED / "expected.toml").read_text())["module"]:
        expected = collections.Counter()
        for row in module["rows"]:
            expected[row["kind"], row["axes"]] += row["moved"]
        for name in filter(lambda name: (folder / name).exists(), module["files"]):
            checked += 1
            found = counting.moved(folder / name, module["mesh"])
            if found != expected:
                failures += 1
                print(f"{name}: found {found}, expected {dict(expected)}")
    print(f"hlo-dump counts {checked - failures} of {checked} modules as by hand")
    return failures or not checked


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--force", action="store_true", help="write with another version of JAX too")
    parser.add_argument("--platform", choices=["cpu", "tpu", "gpu"], help=argparse.SUPPRESS)
    parser.add_argument("--into", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.platform:
        make(arguments.platform, arguments.into)
        return
    if not arguments.check:
        refuse_another_version(arguments.force)
    with tempfile.TemporaryDirectory() as folder:
        for platform in ("cpu", "tpu", "gpu"):
            if platform != "cpu" and not plugin(platform):
                print(f"skipped: no {platform} plugin here")
                continue
            command = [sys.executable, __file__, "--platform", platform, "--into", folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if done.returncode:
                sys.exit(f"{platform}: exit code {done.returncode}\n{done.stderr[-4000:]}")
        if arguments.check:
            compare = check if is_made_with() else count
            sys.exit(1 if compare(pathlib.Path(folder)) else 0)
        shutil.copytree(folder, STORED, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
