"""Assertions about what a program moves, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from ._input import Mesh, Program
from ._results import Collectives


def assert_collectives(
    x: Program,
    expected: Mapping[str, Mapping[str, int]] | None = None,
    *,
    mesh: Mesh = None,
    max_bytes_over: Mapping[str, int | str] | None = None,
    max_memory: int | str | None = None,
) -> None:
    """Asserts how often a program's collectives run, by kind and mesh axes, and how much they move.

    Args:
        x: the program.
        expected: executions by kind and axes, such as ``{"all-gather": {"fsdp": 226}}``; collectives over several axes
            are named by ``"data,fsdp"``. Everything that is not named must not be there. Without it nothing is said
            about executions.
        mesh: the mesh axes, if the program does not name them.
        max_bytes_over: the most bytes that a device may send over an axis, by axis, such as ``{"data": "1MiB"}``.
        max_memory: the most memory that a device may need.

    Raises:
        AssertionError: the program does something else; the message says what, and which lines of source cause it.
        HloDumpError: the program cannot be read.

    >>> assert_collectives(EXAMPLE, {"all-reduce": {"data": 1}}, mesh="data=2,fsdp=4")
    >>> assert_collectives(EXAMPLE, {"all-gather": {"fsdp": 1}}, mesh="data=2,fsdp=4")
    Traceback (most recent call last):
    AssertionError: step (8 devices, data=2,fsdp=4) has other collectives than expected
      all-gather over fsdp runs 0 times, expected 1
      all-reduce over data runs 1 time, expected 0
        1 x %sum
    """
    from . import check, collectives

    # pytest then shows the line of the test, not one of this file.
    __tracebackhide__ = True
    wrong = []
    found = collectives(x, mesh=mesh)
    if expected is not None:
        wrong += _differences(found, expected)
    if max_bytes_over or max_memory is not None:
        held = check(x, mesh=mesh, max_bytes_over=max_bytes_over, max_memory=max_memory, allow_unpartitioned=True)
        for limit, violations in held.violations.items():
            wrong += [f"  {limit.removeprefix('--')}: {one}" for one in violations]
    if wrong:
        axes = f", {found.mesh}" if found.mesh else ""
        title = f"{found.module} ({found.devices} devices{axes}) has other collectives than expected"
        raise AssertionError("\n".join([title, *wrong]))


def _differences(found: Collectives, expected: Mapping[str, Mapping[str, int]]) -> list[str]:
    counts = found.counts()
    wanted = {(kind, axes): count for kind, of_kind in expected.items() for axes, count in of_kind.items()}
    had = {(kind, axes): count for kind, of_kind in counts.items() for axes, count in of_kind.items()}
    lines = []
    for kind, axes in sorted(wanted.keys() | had.keys()):
        count, want = had.get((kind, axes), 0), wanted.get((kind, axes), 0)
        if count == want:
            continue
        lines.append(f"  {kind} over {axes} runs {count} {'time' if count == 1 else 'times'}, expected {want}")
        for one in found:
            if one.kind == kind and ("?" if one.axes is None else ",".join(one.axes)) == axes:
                where = one.source or f"%{one.name}"
                scope = f" {one.op_name}" if one.op_name else ""
                lines.append(f"    {one.executions} x {where}{scope}")
    return lines
