"""A profile that meshloom did not make: two runs of a JAX program on eight CPU devices, with the program in it.

    python3 tests/oracle/profile.py     rewrites tests/foreign/profile/scan_remat.cpu.xplane.pb

Needs jax (made with 0.10.2). The times are those of whatever machine ran it; tests hold to how many events there are.
"""

import os
import pathlib
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import foreign_programs
import jax
import numpy as np
from jax.sharding import Mesh

STORED = pathlib.Path(__file__).resolve().parents[1] / "foreign" / "profile" / "scan_remat.cpu.xplane.pb"
RUNS = 2


def main():
    jax.config.update("jax_traceback_in_locations_limit", 2)
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/(?=tests/oracle/)")
    program, axes = foreign_programs.PROGRAMS["scan_remat"]
    traced = program(Mesh(np.array(jax.devices()).reshape(tuple(axes.values())), tuple(axes)))
    compiled = traced.lower().compile()
    shapes, _ = traced.in_avals
    zeros = jax.tree.map(lambda aval, sharding: jax.device_put(np.zeros(aval.shape, aval.dtype), sharding),
                         shapes, compiled.input_shardings[0])
    parameters, *batch = zeros
    jax.block_until_ready(zeros)
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level, options.python_tracer_level = 1, 0
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        for _ in range(RUNS):
            _, parameters = compiled(parameters, *batch)
            jax.block_until_ready(parameters)
        jax.profiler.stop_trace()
        made, = pathlib.Path(folder).rglob("*.xplane.pb")
        STORED.parent.mkdir(exist_ok=True)
        STORED.write_bytes(made.read_bytes())


main()
