"""Inputs as files, for a program that reads two of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from ._input import Input


@contextmanager
def as_file(given: Input) -> Iterator[str]:
    """The path of an input, which is written to a temporary file if it has none."""
    if given.data is None:
        yield given.arguments()[0]
        return
    # Windows lets no other process open a file that is open here.
    handle, path = tempfile.mkstemp(prefix="hlo-dump-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(given.data)
        yield path
    finally:
        os.unlink(path)
