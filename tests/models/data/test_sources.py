"""Public data sets and chats: their counts and irregularities, and files with unexpected content."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.convert import Purpose, canonical_tool, convert_rows
from rtcontrol.models.data.row import read_rows, write_rows
from rtcontrol.models.data.sample import DroppedSample, Sample, Tally
from rtcontrol.models.data.sets import file_version, find_data_file, locate, read_openai_chats, read_source
from rtcontrol.models.errors import UserError


def test_missing_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no"):
        locate(str(tmp_path / "none.jsonl"), "the set")
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "b.json").write_text("[]")
    assert find_data_file(tmp_path, "b*.json").name == "b.json"
    with pytest.raises(UserError, match="a.json, b.json"):
        find_data_file(tmp_path, "dataset.jsonl")


def test_dataset_version_is_hub_revision_or_content_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    path = tmp_path / "datasets--o--n" / "snapshots" / ("0123456789abcdef" * 3)[:40] / "d.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    (tmp_path / "datasets--o--n" / "refs").mkdir()
    (tmp_path / "datasets--o--n" / "refs" / "main").write_text(path.parent.name)
    assert locate("o/n", "the set") == path.parent and file_version(path) == "revision 01234567"
    path.unlink()
    with pytest.raises(UserError, match="is not a path, and cannot be downloaded"):
        locate("o/none", "the set")
    other = tmp_path / "d.jsonl"
    other.write_text("{}")
    assert file_version(other).startswith("sha256 44136fa3")


# Seal-Tools, OpenFunctions, ToolAlpaca and xLAM: the counts and the irregularities of each.


def split(found: Any) -> tuple[list[Sample], Counter[str]]:
    every = list(found)
    samples = [one for one in every if isinstance(one, Sample)]
    for one in samples:
        for tool in one.tools:
            canonical_tool(tool)
    return samples, Counter(one.reason for one in every if isinstance(one, DroppedSample))


def test_seal_tools_have_five_candidates_and_typed_gold(sets: Path) -> None:
    samples, dropped = split(read_source(f"seal-tools={sets}/seal_tools"))
    assert len(samples) == 200 and not dropped
    assert {len(one.tools) for one in samples} == {5}
    kinds = Counter(type(v).__name__ for one in samples for v in one.calls[0].arguments.values())
    assert kinds["int"] == 34 and kinds["float"] == 26
    several, dropped = split(read_source(f"seal-tools:in-domain-several={sets}/seal_tools"))
    later, unshown = "a call that uses the result of another call", "a call of an unknown function"
    assert dropped == {later: 30, unshown: 2} and len(several) == 468


def test_openfunctions_gold_call_comes_from_api_call(sets: Path) -> None:
    samples, dropped = split(read_source(f"openfunctions={sets}/openfunctions_v1"))
    assert len(samples) == 109 and dropped == {"a function without parameters": 3}
    by_query = {one.instruction: one.calls[0] for one in samples}
    coffee = by_query["Find a coffee shop near me with free Wi-Fi in San Francisco."]
    assert coffee.text() == 'coffee_shop.find_nearby(location="San Francisco", amenities=["Wi-Fi"])'


def test_toolalpaca_keeps_single_golden_calls(sets: Path) -> None:
    samples, dropped = split(read_source(f"toolalpaca={sets}/toolalpaca"))
    assert len(samples) == 51 and dropped == {"several calls": 43, "arguments that are not JSON": 6}
    assert not any(tool["function"]["name"] == "components" for one in samples for tool in one.tools)
    search = {t["function"]["name"]: t["function"]["parameters"] for t in samples[0].tools}["searchAxolotlImages"]
    assert search["properties"]["color"]["enum"] == ["wild", "leucistic", "albino"] and search["required"] == []
    assert search["properties"]["page"]["type"] == "integer"


def xlam_row() -> dict[str, Any]:
    tools = [
        {
            "name": "live_giveaways_by_type",
            "description": "Live giveaways.",
            "parameters": {
                "type": {"description": "The kind.", "type": "str", "default": "game"},
                "limit": {"description": "At most.", "type": "int, optional"},
                "ids": {"description": "Which.", "type": "List[int]"},
            },
        }
    ]
    answers = [{"name": "live_giveaways_by_type", "arguments": {"type": k, "ids": [1]}} for k in ("beta", "game")]
    return {"id": 3, "query": "Where?", "answers": json.dumps(answers), "tools": json.dumps(tools)}


def test_xlam_required_comes_before_type_and_default(tmp_path: Path) -> None:
    parameters = {
        "told": {"type": "int, optional", "default": 3, "required": True},
        "free": {"type": "list", "description": None, "required": False},
        "plain": {"type": None},
    }
    answers = [{"name": "f", "arguments": {"told": 1, "plain": "a"}}]
    row = {"query": "Go.", "tools": [{"name": "f", "description": None, "parameters": parameters}], "answers": answers}
    (tmp_path / "xlam.json").write_text(json.dumps([row]))
    (one,), _ = split(read_source(f"xlam={tmp_path}/xlam.json"))
    own = one.tools[0]["function"]["parameters"]
    assert own["required"] == ["told", "plain"] and own["properties"]["told"]["default"] == 3
    assert own["properties"]["plain"] == {"type": "string", "description": ""}


# Any content of a data file gives rows, a reason or an error message for the user, never a traceback.


LAMP = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
CHAT = {
    "messages": [
        {"role": "system", "content": "Now."},
        {"role": "user", "content": "Light."},
        {"role": "assistant", "tool_calls": [{"function": {"name": "lamp", "arguments": {"on": True}}}]},
    ],
    "tools": [{"function": {"name": "lamp", "description": "", "parameters": LAMP}}],
}
OPEN = {
    "question": "Light.",
    "function": {"name": "Lamp", "api_call": "lamp", "description": "", "parameters": LAMP},
    "model_answer": "lamp(on=true)",
}
ALPACA = {
    "Name": "L",
    "Function_Description": {"lamp": 'Light.\nParameters: {"on": "Required. boolean. Whether."}\nOutput: none'},
    "Instructions": ["Light."],
    "Golden_Answers": [[{"Action": "lamp", "Action_Input": '{"on": true}'}]],
}
API = {"api_name": "lamp", "api_description": "", "parameters": {"on": {"type": "bool"}}, "required": ["on"]}
SEAL = {
    "id": "dev-easy-0",
    "query": "Light.",
    "calling": [{"api": "lamp", "parameters": {"on": "True"}, "responses": []}],
}


def _lines(folder: Path, name: str, *values: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(map(json.dumps, values)))
    return folder / name


def _seal(folder: Path, value: Any) -> Any:
    _lines(folder, "tool.jsonl", *({**API, "api_name": name} for name in ("lamp", "a", "b", "c", "d", "e")))
    _lines(folder, "dev.jsonl", value)
    return read_source(f"seal-tools:dev={folder}")


def _list(name: str, source: str) -> Callable[[Path, Any], Any]:
    def samples(folder: Path, value: Any) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps([value], indent=1))
        return read_source(f"{source}={folder / name}")

    return samples


SETS: dict[str, tuple[Any, Callable[[Path, Any], Any]]] = {
    "chat": (CHAT, lambda folder, value: read_openai_chats("", str(_lines(folder, "chats.jsonl", value)))),
    "openfunctions": (OPEN, _list("o.json", "openfunctions")),
    "seal-tools": (SEAL, _seal),
    "toolalpaca": (ALPACA, _list("eval_x.json", "toolalpaca")),
    "xlam": (xlam_row(), _list("x.json", "xlam")),
}
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(-1e300, 1e300)
    | st.text(max_size=6)
    | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "name", "on", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_value_in_a_data_file_gives_row_or_reason(
    name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    value, read = SETS[name]
    value = copy.deepcopy(value)
    *above, last = data.draw(st.sampled_from(places(value)[1:]))
    inside = value
    for key in above:
        inside = inside[key]
    inside[last] = data.draw(junk)
    folder = tmp_path_factory.mktemp("set")
    assert list(convert_rows(read(folder, SETS[name][0]), Tally()))
    purposes: tuple[Purpose, ...] = ("train", "eval")
    for purpose in purposes:
        tally = Tally()
        try:
            made = list(convert_rows(read(folder, value), tally, purpose))
        except UserError:  # the whole file is refused
            continue
        assert made or tally.dropped or not tally.samples
        write_rows(folder / "rows.jsonl", made)
        assert list(read_rows(folder / "rows.jsonl")) == made


TOOLS = [{"function": {"name": "lamp", "parameters": {"type": "OBJECT", "properties": {"on": {"type": "BOOLEAN"}}}}}]
CALL = {"function": {"name": "lamp", "arguments": {"on": True}}}
USER = {"role": "user", "content": "Light."}


def line(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), "tools": TOOLS, **more}


def answered(function: dict[str, Any]) -> dict[str, Any]:
    return line(USER, {"role": "assistant", "tool_calls": [{"function": function}]})


def read(tmp_path: Path, *lines: Any) -> list[Sample | DroppedSample]:
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return list(read_openai_chats("", str(path)))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (line(USER, {"role": "assistant", "content": "Done."}), "no call"),
        (line({"role": "assistant", "tool_calls": [CALL]}), "no query"),
        (line(USER, {"role": "judge", "content": "1"}), "a message with an unknown role"),
        (
            line(USER, {"role": "assistant", "content": "?"}, USER, {"role": "assistant", "tool_calls": [CALL]}),
            "a call in a later turn",
        ),
        ([1], "a line that is not a chat with tools"),
        (answered({"name": "lamp", "arguments": '{"on": true, "on": false}'}), "arguments that are not JSON"),
        (
            line(USER, {"role": "assistant", "tool_calls": [CALL]}, tools=[{"name": "lamp", "parametr": {"on": {}}}]),
            "a tool that cannot be decoded",
        ),
        (
            line(USER, {"role": "assistant", "content": '<tool_call>\n{"name": "dim"}\n</tool_call>'}),
            "calls in the text of an answer",
        ),
        (
            line(USER, {"role": "assistant", "content": [{"type": "tool_use", "name": "dim", "input": {}}]}),
            "a message with other content than text",
        ),
    ],
)
def test_chat_without_a_first_call_is_dropped_with_line_number(tmp_path: Path, given: Any, reason: str) -> None:
    good = line(USER, {"role": "assistant", "tool_calls": [CALL]})
    found = read(tmp_path, good, given)
    assert isinstance(found[0], Sample)
    assert isinstance(found[1], DroppedSample) and (found[1].reason, found[1].where[-2:]) == (reason, ":2")


FORCE = {"type": ["integer", "null"], "minimum": 1, "maximum": 5}
STRICT = {"width": {"type": "integer"}, "force": FORCE, "speed": FORCE}
GRIP: dict[str, Any] = {
    "name": "grip",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": STRICT,
        "required": ["width", "force"],
        "additionalProperties": False,
    },
}


def grip(own: str | None = None, **arguments: Any) -> dict[str, Any]:
    function = {"name": "grip", "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": own, "type": "function", "function": function}]}


def test_null_is_dropped_only_for_optional_arguments(tmp_path: Path) -> None:
    given = {"messages": [USER, grip(width=80, force=None, speed=None)], "tools": [{"function": GRIP}]}
    (one,) = read(tmp_path, given)
    assert isinstance(one, Sample) and one.calls == (Call("grip", {"width": 80, "force": None}),)
    # A null for a required, non-null parameter cannot be learnt.
    (wrong,) = read(tmp_path, {**given, "messages": [USER, grip(width=None, force=2)]})
    tally = Tally()
    assert not list(convert_rows([wrong], tally))
    assert [reason for _, reason in tally.dropped] == ["a value that its parameter does not allow"]


def result(text: Any, own: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": own, "content": text}


def test_each_answer_has_earlier_calls_and_results_as_history(tmp_path: Path) -> None:
    """This covers the same id for all calls, as some servers send, and no ids."""
    for own in ("x", "", None):
        first, second, third = (grip(own, width=w, force=1) for w in (1, 2, 3))
        again = {"role": "user", "content": "Once more."}
        said = [USER, first, result("slipped", own), second, result([{"type": "text", "text": "held"}], own)]
        found = read(tmp_path, {"messages": [*said, again, third], "tools": [{"function": GRIP}]})
        assert [one.calls[0].arguments["width"] for one in found if isinstance(one, Sample)] == [1, 2, 3]
        assert [(one.instruction, one.history) for one in found if isinstance(one, Sample)] == [
            ("Light.", ()),
            ("Light.", ("grip(width=1, force=1) -> slipped",)),
            ("Once more.", ("grip(width=1, force=1) -> slipped", "grip(width=2, force=1) -> held")),
        ]
    (lost,) = read(tmp_path, {"messages": [USER, first, result("", "y")], "tools": [{"function": GRIP}]})
    assert isinstance(lost, DroppedSample) and (lost.reason, lost.detail) == (
        "a result without an earlier call",
        "messages[2]",
    )


def test_answer_of_weight_zero_is_only_history(tmp_path: Path) -> None:
    words = {"role": "assistant", "content": "Which one?", "weight": 0}
    wrong, right = {**grip("1", width=1, force=1), "weight": 0}, {**grip("2", width=2, force=1), "weight": 0.5}
    said = [USER, words, {"role": "user", "content": "The left one."}, wrong, result("slipped", "1"), right]
    given = {"messages": said, "tools": [{"function": GRIP}], "weight": 3}
    none, one = read(tmp_path, given)
    assert isinstance(none, DroppedSample) and (none.reason, none.detail) == ("an answer of weight 0", "messages[3]")
    assert isinstance(one, Sample) and one.instruction == "The left one."
    assert (one.calls[0].arguments["width"], one.weight) == (2, 1.5)
    assert one.history == ("grip(width=1, force=1) -> slipped",)


def test_nulls_from_table_columns_are_dropped(tmp_path: Path) -> None:
    """In a data set that was stored as a table, every tool has the columns of all tools."""
    on = {"type": "BOOLEAN", "description": None, "enum": None}
    schema = {"type": "OBJECT", "properties": {"on": on, "to": None}, "required": ["on"]}
    empty = {"type": "OBJECT", "properties": {"on": None, "to": None}, "required": None}
    tools = [
        {"function": {"name": "lamp", "description": None, "parameters": schema}, "name": None},
        {"function": {"name": "stop", "parameters": empty}},
    ]
    (one,) = read(tmp_path, answered({"name": "lamp", "arguments": {"on": True, "to": None}}) | {"tools": tools})
    assert isinstance(one, Sample) and one.calls == (Call("lamp", {"on": True}),)
    lamp, stop = (each["function"]["parameters"]["properties"] for each in one.tools)
    assert lamp == {"on": {"type": "boolean"}} and stop == {}


def test_mobile_actions_are_split_by_their_metadata(tmp_path: Path) -> None:
    answer = {"role": "assistant", "tool_calls": [CALL]}
    path = tmp_path / "dataset.jsonl"
    parts = ("train", "eval", "train")
    path.write_text("\n".join(json.dumps(line(USER, answer, metadata=part)) for part in parts))
    counts = [len([*read_source(f"mobile-actions{part}={tmp_path}")]) for part in (":train", ":eval", "")]
    assert counts == [2, 1, 3]
