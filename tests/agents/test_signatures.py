"""Tests of user functions that return before their work is done."""

from __future__ import annotations

import concurrent.futures
from collections.abc import AsyncIterator, Callable, Iterator
from multiprocessing.pool import ThreadPool
from typing import Any
from unittest.mock import MagicMock

import pytest

from rtcontrol.agents.signatures import run_to_completion
from rtcontrol.models.errors import UserError


class Reference:
    """A stand-in for Ray's ObjectRef: an awaitable that is not a coroutine."""

    def __await__(self) -> Iterator[None]:
        yield None


async def later() -> None:
    pass


def steps() -> Iterator[int]:
    yield 1


async def later_steps() -> AsyncIterator[int]:
    yield 1


def pool_result() -> Any:
    with ThreadPool(1) as pool:
        return pool.apply_async(int)


@pytest.mark.filterwarnings("error")  # a coroutine that is refused leaves none
@pytest.mark.parametrize(
    "started",
    [
        later,
        steps,
        later_steps,
        Reference,
        concurrent.futures.Future,
        pool_result,
        lambda: map(int, "12"),
        lambda: [None, later(), later()],
    ],
)
def test_unfinished_work_is_refused(started: Callable[[], Any]) -> None:
    def fly(speed: int) -> Any:
        return started()

    with pytest.raises(
        UserError, match=r"test_signatures\.py:\d+: fly\(\) returned a .*, so its work has not finished"
    ):
        run_to_completion(fly, speed=1)


@pytest.mark.parametrize("value", [None, 0, "done", {"x": 1}, [1], (0.0, {}), MagicMock()])
def test_finished_result_is_returned(value: Any) -> None:
    assert run_to_completion(lambda: value) is value
