"""Where a set is: a path, or the hub's; and sources by their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sources import registry
from rtcontrol.models.data.sources.files import data_file, items, located, version
from rtcontrol.models.errors import UserError
from tests.helpers.processes import python
from tests.models.data.test_row import LEAST
from tests.models.test_hub import REPOSITORY, SHA, Hub


def test_a_set_that_is_nowhere_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no"):
        located(str(tmp_path / "none.jsonl"), "the set")
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "b.json").write_text("[]")
    assert data_file(tmp_path, "b*.json").name == "b.json"
    with pytest.raises(UserError, match="a.json, b.json"):
        data_file(tmp_path, "dataset.jsonl")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "is no JSON"),
        ("a.json", "[NaN]", "is no JSON"),
        ("a.json", '"text"', "is no list"),
        ("a.json.gz", "no gzip", "cannot be read"),
        ("a.jsonl", '{"a": 1}\n{', "a.jsonl:2"),
    ],
)
def test_a_file_that_is_no_set_is_told(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=said):
        list(items(tmp_path / name))


def test_lines_are_read_whatever_the_file_is_called(tmp_path: Path) -> None:
    path = tmp_path / "BFCL_v4_multiple.json"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert list(items(path)) == [(f"{path}:1", {"a": 1}), (f"{path}:2", {"a": 2})]
    path.write_text(json.dumps([{"a": 1}], indent=1))
    assert list(items(path)) == [(f"{path}#1", {"a": 1})]


def test_the_hubs_revision_or_the_contents_name_the_version(tmp_path: Path) -> None:
    path = tmp_path / "datasets--o--n" / "snapshots" / "0123456789abcdef" / "d.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    assert version(path) == "revision 01234567"
    other = tmp_path / "d.jsonl"
    other.write_text("{}")
    assert version(other).startswith("sha256 44136fa3")


def test_the_hubs_cache_is_read_without_a_network_and_an_unknown_set_says_what_to_do(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "datasets--someone--chats" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "dataset.jsonl").write_text("{}\n")
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("a" * 40)
    code = (
        "from rtcontrol.models.data.sources.files import located\n"
        "from rtcontrol.models.errors import UserError\n"
        "print(located('someone/chats', 'the chats'))\n"
        "try: located('someone/others', 'the others')\n"
        "except UserError as error: print(error)\n"
    )
    environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = python("-c", code, env=environment)
    first, second = done.stdout.strip().splitlines()
    assert first == str(snapshot)
    assert "someone/others is no path" in second and "hf download --repo-type dataset someone/others" in second


def test_a_set_is_downloaded_once_and_no_more_of_it_than_its_data(tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    (root / "dataset.jsonl").write_text("{}\n")
    (root / "picture.png").write_bytes(b"what nobody here reads")
    hub = Hub(root, "datasets")
    code = f"from rtcontrol.models.data.sources.files import located\nprint(located('{REPOSITORY}', 'the set'))\n"
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    try:
        first = python("-c", code, env=environment)
        assert first.returncode == 0, first.stderr
        asked = hub.asked
        again = python("-c", code, env=environment)
    finally:
        hub.close()
    folder = Path(first.stdout.strip())
    assert [path.name for path in folder.iterdir()] == ["dataset.jsonl"] and hub.got == ["dataset.jsonl"]
    assert again.stdout == first.stdout and hub.asked == asked
    assert version(folder / "dataset.jsonl") == f"revision {SHA[:8]}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nothing", "neither a file nor a set"),
        ("toolalpaca", "Write toolalpaca=PLACE"),
        ("bfcl:java", "no part 'java'"),
        ("xlam:train=x", "Write xlam alone"),
        ("seal-tools:test=x", "in-domain-several"),
    ],
)
def test_a_source_that_is_not_known_says_how_to_write_one(given: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        registry.read(given)


def test_a_file_of_rows_is_a_source(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(LEAST))
    assert list(registry.read(str(path))) == [DataRow.from_dict(LEAST, f"{path}:1")]
