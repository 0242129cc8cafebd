"""The script of action.yml, with a `gh` that writes down what it is asked.

    HLO_DUMP=target/release/hlo-dump python3 python/tests/test_action.py
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".github" / "action" / "check"

STEP = """HloModule step, num_partitions=8
ENTRY %main (x: f32[256]) -> f32[1024] {
  %x = f32[256] parameter(0)
  ROOT %gathered = f32[1024] all-gather(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, use_global_device_ids=true, channel_id=1
}
"""
# Another collective on the same axes.
WORSE = STEP.replace(
    "ROOT %gathered", "%moved = f32[256] collective-permute(%x), source_target_pairs={{0,1},{1,0}}, channel_id=2\n  ROOT %gathered"
).replace("all-gather(%x)", "all-gather(%moved)")
MESH = "data=2,fsdp=4"

# Prints the numbers of earlier comments, and keeps its arguments and the body.
GH = """#!%s
import json, os, pathlib, sys
with open(os.environ["GH_LOG"], "a") as log:
    body = [word.partition("body=@")[2] for word in sys.argv if word.startswith("body=@")]
    text = pathlib.Path(body[0]).read_text() if body else None
    print(json.dumps({"arguments": sys.argv[1:], "body": text, "marker": os.environ.get("MARKER")}), file=log)
if "--jq" in sys.argv:
    print(os.environ["GH_EARLIER"])
sys.exit(int(os.environ["GH_STATUS"]))
""" % sys.executable


@unittest.skipIf(os.name == "nt", "the action is for Linux and macOS")
class Action(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        programs = self.folder / "programs"
        programs.mkdir()
        (programs / "gh").write_text(GH)
        (programs / "gh").chmod(0o755)
        (programs / "hlo-dump").symlink_to(os.path.abspath(os.environ["HLO_DUMP"]))
        self.path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        (self.folder / "step.txt").write_text(STEP)
        subprocess.run(
            [os.environ["HLO_DUMP"], "lock", "step.txt", "--mesh", MESH, "--output", "traffic.lock"],
            cwd=self.folder, check=True, stdout=subprocess.DEVNULL,
        )

    def run_script(self, *, earlier="", gh_status=0, **inputs):
        """Runs the script; returns its status, its output, its report and what gh was asked."""
        files = {name: self.folder / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY", "GH_LOG")}
        for file in files.values():
            file.write_text("")
        given = {
            "FILES": "step.txt", "LOCK": "traffic.lock", "MESH": MESH, "OPTIONS": "", "COMMENT": "true", "FAIL": "true",
            "TITLE": "traffic", "PULL": "7", "GITHUB_REPOSITORY": "a/b", "RUNNER_TEMP": str(self.folder), "PATH": self.path,
            "GH_EARLIER": earlier, "GH_STATUS": str(gh_status),
        }
        environment = {**os.environ, **given, **inputs, **{name: str(file) for name, file in files.items()}}
        done = subprocess.run([SCRIPT, "run"], cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        self.asked = [json.loads(line) for line in files["GH_LOG"].read_text().splitlines()]
        self.written = files["GITHUB_OUTPUT"].read_text()
        self.summary = files["GITHUB_STEP_SUMMARY"].read_text()
        return done.returncode, done.stdout + done.stderr

    def methods(self):
        return [word for one in self.asked for word in one["arguments"] if word in ("POST", "PATCH")]

    def test_a_program_like_its_lock_is_not_commented_on(self):
        status, text = self.run_script()
        self.assertEqual((status, self.methods()), (0, []), text)
        self.assertIn("### traffic: 1 of 1 programs pass", self.summary)
        self.assertIn("passed=true", self.written)

    def test_a_worse_program_is_told_in_words(self):
        (self.folder / "step.txt").write_text(WORSE)
        status, text = self.run_script()
        self.assertEqual((status, self.methods()), (1, ["POST"]), text)
        body = self.asked[-1]["body"]
        self.assertTrue(body.startswith("<!-- hlo-dump: traffic -->\n"), body)
        self.assertIn("new: collective-permute over fsdp", body)
        self.assertIn("`hlo-dump lock step.txt --mesh data=2,fsdp=4 -o traffic.lock`", body)
        self.assertIn("passed=false", self.written)
        self.assertIn("repos/a/b/issues/7/comments", self.asked[-1]["arguments"])

    def test_the_comment_of_an_earlier_run_is_changed(self):
        for program, expected in [(WORSE, 1), (STEP, 0)]:
            (self.folder / "step.txt").write_text(program)
            status, text = self.run_script(earlier="41\n43")
            self.assertEqual((status, self.methods()), (expected, ["PATCH"]), text)
            self.assertIn("repos/a/b/issues/comments/41", self.asked[-1]["arguments"])
            self.assertEqual(self.asked[0]["marker"], "<!-- hlo-dump: traffic -->")

    def test_a_better_program_asks_for_a_new_lock(self):
        (self.folder / "step.txt").write_text(WORSE)
        subprocess.run(
            [os.environ["HLO_DUMP"], "lock", "step.txt", "--mesh", MESH, "--output", "traffic.lock"],
            cwd=self.folder, check=True, stdout=subprocess.DEVNULL,
        )
        (self.folder / "step.txt").write_text(STEP)
        status, text = self.run_script()
        self.assertEqual((status, self.methods()), (0, ["POST"]), text)
        self.assertIn("gone: collective-permute", self.asked[-1]["body"])

    def test_several_programs_have_locks_of_their_own(self):
        (self.folder / "a b").mkdir()
        (self.folder / "a b" / "train.txt").write_text(STEP)
        (self.folder / "a b" / "eval.txt").write_text(WORSE)
        (self.folder / "train.lock").write_text((self.folder / "traffic.lock").read_text())
        status, text = self.run_script(FILES="\n**/train.txt\na b/eval.txt\n", LOCK="{}.lock")
        self.assertEqual(status, 1, text)
        self.assertIn("1 of 2 programs pass", self.summary)
        self.assertIn("there is no eval.lock yet", self.summary)

    def test_limits_without_a_lock(self):
        limits = {"LOCK": "", "OPTIONS": "--max-collectives-over data=0\n  --deny all-gather=fsdp\n"}
        status, text = self.run_script(**limits)
        self.assertEqual(status, 1, text)
        self.assertNotIn("hlo-dump lock", self.summary)
        self.assertIn("pass  --max-collectives-over data=0", self.summary)
        self.assertIn("FAIL  --deny all-gather=fsdp", self.summary)
        self.assertEqual(self.run_script(**limits, FAIL="false")[0], 0)
        self.assertIn("passed=false", self.written)

    def test_what_cannot_be_read_fails(self):
        (self.folder / "step.txt").write_text(STEP[:150])
        status, text = self.run_script(FAIL="false")
        self.assertEqual(status, 2, text)
        self.assertIn("error:", self.summary)
        self.assertEqual(self.run_script(FILES="nothing/*.txt")[0], 2)

    def test_no_comment_where_none_is_wanted_or_allowed(self):
        (self.folder / "step.txt").write_text(WORSE)
        for inputs in [{"COMMENT": "false"}, {"PULL": ""}]:
            self.assertEqual(self.run_script(**inputs)[0], 1)
            self.assertEqual(self.asked, [])
        status, text = self.run_script(gh_status=1)
        self.assertEqual(status, 1)
        self.assertIn("::warning title=hlo-dump::the comment could not be written", text)

    def test_a_program_gives_the_workflow_no_commands_and_ends_no_block(self):
        name = "::add-mask::x```"
        (self.folder / name).write_text("nothing")
        status, text = self.run_script(FILES=name)
        self.assertEqual(status, 2)
        self.assertNotRegex(text, r"(?m)^\s*::add-mask")
        self.assertEqual(self.summary.count("\n```"), 2, self.summary)


if __name__ == "__main__":
    unittest.main()
