"""A bad prefix file is recomputed with a note: never raised, never trusted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rtcontrol.models.decider import DeciderSpec, STDecider
from rtcontrol.models.engines.prefix_store import PrefixStore, prefix_key

TOOLS = tuple({"name": n, "parameters": {"properties": {"v": {"enum": ["left", "red"]}}}} for n in ("go", "stop"))
SHAPE = (2, 1, 2, 5, 4)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def tensors(request: pytest.FixtureRequest) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(SHAPE).to(request.param), torch.randn(SHAPE).to(request.param)


def test_what_was_saved_is_restored_bit_by_bit(tmp_path: Path, tensors: tuple[torch.Tensor, torch.Tensor]) -> None:
    store = PrefixStore(tmp_path / "new" / "folder")
    assert store.load("k" * 64, SHAPE) is None
    assert store.save("k" * 64, *tensors) is None
    found = store.load("k" * 64, SHAPE)
    assert isinstance(found, tuple)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, tensors, strict=True))
    assert [p.suffix for p in store.folder.iterdir()] == [".safetensors"]


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(content)


def garble_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])


def rekey(path: Path) -> None:
    rewrite(path, lambda t: t, key="another")


def reshape(path: Path) -> None:
    rewrite(path, lambda t: t[..., :-1, :].contiguous())


def drop(path: Path) -> None:
    save_file({"keys": load_file(str(path))["keys"]}, str(path), metadata={})


def rewrite(path: Path, change: Callable[[torch.Tensor], torch.Tensor], **meta: str) -> None:
    from safetensors import safe_open

    with safe_open(str(path), "pt") as file:
        old = file.metadata()
        content = {name: change(file.get_tensor(name)) for name in ("keys", "values")}
    save_file(content, str(path), metadata={**old, **meta})


DAMAGE = [
    (tear, "is unreadable"),
    (empty, "is unreadable"),
    (garble_header, "is unreadable"),
    (drop, "is unreadable"),
    (flip, "fails its checksum"),
    (rekey, "belongs to another model"),
    (reshape, "has shape"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGE, ids=[d.__name__ for d, _ in DAMAGE])
def test_damaged_file_is_recomputed_with_a_note_and_replaced(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], reason: str
) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))
    expected = decide(build(folder))
    (path,) = (tmp_path / "prefix").iterdir()
    damage(path)
    second = build(folder)
    assert second.prefix.source == "computed"
    assert second.prefix.note is not None
    assert reason in second.prefix.note
    assert str(path) in second.prefix.note
    assert decide(second) == expected
    third = build(folder)
    assert (third.prefix.source, third.prefix.note) == ("disk", None)
    assert decide(third) == expected


def build(folder: Path) -> STDecider:
    return DeciderSpec(str(folder), TOOLS).build()


def decide(decider: STDecider) -> dict[str, Any]:
    return decider.decide("x=1", "go left").to_dict()


def test_unwritable_folder_is_a_note_and_no_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("RTCONTROL_CACHE", str(place))
        decider = build(folder)
        assert decider.prefix.source == "computed"
        assert decider.prefix.note is not None
        assert "could not be written" in decider.prefix.note
        decide(decider)


def test_folder_in_the_files_place_is_a_note_and_no_error(tmp_path: Path) -> None:
    store = PrefixStore(tmp_path)
    store.path("k").mkdir()
    (store.path("k") / "x").touch()
    assert store.load("k", SHAPE) is None
    reason = store.save("k", torch.zeros(SHAPE), torch.zeros(SHAPE))
    assert reason is not None
    assert "could not be written" in reason
    assert not list(tmp_path.glob("*.tmp"))


def test_other_weights_prompt_dtype_or_settings_have_other_keys() -> None:
    keys = {
        prefix_key(*k)
        for k in [
            ("w", [1, 2], torch.float32, "s"),
            ("v", [1, 2], torch.float32, "s"),
            ("w", [1, 3], torch.float32, "s"),
            ("w", [1, 2, 3], torch.float32, "s"),
            ("w", [1, 2], torch.bfloat16, "s"),
            ("w", [1, 2], torch.float32, "t"),
        ]
    }
    assert len(keys) == 6


def test_other_tools_and_another_setting_do_not_find_the_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path / "cache"))
    assert build(folder).prefix.source == "computed"
    assert DeciderSpec(str(folder), TOOLS[:1]).build().prefix.source == "computed"
    assert DeciderSpec(str(folder), TOOLS, dtype="bf16").build().prefix.source == "computed"
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert build(other).prefix.source == "disk"  # the same weights in another place
    config = other / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.01'))
    assert build(other).prefix.source == "computed"
