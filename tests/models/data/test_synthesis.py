"""Rows by templates, and by a model behind an endpoint: legal, each once, gone on with, and told what they cost."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtcontrol.models.call import Call
from rtcontrol.models.data.canonical import canonical, check_call, declared
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.sample import Unusable
from rtcontrol.models.data.stats import Tally, shares_of
from rtcontrol.models.data.synthesis.endpoint import ChatEndpoint, EndpointOptions
from rtcontrol.models.data.synthesis.ledger import Ledger, Prices, estimate
from rtcontrol.models.data.synthesis.synthesise import FRUITLESS, Spent, SynthesisOptions, synthesise
from rtcontrol.models.data.synthesis.templates import rows
from rtcontrol.models.data.synthesis.tool_sets import ToolSet, draw, read_tools
from rtcontrol.models.data.types import tool
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema
from tests.helpers.processes import until
from tests.models.data.synthesis.endpoint_double import Say, good_rows, serving
from tests.models.small import tool_lists

CITY, DAYS = {"type": "string"}, {"type": "integer", "minimum": 1, "maximum": 7}
WEATHER = tool("weather", "", {"type": "object", "properties": {"city": CITY, "days": DAYS}, "required": ["city"]})
STOP = tool("stop", "", None)
SETS: list[ToolSet] = [(canonical(WEATHER, "merge"), canonical(STOP, "merge"))]
ONE = shares_of("1,0,0,0,0,0")


class Run:
    """One run against the double, its sleeps counted and not slept."""

    def __init__(self, tmp_path: Path, say: Say, **options: Any) -> None:
        self.rows: list[DataRow] = []
        self.slept: list[float] = []
        self.tally, self.spent, self.error = Tally(), Spent(), None
        retries = options.pop("retries", 5)
        given = SynthesisOptions(**{"rows": 10, "shares": ONE, "per_request": 2, "parallel": 1, **options})
        with serving(say) as self.double:
            endpoint = EndpointOptions(
                self.double.url, "double", "DOUBLE_KEY", retries=retries, sleep=self.slept.append
            )
            ledger = Ledger(tmp_path / "rows.jsonl", {"seed": given.seed})
            try:
                with ChatEndpoint(endpoint) as chat:
                    for row in synthesise(SETS, chat.ask, given, ledger, self.tally, self.spent):
                        self.rows.append(row)
            except UserError as error:
                self.error = error


def answer(*rows: Any) -> str:
    return json.dumps({"rows": list(rows)})


def weather(text: str, **arguments: Any) -> dict[str, Any]:
    return {"instruction": text, "call": {"name": "weather", "arguments": arguments}}


def test_so_many_rows_are_made_and_each_is_one_of_its_tools(tmp_path: Path) -> None:
    run = Run(tmp_path, good_rows, rows=25, parallel=4)
    assert run.error is None and len(run.rows) == 25 == len({row.instruction for row in run.rows})
    for row in run.rows:
        assert row.call is not None
        check_call(row.call, canonical(WEATHER, "merge"))
    body = run.double.asked[0]
    assert body["model"] == "double" and "exactly 1 argument." in body["messages"][1]["content"]
    assert run.spent.prompt_tokens == 100 * run.spent.requests == 1300
    # What was asked for in vain is no more than what was under way.
    assert len(run.double.asked) <= 13 + 3


NONSENSE = [
    ("Certainly! Here they are.", "an answer that is no JSON"),
    ('{"rows": [', "an answer that is no JSON"),
    ('{"answers": []}', "an answer without rows"),
    ("3", "an answer without rows"),
    ("[" * 5000, "an answer that is no JSON"),
    (answer("text"), "a row of another shape"),
    (answer({"instruction": "x"}), "a row of another shape"),
    (answer({"instruction": 3, "call": {"name": "stop", "arguments": {}}}), "a row of another shape"),
    (answer(weather("", city="Oslo")), "an instruction that is empty or too long"),
    (answer(weather("x" * 9999, city="Oslo")), "an instruction that is empty or too long"),
    (answer({"instruction": "x", "call": {"name": "rm", "arguments": {}}}), "a call of a function that is not shown"),
    (answer(weather("x")), "a required argument that is missing"),
    (answer(weather("x", city="Oslo", moon=1)), "an argument that its tool does not have"),
    (answer(weather("x", city="Oslo", days=8)), "a value that its parameter does not take"),
    (answer(weather("x", city=3)), "a value that its parameter does not take"),
    (
        '{"rows": [{"instruction": "x", "call": {"name": "weather", "arguments": {"city": NaN}}}]}',
        "an answer that is no JSON",
    ),
    (answer(weather("\ud800", city="Oslo")), "half a character (a lone surrogate)"),
    (answer(weather("Oslo?", city="Oslo"), weather("OSLO!", city="Oslo")), "an instruction that was there before"),
]


@pytest.mark.parametrize(("said", "reason"), NONSENSE)
def test_nonsense_is_refused_with_its_reason_and_the_rest_is_kept(tmp_path: Path, said: str, reason: str) -> None:
    run = Run(tmp_path, lambda body, n: said if n == 0 else good_rows(body, n), rows=4)
    assert run.error is None and len(run.rows) == 4
    assert run.tally.dropped == {("synthetic", reason): 1}


def test_fenced_json_and_thinking_are_read(tmp_path: Path) -> None:
    texts = [
        f"<think>two rows?</think>\n{answer(weather('a', city='Oslo'))}",
        f"Here:\n```json\n{answer(weather('b', city='Oslo', days=2.0))}\n```",
        json.dumps([weather("c", city="Oslo")]),
    ]
    run = Run(tmp_path, lambda body, n: texts[n], rows=3)
    assert [row.instruction for row in run.rows] == ["a", "b", "c"]
    assert run.rows[1].call is not None and run.rows[1].call.text() == 'weather(city="Oslo", days=2)'


def test_an_endpoint_that_says_nothing_but_nonsense_ends_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda body, n: "no")
    assert run.error is not None and f"{FRUITLESS} answers in a row gave no row" in str(run.error)
    assert len(run.double.asked) == FRUITLESS


def test_what_fails_for_a_while_is_tried_again_after_ever_longer(tmp_path: Path) -> None:
    failures = [(429, "slow down", {"retry-after": "7"}), (503, "busy", {}), (500, "oh", {})]
    run = Run(tmp_path, lambda body, n: failures[n] if n < 3 else good_rows(body, n), rows=2)
    assert run.error is None and len(run.rows) == 2
    assert run.slept[0] == 7.0 and 1.6 <= run.slept[1] <= 2.4 and 3.2 <= run.slept[2] <= 4.8


def test_what_stays_wrong_is_told_and_what_was_done_goes_on(tmp_path: Path) -> None:
    first = Run(tmp_path, lambda body, n: good_rows(body, n) if n < 3 else (503, "busy", {}), rows=10, retries=1)
    assert "gave no answer in 2 tries (HTTP 503: busy)" in str(first.error) and len(first.rows) == 6
    again = Run(tmp_path, good_rows, rows=10)
    assert again.error is None and len(again.double.asked) == 2
    assert again.rows[:6] == first.rows and len(again.rows) == 10


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ((401, "bad key", {}), "as DOUBLE_KEY"),
        ((404, "no model double", {}), "Look at the URL and --model"),
        ((400, "too long", {}), "HTTP 400: too long"),
        ((200, "<html>", {}), "not as a chat endpoint does"),
    ],
)
def test_what_trying_again_does_not_mend_ends_at_once(tmp_path: Path, said: Any, told: str) -> None:
    run = Run(tmp_path, lambda body, n: said)
    assert told in str(run.error) and len(run.double.asked) == 1 and not run.slept


def test_the_key_is_taken_from_the_environment_and_never_sent_in_the_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOUBLE_KEY", "secret")
    run = Run(tmp_path, good_rows, rows=2)
    assert run.double.keys == ["Bearer secret"] and "secret" not in (tmp_path / "rows.jsonl.answers").read_text()
    with pytest.raises(UserError, match="in the clear"):
        ChatEndpoint(EndpointOptions("http://example.org/v1", "m", "DOUBLE_KEY"))
    for url in ("example.org", "ftp://example.org", "https://user:word@example.org"):
        with pytest.raises(UserError, match="is no endpoint"):
            ChatEndpoint(EndpointOptions(url, "m", "DOUBLE_KEY"))
    monkeypatch.setenv("DOUBLE_KEY", "two words")
    with pytest.raises(UserError, match="is no key"):
        ChatEndpoint(EndpointOptions("https://example.org", "m", "DOUBLE_KEY"))


def test_what_is_tried_again_ends_with_the_endpoint(tmp_path: Path) -> None:
    with serving(lambda body, n: (503, "busy", {"retry-after": "60"})) as double:
        chat = ChatEndpoint(EndpointOptions(double.url, "m", "DOUBLE_KEY"))
        with ThreadPoolExecutor(1) as pool:
            job = pool.submit(chat.ask, [], 0)
            until(lambda: bool(double.asked), "asked")
            with chat:
                pass
            with pytest.raises(UserError, match="was left"):
                job.result(timeout=10)


def test_no_more_is_asked_above_the_cost_that_was_allowed(tmp_path: Path) -> None:
    prices = Prices(prompt=1e4, completion=1e4)  # 1.5 a request
    run = Run(tmp_path, good_rows, rows=100, prices=prices, max_cost=4.0)
    assert "4.50 is spent" in str(run.error) and len(run.double.asked) == 3


def test_the_estimate_counts_prompts_as_they_will_be() -> None:
    found = estimate(SETS, ONE, 100, 8, 0, Prices(2.0, 10.0), lambda text: float(len(text)))
    assert found.requests == 13 and found.completion_tokens == 9000
    assert found.cost == pytest.approx((2 * found.prompt_tokens + 10 * 9000) / 1e6)
    assert found.prompt_tokens / 13 > len(SETS[0][0].canonical_json())


def test_an_answer_cut_short_is_asked_for_again_and_other_options_are_refused(tmp_path: Path) -> None:
    Run(tmp_path, good_rows, rows=6)
    path = tmp_path / "rows.jsonl.answers"
    whole = path.read_text()
    path.write_text(whole[:-20])
    again = Run(tmp_path, good_rows, rows=6)
    assert again.error is None and len(again.double.asked) == 1
    assert len(path.read_text().splitlines()) == 4
    with pytest.raises(UserError, match="other options \\(seed\\)"):
        Ledger(tmp_path / "rows.jsonl", {"seed": 1})
    path.write_text("{}\n" + whole)
    with pytest.raises(UserError, match="answers:1: it is no line"):
        Ledger(tmp_path / "rows.jsonl", {"seed": 0})


def test_a_full_disk_keeps_what_is_there_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "rows.jsonl", {"seed": 0})
    ledger.add(0, text="a", tokens=(1, 1))
    before = ledger.path.read_text()
    real = Path.open

    def full(path: Path, *arguments: Any, **more: Any) -> Any:
        with real(path, "a") as file:
            file.write('{"request": 1, "te')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match="No space left"):
        ledger.add(1, text="b", tokens=(1, 1))
    monkeypatch.undo()
    assert ledger.path.read_text() == before


# Rows by templates: every call is legal, every value is in the sentence, and the same seed gives the same rows.


@settings(max_examples=40, deadline=None)
@given(tool_lists(parameters=8), st.integers(0, 99))
def test_every_row_is_one_of_its_tools(tools: list[dict[str, Any]], seed: int) -> None:
    sets = [tuple(map(ToolSchema.from_openai, tools))]
    made = []
    try:
        for row in rows(sets, 5, seed, Tally()):
            made.append(row)
    except UserError as error:
        assert "different rows" in str(error)
    for row in made:
        assert row.call is not None
        called = next(one for one in row.tools if one["function"]["name"] == row.call.name)
        check_call(row.call, canonical(called, "merge"))
        assert all(v in row.instruction for v in row.call.arguments.values() if isinstance(v, str))
    assert len({(row.instruction, row.call.text()) for row in made if row.call}) == len(made)


def test_the_shares_of_arguments_are_followed_and_a_seed_repeats() -> None:
    properties = {f"p{n}": {"type": "string"} for n in range(8)}
    sets = [(canonical(tool("f", "", {"type": "object", "properties": properties}), "merge"),)]
    made = list(rows(sets, 600, 1, Tally(), "1,0,1,0,0,0"))
    counts = Counter(len(row.call.arguments) for row in made if row.call)
    assert set(counts) == {1, 3} and 250 < counts[1] < 350
    assert made == list(rows(sets, 600, 1, Tally(), "1,0,1,0,0,0"))


def test_shares_that_no_tool_can_have_fall_to_no_other() -> None:
    one, two = ({f"p{n}": {"type": "integer", "minimum": 0, "maximum": 900} for n in range(k)} for k in (1, 2))
    required = ({"type": "object", "properties": own, "required": [*own]} for own in (one, two))
    sets = [tuple(canonical(tool(name, "", own), "merge") for name, own in zip("ab", required, strict=True))]
    counts = Counter(len(row.call.arguments) for row in rows(sets, 400, 1, Tally(), "1,1,1,1,1,1") if row.call)
    assert 160 < counts[1] < 240 and counts[1] + counts[2] == 400


def test_tools_that_give_too_little_are_told() -> None:
    with pytest.raises(UserError, match="4 were made"):
        list(rows([(canonical(tool("stop", "", None), "merge"),)], 5, 0, Tally()))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "integer", "minimum": 1000},
        {"type": "number", "maximum": -5},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 10},
        {"type": "array", "items": {"type": "integer", "minimum": 3, "maximum": 4}},
        {"type": "array"},
        {"type": "array", "minItems": 4, "items": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
        {"enum": ["x", "y"]},
        {"type": "boolean"},
    ],
)
def test_values_are_what_the_parameter_takes(schema: dict[str, Any]) -> None:
    made = canonical(tool("f", "", {"type": "object", "properties": {"p": schema}, "required": ["p"]}), "merge")
    for seed in range(50):
        check_call(declared(Call("f", {"p": draw(made.parameters[0], Random(seed))}), made), made)


@pytest.mark.parametrize(
    "schema", [{"type": "string", "pattern": "a+"}, {"type": "string", "format": "date"}, {"type": "object"}]
)
def test_what_only_a_model_could_make_up_is_no_value(schema: dict[str, Any]) -> None:
    made = canonical(tool("f", "", {"type": "object", "properties": {"p": schema}}), "merge")
    with pytest.raises(Unusable, match="cannot be drawn"):
        draw(made.parameters[0], Random(0))


def test_tools_are_read_from_definitions_and_from_rows(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([{"name": "f", "parameters": {"type": "dict", "properties": {"a": {"type": "float"}}}}]))
    sets = read_tools(path)
    assert sets[0][0].parameters[0].schema == {"type": "number"}
    made = list(rows(sets, 3, 0, Tally()))
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(json.dumps(row.to_dict()) for row in made))
    assert read_tools(lines) == sets
    for text, said in (("{", "is no JSON"), ("[]", "no list of tools"), ("[3]", "tools.json#1: it is no tool")):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_tools(path)
    path.write_text(json.dumps([{"name": "f", "parameters": {"properties": {"a": {"type": "quark"}}}}]))
    with pytest.raises(UserError, match="tools.json#1: a parameter of a type"):
        read_tools(path)
