"""A set of tools is read once, however often it is asked for; and only what says the same is taken for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rtcontrol.agents import Tools
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema import tool_schema as schemas
from rtcontrol.models.schema.limits import BoundedCache
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from tests.models.drawn_schemas import Drawer


def tool(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"properties": {"p": schema}, "required": ["p"]}}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the tools that are read from here on, with nothing known."""
    found: list[str] = []
    once = ToolSchema.from_openai.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, given: Any, room: Any = None) -> ToolSchema:
        made: ToolSchema = once(cls, given, room)
        found.append(made.name)
        return made

    monkeypatch.setattr(schemas, "_recent", BoundedCache(64, 1 << 20))
    monkeypatch.setattr(ToolSchema, "from_openai", classmethod(counted))
    return found


def test_tools_are_read_once_for_a_session_and_what_decides_in_it(read: list[str]) -> None:
    given = [tool("go", oneOf=[{"const": "a"}, {"const": "b"}]), tool("stop", type="string", maxLength=4)]
    tools = Tools(given)
    assert tool_schemas(tools.openai()) == tool_schemas(given) == tools.schemas
    assert read == ["go", "stop"]


def test_what_decides_reads_of_a_tool_all_that_its_writer_said(read: list[str]) -> None:
    arms = [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "b$"}]
    one, some = [tool("go", oneOf=arms)], [tool("go", anyOf=arms)]
    strict, loose = tool_schemas(one)[0], tool_schemas(some)[0]
    assert [s.parameters[0].rules.get("oneOf") is None for s in (strict, loose)] == [False, True]
    # What the model reads is one text, and what decides reads another.
    assert strict.canonical_json() == loose.canonical_json()
    assert tool_schemas([strict.to_openai()])[0].parameters[0].rules == loose.parameters[0].rules
    for schema in (strict, loose):
        assert tool_schemas([schema.exact()]) == (ToolSchema.from_openai(schema.exact()),) == (schema,)


def test_what_is_written_is_read_as_what_it_was_written_of(monkeypatch: pytest.MonkeyPatch) -> None:
    tied = 0
    for seed in range(600):
        monkeypatch.setattr(schemas, "_recent", BoundedCache(64, 1 << 20))
        drawer = Drawer(seed)
        properties = {name: drawer.schema(1) for name in ("p", "q")}
        root = {"anyOf": [{"required": ["p"]}, {"properties": {"q": drawer.schema(0)}}]} if drawer.chance(0.2) else {}
        given = {"name": "go", "parameters": {"properties": properties, "required": ["q"] * drawer.chance(0.5), **root}}
        try:
            (made,) = tool_schemas([given])
        except UserError:
            continue
        tied += made.rules is not None
        again = ToolSchema.from_openai(made.exact())
        assert again.parameters == made.parameters and again.canonical_json() == made.canonical_json(), seed
        known = schemas._recent.of(json.dumps([made.exact()]).encode())
        assert (known is None) == (made.rules is not None)
        assert known in (None, (again,))
    assert tied > 10


def test_no_more_is_kept_than_may_be() -> None:
    kept = BoundedCache[int](3, 10)
    for number, text in enumerate((b"a", b"bb", b"ccc", b"dddd", b"x" * 11)):
        kept.keep(text, number)
    assert [kept.of(text) for text in (b"a", b"bb", b"ccc", b"dddd", b"x" * 11)] == [None, 1, 2, 3, None]
    kept.keep(b"dddd", 5)
    kept.keep(b"e", 4)
    assert [kept.of(text) for text in (b"bb", b"ccc", b"dddd", b"e")] == [None, 2, 5, 4]
    for _ in range(20):
        kept.keep(b"e", 6)
    assert [kept.of(text) for text in (b"ccc", b"dddd", b"e")] == [2, 5, 6]


def test_a_caller_who_changes_what_he_was_given_changes_no_later_reading() -> None:
    root = {"anyOf": [{"required": ["p"]}, {"required": ["q"]}]}
    tied = {"name": "stop", "parameters": {"properties": {"p": {"enum": [1]}, "q": {"enum": [2]}}, **root}}
    given = [tool("go", enum=["left", "right"]), tool("put", oneOf=[{"type": "string", "pattern": "^a"}, {"const": 1}])]
    for schema in tool_schemas([*given, tied]):
        for shown in (schema.to_openai(), schema.exact()):
            for part in shown["function"]["parameters"]["properties"].values():
                for listed in part.values():
                    if isinstance(listed, list):
                        listed.clear()
            shown["function"]["parameters"].get("anyOf", []).clear()
    again = tool_schemas([*given, tied])
    assert again[0].parameters[0].schema["enum"] == ["left", "right"]
    assert again[2].rules is not None and again[2].rules.written == root
    fresh = tuple(ToolSchema.from_openai(t) for t in [*given, tied])
    assert [s.exact() for s in again] == [s.exact() for s in fresh]


def test_a_short_set_of_many_values_is_not_kept_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: BoundedCache[Any] = BoundedCache(64, 1 << 20)
    monkeypatch.setattr(schemas, "_recent", kept)
    large = [tool(f"t{n}", type="integer", minimum=10_000 * n, maximum=10_000 * n + 4095) for n in range(8)]
    small = [tool("go", type="boolean")]
    for given in (small, large):
        tool_schemas(given)
    assert [kept.of(json.dumps(given).encode()) is None for given in (small, large)] == [False, True]


def test_a_set_that_is_refused_is_refused_again(read: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(UserError, match="Two tools are called"):
            tool_schemas([tool("go", type="boolean")] * 2)
    assert read == ["go"] * 4
