"""Collectives of modules, counted twice: from XLA's text by a reader of a page, and by hlo-dump.

Both give rows `(kind, axes, executions, bytes)`: axes as `data,fsdp` or `fsdp:(1)2`, the bytes of the operands on one device in
one execution, and None for what is not known.
"""

import collections
import itertools
import json
import os
import pathlib
import re
import subprocess

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = os.environ.get("HLO_DUMP", str(TARGET / "release" / "hlo-dump"))

BITS = {"pred": 8, "bf16": 16, "s4": 4, "u4": 4}
KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast|ragged-all-to-all"
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (.*)$")
COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{$")
ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+)(?:e\dm\d\w*)?\[([\d,]*)\]")
CALLED = re.compile(r"\b(calls|to_apply|body|condition|true_computation|false_computation|called_computation)=%?([\w.-]+)")


def size(shape):
    """The bytes of all arrays in a shape."""
    total = 0
    for kind, sides in ARRAY.findall(shape):
        bits = BITS.get(kind) or int(kind[1:])
        total += int(np.prod([int(side) for side in sides.split(",") if side])) * bits // 8
    return total


def balanced(text):
    """The text up to where the parenthesis with which it begins is closed, and the rest."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return text[1:position], text[position + 1:]
    raise ValueError(text)


def parsed(text):
    """The computations: for each the instructions as (name, shape, opcode, operands, attributes); and the entry's name."""
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        line = re.sub(r"/\*.*?\*/", "", line)
        start = COMPUTATION.match(line)
        if start and not line.startswith(" ") and not line.startswith("HloModule"):
            current = computations.setdefault(start[2], [])
            entry = start[2] if start[1] else entry
            continue
        found = INSTRUCTION.match(line)
        if not found or current is None:
            continue
        name, rest = found.groups()
        if rest.startswith("("):
            shape, rest = balanced(rest)
        else:
            shape, rest = rest.split(" ", 1)
        opcode, rest = re.match(r"\s*([\w-]+)(\(.*)$", rest).groups()
        operands, attributes = balanced(rest)
        current.append((name, shape, opcode, re.findall(r"%([\w.-]+)", operands), attributes))
    return computations, entry


def groups_of(attributes, count):
    """The groups of devices, as sets, of any of XLA's ways to write them."""
    pairs = re.search(r"source_target_pairs=\{(.*?\})\}", attributes)
    if pairs:
        return [tuple(map(int, pair.split(","))) for pair in re.findall(r"\{([\d,]+)\}", pairs[1])]
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", attributes)
    if iota:
        shape, sides, order = (tuple(map(int, part.split(","))) if part else None for part in iota.groups())
        ids = np.arange(np.prod(sides)).reshape(sides)
        return list(map(tuple, (ids.transpose(order) if order else ids).reshape(shape)))
    named = re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?)\))? *\{(.*?)\}", attributes)
    if named:
        sides = {axis: int(side) for axis, side in re.findall(r"'?([\w.]+)'?=(\d+)", named[1])}
        places = along(sides, re.findall(r"'?([\w.]+)'?(?::\((\d+)\)(\d+))?", named[3]))
        devices = order_of(named[2]) if named[2] else range(count)
        return [tuple(devices[place] for place in group) for group in places]
    lists = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", attributes)
    found = [tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", lists[1])] if lists else []
    return found or [tuple(range(count))]


def order_of(text):
    """The devices of a mesh in its order: a list, or `[2,4]T(1,0)`."""
    iota = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\)?)?", text)
    if not iota:
        return [int(device) for device in text.split(",")]
    sides, order = (tuple(map(int, part.split(","))) if part else None for part in iota.groups())
    ids = np.arange(np.prod(sides)).reshape(sides)
    return list((ids.transpose(order) if order else ids).flatten())


def along(sides, axes):
    """The groups along axes, or parts of them, of a mesh."""
    shape, chosen, place = [], {}, 0
    for name, side in sides.items():
        part = next((axis for axis in axes if axis[0] == name), None)
        if part and part[1]:
            before, width = int(part[1]), int(part[2])
            shape += [before, width, side // before // width]
            chosen[name], place = place + 1, place + 3
        else:
            shape.append(side)
            if part:
                chosen[name] = place
            place += 1
    ids = np.arange(np.prod(shape)).reshape(shape)
    kept = [chosen[axis[0]] for axis in axes]
    ids = ids.transpose([place for place in range(len(shape)) if place not in kept] + kept)
    return list(map(tuple, ids.reshape(-1, int(np.prod([shape[place] for place in kept])))))


def axes_of(kind, groups, sides):
    """The axes of a mesh along which the groups lie, with a `:(before)width` for a part of one."""
    count = int(np.prod(list(sides.values())))
    places = {device: np.unravel_index(device, tuple(sides.values())) for device in range(count)}
    if kind == "collective-permute":
        changed = {index for a, b in groups for index in range(len(sides)) if places[a][index] != places[b][index]}
        return ",".join(axis for index, axis in enumerate(sides) if index in changed)
    wanted = {frozenset(group) for group in groups}
    for number in range(1, len(sides) + 1):
        for names in itertools.combinations(sides, number):
            if wanted == {frozenset(group) for group in along(sides, [(name, "", "") for name in names])}:
                return ",".join(names)
    for name, side in sides.items():
        for before, width in [(1, 2), (2, 2)] if side == 4 else []:
            if wanted == {frozenset(group) for group in along(sides, [(name, str(before), str(width))])}:
                return f"{name}:({before}){width}"
    return None


def collectives_in(text, sides, loops):
    """Each collective of a compiled module as (kind, axes, executions, bytes), with loops that run so often, outer to inner."""
    computations, entry = parsed(text)
    count = int(np.prod(list(sides.values())))
    found = []

    def visit(name, times, depth, is_scatter=False):
        shapes = {instruction[0]: instruction[1] for instruction in computations[name]}
        for _, _, opcode, operands, attributes in computations[name]:
            kind = re.fullmatch(rf"({KINDS})(-start)?", opcode)
            if kind:
                moved = operands[:1] if kind[1] == "ragged-all-to-all" else operands
                bytes_ = sum(size(shapes[operand]) for operand in moved)
                # A TPU's fusion of an all-reduce and a slice of it.
                what = "reduce-scatter" if is_scatter else kind[1]
                found.append((what, axes_of(kind[1], groups_of(attributes, count), sides), times, bytes_))
                continue
            inner = times
            if opcode == "while":
                trips = re.search(r'"?known_trip_count"?[=:]\{"?n"?:"?(\d+)', attributes)
                trips = int(trips[1]) if trips else loops[depth] if depth < len(loops) else None
                inner = times * trips if trips is not None and times is not None else None
            called = [target for key, target in CALLED.findall(attributes) if not (key == "to_apply" and opcode != "call")]
            called += [target for listed in re.findall(r"(?:branch_computations|called_computations)=\{(.*?)\}", attributes)
                       for target in re.findall(r"%?([\w.-]+)", listed)]
            # What is started counts there.
            for target in [] if opcode.endswith(("-update", "-done")) else called:
                visit(target, inner, depth + (opcode == "while"), opcode == "fusion" and target.startswith("all-reduce-scatter"))

    visit(entry, 1, 0)
    return found


def answer(command, path, *options):
    """What a command of hlo-dump says of a file, or the error as text."""
    done = subprocess.run([PROGRAM, command, str(path), *options, "--json"], capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else json.loads(done.stdout)


def counted(path, sides):
    """The rows that hlo-dump finds, or its error as text."""
    found = answer("collectives", path, "--mesh", ",".join(f"{axis}={side}" for axis, side in sides.items()))
    if isinstance(found, str):
        return found
    axes = lambda one: ",".join(one["axes"]) if one["axes"] is not None else None
    return [(one["kind"], axes(one), one["executions"], one["bytes"]) for one in found["collectives"]]


def moved(path, mesh):
    """For each kind and axes the bytes that one device sends in all, by hlo-dump; or its error."""
    found = answer("collectives", path, "--mesh", mesh)
    if isinstance(found, str):
        return found
    total = collections.Counter()
    for one in found["collectives"]:
        total[one["kind"], ",".join(one["axes"] or ["?"])] += one["moved_bytes"] * one["executions"]
    return total


def unordered(rows):
    """Rows in one order, and axes of a group in the mesh's or any other order alike."""
    return sorted(([kind, axes and ",".join(sorted(axes.split(","))), times, bytes_] for kind, axes, times, bytes_ in rows), key=str)


def sums(rows):
    """For each kind and axes the bytes of all executions, however many collectives they are."""
    total = collections.Counter()
    for kind, axes, times, bytes_ in unordered(rows):
        total[kind, axes] = None if times is None or total[kind, axes] is None else total[kind, axes] + times * bytes_
    return dict(total)
