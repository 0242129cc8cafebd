#!/usr/bin/env python3
"""Holds the tests to single-line faults: applies each of `faults.ini`, runs the test programs that it can reach until a
test fails, and writes which one that was into `results.tsv`.

    tests/mutations/run.py --check       every fault still has its place; takes no time, CI runs it
    tests/mutations/run.py --baseline    runs the programs without a fault: they must pass before anything else counts
    tests/mutations/run.py               every fault that results.tsv does not have yet
    tests/mutations/run.py --full        the same with all cases, for those that the small tier has missed

It works on the commit HEAD in a worktree below the target folder, never in yours, and can be stopped and started again.
A fault that was changed is tried again once its line in results.tsv is gone.
"""

import argparse
import configparser
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FAULTS = HERE / "faults.ini"
RESULTS = HERE / "results.tsv"
COLUMNS = ["id", "file", "fault", "tier", "caught by", "commit"]
MISSED = "missed"

# What is made: the worktree, what Cargo builds, caches of the programs, their output, what has passed without faults.
WORK = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "mutations"
TREE, BUILD, CACHE, LOGS, BASELINE = (WORK / name for name in ["tree", "build", "cache", "logs", "baseline.tsv"])

FAILED = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. FAILED", re.MULTILINE)


class Fault:
    """A line that is replaced by another."""

    def __init__(self, name, section):
        wanted = {"file", "was", "becomes", "fault", "tests"}
        unknown = set(section) - wanted - {"nth", "hangs"}
        if unknown or not wanted <= set(section):
            sys.exit(f"{FAULTS.name}: [{name}] must have {', '.join(sorted(wanted))}; unknown: {sorted(unknown)}")
        self.id, self.file, self.fault = name, section["file"], section["fault"]
        self.was, self.becomes = section["was"], section["becomes"]
        self.nth, self.hangs = int(section.get("nth", 0)), section.get("hangs") == "yes"
        self.tests = [test.strip() for test in section["tests"].split(",")]

    def programs(self):
        return list(dict.fromkeys(program_of(test) for test in self.tests))

    def applied(self, text):
        """The text with the fault; an error says why it has no such place."""
        lines = text.splitlines(keepends=True)
        places = [index for index, line in enumerate(lines) if line.strip() == self.was]
        if self.was == self.becomes:
            raise ValueError("it changes nothing")
        if len(places) < max(self.nth, 1) or (not self.nth and len(places) > 1):
            raise ValueError(f"the line is there {len(places)} times: {self.was}")
        place = places[max(self.nth, 1) - 1]
        lines[place] = lines[place].replace(self.was, self.becomes)
        return "".join(lines)


def program_of(test):
    return test.split(":", 1)[0]


def read_faults():
    parser = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    parser.read_string(FAULTS.read_text(encoding="utf-8"))
    return [Fault(name, parser[name]) for name in parser.sections()]


def read_table(path):
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.split("\t") for line in lines[1:]]


def append(path, columns, row):
    is_new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        if is_new:
            file.write("\t".join(columns) + "\n")
        file.write("\t".join(row) + "\n")


def results():
    """What is known of each fault, by id and tier."""
    return {(row[0], row[3]): row for row in read_table(RESULTS)}


def check(faults):
    manifest = (ROOT / "tests/Cargo.toml").read_text(encoding="utf-8")
    programs = set(re.findall(r'\[\[test\]\]\nname = "(\w+)"', manifest))
    problems = []
    for fault in faults:
        try:
            fault.applied((ROOT / fault.file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            problems.append(f"[{fault.id}] {fault.file}: {error}")
        unknown = [program for program in fault.programs() if program not in programs]
        if unknown:
            found = ", ".join(sorted(programs))
            problems.append(f"[{fault.id}] tests: no program {', '.join(unknown)}; there are {found}")
    texts = {fault.id: fault.fault for fault in read_faults()}
    for row in read_table(RESULTS):
        if texts.get(row[0]) != row[2]:
            problems.append(f"{RESULTS.name}: [{row[0]}] is not a fault of {FAULTS.name}, or another one now")
    print("\n".join(problems) or f"{len(faults)} faults have their places")
    return 1 if problems else 0


def git(*arguments, cwd=ROOT):
    return subprocess.run(["git", *arguments], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def prepare():
    """The worktree at HEAD, as it is there; returns the commit."""
    commit = git("rev-parse", "HEAD")
    if not (TREE / ".git").exists():
        git("worktree", "prune")
        git("worktree", "add", "--quiet", "--detach", "--force", str(TREE), commit)
    git("checkout", "--quiet", "--force", "--detach", commit, cwd=TREE)
    git("clean", "--quiet", "-fd", cwd=TREE)
    if git("status", "--porcelain", "--untracked-files=no"):
        print("note: what is not committed is not tested")
    return commit


def forget_caches():
    """What programs with one fault have kept, tokens for instance, must not help those with the next. Plugins stay."""
    own = CACHE / "meshloom"
    own.mkdir(parents=True, exist_ok=True)
    for path in own.iterdir():
        if path.name != "plugins":
            shutil.rmtree(path)
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "meshloom/plugins"
    if not (own / "plugins").exists() and users.is_dir():
        (own / "plugins").symlink_to(users)


def environment(full):
    env = dict(os.environ, CARGO_TARGET_DIR=str(BUILD), XDG_CACHE_HOME=str(CACHE))
    env.update(CARGO_TERM_COLOR="never", INSTA_UPDATE="no")
    for name in ("RUST_BACKTRACE", "MESHLOOM_TEST_PROGRAM", "MESHLOOM_UPDATE", "MESHLOOM_EVERY_CASE"):
        env.pop(name, None)
    return dict(env, MESHLOOM_EVERY_CASE="1") if full else env


class Undecided(Exception):
    """Why nothing can be said of a fault."""


def run_test(test, full, limit, log):
    """The first test that fails, of a program or of those of its tests that are chosen; None if all pass."""
    program, _, chosen = test.partition(":")
    command = ["cargo", "test", "--profile", "mutations", "--test", program]
    built = subprocess.run([*command, "--no-run"], cwd=TREE, env=environment(full), stdin=subprocess.DEVNULL,
                           stdout=log, stderr=log)
    if built.returncode != 0:
        raise Undecided(f"{program} cannot be built; see {log.name}")
    command = [*command, "--", *([chosen] if chosen else [])]
    process = subprocess.Popen(command, cwd=TREE, env=environment(full), stdin=subprocess.DEVNULL, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                               start_new_session=True)
    late = threading.Event()

    def end():
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    timer = threading.Timer(limit, lambda: (late.set(), end()))
    timer.start()
    try:
        for line in process.stdout:
            log.write(line)
            failed = FAILED.search(line)
            if failed:
                return f"{program} {failed[1]}"
            if line.startswith("test result:"):
                break
        # What a program checks at its end counts too.
        status = process.wait()
        if late.is_set():
            raise TimeoutError(f"{program} ran for more than {limit} s")
        return f"{program} (it ended with status {status})" if status else None
    finally:
        timer.cancel()
        end()
        process.wait()
        process.stdout.close()


def catch(fault, full, limit):
    """The test that falls, or that none does."""
    path = TREE / fault.file
    original = path.read_text(encoding="utf-8")
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{fault.id}.log").open("w", encoding="utf-8") as log:
        try:
            path.write_text(fault.applied(original), encoding="utf-8")
            for test in fault.tests:
                print(f"  {test}", flush=True)
                log.write(f"\n=== {test}\n")
                log.flush()
                caught = run_test(test, full, limit, log)
                if caught:
                    return caught
        except TimeoutError as error:
            if fault.hangs:
                return str(error)
            raise Undecided(str(error)) from error
        finally:
            path.write_text(original, encoding="utf-8")
    return MISSED


def passed_without_faults(commit, tier):
    return {row[2] for row in read_table(BASELINE) if row[:2] == [commit, tier]}


def run_baseline(faults, full, limit, commit, tier):
    programs = list(dict.fromkeys(program for fault in faults for program in fault.programs()))
    LOGS.mkdir(parents=True, exist_ok=True)
    failures = 0
    for program in programs:
        if program in passed_without_faults(commit, tier):
            continue
        print(program, flush=True)
        with (LOGS / f"baseline-{program}.log").open("w", encoding="utf-8") as log:
            try:
                failed = run_test(program, full, limit, log)
            except (TimeoutError, Undecided) as error:
                failed = str(error)
        if failed:
            failures += 1
            print(f"  fails without a fault: {failed}")
        else:
            append(BASELINE, ["commit", "tier", "program"], [commit, tier, program])
    print(f"{len(programs) - failures} of {len(programs)} programs pass without a fault")
    return 1 if failures else 0


def run_faults(faults, full, limit, commit, tier):
    passed = passed_without_faults(commit, tier)
    missing = sorted({program for fault in faults for program in fault.programs()} - passed)
    if missing:
        option = "--baseline --full" if full else "--baseline"
        sys.exit(f"{', '.join(missing)} must pass at this commit before a fault is applied: {option}")
    undecided = 0
    for number, fault in enumerate(faults, 1):
        print(f"[{number}/{len(faults)}] {fault.id}: {fault.fault}", flush=True)
        forget_caches()
        start = time.monotonic()
        try:
            found = catch(fault, full, limit)
        except Undecided as reason:
            undecided += 1
            print(f"  nothing can be said: {reason}")
            continue
        append(RESULTS, COLUMNS, [fault.id, fault.file, fault.fault, tier, found, commit[:8]])
        print(f"  {found} ({time.monotonic() - start:.0f} s)")
    return 1 if undecided else 0


def summary(faults):
    known = results()
    small = [known[fault.id, "small"][4] for fault in faults if (fault.id, "small") in known]
    full = [known[fault.id, "full"][4] for fault in faults if (fault.id, "full") in known]
    caught = [sum(found != MISSED for found in tier) for tier in (small, full)]
    print(f"small tier: {caught[0]} of {len(small)} caught, {len(faults) - len(small)} not tried; "
          f"full tier: {caught[1]} of {len(full)} of those missed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="ID", action="append", help="this fault alone; may be given again")
    parser.add_argument("--full", action="store_true", help="all cases, for the faults that the small tier has missed")
    parser.add_argument("--baseline", action="store_true", help="run the programs without a fault")
    parser.add_argument("--list", action="store_true", help="print the faults and what is known of them")
    parser.add_argument("--check", action="store_true", help="check that every fault has its place")
    parser.add_argument("--limit", metavar="SECONDS", type=int,
                        help="longest time of a program (default: 1800; 14400 with --full)")
    arguments = parser.parse_args()

    faults = read_faults()
    if arguments.only:
        unknown = set(arguments.only) - {fault.id for fault in faults}
        if unknown:
            sys.exit(f"no such fault: {', '.join(sorted(unknown))}; --list names them")
        faults = [fault for fault in faults if fault.id in arguments.only]
    if arguments.check:
        return check(faults)
    if arguments.list:
        known = results()
        for fault in faults:
            found = [f"{tier}: {known[fault.id, tier][4]}" for tier in ("small", "full") if (fault.id, tier) in known]
            print(f"{fault.id}\n  {fault.file}: {fault.fault}\n  {'; '.join(found) or 'not tried'}")
        return summary(faults)

    full, tier = arguments.full, "full" if arguments.full else "small"
    limit = arguments.limit or (14400 if full else 1800)
    known = results()
    selected = [fault for fault in faults if (fault.id, tier) not in known]
    if full and not arguments.only:
        selected = [fault for fault in selected if known.get((fault.id, "small"), [""] * 5)[4] == MISSED]
    commit = prepare()
    forget_caches()
    if arguments.baseline:
        return run_baseline(selected, full, limit, commit, tier)
    status = run_faults(selected, full, limit, commit, tier)
    summary(faults)
    return status


if __name__ == "__main__":
    sys.exit(main())
