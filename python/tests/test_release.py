"""The steps of a release that need no network, by .ci/release.

    HLO_DUMP=target/release/hlo-dump python3 python/tests/test_release.py
"""

import contextlib
import importlib.util
import io
import os
import pathlib
import tempfile
import types
import unittest
from importlib.machinery import SourceFileLoader
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
loader = SourceFileLoader("release", str(ROOT / ".ci" / "release"))
release = importlib.util.module_from_spec(importlib.util.spec_from_loader("release", loader))
loader.exec_module(release)


def package(name, *needed, publish=None, version="1.2.3"):
    return {
        "name": name, "version": version, "publish": publish,
        "dependencies": [{"name": one, "path": "/somewhere"} for one in needed] + [{"name": "serde"}],
    }


class Release(unittest.TestCase):
    def test_each_crate_stands_behind_those_that_it_needs(self):
        order = [one["name"] for one in release.packages()]
        for first, second in [("meshloom-hlo", "meshloom-analysis"), ("meshloom-train", "hlo-dump"), ("hlo-dump", "meshloom-cli")]:
            self.assertLess(order.index(first), order.index(second))
        for unpublished in ["meshloom-tests", "meshloom-interpret"]:
            self.assertNotIn(unpublished, order)

    def test_each_package_has_its_licence(self):
        text = (ROOT / "LICENSE").read_text()
        for one in release.packages():
            self.assertEqual(pathlib.Path(one["manifest_path"]).with_name("LICENSE").read_text(), text, one["name"])
        self.assertEqual((ROOT / "python" / "LICENSE").read_text(), text)

    def test_the_tag_is_the_version(self):
        with mock.patch.object(release, "packages", lambda: [package("hlo-dump")]):
            with mock.patch.object(release, "changes", lambda version: version), contextlib.redirect_stdout(io.StringIO()) as out:
                release.version(types.SimpleNamespace(tag="v1.2.3"))
            self.assertEqual(out.getvalue(), "1.2.3\n")
            with self.assertRaisesRegex(SystemExit, "the tag is v1.2.4, and Cargo.toml has version 1.2.3"):
                release.version(types.SimpleNamespace(tag="v1.2.4"))
            with self.assertRaisesRegex(SystemExit, r"no section \[1.2.3\]"):
                release.version(types.SimpleNamespace(tag="v1.2.3"))
        others = [package("hlo-dump"), package("meshloom", version="1.2.2")]
        with mock.patch.object(release, "packages", lambda: others), self.assertRaisesRegex(SystemExit, "other versions than 1.2.3: meshloom"):
            release.version(types.SimpleNamespace(tag="1.2.3"))

    def published(self, there, answers):
        """Publishes a, b and c, of which some are there; cargo gives these answers."""
        asked, slept = [], []

        def cargo(command, **_):
            asked.append(command[-1])
            status, text = answers.pop(0)
            return types.SimpleNamespace(returncode=status, stderr=text)

        with mock.patch.object(release, "packages", lambda: [package(name) for name in "abc"]), \
                mock.patch.object(release, "is_published", lambda name, version: name in there), \
                mock.patch.object(release.subprocess, "run", cargo), mock.patch.object(release.time, "sleep", slept.append), \
                contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                release.publish(types.SimpleNamespace(dry_run=False))
            except SystemExit as error:
                return asked, slept, str(error)
        return asked, slept, None

    def test_publishing_goes_on_where_it_was(self):
        self.assertEqual(self.published({"a"}, [(0, ""), (0, "")]), (["b", "c"], [], None))

    def test_publishing_waits_when_it_is_told_to(self):
        answers = [(0, ""), (101, "status 429 Too Many Requests"), (0, ""), (0, "")]
        self.assertEqual(self.published(set(), answers), (["a", "b", "b", "c"], [600], None))

    def test_publishing_ends_at_an_error(self):
        asked, slept, error = self.published(set(), [(0, ""), (101, "error: no token")])
        self.assertEqual((asked, slept), (["a", "b"], []))
        self.assertIn("b 1.2.3 is not published", error)

    def test_pages(self):
        with tempfile.TemporaryDirectory() as folder:
            share = pathlib.Path(folder, "hlo_dump.data", "data", "share")
            with mock.patch.object(release, "PAGES", share), mock.patch.object(release, "ROOT", pathlib.Path(folder)), \
                    contextlib.redirect_stdout(io.StringIO()) as out:
                release.pages(types.SimpleNamespace(program=os.environ["HLO_DUMP"]))
            pages = sorted(path.name for path in (share / "man" / "man1").iterdir())
            self.assertIn("hlo-dump-collectives.1", pages)
            self.assertNotIn("hlo-dump-help.1", pages)
            self.assertIn(f"{len(pages)} manual pages, 3 completions", out.getvalue())
            self.assertIn("hlo\\-dump memory", (share / "man" / "man1" / "hlo-dump-memory.1").read_text())
            for path in release.COMPLETIONS.values():
                self.assertIn("collectives", (share / path).read_text())


if __name__ == "__main__":
    unittest.main()
