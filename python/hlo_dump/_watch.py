"""Collects the programs that JAX compiles."""

from __future__ import annotations

import atexit
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import _input
from ._input import Input


@dataclass(frozen=True)
class WatchedProgram:
    """A program that JAX compiled. Every function of this module takes it."""

    name: str
    """The name of the module, such as ``jit_step``."""
    data: bytes = field(repr=False)
    """The compiled module: a serialized ``HloModuleProto``, or the file of a dump."""

    # What `of_jax` would look for in an object of JAX.
    def as_text(self, debug_info: bool = True) -> str:
        """Returns the module as HLO text."""
        from ._program import run

        return run("show", Input("-", self.data), ["--full"])


@contextmanager
def watch() -> Iterator[list[WatchedProgram]]:
    """Collects every program that JAX compiles in the block, in order.

    Programs that were compiled before are not compiled again, so they do not come up; ``jax.clear_caches()`` makes JAX
    forget them. Programs that come from the persistent compilation cache are collected.

    A version of JAX without a place to hook into is asked for dumps: the list is then filled at the end of the block,
    has nothing from the persistent cache, and the block must begin before JAX looks for devices, unless ``XLA_FLAGS``
    names a folder for dumps already.

    Raises:
        RuntimeError: JAX is not there, or it is too late to ask for dumps.

    >>> with watch() as programs:  # doctest: +SKIP
    ...     step(state, batch)
    >>> [program.name for program in programs]  # doctest: +SKIP
    ['jit_step']
    """
    compiler = _compiler()
    with _hooked(compiler) if hasattr(compiler, HOOK) else _dumped() as programs:
        yield programs


HOOK = "compile_or_get_cached"
"""The function of ``jax._src.compiler`` that returns a compiled program."""


def _compiler() -> Any:
    try:
        import jax  # noqa: F401
    except ImportError as error:
        raise RuntimeError(f"JAX cannot be imported: {error}") from error
    try:
        from jax._src import compiler
    except ImportError:
        return None
    return compiler


@contextmanager
def _hooked(compiler: Any) -> Iterator[list[WatchedProgram]]:
    original: Callable[..., Any] = getattr(compiler, HOOK)
    programs: list[WatchedProgram] = []

    def compile_and_collect(*arguments: Any, **named: Any) -> Any:
        executable = original(*arguments, **named)
        programs.extend(_programs_of(executable))
        return executable

    setattr(compiler, HOOK, compile_and_collect)
    try:
        yield programs
    finally:
        setattr(compiler, HOOK, original)


def _programs_of(executable: Any) -> list[WatchedProgram]:
    data = _input.of_executable(executable)
    if data is None:
        return []
    return [WatchedProgram(executable.hlo_modules()[0].name, data)]


@contextmanager
def _dumped() -> Iterator[list[WatchedProgram]]:
    """Lets XLA write what it compiles, and reads that at the end."""
    folder = _asked_for()
    before = _dumps(folder)
    programs: list[WatchedProgram] = []
    try:
        yield programs
    finally:
        for path in sorted(_dumps(folder) - before):
            # module_0012.jit_step.cpu_after_optimizations.hlo.pb
            programs.append(WatchedProgram(path.name.split(".")[1], path.read_bytes()))


def _asked_for() -> pathlib.Path:
    """The folder to which XLA writes, by its flags; it is asked for one where it has none."""
    flags = os.environ.get("XLA_FLAGS", "")
    named = re.search(r"--xla_dump_to=(\S+)", flags)
    if named is not None:
        return pathlib.Path(named[1])
    if _has_started():
        version = getattr(sys.modules.get("jax"), "__version__", "this version")
        raise RuntimeError(
            f"JAX {version} has no jax._src.compiler.{HOOK}, and has read XLA_FLAGS already: begin the block before JAX "
            "looks for devices, or set XLA_FLAGS=--xla_dump_to=FOLDER before JAX starts"
        )
    folder = tempfile.mkdtemp(prefix="hlo-dump-")
    # XLA reads its flags once, and goes on writing behind the block: the folder and the flags stay until the end.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["XLA_FLAGS"] = f"{flags} --xla_dump_to={folder} --xla_dump_hlo_as_proto".strip()
    return pathlib.Path(folder)


def _has_started() -> bool:
    """Whether JAX has made its clients, for which XLA reads its flags. An unknown version has not, as far as is known."""
    try:
        from jax._src import xla_bridge

        return bool(xla_bridge.backends_are_initialized())
    except (ImportError, AttributeError):
        return False


def _dumps(folder: pathlib.Path) -> set[pathlib.Path]:
    """The compiled modules of a dump folder: each as a proto, or else as text."""
    found = {}
    for ending in (".txt", ".hlo.pb"):
        found |= {path.name[: -len(ending)]: path for path in folder.glob(f"module_*after_optimizations{ending}")}
    return set(found.values())
