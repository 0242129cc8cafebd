"""Tests of the module that need no JAX; tests/oracle/python_module.py has those that do.

    HLO_DUMP=target/release/hlo-dump PYTHONPATH=python python3 python/tests/test_hlo_dump.py
"""

import contextlib
import doctest
import os
import pathlib
import tempfile
import types
import unittest
from unittest import mock

import hlo_dump
from hlo_dump import _input, _testing, _watch

EXAMPLE = """HloModule step, num_partitions=8
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
ENTRY %main (x: f32[256]) -> f32[256] {
  %x = f32[256] parameter(0)
  ROOT %sum = f32[256] all-reduce(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}, use_global_device_ids=true, channel_id=1, to_apply=%add
}
"""
MESH = "data=2,fsdp=4"

UNKNOWN_LOOP = """HloModule step, num_partitions=2
%condition (s: (f32[4], pred[])) -> pred[] {
  %s = (f32[4], pred[]) parameter(0)
  ROOT %more = pred[] get-tuple-element(%s), index=1
}
%body (s: (f32[4], pred[])) -> (f32[4], pred[]) {
  %s = (f32[4], pred[]) parameter(0)
  %x = f32[4] get-tuple-element(%s), index=0
  %more = pred[] get-tuple-element(%s), index=1
  %y = f32[4] collective-permute(%x), source_target_pairs={{0,1},{1,0}}, channel_id=1
  ROOT %t = (f32[4], pred[]) tuple(%y, %more)
}
ENTRY %main (s: (f32[4], pred[])) -> (f32[4], pred[]) {
  %s = (f32[4], pred[]) parameter(0)
  ROOT %w = (f32[4], pred[]) while(%s), condition=%condition, body=%body
}
"""


def load_tests(loader, tests, pattern):
    """The examples of the docstrings are tests."""
    for module in (hlo_dump, _testing, _watch):
        tests.addTests(doctest.DocTestSuite(module, extraglobs={"EXAMPLE": EXAMPLE}))
    return tests


class Inputs(unittest.TestCase):
    def counts(self, x, **named):
        return hlo_dump.collectives(x, mesh=named.get("mesh", MESH)).counts()

    def test_all_forms_of_an_input_are_one_program(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
            path = pathlib.Path(folder, "step.txt")
            path.write_text(EXAMPLE)
            pathlib.Path(folder, "-dash.txt").write_text(EXAMPLE)
            forms = [EXAMPLE, EXAMPLE.encode(), bytearray(EXAMPLE.encode()), path, str(path)]
            if hasattr(contextlib, "chdir"):
                forms.append("-dash.txt")
            for form in forms:
                self.assertEqual(self.counts(form), {"all-reduce": {"data": 1}})

    def test_objects_of_jax(self):
        module = types.SimpleNamespace(name="step", as_serialized_hlo_module_proto=EXAMPLE.encode)
        executable = types.SimpleNamespace(hlo_modules=lambda: [module])
        lowered = types.SimpleNamespace(as_text=lambda debug_info: EXAMPLE if debug_info else "")
        # Versions without the argument.
        old = types.SimpleNamespace(as_text=lambda: EXAMPLE)
        compiled = types.SimpleNamespace(runtime_executable=lambda: executable, as_text=lambda: "")
        exported = types.SimpleNamespace(mlir_module=lambda: EXAMPLE)
        for x in [executable, lowered, old, compiled, exported]:
            self.assertEqual(self.counts(x), {"all-reduce": {"data": 1}})

    def test_meshes(self):
        shape = types.SimpleNamespace(shape={"data": 2, "fsdp": 4})
        for mesh in [MESH, {"data": 2, "fsdp": 4}, shape]:
            self.assertEqual(self.counts(EXAMPLE, mesh=mesh), {"all-reduce": {"data": 1}})
        self.assertEqual(self.counts(EXAMPLE, mesh=None), {"all-reduce": {"?": 1}})
        with self.assertRaisesRegex(TypeError, "names no mesh axes"):
            self.counts(EXAMPLE, mesh=8)
        with self.assertRaisesRegex(hlo_dump.HloDumpError, "devices"):
            self.counts(EXAMPLE, mesh="data=3")

    def test_what_is_no_program(self):
        class Jitted:
            def lower(self):
                raise AssertionError("it must not be lowered")

        with self.assertRaisesRegex(TypeError, r"Jitted has no module.*f\.lower"):
            hlo_dump.collectives(Jitted())
        with self.assertRaisesRegex(TypeError, "int has no module"):
            hlo_dump.collectives(1)
        with self.assertRaisesRegex(hlo_dump.HloDumpError, "no-such-file.txt: cannot open it"):
            hlo_dump.memory("no-such-file.txt")
        with self.assertRaisesRegex(hlo_dump.HloDumpError, "kind"):
            hlo_dump.collectives(EXAMPLE, kind="all-gathre")

    def test_a_program_that_is_not_there(self):
        with mock.patch.dict(os.environ, {"PATH": "", "HLO_DUMP": ""}), mock.patch("sysconfig.get_path", lambda *_: "/no"):
            with mock.patch("sys.executable", "/no/python"), self.assertRaisesRegex(hlo_dump.HloDumpError, "set HLO_DUMP"):
                hlo_dump.program()


class Answers(unittest.TestCase):
    def test_an_unknown_number_of_executions_is_an_error(self):
        found = hlo_dump.collectives(UNKNOWN_LOOP)
        self.assertIsNone(found[0].executions)
        for figures in [found.counts, found.moved_over]:
            with self.assertRaisesRegex(ValueError, "collective-permute y"):
                figures()

    def test_figures(self):
        found = hlo_dump.collectives(EXAMPLE, mesh=MESH)
        # An all-reduce of 1 KiB over two devices by a ring: 2 x 1/2 of it.
        self.assertEqual((len(found), found.executions, found.moved_bytes, found.moved_over()), (1, 1, 1024, {"data": 1024}))
        self.assertEqual(repr(found), "<Collectives of step>")
        self.assertEqual((found.module, found.devices, found.mesh, found.partitioned), ("step", 8, MESH, True))
        self.assertIn("all-reduce", str(found))
        self.assertIn("<pre>step", found._repr_html_())
        memory = hlo_dump.memory(EXAMPLE)
        self.assertEqual((memory.arguments, memory.outputs, memory.aliased), (1024, 1024, 0))
        self.assertGreaterEqual(memory.peak, 2048)
        self.assertTrue(memory.live_at_peak and memory.form)
        cost = hlo_dump.cost(EXAMPLE, chip="v5p")
        self.assertEqual((cost.bytes_read, cost.bytes_written, cost.moved_bytes), (1024, 1024, 1024))
        self.assertGreater(cost.seconds, 0)
        self.assertIsNone(hlo_dump.cost(EXAMPLE).seconds)

    def test_a_schedule(self):
        compiled = EXAMPLE.replace("step,", "step, is_scheduled=true,")
        found = hlo_dump.overlap(compiled, chip="v5p", mesh=MESH)
        # 1 KiB over the 200 GB/s of a ring; nothing runs beside it.
        self.assertAlmostEqual(found.total.seconds * 1e9, 1024 / 200, places=6)
        self.assertEqual((len(found), found[0].over, found.total.share), (1, "data", 0.0))
        self.assertEqual(found.axes["data"], found.total)
        self.assertEqual((found.waiting_seconds, found.host_copies), (found.total.waited_seconds, []))
        self.assertIn("on v5p, at peak rates", str(found))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "step.json")
            hlo_dump.overlap(compiled, chip="v5p", perfetto=path)
            self.assertIn("traceEvents", path.read_text())
        with self.assertRaisesRegex(hlo_dump.HloDumpError, "no schedule"):
            hlo_dump.overlap(EXAMPLE, chip="v5p")

    def test_differences(self):
        other = EXAMPLE.replace("all-reduce(%x)", "all-reduce(%n)").replace(
            "  ROOT %sum", "  %n = f32[256] negate(%x)\n  ROOT %sum"
        )
        same, different = hlo_dump.diff(EXAMPLE, EXAMPLE), hlo_dump.diff(EXAMPLE, other)
        self.assertFalse(same)
        self.assertTrue(different)
        self.assertIn("negate", str(different))

    def test_limits(self):
        held = hlo_dump.check(EXAMPLE, mesh=MESH, max_collectives=1, max_memory="16MiB", deny=["all-gather"])
        self.assertTrue(held)
        self.assertEqual(held.violations, {})
        broken = hlo_dump.check(EXAMPLE, mesh=MESH, max_bytes_over={"data": "1000B"}, max_collectives_over={"data": 0})
        self.assertFalse(broken)
        self.assertEqual(len(broken.violations), 2)
        self.assertIn("too many", str(broken))

    def test_a_page_without_names(self):
        secret = EXAMPLE.replace("step", "zebra").replace("%sum", "%zebra.1")
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder, "page.html")
            for redact, is_there in [(False, True), (True, False), ("key", False)]:
                hlo_dump.report(secret, page, redact=redact)
                self.assertEqual("zebra" in page.read_text(encoding="utf-8"), is_there)

    def test_assertions(self):
        hlo_dump.assert_collectives(EXAMPLE, {"all-reduce": {"data": 1}}, mesh=MESH, max_bytes_over={"data": 1024})
        with self.assertRaisesRegex(AssertionError, "max-bytes-over data=1000 B: .* too many"):
            hlo_dump.assert_collectives(EXAMPLE, mesh=MESH, max_bytes_over={"data": 1000})
        with self.assertRaisesRegex(AssertionError, "max-memory"):
            hlo_dump.assert_collectives(EXAMPLE, mesh=MESH, max_memory=1)
        with self.assertRaisesRegex(AssertionError, r"all-reduce over data runs 1 time, expected 2\n    1 x %sum"):
            hlo_dump.assert_collectives(EXAMPLE, {"all-reduce": {"data": 2}}, mesh=MESH)


class Watching(unittest.TestCase):
    def test_without_jax(self):
        with mock.patch.dict("sys.modules", {"jax": None}), self.assertRaisesRegex(RuntimeError, "JAX cannot be imported"):
            with hlo_dump.watch():
                pass

    def jax_without_hook(self, started):
        jax = types.SimpleNamespace(__version__="9.9", _src=types.SimpleNamespace(compiler=types.SimpleNamespace()))
        jax._src.xla_bridge = types.SimpleNamespace(backends_are_initialized=lambda: started)
        names = {"jax": jax, "jax._src": jax._src, "jax._src.compiler": jax._src.compiler}
        return mock.patch.dict("sys.modules", names)

    def test_a_version_without_the_hook_is_asked_for_dumps(self):
        flags = "--xla_some_flag=1"
        with self.jax_without_hook(started=False), mock.patch.dict(os.environ, {"XLA_FLAGS": flags}):
            with hlo_dump.watch() as programs:
                given = os.environ["XLA_FLAGS"]
                self.assertTrue(given.startswith(flags), given)
                folder = pathlib.Path(given.partition("--xla_dump_to=")[2].split()[0])
                # As XLA writes them: a second program, then the first, in two forms; and files that are something else.
                for name in ["0002.jit_b.cpu", "0001.jit_a.cpu"]:
                    for ending in [".hlo.pb", ".txt", "-buffer-assignment.txt"]:
                        (folder / f"module_{name}_after_optimizations{ending}").write_text(EXAMPLE)
                (folder / "module_0001.jit_a.before_optimizations.txt").write_text("")
            self.assertEqual([program.name for program in programs], ["jit_a", "jit_b"])
            self.assertEqual(hlo_dump.collectives(programs[0], mesh=MESH).counts(), {"all-reduce": {"data": 1}})
            with hlo_dump.watch() as later:
                pass
            self.assertEqual(later, [])

    def test_a_folder_of_dumps_that_is_there_is_taken(self):
        with tempfile.TemporaryDirectory() as folder, self.jax_without_hook(started=True):
            path = pathlib.Path(folder, "module_0001.jit_a.cpu_after_optimizations.txt")
            path.write_text(EXAMPLE)
            with mock.patch.dict(os.environ, {"XLA_FLAGS": f"--xla_dump_to={folder}"}):
                with hlo_dump.watch() as programs:
                    path.with_name("module_0002.jit_b.cpu_after_optimizations.txt").write_text(EXAMPLE)
            self.assertEqual([program.name for program in programs], ["jit_b"])

    def test_dumps_are_asked_for_too_late(self):
        with self.jax_without_hook(started=True), mock.patch.dict(os.environ, {"XLA_FLAGS": ""}):
            with self.assertRaisesRegex(RuntimeError, "JAX 9.9 .*read XLA_FLAGS already"):
                with hlo_dump.watch():
                    pass


if __name__ == "__main__":
    unittest.main()
