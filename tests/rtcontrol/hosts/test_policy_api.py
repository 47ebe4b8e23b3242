"""A policy server decides: how it is asked, what is read of its answers, and that all else is lost by its name."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from jobs import FakeLink
from policy_standin import actions, policy

from rtcontrol.agents import Range, Tools, tool
from rtcontrol.hosts.inprocess import InProcessHost
from rtcontrol.hosts.policy_api import FIRST_S, KEY, PolicyDecider, PolicyMapping, PolicySource
from rtcontrol.hosts.policy_link import pack_message
from rtcontrol.hosts.protocol import DecisionLost, DecisionRequest
from rtcontrol.hosts.remote_api import LONGEST_S
from rtcontrol.models.call import Call, Plan
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import tool_schemas
from tests.helpers.processes import until


@tool
def press(force: Annotated[float, Range(-1.0, 1.0)]) -> None:
    """Press with this force; -1 lets go."""


PRESS = press.schema.exact()
STEP_NS = 50_000_000
URL = "ws://127.0.0.1:1"


def request(n: int, within_s: float = 20.0, **more: Any) -> DecisionRequest:
    return DecisionRequest(n, 1, f"n {n}", "press", data={"n": float(n)}, within_ns=round(within_s * 1e9), **more)


def source(url: str = URL, tmp_path: Path | None = None, mapping: str = "", **more: Any) -> PolicySource:
    name = f"openpi:{url}"
    if tmp_path is not None:
        (tmp_path / "policy.yaml").write_text(mapping)
        name += f"#{tmp_path / 'policy.yaml'}"
    return PolicySource.parse(name, [PRESS], STEP_NS, **more)


def asking(*answers: Any, of: PolicySource | None = None) -> tuple[PolicyDecider, FakeLink]:
    """Return a decider that gets these answers, one for each question, and its link."""
    link = FakeLink([pack_message(message) if isinstance(message, dict) else message for message in answers])
    return PolicyDecider(of or source(), link), link


def lost(decider: PolicyDecider, question: DecisionRequest) -> DecisionLost:
    with pytest.raises(DecisionLost) as caught:
        decider.decide(question)
    return caught.value


def test_observation_becomes_question_and_actions_become_plan() -> None:
    decider, link = asking(actions(0.25, 0.5, -0.5))
    decision = decider.decide(request(7))
    calls = tuple(Call("press", {"force": force}) for force in (0.25, 0.5, -0.5))
    assert decision.plan == Plan(calls, STEP_NS) and decision.call == calls[0]
    assert decision.confidence == {"function": 1.0} and link.cuts == 0
    (question,) = link.questions
    assert question["observation/state"].tolist() == [7.0] and question["prompt"] == "press"


@pytest.mark.parametrize(("given", "sure"), [(0.25, 0.25), (7.0, 0.0), ("sure", 0.0)])
def test_decision_has_the_confidence_of_the_policy(given: Any, sure: float) -> None:
    assert asking(actions(0.1, confidence=given))[0].decide(request(1)).confidence["function"] == sure


def test_action_out_of_bounds_makes_whole_plan_illegal() -> None:
    decider, link = asking(actions(0.1, 0.2, 1.5))
    decision = decider.decide(request(1))
    assert decision.plan is None and decision.call == Call("press", {"force": 1.5}) and link.cuts == 1


# Within how many ms, in the warm-up or late: how long the answer is waited for.
LIMITS = {
    "50 ms": (request(1, 0.05), {}, 0.0475 - 0.003),
    "8 ms": (request(1, 0.008), {}, 0.006 - 0.0015),
    "1 ms": (request(1, 0.001), {}, 0.0),
    "for ever": (request(1, 0.0), {}, LONGEST_S),
    "the first of all": (request(-1, 0.0), {}, FIRST_S),
    "late": (request(1, 0.05), {"late": True}, LONGEST_S),
}


@pytest.mark.parametrize(("question", "options", "limit_s"), LIMITS.values(), ids=LIMITS.keys())
def test_answer_is_given_up_before_its_deadline(
    question: DecisionRequest, options: dict[str, Any], limit_s: float
) -> None:
    decider, link = asking(actions(0.1), actions(0.2), of=source(**options))
    decider.decide(question)
    assert link.limits == [pytest.approx(limit_s)]
    decider.decide(request(-1, 0.0))
    assert link.limits[1] == LONGEST_S, "a policy is compiled with the first question"


def test_policy_source_can_be_pickled_and_hides_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "a-secret-of-the-tests")
    server = source()
    assert pickle.loads(pickle.dumps(server)).key == "a-secret-of-the-tests" and "secret" not in repr(server)
    assert "secret" not in str(PolicyDecider(server, FakeLink([])).info())


UNFIT = {
    "two numbers an action": (
        np.zeros((4, 2), np.float32),
        r"\(4, 2\); the mapping needs floats of shape \[steps, 1\]",
    ),
    "whole numbers": (np.zeros((4, 1), np.int64), "are int64 of shape"),
}


@pytest.mark.parametrize(("chunk", "what"), UNFIT.values(), ids=UNFIT.keys())
def test_wrong_action_shape_is_user_error_before_first_success(chunk: Any, what: str) -> None:
    decider, link = asking({"actions": chunk})
    with pytest.raises(UserError, match=what) as caught:
        decider.decide(request(1))
    assert "docs/deciders.md" in caught.value.remedy and link.cuts == 1


# What comes in place of the third answer, and the loss that it is. `EARLIER` stands for the first.
EARLIER = b"the first answer"
FAULTS: dict[str, tuple[Any, str]] = {
    "garbage": (b"\xc1" + bytes(range(200)), "malformed"),
    "no actions": ({"server_timing": {"infer_ms": 1.0}}, "malformed"),
    "two numbers an action": ({"actions": np.zeros((4, 2), np.float32)}, "malformed"),
    "one of several not a number": (actions(0.5, math.nan), "not_finite"),
    "a fallback": (actions(0.5, status="held"), "refused"),
    "an earlier answer": (EARLIER, "repeated"),
    "lost on the way": (DecisionLost("timeout", "no answer in time"), "timeout"),
}


# Physical-superintelligence-lab/Psi0#95 and strands-labs/robots#3321 (silent), robocurve/inspect-robots#356 and
# strands-labs/robots#1754 (numbers that are not finite), huggingface/OpenEnv#1143 (an old answer read as the new).
@pytest.mark.parametrize(("message", "loss"), FAULTS.values(), ids=FAULTS.keys())
def test_each_faulty_answer_has_its_loss_and_cuts_connection(message: Any, loss: str) -> None:
    good = [pack_message(actions(n / 100)) for n in (1, 2, 4)]
    decider, link = asking(good[0], good[1], good[0] if message is EARLIER else message, good[2])
    for n in (1, 2):
        assert decider.decide(request(n)).call == Call("press", {"force": float(np.float32(n / 100))})
    assert lost(decider, request(3)).loss == loss
    assert link.cuts == (0 if isinstance(message, DecisionLost) else 1), "what follows may answer the same question"
    assert decider.decide(request(4)).call == Call("press", {"force": float(np.float32(0.04))})


# websockets/ws#2013: the client took the header of the key along to whatever host it was sent to.
@pytest.mark.parametrize(("status", "hint"), [(401, KEY), (302, "HTTP 302")])
def test_key_is_sent_only_to_the_policy_server(monkeypatch: pytest.MonkeyPatch, status: int, hint: str) -> None:
    monkeypatch.setenv(KEY, "a-secret-of-the-tests")
    with policy() as other, policy(refuse=(status, other.url)) as server:
        error = lost(source(server.url).build(), request(1))
    assert server.headers[0]["authorization"] == "Api-Key a-secret-of-the-tests" and not other.headers
    assert error.loss == "http" and f"HTTP {status}" in str(error) and hint in str(error)


def test_closed_host_cuts_connection_to_policy_server() -> None:
    with policy(lambda n: []) as server:
        host = InProcessHost(source(server.url), 2)
        host.start()
        deciders = list(host.deciders)
        host.submit(request(1))
        until(lambda: server.questions)
        host.close()
        for decider in deciders:
            assert isinstance(decider, PolicyDecider)
            error = lost(decider, request(2))
            assert error.loss == "connection" and "closed" in str(error)
        reply = host.wait(20_000_000_000)
        assert reply is None or reply.loss == "connection"


ENGINES: dict[str, Any] = {
    "name": "engines",
    "parameters": {
        "properties": {
            "main": {"enum": [0, 50, 60, 100]},
            "side": {"type": "number", "minimum": -1, "maximum": 1},
            "turns": {"type": "integer", "minimum": 0, "maximum": 1_000_000},
        },
        "required": ["main", "side", "turns"],
    },
}
GRIP: dict[str, Any] = {
    "name": "grip",
    "parameters": {
        "properties": {"closed": {"type": "boolean"}, "way": {"enum": ["left", "stay", "right"]}},
        "required": ["closed", "way"],
    },
}
FINE: dict[str, Any] = {
    "name": "fine",
    "parameters": {
        "properties": {"at": {"type": "number", "minimum": 0, "maximum": 10, "multipleOf": 0.001}},
        "required": ["at"],
    },
}


def mapping(tmp_path: Path, text: str | None, *tools: dict[str, Any]) -> PolicyMapping:
    if text is None:
        return PolicyMapping.read(None, tool_schemas(list(tools)))
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    return PolicyMapping.read(str(file), tool_schemas(list(tools)))


def test_numbers_of_first_observation_form_state_vector() -> None:
    decider, _ = asking()
    observed = [{"x": 1.5, "name": "r2", "legs": True, "image": np.zeros(3)}, {"legs": False, "x": 2.0}]
    question = [decider.build_question(DecisionRequest(1, 1, "", "land", data=data)) for data in observed][1]
    assert question["observation/state"].tolist() == [2.0, 0.0] and question["observation/state"].dtype == np.float32
    assert question["prompt"] == "land"


# Of which tool, by which file: an action, and the arguments that it becomes.
ACTIONS = {
    "in order": (ENGINES, None, [57.0, 0.25, 3.4], {"main": 60, "side": 0.25, "turns": 3}),
    "half a step above": (ENGINES, None, [120.0, 0.0, 0.0], {"main": 100, "side": 0.0, "turns": 0}),
    "half a step below": (ENGINES, None, [-25.0, 0.0, 0.0], {"main": 0, "side": 0.0, "turns": 0}),
    "fine": (FINE, None, [1.23449], {"at": 1.234}),
    "out of bounds": (FINE, None, [10.2], {"at": 10.2}),
}


@pytest.mark.parametrize(("of", "text", "row", "arguments"), ACTIONS.values(), ids=ACTIONS.keys())
def test_action_numbers_become_nearest_arguments(tmp_path: Path, of: Any, text: Any, row: Any, arguments: Any) -> None:
    call = mapping(tmp_path, text, of).call(row)
    assert call == Call(of["name"], arguments)
    assert [type(value) for value in call.arguments.values()] == [type(value) for value in arguments.values()]


def test_number_that_overflows_when_scaled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OverflowError):
        mapping(tmp_path, "actions: [{parameter: at, scale: 1.0e+300}]", FINE).call([1e300])


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({}, "KeyError: 'speed'"),
        *(
            ({"speed": v}, r"observation's \['speed'\] cannot be sent")
            for v in (10**310, math.nan, 1e300, "two", None, [1])
        ),
        ({"speed": 1.0, "cam": [[1], [1, 2]]}, "The observation's 'cam' cannot be sent"),
    ],
    ids=str,
)
def test_unusable_observation_error_names_the_field(tmp_path: Path, data: Any, fault: str) -> None:
    decider, _ = asking(of=source(tmp_path=tmp_path, mapping="observation: {state: [speed], image: cam}"))
    with pytest.raises(UserError, match=fault):
        decider.build_question(DecisionRequest(1, 1, "", "go", data=data))


def test_mapping_scales_ignores_and_names_numbers(tmp_path: Path) -> None:
    text = """
        prompt: null
        observation: {state: [x, y], cam: image}
        actions: [null, {parameter: way, levels: {-1: left, 0: stay, 1: right}},
                  {parameter: closed, scale: 2, offset: -1, levels: {-1: true, 1: false}}]
    """
    mapped = mapping(tmp_path, text, GRIP)
    assert mapped.call([9.9, 0.6, 0.2]) == Call("grip", {"way": "right", "closed": True})
    image = np.zeros((4, 4, 3), np.uint8)
    decider, _ = asking(of=PolicySource(URL, (GRIP,), mapped, STEP_NS))
    question = decider.build_question(DecisionRequest(1, 1, "", "go", data={"x": 1, "y": 2, "image": image}))
    assert set(question) == {"state", "cam"} and question["cam"] is image


WRONG = {
    "no YAML": ("a: [", "cannot be read"),
    "an unknown key": ("action: []", "action Extra inputs"),
    "an unknown parameter": ("actions: [{parameter: thrust}]", "no parameter 'thrust'"),
    "one twice": ("actions: [{parameter: main}, {parameter: main}]", "one entry for engines's main, but has 2"),
    "one that is missing": ("actions: [{parameter: main}]", "one entry for engines's side, but has 0"),
    "a level beyond all floats": (f"actions: [{{parameter: main, levels: {{{10**400}: 50}}}}]", "levels"),
    "a field that is a truth value": ("observation: {state: [x, on]}", r"state.*valid string"),
}


@pytest.mark.parametrize(("text", "fault"), WRONG.values(), ids=WRONG.keys())
def test_error_in_mapping_file_is_explained_with_hint(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(UserError, match=fault) as caught:
        mapping(tmp_path, text, ENGINES)
    assert "policy.yaml" in caught.value.what and caught.value.remedy


def test_parameter_without_numbers_needs_mapping_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="values of closed are not numbers") as caught:
        mapping(tmp_path, None, GRIP)
    assert "levels" in caught.value.remedy
    with pytest.raises(UserError, match="2 tools"):
        mapping(tmp_path, None, ENGINES, GRIP)
    assert mapping(tmp_path, "tool: engines", ENGINES, GRIP).tool == "engines"
    with pytest.raises(UserError, match="cannot be read"):
        PolicyMapping.read(str(tmp_path / "none.yaml"), tool_schemas([ENGINES]))


CLIPPED: list[dict[str, Any]] = [
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": -1, "maximum": 1, "multipleOf": 0.1},
    {"type": "number", "exclusiveMaximum": 3, "multipleOf": 0.1},
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 10},
    {"type": "number"},
]


@pytest.mark.parametrize("schema", CLIPPED, ids=str)
def test_clipped_number_is_always_legal(tmp_path: Path, schema: dict[str, Any]) -> None:
    tool = {"name": "move", "parameters": {"properties": {"x": schema}, "required": ["x"]}}
    mapped, tools = mapping(tmp_path, "clip: true", tool), Tools([tool])
    for number in (-1e12, -5.0, -0.06, 0.0, 0.1, 0.33, 0.95, 1.0, 3.4, 10.0, 101.0, 1e12):
        tools.validate(mapped.call([number]))
