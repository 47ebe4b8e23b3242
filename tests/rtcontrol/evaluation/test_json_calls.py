"""The same model writes JSON: it is Hugging Face's own greedy text, and with the grammar always a legal call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from rtcontrol.evaluation import json_calls
from rtcontrol.evaluation.json_calls import JsonAnswerer, read_call
from rtcontrol.evaluation.options import ModelOptions
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.small import build_checkpoint, law, tool

GO = tool("go", to=["left", "right"], speed={"type": "integer", "minimum": 0, "maximum": 20})
STOP = tool("stop")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model"))


def row(observation: str, instruction: str = "go left") -> DataRow:
    return DataRow("1", "1", "test", instruction, observation, (GO, STOP), (), Call("stop", {}))


def test_without_a_grammar_it_writes_what_hugging_face_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_calls, "MOST", 24)
    made, model = JsonAnswerer(ModelOptions(str(folder), "json")), AutoModelForCausalLM.from_pretrained(folder).eval()
    checkpoint = Checkpoint.open(str(folder))
    controls = [checkpoint.tokenizer.special_id(token) for token in checkpoint.tokenizer.specials]
    for observation in ("fast", "slow", "red", "green blue"):
        one = row(observation)
        tools = made._open(one.tools)
        prompt = [*tools.prefix, *tools.template.suffix_ids(one.instruction, observation)]
        tools.handle.start(prompt[:-1], reserve=1)
        written, passes, nodes, sure = made._write(tools, prompt[-1])
        out: Any = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=24,
            suppress_tokens=[i for i in controls if i not in made._ends],
            pad_token_id=0,
        )
        assert written == out[0, len(prompt) :].tolist()[: len(written)] and len(written) > 8
        # The token that ends a turn takes a pass, and is not written.
        assert passes == nodes and passes - len(written) in (0, 1) and 0 < sure < 1
        assert tools.prefix == checkpoint.template.prefix_ids(tool_schemas(one.tools))


@law(15)
@given(observation=st.text(max_size=20), instruction=st.text(max_size=20))
def test_with_the_grammar_every_answer_is_a_legal_call(folder: Path, observation: str, instruction: str) -> None:
    found = JsonAnswerer(ModelOptions(str(folder), "json", grammar=True)).answer(row(observation, instruction))
    assert found.error is None and found.written is not None and found.passes is not None
    (call,) = found.calls
    assert call == Call("stop", {}) or (call.name == "go" and call.arguments["to"] in ("left", "right"))
    assert found.passes <= found.written  # what is forced takes none
    assert 0 < found.confidence["call"] <= 1


@law(15)
@given(observation=st.text(max_size=20), instruction=st.text(max_size=20))
def test_no_pass_is_spent_on_how_certain_text_is_cut_into_tokens(
    folder: Path, observation: str, instruction: str
) -> None:
    made = JsonAnswerer(ModelOptions(str(folder), "json", grammar=True))
    run, asked = made._runner.run, list[Any]()

    def watched(batch: Any) -> Any:
        asked.extend(work.tree.asks[0].ids for work in batch)
        return run(batch)

    made._runner.run = watched  # type: ignore[method-assign]
    assert made.answer(row(observation, instruction)).passes == len(asked) > 0
    for ids in asked:
        # Few are legal, and these are scored alone; and they are no pieces of the same text.
        pieces = sorted((made._tokenizer.decode([i]) for i in ids), key=len)
        assert pieces and not all(map(pieces[-1].startswith, pieces))


def test_text_that_is_no_call_is_an_answer_that_failed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_calls, "MOST", 8)
    found = JsonAnswerer(ModelOptions(str(folder), "json")).answer(row("fast"))
    assert found.error == "no call was written" and not found.calls and found.written == 8


def test_a_prompt_that_does_not_fit_fails_alone(folder: Path) -> None:
    made = JsonAnswerer(ModelOptions(str(folder), "json", grammar=True))
    assert str(made.answer(row("fast " * 4000)).error).startswith("refused: The prompt")
    assert made.answer(row("fast")).error is None


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('<tool_call>\n{"name": "a.b", "arguments": {"x": [1]}}\n</tool_call>', Call("a.b", {"x": [1]})),
        ('Sure: {"name": "go", "parameters": {}} and more}', Call("go", {})),
        ('{"name": "go"}', Call("go", {})),
        ('{"name": 3, "arguments": {}}', None),
        ('{"name": "go", "arguments": [1]}', None),
        ('{"name": "go", "arg', None),
        ("go left", None),
        ("", None),
    ],
)
def test_the_first_object_that_is_a_call_is_read(text: str, call: Call | None) -> None:
    assert read_call(text) == call
