"""What a partitioned XLA program does: what moves over which mesh axis, what fills memory, what changed.

Every function takes a program: the path of a file or of an XLA dump folder, the text or bytes of a module, or what JAX
returns from ``jax.jit(f).lower(..)``, from ``.compile()`` or from ``jax.export``. The functions run the program
``hlo-dump``, which is installed with this module; nothing else is needed.

>>> import hlo_dump
>>> text = '''
... HloModule step, num_partitions=4
... ENTRY %main (x: f32[256]) -> f32[1024] {
...   %x = f32[256] parameter(0)
...   ROOT %gathered = f32[1024] all-gather(%x), replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, channel_id=1
... }'''
>>> hlo_dump.collectives(text, mesh="fsdp=4").counts()
{'all-gather': {'fsdp': 1}}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

from ._input import Mesh, Program, mesh_option, to_input
from ._program import HloDumpError, answer, program, run
from ._results import (
    Buffer,
    Check,
    Collective,
    Collectives,
    Cost,
    Diff,
    Hidden,
    HostCopy,
    Memory,
    Overlap,
    Transfer,
)
from ._testing import assert_collectives
from ._watch import WatchedProgram, watch

__all__ = [
    "Buffer",
    "Check",
    "Collective",
    "Collectives",
    "Cost",
    "Diff",
    "Hidden",
    "HloDumpError",
    "HostCopy",
    "Memory",
    "Overlap",
    "Transfer",
    "WatchedProgram",
    "assert_collectives",
    "check",
    "collectives",
    "cost",
    "diff",
    "memory",
    "overlap",
    "program",
    "report",
    "watch",
]


def _answer(kind: type, command: str, x: Program, options: list[str], statuses: tuple[int, ...] = (0,)) -> Any:
    given = to_input(x)
    return kind(command, given, options, answer(command, given, options, statuses=statuses))


def _flags(**values: Any) -> list[str]:
    """Options by name: a value, a list of values, or True."""
    options = []
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is None or one is False:
                continue
            options += [flag] if one is True else [flag, str(one)]
    return options


def collectives(
    x: Program,
    *,
    mesh: Mesh = None,
    over: str | None = None,
    kind: str | None = None,
    scope: str | None = None,
    in_loops: bool = False,
) -> Collectives:
    """Lists what moves: each collective with its mesh axes, bytes, executions and source line.

    Args:
        x: the program.
        mesh: the mesh axes, if the program does not name them.
        over: only those that cross this mesh axis.
        kind: only those of this kind, such as ``all-gather``.
        scope: only those with this text in their scope.
        in_loops: only those in a loop.

    Raises:
        HloDumpError: the program cannot be read, or has no such axis, kind or scope.
        TypeError: ``x`` is no program.

    >>> moved = collectives(EXAMPLE, mesh={"data": 2, "fsdp": 4})
    >>> [(one.kind, one.axes, one.executions) for one in moved]
    [('all-reduce', ['data'], 1)]
    >>> print(moved)  # doctest: +ELLIPSIS
    step (HLO text, 8 devices, data=2,fsdp=4)
    ...
    """
    options = [*mesh_option(mesh), *_flags(over=over, kind=kind, scope=scope, in_loops=in_loops)]
    return _answer(Collectives, "collectives", x, options)


def memory(x: Program, *, mesh: Mesh = None, chip: str | None = None) -> Memory:
    """Shows what fills a device's memory: arguments, outputs, temporaries, and the buffers live at the peak.

    Args:
        x: the program.
        mesh: the mesh axes, if the program does not name them.
        chip: the chip with whose memory the peak is compared, such as ``v5p``.

    Raises:
        HloDumpError: the program cannot be read.
        TypeError: ``x`` is no program.

    >>> memory(EXAMPLE).arguments
    1024
    """
    return _answer(Memory, "memory", x, [*mesh_option(mesh), *_flags(chip=chip)])


def cost(x: Program, *, mesh: Mesh = None, chip: str | None = None, scope: str | None = None) -> Cost:
    """Estimates operations and bytes, with loops multiplied, and with a chip the least time.

    Args:
        x: the program.
        mesh: the mesh axes, if the program does not name them.
        chip: the chip, such as ``v5p`` or ``h100``.
        scope: only instructions with this text in their scope.

    Raises:
        HloDumpError: the program cannot be read.
        TypeError: ``x`` is no program.

    >>> cost(EXAMPLE).moved_bytes
    1024
    """
    return _answer(Cost, "cost", x, [*mesh_option(mesh), *_flags(chip=chip, scope=scope)])


def overlap(
    x: Program,
    *,
    chip: str,
    mesh: Mesh = None,
    over: str | None = None,
    kind: str | None = None,
    scope: str | None = None,
    in_loops: bool = False,
    perfetto: str | PathLike[str] | None = None,
    profile: str | PathLike[str] | None = None,
) -> Overlap:
    """Estimates what a compiled schedule hides: the time of each collective, and how long the device waits for it.

    Args:
        x: the compiled program.
        chip: the chip whose rates are taken, such as ``v5p`` or ``h100``.
        mesh: the mesh axes, if the program does not name them.
        over: only collectives that cross this mesh axis.
        kind: only those of this kind, such as ``all-gather``.
        scope: only those with this text in their scope.
        in_loops: only those in a loop.
        perfetto: the file of a trace of the step, which ui.perfetto.dev opens.
        profile: a measured profile (``*.xplane.pb``) that is put beside the estimate in the trace.

    Raises:
        HloDumpError: the program cannot be read, or is not compiled, or the chip is not known.
        TypeError: ``x`` is no program.

    >>> found = overlap(EXAMPLE.replace("step,", "step, is_scheduled=true,"), chip="v5p", mesh="data=2,fsdp=4")
    >>> [(one.kind, one.over, one.synchronous) for one in found], found.total.share
    ([('all-reduce', 'data', True)], 0.0)
    """
    options = [*mesh_option(mesh), *_flags(chip=chip, over=over, kind=kind, scope=scope, in_loops=in_loops)]
    files = _flags(perfetto=perfetto and fspath(perfetto), profile=profile and fspath(profile))
    given = to_input(x)
    # Printing the answer does not write the file again.
    return Overlap("overlap", given, options, answer("overlap", given, [*options, *files]))


def diff(before: Program, after: Program, *, mesh: Mesh = None) -> Diff:
    """Compares two programs by meaning: numbers of instructions and channels are no difference.

    Args:
        before: the first program.
        after: the second.
        mesh: the mesh axes of both, if they do not name them.

    Raises:
        HloDumpError: one of them cannot be read.
        TypeError: one of them is no program.

    >>> diff(EXAMPLE, EXAMPLE.replace("%sum", "%total")).same
    True
    """
    from ._files import as_file

    # Both cannot be the standard input, so the second is a file if it is not one already.
    with as_file(to_input(after)) as path:
        options = [path, *mesh_option(mesh)]
        given = to_input(before)
        text = run("diff", given, [*options, "--color", "never"]).rstrip("\n")
        return Diff("diff", given, options, answer("diff", given, options), text)


def report(
    x: Program,
    path: str | PathLike[str],
    *,
    mesh: Mesh = None,
    chip: str | None = None,
    redact: bool | str = False,
) -> None:
    """Writes everything on one HTML page that needs no network.

    Args:
        x: the program.
        path: the page.
        mesh: the mesh axes, if the program does not name them.
        chip: the chip of the estimated times.
        redact: pseudonyms in place of names of tensors, scopes and files: by number, or by this key.

    Raises:
        HloDumpError: the program cannot be read, or the page cannot be written.
        TypeError: ``x`` is no program.

    >>> import os, tempfile
    >>> page = os.path.join(tempfile.mkdtemp(), "report.html")
    >>> report(EXAMPLE, page)
    >>> os.path.exists(page)
    True
    """
    # The key is joined to the option, which may also stand alone.
    hidden = [f"--redact={redact}"] if isinstance(redact, str) else ["--redact"] * redact
    run("report", to_input(x), [*mesh_option(mesh), *_flags(chip=chip), *hidden, "--output", fspath(path)])


def check(
    x: Program,
    *,
    mesh: Mesh = None,
    max_collective_bytes: int | str | None = None,
    max_collectives: int | None = None,
    max_memory: int | str | None = None,
    max_bytes_over: Mapping[str, int | str] | None = None,
    max_collectives_over: Mapping[str, int] | None = None,
    deny: Iterable[str] = (),
    allow_unpartitioned: bool = False,
) -> Check:
    """Holds a program to limits. The answer is true if all of them are kept.

    Args:
        x: the program.
        mesh: the mesh axes, if the program does not name them.
        max_collective_bytes: the most bytes that a device may send: a number, or text such as ``"64KiB"``.
        max_collectives: the most collectives that may run.
        max_memory: the most memory that a device may need.
        max_bytes_over: the most bytes that a device may send over an axis, by axis.
        max_collectives_over: the most collectives over an axis, by axis.
        deny: what it may not have, as ``--deny`` of the program takes it, such as ``"collectives-in-loops=data"``.
        allow_unpartitioned: whether a program is taken that XLA has yet to partition.

    Raises:
        HloDumpError: the program cannot be read, or a limit names an axis that it has not.
        TypeError: ``x`` is no program.

    >>> found = check(EXAMPLE, mesh="data=2,fsdp=4", max_bytes_over={"data": 100})
    >>> found.passed
    False
    """

    def by_axis(limits: Mapping[str, Any] | None) -> list[str]:
        return [f"{axis}={limit}" for axis, limit in (limits or {}).items()]

    options = _flags(
        max_collective_bytes=max_collective_bytes,
        max_collectives=max_collectives,
        max_memory=max_memory,
        max_bytes_over=by_axis(max_bytes_over),
        max_collectives_over=by_axis(max_collectives_over),
        deny=list(deny),
        allow_unpartitioned=allow_unpartitioned,
    )
    return _answer(Check, "check", x, [*mesh_option(mesh), *options], statuses=(0, 1))
