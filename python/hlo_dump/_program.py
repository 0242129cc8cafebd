"""Runs the program ``hlo-dump``, and reads what it prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from ._input import Input


class HloDumpError(Exception):
    """The program refused an input or an option. The message is the one that it printed."""


def program() -> str:
    """Returns the path of the program.

    The environment variable ``HLO_DUMP`` names another one. Otherwise it is the one that was installed with this
    module, or the first on ``PATH``.

    Raises:
        HloDumpError: there is none.
    """
    named = os.environ.get("HLO_DUMP")
    if named:
        return named
    name = "hlo-dump.exe" if os.name == "nt" else "hlo-dump"
    # `pip install --user` and `--target` have folders of their own.
    folders = [Path(sysconfig.get_path("scripts")), Path(sys.executable).parent]
    folders += [Path(sysconfig.get_path("scripts", scheme)) for scheme in _user_schemes()]
    folders.append(Path(__file__).resolve().parent.parent / "bin")
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise HloDumpError(f"there is no program {name}: install the wheel hlo-dump again, or set HLO_DUMP to its path")
    return found


def _user_schemes() -> list[str]:
    return [scheme for scheme in sysconfig.get_scheme_names() if scheme == f"{os.name}_user"]


def run(command: str, given: Input, options: list[str], *, statuses: tuple[int, ...] = (0,)) -> str:
    """Runs a command on an input, and returns what it prints.

    Raises:
        HloDumpError: the exit status is none of ``statuses``.
    """
    arguments = [program(), command, *given.arguments(), *options]
    done = subprocess.run(arguments, input=given.data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode not in statuses:
        message = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
        raise HloDumpError(message.removeprefix("error: "))
    return done.stdout.decode()


def answer(command: str, given: Input, options: list[str], *, statuses: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """Runs a command with ``--json``, and returns the object that it prints."""
    return json.loads(run(command, given, [*options, "--json"], statuses=statuses))
