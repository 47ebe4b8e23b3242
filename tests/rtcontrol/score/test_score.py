"""`rtcontrol score` reveals ignored instructions and loses no results, and `rtcontrol eval` judges rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
from commands import call, refused, settings

from rtcontrol.agents import Agent, Fallback, OneOf, Tools, tool
from rtcontrol.bench.situations import situations
from rtcontrol.envs.base import Episode
from rtcontrol.envs.evaluate import Case, EvaluationWorld, cases, run_cases
from rtcontrol.envs.skill import Skill
from rtcontrol.hosts.protocol import DecisionRequest
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.data.row import Row, write_rows
from rtcontrol.models.decode.protocol import DecodeError
from rtcontrol.models.errors import UserError
from rtcontrol.run import assembly
from rtcontrol.run.api import Model
from rtcontrol.score.policies import SCRIPTED, BatchPolicy, ModelPolicy, scripted_policy
from rtcontrol.score.score import Phrasing, ScoreDocument, Settings, goal_rows, load_phrasings, plan_cells, play_cells
from rtcontrol.score.tables import outcomes_of, phrasing_counts, share_text, tables, unfamiliar_notes
from tests.rtcontrol.hosts.standin_endpoint import standin
from tests.rtcontrol.run.yard import agent_file, world_file

# A small world to score in: a walker on a line that must stand at the flag it is told, left or right of its start.


LIMIT_S, REACH = 3.0, 5


@dataclass(frozen=True)
class Flag:
    side: str

    def text(self) -> str:
        return f"go {self.side}"


def recognise(text: str) -> Flag | None:
    return Flag(text[3:]) if text in ("go left", "go right") else None


class Walk:
    """A world of places in a line, with ten steps a second; passing a flag by two places fails."""

    step_s = 0.1

    def __init__(self) -> None:
        self.bindings: Mapping[str, Callable[..., Any]] = {"walk": self.walk}
        self._goal: Flag | None = None

    def walk(self, step: int) -> None:
        self._step = step

    def judge_by(self, goal: Flag) -> None:
        self._goal = goal

    def instruct(self, text: str) -> None:
        pass

    def reset(self, seed: int) -> None:
        self._seed, self._x, self._t, self._step = seed, seed % 3 - 1, 0.0, 0

    def step(self) -> None:
        self._x, self._t = self._x + self._step, self._t + self.step_s

    def observe(self) -> dict[str, float]:
        return {"x": self._x}

    def outcome(self) -> Episode | None:
        fell = abs(self._x) > REACH + 1
        if not fell and self._t < LIMIT_S:
            return None
        there = self._goal is not None and self._x == (-REACH if self._goal.side == "left" else REACH)
        return Episode(self._seed, self._x, there and not fell, self._t, {"end": "fell" if fell else "time"})


def expert(seen: Mapping[str, float], goal: Flag) -> Call:
    ahead = (-REACH if goal.side == "left" else REACH) - seen["x"]
    return Call("walk", {"step": (ahead > 0) - (ahead < 0)})


@tool
def walk(step: Annotated[int, OneOf(-1, 0, 1)]) -> None:
    """Walk by this many places at each step."""


LEFT, RIGHT = Flag("left"), Flag("right")
STILL = Call("walk", {"step": 0})
SKILL = Skill(
    "walk",
    Walk,
    lambda data: f"x {data['x']:.0f}",
    lambda text: {"x": float(text[2:])},
    recognise,
    expert,
    STILL,
    lambda rng: Call("walk", {"step": rng.choice((-1, 0, 1))}),
    goals=(LEFT, RIGHT),
)
AGENT = Agent("walk", "Walks.", Tools([walk]), SKILL.observe, "go left", Fallback(STILL, hold_ms=300.0), "none")


@dataclass(frozen=True)
class Walker:
    """A decider that follows the goals in `knows`, and else the first of them, with less confidence."""

    knows: tuple[str, ...]

    def build(self) -> Walker:
        return self

    def decide(self, request: DecisionRequest) -> Decision:
        told = request.instruction
        goal = recognise(told if told in self.knows else self.knows[0])
        assert goal is not None
        call = expert(SKILL.parse_observation(request.observation), goal)
        return Decision(call, {"function": 0.9 if told in self.knows else 0.4, "arg1": 1.0})


HZ = 10.0
KNOWS_BOTH, DEAF = Walker(("go left", "go right")), Walker(("go left",))
SAID = [Phrasing("off to the left", "go left", LEFT), Phrasing("go right", "go right", RIGHT), Phrasing("asdf", None)]


def score(
    models: dict[str, Walker], gate: float = 0.0, said: Sequence[Phrasing] = (), path: Path | None = None
) -> ScoreDocument:
    """Return a small score of walkers, with four seeds for each goal."""
    settings = Settings("walk", "walk", tuple(models), HZ, 4, gates=(gate,) * len(models))
    document = ScoreDocument(settings, said, path)
    policies: dict[str, BatchPolicy] = {name: scripted_policy(SKILL, name) for name in SCRIPTED}
    policies |= {name: ModelPolicy(AGENT, source, HZ, gate) for name, source in models.items()}
    play_cells(SKILL, plan_cells(settings, goal_rows(SKILL, HZ), said), policies, document, HZ, lambda *_: None)
    return document


def test_model_ignoring_instructions_succeeds_when_told_another() -> None:
    cells = list(score({"hears": KNOWS_BOTH, "deaf": DEAF}).data["cells"].values())
    for goal in ("go left", "go right"):
        assert outcomes_of(cells, "goals", goal, "hears") == outcomes_of(cells, "goals", goal, "expert") == [1] * 4
        assert outcomes_of(cells, "other", goal, "hears") == outcomes_of(cells, "other", goal, "expert") == [0] * 4
        assert outcomes_of(cells, "goals", goal, "no-op") == [0] * 4
    assert outcomes_of(cells, "goals", "go left", "deaf") == outcomes_of(cells, "other", "go left", "deaf") == [1] * 4
    assert outcomes_of(cells, "goals", "go right", "deaf") == [0] * 4
    assert share_text([1] * 4) == "4/4 (0.51-1.00)"
    assert {tuple(cell["seeds"]) for cell in cells} == {(2000, 2001, 2002, 2003)}


def test_call_acts_even_in_tick_without_step() -> None:
    called: list[list[str]] = []

    def decide(worlds: Sequence[EvaluationWorld]) -> list[Call | None]:
        called.append(list(worlds[0].history))
        return [Call("walk", {"step": 1}) if worlds[0].tick == 0 else None]

    # At 30 Hz two of three ticks of this world have no step: the first one's call is in force all the same.
    played = run_cases(SKILL, decide, [Case("go right", RIGHT, 1)], 30.0)
    assert called[1] == ["walk(step=1)"] and played[0].episode.detail["end"] == "fell"


def test_held_calls_count_as_wrong_and_unsure() -> None:
    for gate, right, canonical, unsure, held in ((0.5, 1, 2, 1, 1), (0.0, 2, 2, 0, 0), (0.95, 0, 0, 2, 1)):
        counts = {"sentences": 2, "right": right, "canonical_right": canonical, "unsure": unsure, "nonsense": 1}
        document = score({"hears": KNOWS_BOTH}, gate, SAID).data
        assert phrasing_counts(document, "hears") == {**counts, "held": held}


def test_long_hold_ends_in_the_safe_call() -> None:
    made: list[Call | None] = []
    policy = ModelPolicy(AGENT, KNOWS_BOTH, HZ, 0.95)

    def decide(worlds: Sequence[EvaluationWorld]) -> Sequence[Call | None]:
        made.extend(policy(worlds))
        return made[-1:]

    played = run_cases(SKILL, decide, cases(LEFT, [0]), HZ)
    assert made[:4] == [None, None, AGENT.fallback.safe_call, None] and not any(made[3:])
    assert played[0].policy_data["held"] == len(made)


def test_null_that_means_uncertainty_is_held() -> None:
    class Lost(Walker):
        def decide(self, request: Any) -> Decision:
            return Decision(None, {"function": 0.9})

    policy = ModelPolicy(replace(AGENT, allow_null=True, null_is_doubt=True), Lost(()), HZ)
    played = run_cases(SKILL, policy, cases(LEFT, [0]), HZ)
    assert played[0].policy_data["held"] == 30 and played[0].policy_data["idle"] == [True] * 30


def test_decisions_held_for_unfamiliar_observations_are_reported() -> None:
    class Elsewhere(Walker):
        def decide(self, request: Any) -> Decision:
            return replace(
                Walker.decide(self, request), confidence={"function": 0.4}, unfamiliar=("x 9 (in training 0 to 3)",)
            )

    document = score({"hears": Elsewhere((LEFT.text(), RIGHT.text()))}, 0.5).data
    held = sum(cell["unfamiliar"] for cell in document["cells"].values() if cell["by"] == "hears")
    (note,) = unfamiliar_notes(document)
    assert (
        note
        == f"hears: {held:,} decisions were held, because training had no such observations: x 9 (in training 0 to 3)."
    )
    assert not [*unfamiliar_notes(score({"hears": KNOWS_BOTH}, 0.5).data)]


def test_interrupted_score_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = score({"hears": KNOWS_BOTH}, said=SAID).data
    path, played = tmp_path / "scores.json", list[int]()

    def stop(self: ScoreDocument, *given: Any) -> None:
        played.append(1)
        if len(played) == 4:
            raise KeyboardInterrupt
        add(self, *given)

    add = ScoreDocument.add
    monkeypatch.setattr(ScoreDocument, "add", stop)
    with pytest.raises(KeyboardInterrupt):
        score({"hears": KNOWS_BOTH}, said=SAID, path=path)
    kept = json.loads(path.read_text())
    assert kept["cells"] == dict(list(whole["cells"].items())[:3]) and not kept["complete"]
    assert [table.title for table in tables(kept)] == ["walk, lockstep at 10 Hz, the same seeds for all"]


def test_model_that_never_decides_is_refused() -> None:
    class Mute(Walker):
        def decide(self, request: Any) -> Any:
            raise UserError("nobody is there", "Start it.")

    with pytest.raises(UserError, match="makes no decision: nobody is there"):
        score({"mute": Mute(("go left",))})


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "list.jsonl:3"),
        ('{"say": "go"}', "line 3: the line needs `say`"),
        ('{"say": "go", "means": 3}', "a text or null"),
        ('{"say": "go", "means": "fly"}', "'fly', which names no goal"),
        ('{"say": "west", "means": null}', "\"west\" means None and 'go left'"),
    ],
)
def test_bad_line_is_named_by_file_and_number(line: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text('{"say": "west", "means": "go left"}\n\n' + line + "\n")
    with pytest.raises(UserError, match=f"list.jsonl.*{what}|{what}"):
        load_phrasings(SKILL, str(path), ("walk",))


def test_a_bundled_model_is_scored_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentences, out = tmp_path / "list.jsonl", tmp_path / "scores.json"
    sentences.write_text(
        '{"say": "please land on the pad", "means": "land on the pad"}\n{"say": "asdf qwer", "means": null}\n'
    )
    told = ("score", "--env", "lander", "--seeds", "1")
    told += settings("score.goals=land on the pad", f"score.phrasings={sentences}")
    assert call(*told, "--json", str(out)) == 0
    shown = capsys.readouterr().out
    assert "1/1 (0.21-1.00)" in shown and "please" not in shown and str(out) in shown
    data = json.loads(out.read_text())
    goal = next(cell for cell in data["cells"].values() if cell["part"] == "goals" and cell["by"] == "lander")
    assert goal["outcomes"] == [1] and goal["seeds"] == [2000]
    assert data["settings"]["hz"] == 16.0 and 0 < data["settings"]["gates"][0] < 1  # what the checkpoint names
    assert (data["complete"], data["lines"][1]) == (True, {"say": "asdf qwer", "means": None})


def toward(told: str, name: str, options: list[str]) -> str:
    """Return the option that leads to the instructed thing in the yard."""
    lines = dict(line.split(": ", 1) for line in told.split("\n"))
    thing = lines["Instruction"].removeprefix("go to the ")
    x, y = map(int, re.findall(rf"{thing} (-?\d+) (-?\d+)", lines["Observation"])[0])
    return ("east" if x > 0 else "west") if abs(x) > abs(y) else "north" if y > 0 else "south" if y < 0 else "stop"


def test_endpoint_is_scored_in_a_users_world(tmp_path: Path) -> None:
    out, sentences = tmp_path / "scores.json", tmp_path / "list.jsonl"
    sentences.write_text(
        '{"say": "go to the barrel", "means": "go to the barrel"}\n{"say": "go to the red box", "means": null}\n'
    )
    with standin(lambda n: (0.0, None), toward) as hears:
        model = f"decisions:{hears.url}"
        files = ("--env", world_file(tmp_path), "--agent", agent_file(tmp_path))
        goals = settings("score.goals=go to the red box", "score.goals=go to the barrel", "score.hz=10")
        told = ("score", *files, "--seeds", "1", "--model", model, *goals)
        assert call(*told, *settings(f"score.phrasings={sentences}"), "--json", str(out)) == 0
    cells = list(json.loads(out.read_text())["cells"].values())
    for goal in ("go to the red box", "go to the barrel"):
        assert outcomes_of(cells, "goals", goal, model) == outcomes_of(cells, "goals", goal, "expert") == [1]
        assert outcomes_of(cells, "other", goal, model) == [0]


def test_invalid_score_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no goals" in refused(capsys, "score", "--env", "remote")
    lander, nowhere = ("score", "--env", "lander"), settings(f"score.phrasings={tmp_path}/none")
    assert "is always in the table" in refused(capsys, *lander, "--model", "expert")
    assert "trained on other tools" in refused(capsys, *lander, "--model", "paddle")
    assert "such as: 'land on the pad'" in refused(capsys, *lander, *settings("score.goals=tea")).lower()
    assert "cannot be read" in refused(capsys, *lander, *nowhere, "--json", str(tmp_path / "f/x"))
    assert not (tmp_path / "f/x").exists()  # a refusal leaves no empty file
    own = ("score", "--env", world_file(tmp_path), "--agent", agent_file(tmp_path))
    assert "score.phrasings needs a model" in refused(capsys, *own, "--set", "score.phrasings=unseen")


class Partly(Walker):
    """A walker that fails for unknown instructions."""

    def decide(self, request: DecisionRequest) -> Decision:
        if request.instruction not in self.knows:
            raise DecodeError("no call")
        return super().decide(request)


def test_undecided_sentence_is_unsure() -> None:
    source = Partly(("go left", "go right"))
    found = phrasing_counts(score({"partly": source}, 0.5, [*SAID[:2], *SAID[:1]]).data, "partly")
    counts = {"sentences": 3, "right": 1, "canonical_right": 3, "unsure": 2}
    assert found == {**counts, "nonsense": 0, "held": 0}


ROWS = 12


@pytest.fixture(scope="session")
def lander_rows() -> list[Row]:
    """Return rows with the calls of the lander's model, except a different call in the first row."""
    tools = assembly.bundled_agents()["lander"].tools.schemas
    session = Model("lander").session()
    rows = []
    for n, one in enumerate(situations("lander", ROWS)):
        call = session.decide(one.observation, one.instruction).call
        assert call is not None
        right = Call(call.name, {**call.arguments, "main": 0 if call.arguments["main"] else 100}) if n == 0 else call
        names = {"id": f"r{n}", "sample": f"s{n // 2}", "source": f"source {n % 3}"}
        rows.append(Row(one.instruction, one.observation, right, (), tools, **names))
    return rows


@pytest.fixture
def lander_file(tmp_path: Path, lander_rows: list[Row]) -> Path:
    path = tmp_path / "rows.jsonl"
    write_rows(path, lander_rows)
    return path


def evaluated(rows: Path, *arguments: str) -> dict[str, Any]:
    scores = rows.with_name("scores.json")
    assert call("eval", str(rows), *arguments, "--json", str(scores)) == 0
    return dict(json.loads(scores.read_text()))


def test_a_model_is_judged_by_its_rows(capsys: pytest.CaptureFixture[str], lander_file: Path) -> None:
    found = evaluated(lander_file, "--model", "lander")
    assert (found["rule"], found["model"]["name"]) == ("exact", "lander")
    # One call of twelve is wrong, hence one of six samples.
    assert (found["rows"]["right"], found["rows"]["count"]) == (11, 12)
    assert (found["overall"]["right"], found["overall"]["count"], found["function"]["right"]) == (5, 6, 6)
    assert found["samples"]["s0"] == 0 and found["wrong"] == {"argument main": 1}
    assert found["latency_ms"]["count"] == 12 and found["passes"]["p50"] >= 1
    assert found["data"]["counts"]["rows"] == {"source 0": 4, "source 1": 4, "source 2": 4}
    assert call("eval", str(lander_file), "--model", "lander") == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("source 2", "all", "5/6", "83.33", "argument main"))


def test_answers_are_written_one_per_line(
    capsys: pytest.CaptureFixture[str], lander_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    given = ("--model", "lander", "--set", f"eval.out={out}")
    evaluated(lander_file, *given)
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["id"] for one in answers] == [f"r{n}" for n in range(ROWS)]
    assert all(len(one["calls"]) == 1 and one["confidence"].keys() >= {"function"} for one in answers)
    assert "already exists" in refused(capsys, "eval", str(lander_file), *given)
