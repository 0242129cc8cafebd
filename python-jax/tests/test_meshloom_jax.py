"""Tests of the module that need no JAX; tests/oracle/plugin.py has those that do.

    PYTHONPATH=python-jax python3 python-jax/tests/test_meshloom_jax.py
"""

import os
import pathlib
import re
import tempfile
import unittest
import zipfile
from unittest import mock

import meshloom_jax
from meshloom_jax import _find

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Finding(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(self.folder)}, clear=True))
        self.enterContext(mock.patch.object(_find.sys, "path", ["", str(self.folder / "site")]))
        for name in ("_has_tpu", "_has_gpu"):
            self.enterContext(mock.patch.object(_find, name, lambda: False))

    def file(self, *parts):
        path = self.folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return str(path.resolve())

    def test_the_wheels_are_those_of_the_pinned_table(self):
        text = (ROOT / "crates/pjrt/src/wheels.rs").read_text()
        rows = re.findall(r'platform: "cpu",\s+package: package! \{\s+"(.*?)" "(.*?)".*?object: "(.*?)"', text, re.DOTALL)
        self.assertEqual(rows, _find.CPU_WHEELS)
        objects = re.findall(r'platform: "(cuda|tpu)",.*?object: "(.*?)"', text, re.DOTALL)
        ours = [("cuda", one) for one in _find.CUDA_OBJECTS] + [("tpu", one) for one in _find.TPU_OBJECTS]
        self.assertEqual(set(objects), set(ours))

    def test_a_named_file_comes_first(self):
        named, other = self.file("my", "plugin.so"), self.file("libtpu.so")
        with mock.patch.dict(os.environ, MESHLOOM_PLUGIN_INNER=named):
            self.assertEqual(_find.find_inner(None), _find.Inner(named, None))
            self.assertEqual(_find.find_inner(other), _find.Inner(other, "tpu"))
        with mock.patch.dict(os.environ, MESHLOOM_PLUGIN_INNER="/nowhere"):
            with self.assertRaisesRegex(meshloom_jax.MeshloomError, "there is no plugin /nowhere"):
                _find.find_inner(None)

    def test_devices_decide(self):
        cached = self.file("meshloom", "plugins", "lammps-jax-pjrt-cpu-0.11.2", "pjrt_c_api_cpu_plugin.so")
        tpu, cuda = self.file("site", "libtpu", "libtpu.so"), self.file("site", _find.CUDA_OBJECTS[1])
        self.assertEqual(_find.find_inner(None), _find.Inner(cached, "cpu"))
        with mock.patch.object(_find, "_has_gpu", lambda: True):
            self.assertEqual(_find.find_inner(None), _find.Inner(cuda, "cuda"))
        with mock.patch.object(_find, "_has_tpu", lambda: True):
            self.assertEqual(_find.find_inner(None), _find.Inner(tpu, "tpu"))

    def test_a_cache_that_others_write_is_passed_over(self):
        self.file("meshloom", "plugins", "lammps-jax-pjrt-cpu-0.11.2", "pjrt_c_api_cpu_plugin.so")
        (self.folder / "meshloom").chmod(0o777)
        with self.assertRaisesRegex(meshloom_jax.MeshloomError, "pip install lammps-jax-pjrt-cpu==0.11.2"):
            _find.find_inner(None)

    def test_a_missing_library_says_how_it_is_built(self):
        with self.assertRaisesRegex(meshloom_jax.MeshloomError, "cargo build --release -p meshloom-plugin"):
            _find.find_library(self.folder / "none.so")


class Switch(unittest.TestCase):
    def enabled(self, **variables):
        with mock.patch.dict(os.environ, variables, clear=True), mock.patch.object(meshloom_jax, "enable") as enable:
            meshloom_jax.initialize()
        return enable.called

    def test_it_is_off_unless_asked_for(self):
        self.assertFalse(self.enabled())
        self.assertFalse(self.enabled(MESHLOOM="0", JAX_PLATFORMS="cpu"))
        self.assertTrue(self.enabled(MESHLOOM="1"))
        self.assertTrue(self.enabled(JAX_PLATFORMS="meshloom,cpu"))
        with self.assertRaisesRegex(meshloom_jax.MeshloomError, "'yes', expected 1 or 0"):
            self.enabled(MESHLOOM="yes")


class Wheel(unittest.TestCase):
    def test_it_has_the_entry_point_and_the_plugin(self):
        import importlib.util

        spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "python-jax/build_wheel.py")
        backend = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(backend)
        with tempfile.TemporaryDirectory() as folder:
            plugin = pathlib.Path(folder, "built.so")
            plugin.write_bytes(b"plugin")
            with mock.patch.dict(os.environ, MESHLOOM_PLUGIN_LIBRARY=str(plugin)):
                name = backend.build_wheel(folder)
            with zipfile.ZipFile(pathlib.Path(folder, name)) as wheel:
                self.assertEqual(wheel.read("meshloom_jax/libmeshloom_plugin.so"), b"plugin")
                entries = next(one for one in wheel.namelist() if one.endswith("entry_points.txt"))
                self.assertEqual(wheel.read(entries), b"[jax_plugins]\nmeshloom = meshloom_jax\n")
                self.assertIn("meshloom_jax/_find.py", wheel.namelist())


if __name__ == "__main__":
    unittest.main()
