"""A server's model is loaded before there are sessions, with what their first free value needs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from commands import refused

from rtcontrol.hosts.deciders import STSource
from rtcontrol.models.checkpoint.checkpoint import ZOO
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import FILE_NAME as LEARNT
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode import grammar
from rtcontrol.models.errors import UserError
from rtcontrol.serve.options import ServeOptions, ServerOptions
from rtcontrol.serve.pools import Pools

SAY: dict[str, Any] = {"name": "say", "parameters": {"properties": {"what": {"type": "string", "maxLength": 9}}}}
Open = Callable[..., Pools]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One of its own: nothing of it is loaded yet."""
    return Path(shutil.copytree(ZOO / "lander", tmp_path / "lander", ignore=shutil.ignore_patterns(LEARNT)))


@pytest.fixture
def pools(model: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def start(**options: Any) -> Pools:
            made = Pools(ServeOptions(model=str(model), host="inprocess", **options))
            stack.callback(made.close)
            made.start()
            return made

        yield start


def tables(model: Path) -> list[Any]:
    """Of the vocabulary, for free values."""
    return list(grammar._machines.get(STTokenizer.load(model / "tokenizer.json"), {}).values())


def test_a_sessions_first_free_value_finds_its_vocabularys_tables_made(pools: Open, model: Path) -> None:
    started = pools()
    (made,) = tables(model)
    host = started.open("first", STSource(DeciderSpec(str(model), (SAY,))))
    (now,) = tables(model)
    assert now is made and host.deciders[0]._decider.decoding.core.domains  # type: ignore[attr-defined]
    assert host.deciders[0]._decider.runner is started._model.deciders[0].runner  # type: ignore[attr-defined, union-attr]


def test_a_server_where_nobody_brings_tools_makes_none(pools: Open, model: Path) -> None:
    pools(agent="lander")
    assert tables(model) == []
    assert ServerOptions(model=str(model), agent="lander").loads is None
    assert ServerOptions(model=str(model), agent="lander", http="127.0.0.1:0").loads == str(model)
    assert ServerOptions(model="random").loads is None and ServerOptions().loads is None


def test_a_checkpoint_that_cannot_be_loaded_ends_the_server_at_its_start(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "model.safetensors").unlink()
    serve = ("serve", "--host", "inprocess", "--bind", "tcp://127.0.0.1:*", "--out", str(tmp_path / "out"))
    assert str(model) in refused(capsys, *serve, "--model", str(model))
    assert not (tmp_path / "out").exists()


def test_a_model_that_could_not_be_read_is_tried_again(model: Path) -> None:
    pools = Pools(ServeOptions(model=str(model), host="inprocess"))
    hidden = (model / "tokenizer.json").rename(model / "hidden")
    with pytest.raises(UserError, match="tokenizer"):
        pools.start()
    hidden.rename(model / "tokenizer.json")
    try:
        assert pools.open("first", STSource(DeciderSpec(str(model), (SAY,)))).alive()
    finally:
        pools.close()


def test_a_server_does_not_start_on_tools_that_every_session_would_be_refused(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = {"type": "string", "pattern": "^a{5}$", "maxLength": 3}  # no value satisfies both
    own = {"name": "say", "parameters": {"properties": {"what": none}}}
    (file := tmp_path / "tools.json").write_text(json.dumps([own]))
    serve = ("serve", "--host", "inprocess", "--bind", "tcp://127.0.0.1:*", "--out", str(tmp_path / "out"))
    said = refused(capsys, *serve, "--tools", str(file), "--model", str(model))
    assert "Tool say, what: no text matches" in said
    own["parameters"]["required"] = ["what"]  # type: ignore[index]
    file.write_text(json.dumps([own]))
    assert "what: no value of it can be made up" in refused(capsys, *serve, "--tools", str(file), "--model", "random")
