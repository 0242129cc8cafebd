"""Compares meshloom's HLO text printer with XLA's.

    python3 tests/oracle/hlo_text.py --check    XLA's parser reads our text of every module, and reads the same module
    python3 tests/oracle/hlo_text.py --write    rewrites the golden files under tests/oracle/hlo

Needs jax (made with 0.10.2; checked up to 0.12.0.1) and, for --check, cargo. Every program below gives two modules: as lowered, and as
optimized by the CPU compiler. Checked of each module:
  - our `parseable()` text equals XLA's `to_string(HloPrintOptions())` with print_large_constants, byte for byte;
  - XLA's parser reads it, and the module it has read is the original one: XLA prints both alike (but for metadata and
    the order of computations, which reading renumbers);
  - XLA's parser reads our `canonical()` text;
  - XLA reads what our message types encode after decoding the module, and prints it the same.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

try:
    from jaxlib import _hlo as hlo
except ImportError:  # before jaxlib 0.9
    from jax._src.lib import xla_client

    hlo = xla_client._xla

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "oracle" / "hlo"
# Small modules that between them, and with TEXTS, have most of the syntax; the others are only checked live.
GOLDEN_NAMES = {
    "all_to_all.opt", "cond", "conv", "custom_call", "donated.opt", "fft", "float_constants", "gather_scatter", "gspmd",
    "gspmd.opt", "integer_constants", "matmul.opt", "nans", "nested_constants", "pad_slice", "pool", "precision",
    "psum", "ragged_dot", "scan_remat_grad", "sort", "switch", "triangular", "while_loop.opt",
}


def programs():
    """Yields (name, jitted function, arguments)."""
    f32 = jnp.float32
    x = jnp.ones((4, 8), f32)
    w = jnp.ones((8, 16), f32)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))

    yield "matmul", lambda x, w: jax.nn.relu(x @ w).sum(axis=1), (x, w)
    yield "batched_dot", lambda a, b: jnp.einsum("bij,bjk->bik", a, b, precision="highest"), (
        jnp.ones((3, 4, 5)), jnp.ones((3, 5, 6)))

    def layers(ws, x):
        body = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
        return lax.scan(body, x, ws)[0].sum()

    yield "scan_remat_grad", jax.grad(layers, argnums=(0, 1)), (jnp.ones((3, 8, 8)), x)

    spec = NamedSharding(mesh, P("data", "model"))
    yield "gspmd", jax.jit(lambda x, w: lax.with_sharding_constraint(x @ w, spec), in_shardings=(
        NamedSharding(mesh, P("data", None)), NamedSharding(mesh, P(None, "model"))), out_shardings=spec), (x, w)
    yield "donated", jax.jit(lambda x, y: (x + 1, y * 2, x[0]), donate_argnums=(0, 1)), (x, x)

    def shard_map(f, in_specs, out_specs):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))

    yield "psum", shard_map(lambda x: lax.psum(x, "data") + lax.pmax(x, ("data", "model")), P("data", "model"),
                            P()), (x,)
    yield "all_gather", shard_map(lambda x: lax.all_gather(x, "model", axis=1, tiled=True), P("data", "model"),
                                  P("data")), (x,)
    yield "reduce_scatter", shard_map(lambda x: lax.psum_scatter(x, "model", scatter_dimension=1, tiled=True),
                                      P("data"), P("data", "model")), (x,)
    yield "ppermute", shard_map(lambda x: lax.ppermute(x, "model", [(i, (i + 1) % 4) for i in range(4)]),
                                P("data", "model"), P("data", "model")), (x,)
    yield "all_to_all", shard_map(lambda x: lax.all_to_all(x, "model", 1, 0, tiled=True), P("data"),
                                  P("data")), (x,)
    yield "axis_index", shard_map(lambda x: x + lax.axis_index("model"), P("data", "model"), P("data", "model")), (x,)

    image = jnp.ones((2, 9, 9, 4))
    kernel = jnp.ones((3, 3, 2, 8))
    yield "conv", jax.grad(lambda i, k: lax.conv_general_dilated(
        i, k, (2, 1), ((1, 2), (0, 1)), lhs_dilation=(1, 1), rhs_dilation=(1, 2),
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2).sum(), argnums=(0, 1)), (image, kernel)
    yield "pool", jax.grad(lambda i: lax.reduce_window(
        i, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), ((0, 0), (0, 1), (1, 0), (0, 0))).sum()), (image,)
    yield "sort", lambda k, v: lax.sort((k, v), dimension=1, is_stable=True, num_keys=1), (x, x)
    yield "gather_scatter", jax.value_and_grad(lambda t, i: t[i].sum() + jnp.take_along_axis(
        t, i[:, None], axis=1).sum()), (jnp.ones((5, 5)), jnp.arange(5))
    yield "scatter_add", lambda t, i, u: t.at[i].add(u, unique_indices=True, indices_are_sorted=True), (
        jnp.ones((6, 3)), jnp.arange(2), jnp.ones((2, 3)))
    yield "top_k", lambda x: lax.top_k(x, 3), (x,)
    yield "cond", lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), (True, x)
    yield "switch", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * x], x), (1, x)
    yield "while_loop", lambda x: lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 1, c[1] * 2), (0, x)), (x,)
    yield "random", lambda k: (jax.random.normal(k, (5,)), jax.random.bits(k, (3,))), (jax.random.key(0),)
    yield "rng_bits", lambda k: lax.rng_bit_generator(k, (5,)), (jnp.zeros((4,), jnp.uint32),)
    yield "cumsum", lambda x: (jnp.cumsum(x, axis=1), lax.cummax(x, axis=0)), (x,)
    yield "custom_call", lambda a: jnp.linalg.cholesky(a) + jnp.linalg.eigh(a)[1], (jnp.eye(4),)
    yield "triangular", lambda a, b: lax.linalg.triangular_solve(
        a, b, left_side=True, lower=True, transpose_a=True), (jnp.eye(4), jnp.ones((4, 2)))
    yield "fft", lambda x: (jnp.fft.fft(x), jnp.fft.rfft(x), jnp.fft.irfft(x + 0j)), (x,)
    yield "pad_slice", lambda x: (lax.pad(x, f32(0), ((1, 2, 0), (0, -1, 1))), x[1:3, ::2], lax.rev(x, (1,)),
                                  lax.dynamic_slice(x, (1, 2), (2, 3)),
                                  lax.dynamic_update_slice(x, x[:1], (2, 0))), (x,)
    yield "casts", lambda x: (lax.reduce_precision(x, 5, 7), lax.bitcast_convert_type(x, jnp.int32), lax.clamp(
        f32(0), x, f32(1)), lax.is_finite(x), x.astype(jnp.bfloat16), lax.optimization_barrier((x, x))), (x,)
    yield "ragged_dot", lax.ragged_dot, (x, jnp.ones((2, 8, 3)), jnp.array([1, 3], jnp.int32))
    yield "precision", lambda x, w: (
        jnp.dot(x, w, precision=lax.DotAlgorithmPreset.BF16_BF16_F32),
        jnp.dot(x, w, precision=("high", "default"))), (x, w)
    yield "callback", lambda x: jax.pure_callback(lambda v: np.sin(v), jax.ShapeDtypeStruct((4, 8), f32), x), (x,)
    yield "host_token", lambda x: (jax.debug.print("{}", x, ordered=True), x)[1], (x,)
    yield "accuracy", lambda x: (lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST),
                                 lax.log(x, accuracy=lax.Tolerance(atol=1e-3, rtol=0.5, ulps=2))), (x,)
    yield "many_arguments", lambda *a: lax.while_loop(
        lambda c: c[0] < 3, lambda c: (c[0] + 1,) + tuple(v * 2 for v in c[1:]), (0,) + a), tuple(
            jnp.full((2,), i, f32) for i in range(12))
    yield "names", lambda tree: {"a\"b": tree["x'y"] + 1, "é": tree["z"]}, ({"x'y": x, "z": x},)

    special = [0.0, -0.0, 1.0, -1.5, 1 / 3, 0.1, 1e-5, 1e-7, 123456.0, 1234567.0, 1e20, 3.4e38, 1e-40, np.inf, -np.inf,
               np.nan, 65504.0, 448.0, 240.0, 57344.0, 2.5, 7.0, 1e6, 999999.0, 100000.0]
    kinds = ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
             "float8_e5m2fnuz", "float8_e4m3b11fnuz", "float8_e3m4", "float8_e4m3", "float8_e8m0fnu"]

    def floats():
        return tuple(jnp.asarray(np.array(special).astype(jnp.dtype(kind))) for kind in kinds)

    yield "float_constants", floats, ()

    def bits():
        every = np.arange(256, dtype=np.uint8)
        return tuple(jnp.asarray(every.view(jnp.dtype(kind))) for kind in kinds[4:])

    yield "all_fp8", bits, ()

    def nans():
        f32_bits = np.array([0x7fc00000, 0xffc00000, 0x7fc00001, 0x7f800001, 0xff800001], np.uint32)
        return (jnp.asarray(f32_bits.view(np.float32)),
                jnp.asarray(np.array([0x7e00, 0xfe00, 0x7c01, 0x7fff], np.uint16).view(np.float16)),
                jnp.asarray(np.array([0x7fc0, 0xffc0, 0x7f81, 0x7fff], np.uint16).view(jnp.bfloat16)))

    yield "nans", nans, ()

    def integers():
        signed = [-128, -1, 0, 1, 127]
        return (jnp.array(signed, jnp.int8), jnp.array([255, 0], jnp.uint8), jnp.array([-32768, 32767], jnp.int16),
                jnp.array([65535], jnp.uint16), jnp.array([-2**31, 2**31 - 1], jnp.int32),
                jnp.array([2**32 - 1], jnp.uint32), jnp.array([-2**63, 2**63 - 1], jnp.int64),
                jnp.array([2**64 - 1], jnp.uint64), jnp.array([-8, 7, -1], jnp.int4), jnp.array([15, 0, 3], jnp.uint4),
                jnp.asarray(np.array(
                    [0, -0.5, 1, 1.5, -6], jnp.float4_e2m1fn)), jnp.array([-2, 1, -1], jnp.int2), jnp.array([3, 0, 1, 2, 3], jnp.uint2),
                jnp.array([True, False]), jnp.bool_(True), jnp.array([1 + 2j, complex(np.inf, -0.0)], jnp.complex64),
                jnp.array([1 / 3 + 2j], jnp.complex128))

    yield "integer_constants", integers, ()
    yield "nested_constants", lambda: tuple(
        jnp.asarray(np.arange(np.prod(s), dtype=np.float32).reshape(s)) for s in
        [(3,), (1,), (2, 3), (2, 1), (1, 1), (2, 2, 2), (2, 1, 2, 2), (1, 2, 1, 2, 2), (0,), (2, 0), (0, 3),
         (2, 0, 2)]), ()


# Syntax that JAX programs on a CPU do not give: HLO as text, to be turned into protos by XLA's parser.
TEXTS = {
    "async": """HloModule m
%wrapped (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %cc = f32[8]{0} custom-call(%p), custom_call_target="foo", api_version=API_VERSION_STATUS_RETURNING
}, execution_thread="host"
ENTRY %e (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %s = ((f32[8]{0}), f32[8]{0}, s32[]) async-start(%x), async_execution_thread="host", calls=%wrapped
  %u = ((f32[8]{0}), f32[8]{0}, s32[]) async-update(%s)
  ROOT %d = f32[8]{0} async-done(%u)
}""",
    "async_large": """HloModule m
%wrapped (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %n = f32[8]{0} negate(%p)
  ROOT %cc = f32[8]{0} custom-call(%n), custom_call_target="foo"
}
ENTRY %e (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %s = ((f32[8]{0}), f32[8]{0}, s32[]) async-start(%x), calls=%wrapped
  ROOT %d = f32[8]{0} async-done(%s)
}""",
    "collective_starts": """HloModule m, num_partitions=8
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
ENTRY %e (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %ags = (f32[8]{0}, f32[64]{0}) all-gather-start(%x), channel_id=1, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true
  %agd = f32[64]{0} all-gather-done(%ags)
  %ars = f32[8]{0} all-reduce-start(%x), channel_id=2, replica_groups=[2,4]<=[4,2]T(1,0), use_global_device_ids=true, to_apply=%add
  %ard = f32[8]{0} all-reduce-done(%ars)
  %cps = (f32[8]{0}, f32[8]{0}, u32[], u32[]) collective-permute-start(%x), channel_id=3, source_target_pairs={{0,1},{1,0}}
  %cpd = f32[8]{0} collective-permute-done(%cps)
  %cb = f32[8]{0} collective-broadcast(%x), channel_id=4, replica_groups={{0,1},{2,3}}
  %rs = f32[1]{0} reduce-scatter(%x), channel_id=5, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, dimensions={0}, to_apply=%add
  %a2a = f32[8]{0} all-to-all(%x), channel_id=6, replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %pid = u32[] partition-id()
  %rid = u32[] replica-id()
  ROOT %r = f32[8]{0} add(%ard, %cpd), control-predecessors={%cb, %rs}
}""",
    "mesh_groups": """HloModule m, num_partitions=8
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
ENTRY %e (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %r = f32[8]{0} all-reduce(%x), channel_id=2, replica_groups=mesh["a"=2,"b"=4] {"a","b":(1)2}, use_global_device_ids=true, to_apply=%add
}""",
    "shardings": """HloModule m, num_partitions=8
ENTRY %e (x: f32[8,4]) -> (f32[8,4], f32[8,4]) {
  %x = f32[8,4]{1,0} parameter(0), sharding={devices=[4,2]<=[2,4]T(1,0)}
  %a = f32[8,4]{1,0} copy(%x), sharding={replicated}
  %b = f32[8,4]{1,0} copy(%a), sharding={maximal device=3}
  %c = f32[8,4]{1,0} copy(%b), sharding={manual}
  %d = f32[8,4]{1,0} copy(%c), sharding={devices=[2,1,4]<=[8] last_tile_dim_replicate}
  %f = f32[8,4]{1,0} copy(%d), sharding={devices=[2,1,2,2]<=[8] last_tile_dims={manual, replicated}}
  %g = f32[8,4]{1,0} copy(%f), sharding={devices=[2,4]0,2,1,3,4,6,5,7}
  %h = f32[8,4]{1,0} copy(%g), sharding={unknown}
  %i = f32[8,4]{1,0} copy(%h), sharding={devices=[8,1]<=[8] shard_as 3}
  %j = f32[8,4]{1,0} copy(%i), sharding={replicated shard_like 4}
  %k = f32[8,4]{1,0} copy(%j), sharding={unreduced}
  %l = f32[8,4]{1,0} copy(%k), sharding={devices=[2,1,4]<=[8] last_tile_dims={unreduced} metadata={op_name="n" source_line=3}}
  ROOT %t = (f32[8,4]{1,0}, f32[8,4]{1,0}) tuple(%x, %l), sharding={{replicated}, {devices=[8,1]<=[8]}}
}""",
    "named_shardings": """HloModule m, num_partitions=8
ENTRY %e (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0), sharding={mesh["a"=2,"b"=4], [{"a"}, {"b"}]}
  %a = f32[8,4]{1,0} copy(%x), sharding={mesh["a"=2,"b"=4], replicated}
  %b = f32[8,4]{1,0} copy(%a), sharding={mesh["a"=2,"b"=4], [{"a", "b":(1)2}, {?}]}
  %c = f32[8,4]{1,0} copy(%b), sharding={mesh["a"=2,"b"=4], [{"a", ?}, {}], unreduced={"b"}}
  %d = f32[8,4]{1,0} copy(%c), sharding={mesh["a"=2,"b"=4], manual}
  %f = f32[8,4]{1,0} copy(%d), sharding={mesh["a"=2,"b"=4], [{}, {}], replicated={"a"}, manual={"b"}}
  %g = f32[8,4]{1,0} copy(%f), sharding={mesh["a"=2,"b"=4], device_ids=(0,2,1,3,4,6,5,7), [{"a"}, {"b"}]}
  ROOT %h = f32[8,4]{1,0} copy(%g), sharding={maximal_mesh[device_id=3]}
}""",
    "layouts": """HloModule m
ENTRY %e (x: f32[8,128], y: s4[16]) -> bf16[128,8] {
  %x = f32[8,128]{0,1:T(8,128)S(1)} parameter(0)
  %y = s4[16]{0:T(8)(2,1)E(4)} parameter(1)
  %z = f32[8,128]{1,0:T(8,128)(2,1)L(1024)S(5)} copy(%x)
  %s = f32[8,128]{1,0:SC(0:4)} copy(%z)
  ROOT %c = bf16[128,8]{0,1:T(8,128)(2,1)} bitcast(%s)
}""",
    "dynamic": """HloModule m
ENTRY %e (x: f32[<=8,4], n: s32[]) -> s32[] {
  %x = f32[<=8,4]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %s = f32[<=8,4]{1,0} set-dimension-size(%x, %n), dimensions={0}
  ROOT %g = s32[] get-dimension-size(%s), dimensions={0}
}""",
    "host": """HloModule m
ENTRY %e () -> f32[4] {
  %t = token[] after-all()
  %i = (f32[4]{0}, token[]) infeed(%t), infeed_config="a\\"b"
  %v = f32[4]{0} get-tuple-element(%i), index=0
  %o = token[] outfeed(%v, %t), outfeed_shape=f32[4]{0}, outfeed_config="z"
  %s = (f32[4]{0}, u32[], token[]) send(%v, %o), channel_id=7, is_host_transfer=true
  %sd = token[] send-done(%s), channel_id=7, is_host_transfer=true
  %r = (f32[4]{0}, u32[], token[]) recv(%sd), channel_id=8
  %rd = (f32[4]{0}, token[]) recv-done(%r), channel_id=8
  %w = f32[4]{0} get-tuple-element(%rd), index=0
  %ad = f32[4]{0} add-dependency(%w, %sd)
  %c = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(%ad), cross_program_prefetch_index=0
  ROOT %cd = f32[4]{0} copy-done(%c)
}""",
    "attributes": """HloModule m, input_output_alias={ {1}: (0, {}, must-alias), {0}: (1, {}, may-alias) }, buffer_donor={ (2, {}) }, frontend_attributes={b="x",a={"k":1}}
%max (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] maximum(%a, %b)
}
%mapped (m: f32[]) -> f32[] {
  %m = f32[] parameter(0)
  ROOT %n = f32[] negate(%m)
}
%vector (v: f32[4]) -> f32[4] {
  ROOT %v = f32[4]{0} parameter(0)
}
ENTRY %e (x: f32[4], y: f32[4], z: f32[4]) -> (f32[4], f32[4]) {
  %x = f32[4]{0} parameter(0), parameter_replication={true}
  %y = f32[4]{0} parameter(1), frontend_attributes={q="1",p={"a":"}"}}
  %z = f32[4]{0} parameter(2), metadata={op_type="t" op_name="a'b" source_file="f.py" source_line=3}
  %d = f32[4]{0} domain(%x), domain={kind="sharding", entry={maximal device=1}, exit={maximal device=0}}
  %mp = f32[4]{0} map(%y), dimensions={0}, to_apply=%mapped
  %st = f32[4]{0} copy(%mp), statistics={visualizing_index=1,a=0.5,b=2}
  %k = (f32[2]{0}, s32[2]{0}) topk(%st), k=2, largest=true
  %lo = f32[] constant(0)
  %hi = f32[] constant(1)
  %rng = f32[4]{0} rng(%lo, %hi), distribution=rng_uniform
  %state = u64[1]{0} rng-get-and-update-state(), delta=4096
  %cmp = pred[4]{0} compare(%x, %y), direction=LT, type=TOTALORDER
  %cc = (f32[4]{0}) custom-call(%x, %y), custom_call_target="foo\\"bar", operand_layout_constraints={f32[4]{0}, f32[4]{0}}, custom_call_has_side_effect=true, output_to_operand_aliasing={{0}: (1, {})}, schedule=SCHEDULE_LATEST, api_version=API_VERSION_TYPED_FFI, backend_config={a = 1 : i32}, called_computations={%mapped}
  %ccl = f32[4]{0} custom-call(%x), custom_call_target="lit", literal=f32[2]{0} {1, 2}, backend_config="not json"
  %com = f32[4]{0} call(%x), to_apply=%vector, is_composite=true, frontend_attributes={composite.name="c"}
  %sq = f32[2,2]{1,0} reshape(%x)
  %cholesky = f32[2,2]{1,0} cholesky(%sq), lower=true
  %img = f32[2,2,2,2]{3,2,1,0} broadcast(%lo), dimensions={}
  %v2 = f32[2]{0} broadcast(%hi), dimensions={}
  %bn = f32[2,2,2,2]{3,2,1,0} batch-norm-inference(%img, %v2, %v2, %v2, %v2), epsilon=0.001, feature_index=3
  %u0 = u32[] constant(3)
  %u = u32[4]{0} broadcast(%u0), dimensions={}
  %sc = bf16[4]{0} stochastic-convert(%x, %u)
  ROOT %r = (f32[4]{0}, f32[4]{0}) tuple(%com, %d)
}""",
    "scheduled": """HloModule m, is_scheduled=true
ENTRY %e (x: f32[4], y: f32[4]) -> f32[4] {
  %y = f32[4]{0} parameter(1)
  %x = f32[4]{0} parameter(0)
  %b = f32[4]{0} negate(%y)
  %a = f32[4]{0} negate(%x)
  ROOT %r = f32[4]{0} add(%a, %b)
}""",
    "scan_op": """HloModule m
%body (a: f32[], b: f32[]) -> (f32[], f32[]) {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %c = f32[] add(%a, %b)
  ROOT %t = (f32[], f32[]) tuple(%c, %c)
}
ENTRY %e (x: f32[8], i: f32[]) -> (f32[8], f32[]) {
  %x = f32[8]{0} parameter(0)
  %i = f32[] parameter(1)
  ROOT %s = (f32[8]{0}, f32[]) scan(%x, %i), dimensions={0}, is_reverse=true, num_carries=1, is_associative=true, to_apply=%body
}""",
}


# What XLA prints since JAX 0.12, and as what we print it, which older versions read too.
NEWER = [("sharding={single_device[", "sharding={maximal_mesh["), (", has_dynamic_root=false", "")]


def options():
    result = hlo.HloPrintOptions()
    result.print_large_constants = True
    return result


def as_older(text):
    """XLA's text as an older version prints it."""
    for newer, older in NEWER:
        text = text.replace(newer, older)
    return text


def modules():
    """Yields (name, serialized HloModuleProto, XLA's text of it)."""
    jax.config.update("jax_enable_x64", True)
    # The paths of the machine that made the golden files are left out.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")

    def entry(name, serialized):
        # Through a proto, so that both sides print what the proto holds: it has no module configuration. Once more to
        # a proto, because XLA renumbers stack frames when it reads one.
        module = hlo.HloModule.from_serialized_hlo_module_proto(serialized)
        return name, module.as_serialized_hlo_module_proto(), module.to_string(options())

    for name, function, arguments in programs():
        arguments = tuple(
            a.astype(jnp.float32) if isinstance(a, jax.Array) and a.dtype == jnp.float64 else a for a in arguments)
        jitted = function if hasattr(function, "lower") else jax.jit(function)
        try:
            lowered = jitted.lower(*arguments)
        except Exception as error:
            print(f"SKIP  {name}: {str(error).splitlines()[0][:150]}")
            continue
        try:
            yield entry(name, lowered.compiler_ir("hlo").as_serialized_hlo_module_proto())
        except Exception as error:
            print(f"SKIP  {name}: {str(error).splitlines()[0][:150]}")
        try:
            compiled = lowered.compile()
        except Exception as error:
            print(f"SKIP  {name}.opt: {str(error).splitlines()[0][:150]}")
            continue
        for index, module in enumerate(compiled.runtime_executable().hlo_modules()):
            yield entry(f"{name}.opt" + (f"{index}" if index else ""), module.as_serialized_hlo_module_proto())
    for name, text in TEXTS.items():
        try:
            yield entry(f"text_{name}", hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
        except Exception as error:
            print(f"SKIP  text_{name}: {str(error)[:600]}")


def first_difference(ours, theirs):
    for number, (a, b) in enumerate(zip(ours.splitlines(), theirs.splitlines()), 1):
        if a != b:
            return f"line {number}\n    ours, or as read {a[:600]}\n    XLA's original   {b[:600]}"
    return f"{len(ours.splitlines())} lines, theirs {len(theirs.splitlines())}"


def parts(module):
    """The header and the computations in an order of their own: parsing renumbers what decides theirs.

    Without metadata, because reading renumbers stack frames.
    """
    without_metadata = options()
    without_metadata.print_metadata = False
    header, *computations = module.to_string(without_metadata).split("\n\n")
    return "\n\n".join([header] + sorted(computations))


def reading_differs(text, serialized):
    """What is different in the module that XLA's parser makes of `text`; None if nothing."""
    read = hlo.hlo_module_from_text(text)
    again = hlo.HloModule.from_serialized_hlo_module_proto(read.as_serialized_hlo_module_proto())
    read, original = parts(again), parts(hlo.HloModule.from_serialized_hlo_module_proto(serialized))
    return None if read == original else first_difference(read, original)


def check(folder):
    failures = 0
    total = 0
    kept = 0
    expected = {}
    serialized_modules = {}
    for name, serialized, text in modules():
        (folder / f"{name}.pb").write_bytes(serialized)
        expected[name] = text
        serialized_modules[name] = serialized
    environment = dict(os.environ, MESHLOOM_HLO_FOLDER=str(folder))
    subprocess.run(["cargo", "test", "--quiet", "--release", "--workspace", "--test", "hlo", "--", "--ignored", "--exact", "hlo::text::print_folder"],
                   cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    for name, text in expected.items():
        total += 1
        problems = []
        ours = (folder / f"{name}.ours.txt").read_text()
        if ours != as_older(text):
            problems.append("text differs: " + first_difference(ours, as_older(text)))
        try:
            difference = reading_differs(ours, serialized_modules[name])
            if difference:
                # What XLA's parser does not keep of our text it does not keep of XLA's own either.
                if difference == reading_differs(text, serialized_modules[name]):
                    print(f"NOTE  {name}: XLA's parser does not keep all of XLA's own text: {difference}")
                else:
                    problems.append("reads differently: " + difference)
            else:
                kept += 1
        except Exception as error:
            problems.append(f"XLA does not read it: {str(error)[:800]}")
        encoded = hlo.HloModule.from_serialized_hlo_module_proto((folder / f"{name}.encoded").read_bytes())
        if encoded.to_string(options()) != text:
            problems.append("our message types lose: " + first_difference(encoded.to_string(options()), text))
        try:
            hlo.hlo_module_from_text((folder / f"{name}.canonical.txt").read_text())
        except Exception as error:
            problems.append(f"XLA does not read the canonical form: {str(error)[:800]}")
        if problems:
            failures += 1
            for problem in problems:
                print(f"FAIL  {name}: {problem}")
    print(f"{total - failures} of {total} modules agree; {kept} of them XLA's parser reads back without loss")
    return failures


def write():
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for old in GOLDEN.glob("*.*"):
        old.unlink()
    for name, serialized, text in modules():
        if name in GOLDEN_NAMES or name.startswith("text_"):
            (GOLDEN / f"{name}.pb").write_bytes(serialized)
            (GOLDEN / f"{name}.txt").write_text(text)




def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--write", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path, help="folder in which to leave the files of --check")
    arguments = parser.parse_args()
    if arguments.write:
        write()
        return 0
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        return 1 if check(arguments.keep) else 0
    with tempfile.TemporaryDirectory() as folder:
        return 1 if check(pathlib.Path(folder)) else 0


if __name__ == "__main__":
    sys.exit(main())
