"""A scripted server, for the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.check.stand import Stand


@pytest.fixture
def stand() -> Iterator[Stand]:
    one = Stand("tcp://127.0.0.1:*")
    yield one
    one.close()
