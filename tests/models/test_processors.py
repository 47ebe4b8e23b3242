"""Tests of the number of processors that a container allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtcontrol.models import processors


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b", {"cpu.max": "800000 100000", "a/b/cpu.max": "400000 100000"}, 4.0),
        ("3:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, 0.5),
        ("3:cpu,cpuacct:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        (None, {}, None),
    ],
)
def test_quota_of_a_container_is_read(
    groups: str | None, files: dict[str, str], quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if groups is not None:
        (tmp_path / "groups").write_text(f"{groups}\n")
    monkeypatch.setattr(processors, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(processors, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(processors.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert processors.cpu_quota() == quota
    assert processors.usable_processors() == (8 if quota is None else {1.5: 2, 4.0: 4, 0.5: 1}[quota])
