"""The recipes: tokenizers, sizes, stages, tools under other names, nonsense, word vectors; they train from a shell."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file

from rtcontrol.agents.paddle import tools as paddle_tools
from rtcontrol.agents.road import tools as road
from rtcontrol.agents.spoken import bare
from rtcontrol.cli.app import main
from rtcontrol.envs.lander.skill import SKILL as LANDER
from rtcontrol.envs.paddle.skill import SKILL as PADDLE
from rtcontrol.envs.road.skill import SKILL as ROAD
from rtcontrol.envs.road.world import Road
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.prompt import tools_text
from rtcontrol.models.checkpoint.special_tokens import ST_TOKENS
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import ToolSchema
from rtcontrol.models.train.rows import Row
from rtcontrol.models.train.scratch import ModelShape, new_model
from rtcontrol.models.train.tasks import names
from rtcontrol.models.train.vocabulary import number_words
from rtcontrol.training import model_size
from rtcontrol.training.base_model import RECIPE, STAGES, BaseRecipe, Stage, base_tokenizer
from rtcontrol.training.base_worlds import RECIPES, Worlds, WorldsRun
from rtcontrol.training.controllers import ENVS, recipe_of
from rtcontrol.training.gate import HELD, SPARED, gate_between, sureness
from rtcontrol.training.imitation import Recipe
from rtcontrol.training.other_trades import a_stranger
from rtcontrol.training.out_of_scope import WORLDS, Nonsense, with_nonsense
from rtcontrol.training.tool_randomization import (
    DISTRACTING,
    MANY,
    PARAMETERS,
    TOOLS,
    WORDS,
    Dressed,
    FieldNames,
    dressed,
    meaningful,
    plain,
)
from rtcontrol.training.word_vectors import (
    FREQUENT,
    SCHEMA_PHRASES,
    SCHEMA_WORDS,
    give_meaning,
    whole_words,
    word_vectors,
)
from tests.models.small import build, build_checkpoint, law
from tests.models.small import tool as tool_of

TRAINED: dict[str, Any] = {name: recipe_of(name) for name in ENVS}
ROOM = {"type": "string", "enum": ["left", "right"]}
LEVEL = {"type": "integer", "minimum": 0, "maximum": 100}
LAMP = {
    "name": "set_lamp",
    "description": "Set the lamp of a room; red means stop.",
    "parameters": {"type": "object", "properties": {"room": ROOM, "level": LEVEL}, "required": ["room", "level"]},
}
STATE = {"ball_x": 81.0, "ball_y": 7.5, "ball_vx": 52.5, "ball_vy": -33.0, "own_y": 12.0, "other_y": 41.0}


@cache
def tokenizer(name: str) -> STTokenizer:
    return STTokenizer(TRAINED[name].build(0)[1])


def test_most_of_what_stands_between_the_words_of_a_schema_is_one_token() -> None:
    inside = [phrase for phrase in SCHEMA_PHRASES if len(tokenizer("driver").encode(phrase)) == 1]
    assert len(inside) >= 8
    saved = sum(tools_text(road.agent.tools.schemas).count(phrase) * (len(phrase.split('"')) - 1) for phrase in inside)
    assert saved > 100


def test_texts_are_short_and_nothing_of_them_is_lost() -> None:
    tools, foreign = tools_text(road.agent.tools.schemas), json.dumps([{"type": "function", "function": LAMP}])
    phrases = json.dumps({"a": [", ", '": {"enum": ["', "}}}}"], "b": 'é"]}}}", "parameters'})
    for name, text, most in (("driver", tools, 239), ("paddle", foreign, len(foreign) / 2.5), ("driver", phrases, 999)):
        ids = tokenizer(name).encode(text)
        assert len(ids) <= most
        assert tokenizer(name).decode(ids) == text


def test_schema_words_and_numbers_are_single_tokens() -> None:
    for word in SCHEMA_WORDS.split():
        assert len(tokenizer("paddle").encode(word)) == 1, word
    for number in ("-200", "0", "200", *number_words(3)):
        assert len(tokenizer("paddle").encode(f"x {number}")) == 2, number


def test_an_observation_is_a_token_a_word_and_a_token_a_number() -> None:
    for name, text, count in (
        ("driver", road.observe(Road(3).observe()), 31),
        ("paddle", paddle_tools.observe(STATE), 14),
    ):
        assert len(tokenizer(name).encode(text)) == len(text.split()) == count


def train(monkeypatch: pytest.MonkeyPatch, *options: str) -> object:
    """The exit status of `rtcontrol fit`."""
    monkeypatch.setattr("sys.argv", ["rtcontrol", "fit", "--threads", "1", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_recipe_trains_resumes_and_exports_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):  # the second finds the run finished and exports it again
        assert train(monkeypatch, "--skill", "paddle", "--samples", "64", "--out", str(tmp_path)) == 0
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])["samples"] == 64
    spec = DeciderSpec(str(tmp_path / "checkpoint"), tuple(TRAINED["paddle"].agent.tools.openai()))
    learnt = TrainingMetadata.of(tmp_path / "checkpoint")
    assert learnt is not None and learnt.knows(TRAINED["paddle"].agent.tools.schemas) and learnt.allow_null
    assert learnt.gate is not None and 0.0 <= learnt.gate <= 1.0
    assert spec.build().decide("x 0 y 0", "win").call is not None
    assert "rtcontrol run --env paddle --model" in capsys.readouterr().out
    card = (tmp_path / "checkpoint" / "README.md").read_text()
    assert "trained from nothing" in card and "64 samples" in card and "terms" not in card
    assert "rtcontrol score --env paddle --model" in card


def test_the_recipe_of_the_browser_games_leaves_a_card_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(monkeypatch, "--skill", "simpletool", "--samples", "64", "--out", str(tmp_path)) == 0
    card = (tmp_path / "checkpoint" / "README.md").read_text()
    assert "no game is played for it" in card and "64 samples" in card
    assert "episodes" not in card and "rtcontrol serve --model FOLDER" in card


def test_a_recipe_goes_on_from_a_base_whose_language_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, out = build_checkpoint(tmp_path / "base", "gemma3", scale=0.1), tmp_path / "out"
    monkeypatch.setattr(model_size, "LARGE", 10)
    given = ("--skill", "lander", "--samples", "64", "--base", str(base), "--out", str(out))
    for _ in range(2):
        assert train(monkeypatch, *given) == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (base, out / "checkpoint"))
    moved = (before["model.embed_tokens.weight"].bfloat16() != after["model.embed_tokens.weight"]).any(-1)
    specials = [STTokenizer.load(base / "tokenizer.json").special_id(token) for token in ST_TOKENS]
    assert {*moved.nonzero().flatten().tolist()} <= {*specials}
    assert moved.any()
    assert all((before[name].bfloat16() != after[name]).any() for name in before if "proj" in name)
    spec = DeciderSpec(str(out / "checkpoint"), tuple(TRAINED["lander"].agent.tools.openai()))
    assert spec.build().decide("x 0 y 0", "land on the pad").call is not None
    card = (out / "checkpoint" / "README.md").read_text()
    assert f"base: `{base.name}`" in card and "under the terms of that model" in card
    assert train(monkeypatch, "--skill", "simpletool", "--base", str(base), "--out", str(out / "other")) == 2
    assert "Leave --base out" in capsys.readouterr().err
    assert train(monkeypatch, *given, "--any-tools") == 2  # another run's folder
    assert "group was 16, is 48" in capsys.readouterr().err
    assert train(monkeypatch, *given[:-1], str(out / "any"), "--any-tools") == 0
    other = build_checkpoint(tmp_path / "other", "gemma3", seed=1, scale=0.1)
    assert train(monkeypatch, *given[:4], "--base", str(other), "--out", str(out)) == 2
    assert "another configuration: base was" in capsys.readouterr().err
    more = ("--imitate", str(out / "checkpoint"))
    assert train(monkeypatch, *given[:-1], str(out / "student"), *more) == 0
    assert train(monkeypatch, *given[:-1], str(out / "student"), "--imitate", "lander") == 2
    assert "lander has other tokens than its student" in capsys.readouterr().err
    learnt = TrainingMetadata.of(out / "any" / "checkpoint")
    assert learnt is not None and learnt.any_tools


@pytest.mark.parametrize(
    ("options", "says"), [(("chess",), "lander, paddle"), (("lander", "--minutes", "5"), "by a recipe")]
)
def test_an_unknown_skill_and_options_of_other_sources_are_refused(
    options: tuple[str, ...],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert train(monkeypatch, "--out", str(tmp_path / "made"), "--skill", *options) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "made").exists()


@pytest.fixture(autouse=True)
def few_tasks_of_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtcontrol.training.base_model.HELD_OUT", 24)


LOOK_UP = STAGES[0].tasks
SMALL = BaseRecipe(
    ModelShape(hidden=32, layers=3, heads=2, kv_heads=2, intermediate=32, context=512),
    (Stage("first", LOOK_UP, (2,), 72, bar=0.0), Stage("second", LOOK_UP, (2,), 72, bar=0.0)),
    worlds=None,
    chunk=36,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[dict[str, Any]]]:
    """Where the small recipe was trained without a stop, its checkpoint, and what it told."""
    out, lines = tmp_path_factory.mktemp("whole"), list[dict[str, Any]]()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("rtcontrol.training.base_model.HELD_OUT", 24)
        return out, SMALL.train(out, lines.append), lines


def test_stages_run_one_after_the_other_and_the_checkpoint_decides(
    whole: tuple[Path, Path, list[dict[str, Any]]],
) -> None:
    out, folder, lines = whole
    assert [line["stage"] for line in lines] == ["first", "second"]
    assert all(line["samples"] == 36 and line["left_at_most_s"] >= 0 for line in lines)
    for name in ("1-first", "2-second"):
        assert json.loads((out / name / "done.json").read_text())["samples"] == 36
    assert Checkpoint.open(str(folder)).config["dtype"] == "bfloat16"
    decider = build(folder, [tool_of("fly", way=["port", "starboard"])])
    call = decider.decide("buoy port, crate starboard", "fly to the crate").call
    assert call is not None and call.name == "fly"


def test_a_run_that_was_stopped_between_stages_ends_with_the_same_weights(
    whole: tuple[Path, Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replace(SMALL, stages=SMALL.stages[:1])
    first.train(tmp_path / "cut")
    # Words that were added to the lists meanwhile change no id of a run that goes on.
    monkeypatch.setattr("rtcontrol.training.base_model.common_words", lambda: "entirely other words")
    SMALL.train(tmp_path / "cut")
    expected, cut = (torch.load(out / "2-second" / "state.pt") for out in (whole[0], tmp_path / "cut"))
    assert expected["samples"] == cut["samples"] == 36
    assert all(torch.equal(expected["model"][name], cut["model"][name]) for name in expected["model"])


def test_a_stage_that_ends_below_its_bar_is_named_and_gone_past_by_another_run(tmp_path: Path) -> None:
    recipe = replace(SMALL, stages=(replace(SMALL.stages[0], bar=1.1), SMALL.stages[1]))
    with pytest.raises(UserError, match=r"Stage 1 \(first\) ends after 72 samples at .* below its bar of 1.1") as error:
        recipe.train(tmp_path)
    assert "checks.jsonl" in error.value.what and "shape" in error.value.remedy
    assert not (tmp_path / "2-second").exists()
    checks = [json.loads(line) for line in (tmp_path / "1-first" / "checks.jsonl").read_text().splitlines()]
    assert [c["samples"] for c in checks] == [36, 72]
    recipe.train(tmp_path)
    ends = [json.loads((tmp_path / stage / "done.json").read_text()) for stage in ("1-first", "2-second")]
    assert [end["bar"] for end in ends] == [1.1, 0.0]


def test_every_stage_keeps_looking_up_and_checks_with_names_never_trained() -> None:
    assert [stage.unseen for stage in RECIPE.stages] == [False, *[True] * (len(RECIPE.stages) - 1)]
    for stage in RECIPE.stages[1:]:
        total = sum(share for share, _ in stage.tasks)
        assert sum(share for share, task in stage.tasks if "look_up" in repr(task)) >= 0.3 * total
        trained = {word for row in stage.rows(Random(0), 400) for word in re.findall(r"\w+", row.observation)}
        assert not trained & ({*names.HELD_OUT["made up"]} - {*names.OBJECTS})
        asked = {word for task in stage.held_out(40) for word in re.findall(r"\w+", task.observation)}
        assert not asked & {*names.TRAINING["made up"]}
        assert asked & {*names.HELD_OUT["words"]}


def test_the_base_tokenizer_is_the_same_each_time_and_within_its_size() -> None:
    first, again = base_tokenizer(), base_tokenizer()
    assert first.to_str() == again.to_str()
    assert first.get_vocab_size() <= 7000


FEW = Worlds(samples=1280, kept=0.25, parallel=8, ways=3, chunk=320)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> WorldsRun:
    out = tmp_path_factory.mktemp("worlds")
    model, _, encoder = SMALL.build(out)
    return WorldsRun(model, encoder.nullable(), FEW, SMALL.stages[-1].rows, 0, out / "worlds")


def test_a_chunk_has_its_share_of_what_was_taught_before_and_of_every_world(run: WorldsRun) -> None:
    rows = run.rows(1)
    assert len(rows) == 320
    own = {tool.name: name for name, recipe in RECIPES.items() for tool in recipe.agent.tools.schemas}
    seen = Counter("kept" if "legs" not in r.observation else "lander" for r in rows[:80])
    assert seen == {"kept": 80}
    marks = {"lander": " legs ", "paddle": " ball ", "road": " junction "}
    found = {name: [r for r in rows[80:] if mark in r.observation] for name, mark in marks.items()}
    assert {name: len(those) for name, those in found.items()} == {"lander": 80, "paddle": 80, "road": 80}
    for name, those in found.items():
        plain = [r for r in those if r.tools == tuple(RECIPES[name].agent.tools.schemas)]
        assert len(plain) == 40
        assert len({id(r.tools) for r in those}) == 1 + FEW.ways
        for row in those:
            assert row.meant is not None
            assert (row.call is None) == (row.meant == "")
            assert row.call is None or legal(row.call, row.tools)
        assert {own[r.call.name] for r in plain if r.call is not None} == {name}
    assert any(r.call is None for r in rows[80:])


def test_the_first_chunks_of_some_worlds_are_said_plainly_and_mean_something(run: WorldsRun) -> None:
    roads = [r for r in run.rows(0) if " junction " in r.observation]
    assert roads and all(r.call is not None and r.instruction == r.meant for r in roads)


def test_the_model_plays_in_some_chunks_by_calls_alone(run: WorldsRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    for name, policy in list(run._acting.items()):

        def play(situations: list[tuple[str, str]], name: str = name, policy: object = policy) -> list[Call]:
            asked[name] += len(situations)
            calls: list[Call] = policy(situations)  # type: ignore[operator]
            assert all(isinstance(call, Call) for call in calls)
            return calls

        monkeypatch.setitem(run._acting, name, play)
    run.rows(0)
    run.rows(1)
    assert not asked
    run.rows(2)
    assert {*asked} == {*RECIPES}


def test_the_whole_recipe_ends_with_all_worlds_and_says_what_it_learnt(tmp_path: Path) -> None:
    small = BaseRecipe(SMALL.shape, SMALL.stages[:1], Worlds(samples=96, parallel=4, ways=2, chunk=96), chunk=36)
    folder = small.train(tmp_path / "whole")
    learnt = TrainingMetadata.of(folder)
    assert learnt is not None and learnt.allow_null and learnt.gate is not None and learnt.history == 0
    for recipe in RECIPES.values():
        assert learnt.knows(recipe.agent.tools.schemas)
    assert Checkpoint.open(str(folder)).config["dtype"] == "bfloat16"
    lines = (tmp_path / "whole" / "worlds" / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["samples"] == 96
    before = torch.load(tmp_path / "whole" / "worlds" / "state.pt")["model"]
    small.train(tmp_path / "whole")  # it is done, and stays as it is
    after = torch.load(tmp_path / "whole" / "worlds" / "state.pt")["model"]
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_stage_of_worlds_goes_on_with_its_own_settings_alone(
    run: WorldsRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "out", tmp_path)
    run.save()
    again = (run.model, run.encoder, FEW, SMALL.stages[-1].rows, 0)
    assert WorldsRun(*again, tmp_path).samples == run.samples
    with pytest.raises(UserError, match="another configuration"):
        WorldsRun(*again[:2], replace(FEW, ways=2), *again[3:], tmp_path)


def legal(call: Call, tools: tuple[ToolSchema, ...]) -> bool:
    (tool,) = [tool for tool in tools if tool.name == call.name]
    assert [*call.arguments] == [p.name for p in tool.parameters]
    return all(isinstance(p.domain, ClosedDomain) and p.domain.holds(call.arguments[p.name]) for p in tool.parameters)


def undone(call: Call, tools: tuple[ToolSchema, ...]) -> Call:
    """The call in the world's own names, by the tables alone."""
    (tool,) = [t for t in tools if call.name in (t.name, *TOOLS[t.name]) and len(t.parameters) == len(call.arguments)]
    written = {}
    for p in tool.parameters:
        (value,) = [v for k, v in call.arguments.items() if k in (p.name, *PARAMETERS[p.name])]
        back = {other: word for word, others in WORDS.items() for other in others}
        written[p.name] = back.get(value, value) if isinstance(value, str) else value
    return Call(tool.name, written)


@pytest.mark.parametrize("world", RECIPES)
@law(40)
@example(seed=43, synonyms=0.0, distracting=3)  # a companion was named as a tool of the world
@given(seed=st.integers(0, 10**9), synonyms=st.sampled_from([0.0, 0.5, 1.0]), distracting=st.integers(0, 3))
def test_a_dressed_call_is_legal_and_means_the_same(world: str, seed: int, synonyms: float, distracting: int) -> None:
    tools = tuple(RECIPES[world].agent.tools.schemas)
    way = dressed(Random(seed), tools, synonyms, distracting)
    assert len(tools) <= len(way.tools) <= len(tools) + distracting
    assert len({tool.name for tool in way.tools}) == len(way.tools)
    for tool in tools:
        values = [[*p.schema["enum"]] for p in tool.parameters]
        for chosen in itertools.islice(itertools.product(*values), 12):
            call = Call(tool.name, dict(zip([p.name for p in tool.parameters], chosen, strict=True)))
            found = way.call(call)
            assert legal(found, way.tools)
            assert undone(found, tools) == call
            if not synonyms:
                assert found.name == call.name and dict(found.arguments) == dict(call.arguments)


def test_names_orders_and_companions_differ() -> None:
    tools = tuple(RECIPES["road"].agent.tools.schemas)
    rng = Random(0)
    ways: list[Dressed] = [dressed(rng, tools) for _ in range(200)]
    names = Counter(tool.name for way in ways for tool in way.tools)
    assert all(names[other] for tool in tools for other in TOOLS[tool.name])
    assert len({way.tools[0].name for way in ways}) > 10
    assert {len(way.tools) for way in ways} == {6, 7, 8, 9}
    listed = {tuple(t.parameters[0].schema["enum"]) for way in ways for t in way.tools if t.name == "brake"}
    assert len(listed) > 20


@pytest.mark.parametrize("world", RECIPES)
@law(20)
@given(seed=st.integers(0, 10**9))
def test_strangers_beside_a_skills_tools_are_of_no_meaning_that_it_may_draw(world: str, seed: int) -> None:
    tools = tuple(RECIPES[world].agent.tools.schemas)
    way = dressed(Random(seed), tools, 1.0, MANY, strangers=1.0)
    mine = {written for written, _ in way.names.values()}
    others = [tool for tool in way.tools if tool.name not in mine]
    parts = {part.lower() for tool in others for part in re.findall("[A-Z]?[a-z]+", tool.name)}
    assert not parts & meaningful(tools)
    assert len({tool.name for tool in way.tools}) == len(way.tools) == len(tools) + len(others) <= len(tools) + MANY


def test_strangers_ask_for_values_of_every_kind() -> None:
    rng = Random(0)
    asked = [p.schema for _ in range(300) for p in a_stranger(rng, ()).parameters]
    kinds = Counter("enum" if "enum" in schema else schema["type"] for schema in asked)
    assert {*kinds} == {"string", "boolean", "integer", "number", "enum"} and min(kinds.values()) > 20
    assert len({len(a_stranger(rng, ()).parameters) for _ in range(50)}) == 4


ROAD_SEEN = "speed 66 limit 80 lane 2 3 light none junction -150 way onward"


@given(seed=st.integers(0, 10**9))
def test_fields_have_other_names_values_and_words_do_not(seed: int) -> None:
    renamed = FieldNames(seed)
    first, again = renamed(ROAD_SEEN).split(), renamed("limit 7 way left").split()
    fields = {0, 2, 4, 7, 9, 11}
    assert [word for i, word in enumerate(first) if i not in fields] == ["66", "80", "2", "3", "none", "-150", "onward"]
    assert len({first[i] for i in fields}) == len(fields) and not {first[i] for i in fields} & set(ROAD_SEEN.split())
    assert again == [first[2], "7", first[11], "left"]


@pytest.mark.parametrize("far", [False, True])
def test_a_skill_that_reads_any_tools_meets_many_and_other_fields_and_the_bases_own_recipe_does_not(far: bool) -> None:
    recipe = RECIPES["paddle"]
    shown = itertools.islice(recipe.demonstrations(1, 24), 240)
    rows = recipe.dressed_rows(shown, 24, 12, Random(1), far=far)
    tools = {len(row.tools or ()) for row in rows}
    starts = {row.observation.split()[0] for row in rows}
    own = [row for row in rows if row.tools == recipe.agent.tools.schemas]
    assert (max(tools) > 1 + DISTRACTING) is far and (starts == {"x"}) is not far
    assert len(own) >= 120 and {row.observation.split()[0] for row in own} == {"x"}


def test_plain_tools_are_as_they_were() -> None:
    tools = tuple(RECIPES["lander"].agent.tools.schemas)
    call = Call("engines", {"main": 50, "side": 0})
    assert plain(tools).tools == tools and plain(tools).call(call) == call


SKILLS = {"lander": LANDER, "paddle": PADDLE, "road": ROAD}
of_each = pytest.mark.parametrize("name", SKILLS)


@of_each
def test_nonsense_is_of_many_kinds_and_asks_for_none_of_the_agents_goals(name: str) -> None:
    rng, skill, draw = random.Random(0), SKILLS[name], Nonsense(name, SKILLS[name].recognise)
    module: Any = WORLDS[name]
    meant = {bare(module.spoken_sentence(rng, module.sample_goal(rng))) for _ in range(3000)}
    drawn = [draw(rng) for _ in range(800)]
    assert len(set(drawn)) > 600
    assert meant.isdisjoint(map(bare, drawn))
    # A slip or a courtesy may look like a word that the rule knows; what was drawn did not.
    assert sum(skill.recognise(text) is not None for text in drawn) < 0.05 * len(drawn)


@of_each
def test_held_out_nonsense_is_never_shown(name: str) -> None:
    listed = Nonsense(name, SKILLS[name].recognise).held_out
    assert len(set(listed)) >= 100
    rng, draw = random.Random(0), Nonsense(name, SKILLS[name].recognise)
    assert {bare(text) for text in listed}.isdisjoint(bare(draw(rng)) for _ in range(4000))


def test_a_share_of_the_rows_is_told_nonsense_and_keeps_what_it_saw() -> None:
    rows = [Row(f"say {i // 4}", f"x {i}", Call("move", {"velocity": 1})) for i in range(1000)]
    draw = Nonsense("paddle", PADDLE.recognise)
    mixed = with_nonsense(rows, draw, 0.1, random.Random(0))
    changed = [(a, b) for a, b in zip(rows, mixed, strict=True) if a != b]
    assert len(changed) == 100
    assert all(b.call is None and b.observation == a.observation and b.instruction != a.instruction for a, b in changed)
    assert len({b.instruction for _, b in changed}) >= 20
    assert with_nonsense(rows, draw, 0.1, random.Random(0)) == mixed


@of_each
def test_a_recipe_asks_the_function_head_whether_it_was_told_anything(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.nonsense is not None
    encoder = recipe.build(0)[2]
    row = next(islice(recipe.demonstrations(0, 2), 1))
    told = encoder.encode(Row("asdf qwer", row.observation, None), forced=False)
    assert [head.labels for head in told.heads] == [(encoder.plan.function.null_id,)]
    called = encoder.encode(Row(row.instruction, row.observation, row.call), forced=False)
    assert called.heads[0].labels[0] != encoder.plan.function.null_id


shares = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=300)


@given(shares, shares)
def test_a_gate_never_holds_more_of_what_is_understood_than_it_may(nonsense: list[float], known: list[float]) -> None:
    gate = gate_between(nonsense, known)
    assert sum(value < gate for value in known) <= SPARED * len(known)
    held = sum(value < gate for value in nonsense)
    # It holds enough of the nonsense, or the next higher one would hold too much of what is understood.
    assert held >= HELD * len(nonsense) or sum(value <= gate for value in known) > SPARED * len(known)


def test_a_gate_is_not_rounded_up_over_what_is_understood() -> None:
    assert 0.99997 <= gate_between([0.99996] * 100, [0.99998] * 100) < 0.99998
    assert gate_between([0.99999] * 100, [0.99997] * 100) == 0.99997


def test_a_gate_lies_between_what_is_told_apart() -> None:
    assert 0.3 < gate_between([0.1, 0.2, 0.3, *[0.0] * 97, 0.9], [0.8, *[0.99] * 99]) < 0.99
    assert sureness(Decision(None, {"function": 0.9}, None, 1, 1, 0)) == 0.0
    assert sureness(Decision(Call("move", {}), {"function": 0.7, "arg1": 0.2}, None, 1, 1, 0)) == 0.7


def alike(model: Any, tokenizer: Any, one: str, other: str) -> float:
    weight, vocabulary = model.get_input_embeddings().weight.detach(), tokenizer.get_vocab()
    return float(torch.cosine_similarity(weight[vocabulary[one]], weight[vocabulary[other]], dim=0))


def test_words_of_one_kind_begin_alike_in_a_recipes_model() -> None:
    model, tokenizer, _ = RECIPES["paddle"].build(0)
    near = [("climb", "rise"), ("catch", "throw"), ("ceiling", "roof"), ("Ġtwo", "Ġthree")]
    for one, other in near:
        assert alike(model, tokenizer, one, other) > alike(model, tokenizer, one, "minister") + 0.2
    # Only words of the frequent list, in no row of any skill.
    assert alike(model, tokenizer, "monday", "thursday") > 0.6


def test_a_meaning_has_the_scale_of_chance_and_touches_nothing_else() -> None:
    _, tokenizer, _ = RECIPES["paddle"].build(0)
    shape = ModelShape(hidden=64, layers=1, heads=2, intermediate=32)
    given, plain = new_model(shape, tokenizer, 0), new_model(shape, tokenizer, 0)
    give_meaning(given, tokenizer)
    was, now = (m.get_input_embeddings().weight.detach() for m in (plain, given))
    changed = (was != now).any(1).nonzero()[:, 0].tolist()
    words = {tokenizer.id_to_token(i) for i in changed}
    assert words == tokenizer.get_vocab().keys() & word_vectors()[0].keys()
    assert float(now[changed].std()) == pytest.approx(0.02, rel=0.05)


def test_the_frequent_and_the_said_words_are_whole() -> None:
    words = whole_words(["Lob it, the zzyzx"])
    assert len(words) == len(set(words)) == FREQUENT + 1
    assert {"lob", "the"} <= set(words) and "zzyzx" not in words


def test_training_rows_say_what_their_instruction_means(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, seen = RECIPES["paddle"], list[Any]()

    class Looks:
        def __init__(self, *given: Any) -> None:
            seen.extend(given[2](9))

        def run(self, progress: Any) -> None:
            raise InterruptedError

    monkeypatch.setattr("rtcontrol.training.imitation.SkillRun", Looks)
    small = Recipe(recipe.agent, (), recipe.demonstrations, recipe.config, chunk=400, nonsense=recipe.nonsense)
    with pytest.raises(InterruptedError):
        small.train(tmp_path, recipe.config)
    assert {row.meant for row in seen if row.call is None} == {""}
    assert {"aim high", "miss every ball on purpose"} <= {row.meant for row in seen if row.call is not None}
    assert any(row.meant not in ("", row.instruction) for row in seen)
