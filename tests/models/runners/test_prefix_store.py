"""A damaged prefix file is recomputed with a note; it never raises an error and is never used."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtcontrol.models.call import Decision
from rtcontrol.models.decider import STDecider
from rtcontrol.models.runners.prefix_store import PrefixStore, prefix_key, saving_disabled
from tests.models.small import build, tool

TOOLS = tuple(tool(n, 0, v=["left", "red"]) for n in ("go", "stop"))
SHAPE = (2, 1, 2, 5, 4)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def tensors(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(SHAPE).to(request.param), torch.randn(SHAPE).to(request.param)


def test_saved_prefix_is_restored_exactly(tmp_path: Path, tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    store = PrefixStore(tmp_path / "new" / "folder")
    assert store.load("k" * 64, SHAPE) is None
    assert store.save("k" * 64, *tensors) is None
    found = store.load("k" * 64, SHAPE)
    assert isinstance(found, tuple)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, tensors, strict=True))
    assert [p.suffix for p in store.folder.iterdir()] == [".safetensors"]


def test_no_prefix_is_saved_while_saving_is_disabled(
    tmp_path: Path, tensors: tuple[torch.Tensor, torch.Tensor]
) -> None:
    store = PrefixStore(tmp_path)
    with saving_disabled():
        assert store.save("k" * 64, *tensors) is None
    assert not any(tmp_path.iterdir())
    assert store.save("k" * 64, *tensors) is None
    assert any(tmp_path.iterdir())


def bytewise(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def drop(path: Path) -> None:
    save_file({"keys": load_file(str(path))["keys"]}, str(path), metadata={})


def rewrite(path: Path, change: Callable[[torch.Tensor], torch.Tensor], **meta: str) -> None:
    from safetensors import safe_open

    with safe_open(str(path), "pt") as file:
        old = file.metadata()
        content = {name: change(file.get_tensor(name)) for name in ("keys", "values")}
    save_file(content, str(path), metadata={**old, **meta})


DAMAGE = {
    "torn": (bytewise(lambda b: b[:-7]), "is unreadable"),
    "dropped": (drop, "is unreadable"),
    "a bit": (bytewise(lambda b: b[:-5] + bytes([b[-5] ^ 4]) + b[-4:]), "has a wrong checksum"),
    "key": (lambda path: rewrite(path, lambda t: t, key="another"), "is for another model"),
    "shape": (lambda path: rewrite(path, lambda t: t[..., :-1, :].contiguous()), "has shape"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_prefix_file_is_recomputed_and_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], object], reason: str
) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))
    expected = decide(build(folder, TOOLS))
    (path,) = (tmp_path / "prefix").iterdir()
    damage(path)
    second = build(folder, TOOLS)
    assert second.prefix.source == "computed"
    assert reason in str(second.prefix.note) and str(path) in str(second.prefix.note)
    assert decide(second) == expected
    third = build(folder, TOOLS)
    assert (third.prefix.source, third.prefix.note) == ("disk", None)
    assert decide(third) == expected


def decide(decider: STDecider) -> Decision:
    return decider.decide("x=1", "go left")


def test_unwritable_prefix_folder_gives_only_a_note(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("RTCONTROL_CACHE", str(place))
        decider = build(folder, TOOLS)
        assert decider.prefix.source == "computed"
        assert "could not be written" in str(decider.prefix.note)
        decide(decider)


def test_prefix_key_depends_on_weights_prompt_dtype_and_settings() -> None:
    of = {"weights": "w", "ids": [1, 2], "dtype": torch.float32, "settings": "s"}
    changes = ({"weights": "v"}, {"ids": [1, 3]}, {"ids": [1, 2, 3]}, {"dtype": torch.bfloat16}, {"settings": "t"})
    assert len({prefix_key(**of | change) for change in ({}, *changes)}) == 6  # type: ignore[arg-type]


def stored(folder: Path, *ages: float) -> list[Path]:
    """Store prefixes of about 1 KiB each that were last used this many days ago, oldest last."""
    store, found = PrefixStore(folder), []
    for i, age in enumerate(ages):
        key = f"{i}" * 64
        assert store.save(key, torch.zeros(128), torch.zeros(128)) is None
        os.utime(store.path(key), (time.time() - age * 86400,) * 2)
        found.append(store.path(key))
    return found


def test_prefixes_unused_for_a_month_are_dropped(tmp_path: Path) -> None:
    recent, month, loaded = stored(tmp_path, 29, 0, 29.9)
    os.utime(month, (time.time() - 31 * 86400,) * 2)
    torn = tmp_path / "x.7.tmp"
    torn.touch()
    os.utime(torn, (0, 0))
    other = tmp_path / "notes.txt"
    other.touch()
    os.utime(other, (0, 0))
    assert isinstance(PrefixStore(tmp_path).load("2" * 64, (128,)), tuple)
    assert time.time() - loaded.stat().st_mtime < 60
    assert PrefixStore(tmp_path).save("9" * 64, torch.zeros(128), torch.zeros(128)) is None
    assert {*tmp_path.iterdir()} == {recent, loaded, other, PrefixStore(tmp_path).path("9" * 64)}
    assert not month.exists()


def test_least_recently_used_prefixes_are_dropped_above_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = stored(tmp_path, 1, 2, 3, 4)
    size = files[0].stat().st_size
    under_way = tmp_path / "y.8.tmp"  # another process is writing it
    under_way.touch()
    os.utime(under_way, (time.time() - 86400,) * 2)
    monkeypatch.setenv("RTCONTROL_CACHE_MB", str(3.5 * size / 2**20))
    store = PrefixStore(tmp_path)
    assert store.save("9" * 64, torch.zeros(128), torch.zeros(128)) is None
    assert {*tmp_path.iterdir()} == {*files[:2], store.path("9" * 64), under_way}
    monkeypatch.setenv("RTCONTROL_CACHE_MB", "0")
    assert store.save("8" * 64, torch.zeros(128), torch.zeros(128)) is None
    assert {*tmp_path.iterdir()} == {store.path("8" * 64), under_way}
    monkeypatch.setenv("RTCONTROL_CACHE_MB", "much")
    assert "RTCONTROL_CACHE_MB=much is not a number" in str(store.save("7" * 64, torch.zeros(1), torch.zeros(1)))
    assert store.path("7" * 64).exists() and store.path("8" * 64).exists()
