"""The pytest plugin: ``assert_collectives`` as a fixture."""

from __future__ import annotations

import pytest

from . import _testing


@pytest.fixture
def assert_collectives():
    """:func:`hlo_dump.assert_collectives`."""
    return _testing.assert_collectives
