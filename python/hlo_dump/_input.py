"""Makes an input of the program out of anything that has a module: files, text, bytes, objects of JAX."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

Program = Union[str, bytes, "os.PathLike[str]", Any]
"""A path, the text or bytes of a module, or an object of JAX: ``Lowered``, ``Compiled``, ``Exported``."""

Mesh = Union[str, Mapping[str, int], Any, None]
"""Mesh axes, major to minor: ``"data=2,fsdp=4"``, ``{"data": 2, "fsdp": 4}``, or a mesh of JAX."""

MODULE_STARTS = ("HloModule", "module", "ENTRY", "#", "//", "%", "\n", '"builtin.module"')


@dataclass(frozen=True)
class Input:
    """What the program reads: a path, or bytes on its standard input."""

    path: str
    data: bytes | None = None

    def arguments(self) -> list[str]:
        """The arguments of the program that name the input."""
        # Behind `--`, a name that begins with a dash would be no option; but options come behind it.
        return [f"./{self.path}" if self.path.startswith("-") and self.path != "-" else self.path]


def to_input(x: Program) -> Input:
    """Returns the input that an object stands for.

    Raises:
        TypeError: the object has no module, such as a function that is not lowered.
    """
    if isinstance(x, Input):
        return x
    if isinstance(x, (bytes, bytearray, memoryview)):
        return Input("-", bytes(x))
    if isinstance(x, str):
        # The text of a module has lines; a path has none.
        return Input("-", x.encode()) if "\n" in x else Input(x)
    if isinstance(x, os.PathLike):
        return Input(os.fspath(x))
    data = of_jax(x)
    if data is None:
        kind = type(x).__name__
        hint = "; lower it for its arguments: f.lower(*arguments)" if hasattr(x, "lower") or callable(x) else ""
        raise TypeError(
            f"{kind} has no module; give a path, text, bytes, or what jax.jit(f).lower(..), .compile() or jax.export "
            f"returns{hint}"
        )
    return Input("-", data)


def of_jax(x: Any) -> bytes | None:
    """Returns the module of an object of JAX, with its source lines; nothing of another object."""
    if hasattr(x, "runtime_executable"):
        executable = x.runtime_executable()
        if executable is not None:
            return of_executable(executable)
        return x.as_text().encode()
    if hasattr(x, "hlo_modules"):
        return of_executable(x)
    # Before `as_text`, which a lowered program has too.
    if hasattr(x, "mlir_module"):
        return x.mlir_module().encode()
    if hasattr(x, "as_text"):
        try:
            return x.as_text(debug_info=True).encode()
        except TypeError:
            return x.as_text().encode()
    return None


def of_executable(executable: Any) -> bytes | None:
    """Returns the module that runs, as a proto, which has everything that text has."""
    modules = executable.hlo_modules()
    return modules[0].as_serialized_hlo_module_proto() if modules else None


def mesh_option(mesh: Mesh) -> list[str]:
    """Returns the option that names mesh axes.

    Raises:
        TypeError: it is no mesh.
    """
    if mesh is None:
        return []
    if not isinstance(mesh, (str, Mapping)):
        # `jax.sharding.Mesh` and `AbstractMesh` have their axes in `shape`.
        mesh = getattr(mesh, "shape", mesh)
    if isinstance(mesh, Mapping):
        mesh = ",".join(f"{name}={size}" for name, size in mesh.items())
    if not isinstance(mesh, str):
        raise TypeError(f'{mesh!r} names no mesh axes; give "data=2,fsdp=4", a dict, or a mesh of JAX')
    return ["--mesh", mesh]
