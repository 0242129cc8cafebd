"""Collects the programs that JAX compiles."""

from __future__ import annotations

import sys
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
    """The compiled module, as a serialized ``HloModuleProto``."""

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

    Raises:
        RuntimeError: JAX is not there, or this version has nothing to hook into.

    >>> with watch() as programs:  # doctest: +SKIP
    ...     step(state, batch)
    >>> [program.name for program in programs]  # doctest: +SKIP
    ['jit_step']
    """
    compiler, name = _hook()
    original: Callable[..., Any] = getattr(compiler, name)
    programs: list[WatchedProgram] = []

    def compile_and_collect(*arguments: Any, **named: Any) -> Any:
        executable = original(*arguments, **named)
        programs.extend(_programs_of(executable))
        return executable

    setattr(compiler, name, compile_and_collect)
    try:
        yield programs
    finally:
        setattr(compiler, name, original)


def _hook() -> tuple[Any, str]:
    """The function of JAX that returns a compiled program, by the module that has it and its name."""
    try:
        import jax  # noqa: F401
        from jax._src import compiler
    except ImportError as error:
        raise RuntimeError(f"JAX cannot be imported: {error}") from error
    name = "compile_or_get_cached"
    if not hasattr(compiler, name):
        version = getattr(sys.modules.get("jax"), "__version__", "this version")
        raise RuntimeError(
            f"JAX {version} has no jax._src.compiler.{name}; set XLA_FLAGS=--xla_dump_to=FOLDER before JAX starts, and "
            "give the folder instead"
        )
    return compiler, name


def _programs_of(executable: Any) -> list[WatchedProgram]:
    data = _input.of_executable(executable)
    if data is None:
        return []
    return [WatchedProgram(executable.hlo_modules()[0].name, data)]
