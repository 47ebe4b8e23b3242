"""Whatever a set's file holds in place of what it should: rows, a reason, or a word to the user; never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtcontrol.models.data.convert import ConvertOptions, rows
from rtcontrol.models.data.row import read_rows, write_rows
from rtcontrol.models.data.sources import bfcl, chat, openfunctions, seal_tools, toolalpaca, xlam
from rtcontrol.models.data.stats import Tally
from rtcontrol.models.errors import UserError
from tests.models.data.sources.test_bfcl import FUNCTION, OLD_MESSAGES
from tests.models.data.sources.test_others import xlam_row

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
BFCL = {
    "id": "simple_0",
    "question": OLD_MESSAGES,
    "function": [FUNCTION],
    "ground_truth": [{"shop.find": {"what": ["tea"], "near": [{"city": ["Ulm"]}]}}],
}


def _lines(folder: Path, name: str, *values: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("\n".join(map(json.dumps, values)))
    return folder / name


def _bfcl(folder: Path, value: Any) -> Any:
    _lines(folder / "data", "BFCL_v3_simple.json", value)
    return bfcl.samples("simple_python", folder)


def _seal(folder: Path, value: Any) -> Any:
    _lines(folder, "tool.jsonl", *({**API, "api_name": name} for name in ("lamp", "a", "b", "c", "d", "e")))
    _lines(folder, "dev.jsonl", value)
    return seal_tools.samples("dev", str(folder))


def _list(name: str, read: Callable[[str], Any]) -> Callable[[Path, Any], Any]:
    def samples(folder: Path, value: Any) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps([value], indent=1))
        return read(str(folder / name))

    return samples


SETS: dict[str, tuple[Any, Callable[[Path, Any], Any]]] = {
    "bfcl": (BFCL, _bfcl),
    "chat": (CHAT, lambda folder, value: chat.samples(_lines(folder, "chats.jsonl", value), "chats")),
    "openfunctions": (OPEN, _list("o.json", openfunctions.samples)),
    "seal-tools": (SEAL, _seal),
    "toolalpaca": (ALPACA, _list("eval_x.json", toolalpaca.samples)),
    "xlam": (xlam_row(), _list("x.json", xlam.samples)),
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
def test_the_sample_itself_is_a_row(name: str, tmp_path: Path) -> None:
    value, read = SETS[name]
    assert list(rows(read(tmp_path, value), ConvertOptions("train"), Tally()))


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_anything_anywhere_is_a_row_or_a_reason(
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
    for purpose in ("train", "eval"):
        tally = Tally()
        try:
            made = list(rows(read(folder, value), ConvertOptions(purpose), tally))
        except UserError:  # of the whole file
            continue
        assert made or tally.dropped or not tally.samples
        write_rows(folder / "rows.jsonl", made)
        assert list(read_rows(folder / "rows.jsonl")) == made
