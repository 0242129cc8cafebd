"""The answers of the program, as values that print as its tables do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from ._input import Input
from ._program import run


@dataclass(frozen=True, repr=False)
class _Printed:
    """An answer with the command that it is from."""

    command: str = field(repr=False, compare=False)
    given: Input = field(repr=False, compare=False)
    options: list[str] = field(repr=False, compare=False)
    json: dict[str, Any] = field(repr=False, compare=False)
    """The whole object that ``--json`` prints, by the documented schema."""

    def __str__(self) -> str:
        # Status 1 is that of a check that failed.
        text = run(self.command, self.given, [*self.options, "--color", "never"], statuses=(0, 1))
        return text.rstrip("\n")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.json.get('module', 'two programs')}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"

    @property
    def module(self) -> str:
        """The name of the module."""
        return self.json["module"]

    @property
    def mesh(self) -> str | None:
        """The mesh axes, such as ``data=2,fsdp=4``, if they are known."""
        return self.json["mesh"]

    @property
    def devices(self) -> int | None:
        """The number of devices."""
        return self.json["devices"]

    @property
    def partitioned(self) -> bool:
        """Whether shapes are those of one device. Before XLA's partitioner they are global."""
        return self.json["partitioned"]


def _read(kind: type, row: dict[str, Any]) -> Any:
    """Makes a value of the fields that it has; those that a newer program adds stay out."""
    return kind(**{one.name: row.get(one.name) for one in fields(kind)})


@dataclass(frozen=True)
class Collective:
    """A collective, as a device runs it."""

    kind: str
    """``all-gather``, ``all-reduce``, ``reduce-scatter``, ``all-to-all``, ``collective-permute``, ..."""
    axes: list[str] | None
    """The mesh axes that it crosses; nothing if they are not known."""
    group_size: int | None
    """The number of devices in a group."""
    bytes: int
    """The bytes of its operands on one device."""
    moved_bytes: int | None
    """The bytes that a device sends in one execution."""
    executions: int | None
    """How often it runs, at most; nothing if a loop's trip count is unknown."""
    in_branch: bool
    """Whether it may run less often, as it is in a branch."""
    loop_depth: int
    """The number of loops around it."""
    asynchronous: bool
    """Whether it is an asynchronous pair."""
    name: str
    """The name of the instruction."""
    op_name: str | None
    """The scope and the operation that caused it."""
    source: str | None
    """The line that caused it, as ``file:line``."""

    @property
    def over(self) -> str:
        """The mesh axes, joined by commas; ``?`` if they are not known."""
        return "?" if self.axes is None else ",".join(self.axes)


@dataclass(frozen=True, repr=False)
class Collectives(_Printed):
    """The collectives of a program: a sequence of :class:`Collective`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rows", [_read(Collective, row) for row in self.json["collectives"]])

    def __iter__(self) -> Iterator[Collective]:
        return iter(self._rows)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[attr-defined]

    def __getitem__(self, at: int) -> Collective:
        return self._rows[at]  # type: ignore[attr-defined]

    @property
    def executions(self) -> int | None:
        """How many collectives run, at most."""
        return self.json["executions"]

    @property
    def moved_bytes(self) -> int | None:
        """The bytes that a device sends, at most."""
        return self.json["moved_bytes"]

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns the number of executions by kind and mesh axes.

        Axes of one collective are joined by commas; ``?`` stands for axes that are not known.

        Raises:
            ValueError: the number of executions of one is unknown.
        """
        found: dict[str, dict[str, int]] = {}
        for one in self:
            if one.executions is None:
                raise ValueError(f"{one.kind} {one.name} ({one.source}) runs in a loop with an unknown trip count")
            of_kind = found.setdefault(one.kind, {})
            of_kind[one.over] = of_kind.get(one.over, 0) + one.executions
        return found

    def moved_over(self) -> dict[str, int]:
        """Returns the bytes that a device sends, by mesh axes.

        Raises:
            ValueError: the number of executions of one is unknown.
        """
        found: dict[str, int] = {}
        for one in self:
            if one.executions is None or one.moved_bytes is None:
                raise ValueError(f"the bytes of {one.kind} {one.name} ({one.source}) are not known")
            found[one.over] = found.get(one.over, 0) + one.executions * one.moved_bytes
        return found


@dataclass(frozen=True)
class Buffer:
    """A buffer that lives at the peak."""

    name: str
    kind: str
    """``argument``, ``output``, ``temporary`` or ``constant``."""
    bytes: int
    padding: int | None
    """The part of the bytes that tiles add."""
    shape: str
    op_name: str | None
    source: str | None


@dataclass(frozen=True, repr=False)
class Memory(_Printed):
    """What fills a device's memory, in bytes."""

    @property
    def form(self) -> str:
        """How it is known: ``assignment``, ``scheduled``, ``unscheduled`` or ``uncompiled``."""
        return self.json["memory_form"]

    @property
    def arguments(self) -> int:
        return self.json["arguments"]

    @property
    def outputs(self) -> int:
        return self.json["outputs"]

    @property
    def aliased(self) -> int:
        """The bytes of outputs that lie in donated arguments."""
        return self.json["aliased"]

    @property
    def temporaries(self) -> int:
        return self.json["temporaries"]

    @property
    def peak(self) -> int:
        return self.json["peak"]

    @property
    def live_at_peak(self) -> list[Buffer]:
        """The buffers that live at the peak, largest first."""
        return [_read(Buffer, row) for row in self.json["live_at_peak"]]


@dataclass(frozen=True, repr=False)
class Cost(_Printed):
    """Operations and bytes of one device, with loops multiplied."""

    @property
    def flops(self) -> int:
        return self.json["total"]["flops"]

    @property
    def transcendentals(self) -> int:
        return self.json["total"]["transcendentals"]

    @property
    def bytes_read(self) -> int:
        return self.json["total"]["bytes_read"]

    @property
    def bytes_written(self) -> int:
        return self.json["total"]["bytes_written"]

    @property
    def moved_bytes(self) -> int:
        """The bytes that a device sends."""
        return self.json["total"]["link_bytes"]

    @property
    def seconds(self) -> float | None:
        """The least time on the chip that was named, with everything that can overlap overlapped."""
        roofline = self.json.get("roofline")
        return roofline and roofline["overlapped_seconds"]


@dataclass(frozen=True)
class Transfer:
    """A collective on the time line of a compiled schedule. Times are those of all its executions, in seconds."""

    kind: str
    """``all-gather``, ``all-reduce``, ``reduce-scatter``, ``all-to-all``, ``collective-permute``, ..."""
    axes: list[str] | None
    """The mesh axes that it crosses; nothing if they are not known."""
    executions: int | None
    """How often it runs, at most; nothing if a loop's trip count is unknown."""
    synchronous: bool
    """Whether the device waits for all of it."""
    seconds: float
    """The time that it takes."""
    exposed_seconds: float
    """The part of it in which the device waits, for this or another."""
    waited_seconds: float
    """The time that the device waits for this."""
    beside_seconds: float
    """The time that the device computes between its start and its end."""
    name: str
    """The name of the instruction."""
    op_name: str | None
    """The scope and the operation that caused it."""
    source: str | None
    """The line that caused it, as ``file:line``."""

    @property
    def over(self) -> str:
        """The mesh axes, joined by commas; ``?`` if they are not known."""
        return "?" if self.axes is None else ",".join(self.axes)


@dataclass(frozen=True)
class HostCopy:
    """A copy to or from the host's memory. Times are those of all its executions, and 0 if its link has no known rate."""

    direction: str
    """``to the host`` or ``from the host``."""
    bytes: int
    executions: int | None
    seconds: float
    exposed_seconds: float
    waited_seconds: float
    name: str
    op_name: str | None
    source: str | None


@dataclass(frozen=True)
class Hidden:
    """The times of several collectives, in seconds."""

    seconds: float
    """The time that they take."""
    exposed_seconds: float
    """The part of it in which the device waits."""
    waited_seconds: float
    """The time that the device waits for them."""

    @property
    def share(self) -> float | None:
        """The hidden part of the time, from 0 to 1; nothing if nothing is sent."""
        return 1 - self.exposed_seconds / self.seconds if self.seconds else None


@dataclass(frozen=True, repr=False)
class Overlap(_Printed):
    """What a compiled schedule hides, estimated at the peak rates of a chip: a sequence of :class:`Transfer`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rows", [_read(Transfer, row) for row in self.json["transfers"]])

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self._rows)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._rows)  # type: ignore[attr-defined]

    def __getitem__(self, at: int) -> Transfer:
        return self._rows[at]  # type: ignore[attr-defined]

    @property
    def total(self) -> Hidden:
        """The times of all of them."""
        return _read(Hidden, self.json["total"])

    @property
    def axes(self) -> dict[str, Hidden]:
        """The times of those over the same axes."""
        return {row["axes"]: _read(Hidden, row) for row in self.json["axes"]}

    @property
    def host_copies(self) -> list[HostCopy]:
        """The copies to and from the host's memory."""
        return [_read(HostCopy, row) for row in self.json["host_copies"]]

    @property
    def computing_seconds(self) -> float:
        """The time that the device computes."""
        return self.json["computing_seconds"]

    @property
    def waiting_seconds(self) -> float:
        """The time that it waits for transfers."""
        return self.json["waiting_seconds"]


@dataclass(frozen=True, repr=False)
class Diff(_Printed):
    """What differs between two programs, by meaning. It is true if something does."""

    text: str = field(default="", repr=False, compare=False)
    """What the program prints, made at once: one of the two may have been a temporary file."""

    @property
    def same(self) -> bool:
        return self.json["same"]

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return not self.same


@dataclass(frozen=True, repr=False)
class Check(_Printed):
    """Whether a program keeps limits."""

    @property
    def passed(self) -> bool:
        return self.json["passed"]

    @property
    def violations(self) -> dict[str, list[str]]:
        """The limits that are broken, each with what breaks it."""
        return {one["limit"]: one["violations"] for one in self.json["checks"] if not one["passed"]}

    def __bool__(self) -> bool:
        return self.passed
