"""Tests of ROS 2 that run beside each other never share a domain."""

from __future__ import annotations

import itertools

import pytest

from tests.helpers.ros_domain import FIRST, LAST, own_domain


def test_processes_of_a_test_run_draw_from_domains_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "6")
    drawn = []
    for worker in range(6):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{worker}")
        drawn.append({int(own_domain()["ROS_DOMAIN_ID"]) for _ in range(200)})
    assert all(len(mine) > 5 for mine in drawn)
    assert not any(one & other for one, other in itertools.combinations(drawn, 2))
    assert set().union(*drawn) <= set(range(FIRST, LAST + 1))
