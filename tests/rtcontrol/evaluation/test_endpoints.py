"""`rtcontrol eval`: endpoints, chat models, an oracle, calls in JSON."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_server import chat_server, completion
from commands import call, refused
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from rtcontrol.evaluation import endpoints, json_calls
from rtcontrol.evaluation import rows as evaluating
from rtcontrol.evaluation.answerers import ModelOptions
from rtcontrol.evaluation.endpoints import ChatAnswerer, QuestionsAnswerer
from rtcontrol.evaluation.json_calls import JsonAnswerer, read_call
from rtcontrol.evaluation.rows import RowSource, oracle
from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.data.row import DataRow, write_rows
from rtcontrol.models.errors import UserError
from rtcontrol.models.metrics.predictions import Prediction, Predictions, read
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.models.chat.families import checkpoint
from tests.models.small import build_checkpoint, law, tool
from tests.rtcontrol.hosts.standin_endpoint import standin

GO = tool("a.go", to=["left", "right"], speed={"type": "integer", "minimum": 0, "maximum": 2})
OPEN = tool("write", text={"type": "string"})
LEFT = Call("a.go", {"to": "left", "speed": 1})
ROW = DataRow("1", "1", "test", "go left", "a wall", (GO,), ("a.go(to=right)",), LEFT)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "PAUSE_S", 0.0)


def test_a_chat_endpoint_is_asked_with_the_rows_tools_and_read() -> None:
    with chat_server(lambda body: completion(("a_go", '{"to": "left", "speed": 1}'))) as server:
        found = ChatAnswerer(f"openai:{server.url}#small").answer(ROW)
    (body,) = server.bodies
    assert server.paths == ["/v1/chat/completions"] and body["model"] == "small" and body["temperature"] == 0
    assert body["tools"][0]["function"]["name"] == "a_go"  # no dots in this API
    assert body["messages"] == [{"role": "user", "content": "go left\n\nCalls so far: a.go(to=right)\n\na wall"}]
    assert found.calls == (LEFT,) and (found.tokens, found.written) == (40, 9)
    assert found.error is None and found.ms is not None and found.ms > 0


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ((200, b"<html>"), "no JSON"),
        ((200, b"[]"), "no chat completion"),
        ((200, b'{"choices": []}'), "no chat completion"),
        ((200, b"[" * 100_000), "no JSON"),
        (completion(("a_go", "{")), "no chat completion"),
        (completion(("a_go", "[3]")), "no chat completion"),
        ((400, b'{"error": {"message": "too long"}}'), "HTTP 400.*too long"),
    ],
)
def test_nonsense_of_an_endpoint_is_one_wrong_answer(said: tuple[int, bytes], error: str) -> None:
    with chat_server(lambda body: said) as server:
        found = ChatAnswerer(f"openai:{server.url}").answer(ROW)
    assert not found.calls and found.error is not None and len(server.bodies) == 1
    assert re.search(error, found.error)


@pytest.mark.parametrize(("status", "named"), [(401, "refuses the key"), (404, "refuses the address")])
def test_a_refused_key_or_address_ends_the_run(status: int, named: str) -> None:
    with chat_server(lambda body: (status, b"{}")) as server, pytest.raises(UserError, match=named):
        ChatAnswerer(f"openai:{server.url}").answer(ROW)
    assert len(server.bodies) == 1


def test_an_endpoint_that_is_busy_is_asked_again_and_one_that_is_gone_ends_the_run() -> None:
    said = iter([(503, b"busy"), (0, b""), (429, b"slow down"), completion(("a_go", '{"to": "left", "speed": 1}'))])
    with chat_server(lambda body: next(said)) as server:
        assert ChatAnswerer(f"openai:{server.url}").answer(ROW).calls == (LEFT,)
        assert len(server.bodies) == 4
    with pytest.raises(UserError, match=r"does not answer.*is kept"):
        ChatAnswerer(f"openai:{server.url}").answer(ROW)


def test_what_was_answered_before_an_endpoint_went_is_kept_and_gone_on_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    write_rows(rows, [replace(ROW, id=str(n), sample=str(n), instruction=f"go {n}") for n in range(8)])
    good = completion(("a_go", '{"to": "left", "speed": 1}'))
    asked: list[str] = []

    def answer(body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append(body["messages"][0]["content"].partition("\n")[0])
        return (500, b"gone") if 8 <= len(asked) < 12 else good

    with chat_server(answer) as server:
        given = ("eval", str(rows), "--model", f"openai:{server.url}", "--out", str(out))
        assert call(*given) == 2
        said = capsys.readouterr().err
        assert "does not answer (http: HTTP 500" in said and "Traceback" not in said
        assert sorted(read(out)[1]) == ["0", "1"]  # five to warm up, two that count
        assert call(*given, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["overall"]["right"], found["overall"]["count"]) == (8, 8)
    assert asked.count("go 0") == asked.count("go 1") == 1


@pytest.mark.parametrize("api", ["decisions", "systemone"])
def test_a_decision_endpoint_answers_rows_whose_values_can_be_listed(api: str) -> None:
    wanted = {"function": "a.go", "to": "left", "speed": "1"}
    with standin(choose=lambda told, name, options: wanted.get(name.rpartition(".")[2], options[0])) as server:
        made = QuestionsAnswerer(f"{api}:{server.url}#jev")
        found = made.answer(ROW)
        refused_row = made.answer(replace(ROW, tools=(OPEN,), call=Call("write", {"text": "x"})))
    assert found.calls == (LEFT,) and found.error is None and found.confidence["arg1"] == 0.8
    assert found.tokens == 40 and found.passes == 1
    assert str(refused_row.error).startswith("refused: Tool write, parameter text") and not refused_row.calls


def test_a_decision_endpoints_nonsense_is_wrong_and_its_refusal_ends_the_run() -> None:
    with standin(lambda n: (0.0, "garbage")) as server:
        assert "malformed" in str(QuestionsAnswerer(f"decisions:{server.url}").answer(ROW).error)
    with standin(lambda n: (0.0, 401)) as server, pytest.raises(UserError, match="refuses the key"):
        QuestionsAnswerer(f"decisions:{server.url}").answer(ROW)
    with standin(lambda n: (0.0, "drop" if n < 2 else None)) as server:
        assert QuestionsAnswerer(f"decisions:{server.url}").answer(ROW).error is None
        assert len(server.bodies) == 3


def test_a_wrong_address_is_told_first(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    assert "its URL is none" in refused(capsys, "eval", str(lander_file), "--model", "decisions:ftp://x")


# Samples; right with all arguments; right with those that six heads hold.
TABLE = {
    "simple_python": (400, 400, 400),
    "multiple": (200, 200, 200),
    "live_simple": (258, 256, 251),
    "live_multiple": (1053, 1051, 1009),
    "exec_simple": (100, 99, 99),
    "exec_multiple": (50, 48, 48),
}
QUICK = ("live_simple", "exec_simple", "exec_multiple")


def measured(categories: tuple[str, ...]) -> dict[str, tuple[int, int, int]]:
    if not os.environ.get("RTCONTROL_BFCL"):
        pytest.skip("RTCONTROL_BFCL names no interpreter that has bfcl-eval, nor the package's folder")
    found: dict[str, Any] = oracle(RowSource(f"bfcl:{','.join(categories)}"))["by_source"]
    return {
        name.rpartition(":")[2]: (one["samples"], one["official"]["all"], one["official"]["six"])
        for name, one in found.items()
    }


@pytest.mark.integration
def test_gold_calls_pass_the_official_checker_as_often_as_they_can() -> None:
    assert measured(QUICK) == {name: TABLE[name] for name in QUICK}


TOOLS = (tool("go", to=["left", "right"]), tool("stop"))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    told = ("go left", "go right", "stop")
    write_rows(path, [DataRow(text, text, "test", text, "fast", TOOLS, (), Call("stop")) for text in told])
    return path


def test_a_chat_model_is_judged_in_its_own_syntax_and_in_free_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rows: Path
) -> None:
    model = str(checkpoint(tmp_path / "model", "hermes"))
    found = {}
    for way in ("heads", "json"):
        assert call("eval", str(rows), "--model", model, "--way", way, "--json", "-") == 0
        found[way] = json.loads(capsys.readouterr().out)
    assert found["heads"]["errors"] == {} and found["heads"]["model"]["profile"] == "chat"
    # A random model writes no call by itself.
    assert found["json"]["errors"] == {"no call was written": 3} and found["json"]["written"]["mean"] > 0
    assert "has no grammar here" in refused(capsys, "eval", str(rows), "--model", model, "--way", "json", "--grammar")


GO_FAR = tool("go", to=["left", "right"], speed={"type": "integer", "minimum": 0, "maximum": 20})
STOP = tool("stop")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint(tmp_path_factory.mktemp("model"))


def row(observation: str, instruction: str = "go left") -> DataRow:
    return DataRow("1", "1", "test", instruction, observation, (GO_FAR, STOP), (), Call("stop", {}))


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


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert call("eval", *arguments, "--json", "-") == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_model_is_judged_by_its_rows(capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = evaluated(capsys, str(lander_file), "--model", "lander", "--html", str(page))
    assert (found["rule"], found["model"]["name"], found["model"]["way"]) == ("exact", "lander", "heads")
    # One call of twelve is wrong, hence one of six samples.
    assert (found["rows"]["right"], found["rows"]["count"]) == (11, 12)
    assert (found["overall"]["right"], found["overall"]["count"], found["function"]["right"]) == (5, 6, 6)
    assert found["samples"]["s0"] == [0, 1] and found["wrong"] == {"argument main": 1}
    heads = {name: (one["right"], one["count"]) for name, one in found["by_head"].items()}
    assert heads == {"function": (12, 12), "arg1": (11, 12), "arg2": (12, 12)}
    assert found["latency_ms"]["count"] == 12 and found["passes"]["p50"] >= 1
    assert found["data"]["counts"]["rows"] == {"source 0": 4, "source 1": 4, "source 2": 4}
    text = page.read_text()
    assert (
        "source 2" in text and "uPlot" in text and "http" not in text.partition("<script")[0].replace("http-equiv", "")
    )


class Counting:
    """Answers like another one, so many times, and then is stopped."""

    def __init__(self, own: Any, most: int) -> None:
        self.own, self.most, self.asked = own, most, list[str]()
        self.told, self.tokens = own.told, None

    def forget(self) -> None:
        self.forgot_after = len(self.asked)
        self.own.forget()

    def answer(self, row: DataRow) -> Prediction:
        if len(self.asked) == self.most:
            raise KeyboardInterrupt
        self.asked.append(row.id)
        return self.own.answer(row)


def test_a_run_that_was_stopped_goes_on_and_ends_as_if_it_was_not(
    capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path
) -> None:
    from rtcontrol.evaluation.answerers import HeadsAnswerer, ModelOptions

    out = tmp_path / "answers.jsonl"
    found = evaluating.read(evaluating.RowSource(str(lander_file)))
    first = Counting(HeadsAnswerer(ModelOptions("lander")), evaluating.WARM_UP + 4)
    head = {"model": first.told, "data": found.told}
    with Predictions(head, out) as kept, pytest.raises(KeyboardInterrupt):
        evaluating.answer_all(found.rows, first, kept, lambda done, total: None)
    assert first.forgot_after == evaluating.WARM_UP
    assert first.asked[: evaluating.WARM_UP] == [row.id for row in found.rows[-evaluating.WARM_UP :]]
    document = evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    assert len(out.read_text().splitlines()) == 1 + len(found.rows)
    whole = evaluated(capsys, str(lander_file), "--model", "lander")
    assert document["samples"] == whole["samples"] and document["by_head"] == whole["by_head"]


def test_answers_of_another_model_or_other_rows_are_refused(
    capsys: pytest.CaptureFixture[str], lander_file: Path, lander_rows: list[DataRow], tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    before = out.read_bytes()
    said = refused(capsys, "eval", str(lander_file), "--model", "base", "--out", str(out))
    assert "another model: name 'lander', not 'base'" in said
    other = tmp_path / "other.jsonl"
    write_rows(other, [replace(row, instruction="go up") for row in lander_rows])
    assert "another data" in refused(capsys, "eval", str(other), "--model", "lander", "--out", str(out))
    assert "another data" in refused(
        capsys, "eval", str(lander_file), "--model", "lander", "--out", str(out), "--limit", "3"
    )
    assert out.read_bytes() == before
    moved = tmp_path / "moved.jsonl"
    lander_file.rename(moved)
    evaluated(capsys, str(moved), "--model", "lander", "--out", str(out))  # the same rows
    assert out.read_bytes() == before


def test_answers_are_judged_again_without_the_model(
    capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    first = evaluated(capsys, str(lander_file), "--model", "lander", "--out", str(out))
    again = evaluated(capsys, "rescore", str(out), "--source", str(lander_file), "--rule", "loose")
    assert again["rule"] == "loose" and again["samples"] == first["samples"]
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]))
    said = refused(capsys, "eval", "rescore", str(out), "--source", str(lander_file))
    assert "lacks 1 answers" in said and "r11" in said


def test_published_predictions_are_judged_by_both_rules(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given, answers = tmp_path / "given.jsonl", tmp_path / "answers.jsonl"
    answers.write_text('{"id": "1", "ground_truth": [{"go": {"to": ["Paris"]}}]}\n')
    given.write_text('{"id": "1", "result": [{"name": "go", "arguments": {"to": "paris", "fast": true}}]}\n')
    (found,) = evaluated(capsys, "rescore", str(given), "--answers", str(answers))["rescored"]
    assert (found["strict"]["right"], found["loose"]["right"], found["strict"]["count"]) == (0, 1, 1)
    assert call("eval", "rescore", str(given), "--answers", str(answers)) == 0
    assert "0/1 0.00 %" in capsys.readouterr().out


def test_two_evaluations_are_compared_by_sample(
    capsys: pytest.CaptureFixture[str], lander_file: Path, lander_rows: list[DataRow], tmp_path: Path
) -> None:
    files = [tmp_path / f"{way}.json" for way in ("heads", "json")]
    for path, more in zip(files, ((), ("--way", "json", "--grammar")), strict=True):
        assert call("eval", str(lander_file), "--model", "lander", "--json", str(path), *more) == 0
    a, b = (json.loads(path.read_text()) for path in files)
    capsys.readouterr()
    found = evaluated(capsys, "compare", *map(str, files))["paired"]["overall"]
    assert found["both"] + found["only_a"] == a["overall"]["right"] == 5
    assert found["both"] + found["only_b"] == b["overall"]["right"]
    assert found["low"] <= found["difference"] <= found["high"]
    page = tmp_path / "both.html"
    assert call("eval", "page", *map(str, files), "--out", str(page)) == 0
    text = page.read_text()
    assert text.count("source 1</th>") == 2 and "together</th>" in text
    bars = [text.count(f'background: var(--{ink})"></i>') for ink in ("accent", "decide")]
    assert bars[0] == bars[1] > 3, "a run has its colour in bars and lines"
    assert '"ink":"accent"' in text and '"ink":"decide"' in text
    capsys.readouterr()
    files[1].write_text(json.dumps({**b, "rule": "loose"}))
    assert "by the rule exact" in refused(capsys, "eval", "compare", *map(str, files))
    files[1].write_text(json.dumps({**b, "data": {**b["data"], "digest": "other"}}))
    assert "answer other rows" in refused(capsys, "eval", "compare", *map(str, files))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nowhere.jsonl", "--model", "lander"), "neither a file nor a set"),
        (("seal-tools", "--model", "lander"), "Where seal-tools is was not said"),
        (("ROWS", "--model", "nobody"), "nobody"),
        (("ROWS", "--model", "lander", "--rule", "mine"), "Unknown rule"),
        (("ROWS", "--model", "lander", "--rule", "official"), "not judged by BFCL's checker"),
        (("ROWS", "--model", "lander", "--way", "prose"), "Unknown way"),
        (("ROWS", "--model", "lander", "--grammar"), "--grammar"),
        (("ROWS", "--model", "openai:nowhere"), "its URL is none"),
        (("ROWS", "--model", "decisions:http://127.0.0.1:9/v1", "--way", "json"), "is an endpoint"),
        (("ROWS", "--model", "lander", "--overflow", "hide"), "Unknown --overflow"),
        (("rescore", "ROWS"), "was not said"),
        (("rescore", "ROWS", "ROWS", "--answers", "ROWS"), "2 files of predictions and 1 --answers"),
        (("rescore", "ROWS", "--answers", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("rescore", "ROWS", "--source", "ROWS"), "holds no answers"),
        (("compare", "ROWS", "ROWS"), "no figures of an evaluation|no JSON object|cannot be read"),
    ],
)
def test_mistakes_are_told_before_anything_is_answered(
    capsys: pytest.CaptureFixture[str], lander_file: Path, arguments: tuple[str, ...], named: str
) -> None:
    said = refused(capsys, "eval", *(str(lander_file) if one == "ROWS" else one for one in arguments))
    assert re.search(named, said)


def test_a_row_with_a_broken_line_is_named(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    with lander_file.open("a") as file:
        file.write('{"instruction": 3}\n')
    assert f"{lander_file.name}:13" in refused(capsys, "eval", str(lander_file), "--model", "lander")


def test_what_always_right_would_score(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    found = evaluated(capsys, "oracle", str(lander_file))["by_source"]
    for one in found.values():
        assert one["exact"] == {"all": one["samples"], "six": one["samples"]}


def test_prefixes_of_an_evaluations_tools_are_not_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lander_rows: list[DataRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path / "cache"))
    tools = tuple({**tool, "function": {**tool["function"], "description": "Anew."}} for tool in lander_rows[0].tools)
    write_rows(tmp_path / "rows.jsonl", [replace(row, tools=tools) for row in lander_rows])
    evaluated(capsys, str(tmp_path / "rows.jsonl"), "--model", "lander", "--way", "json", "--grammar")
    assert not list(tmp_path.glob("cache/prefix/*"))
