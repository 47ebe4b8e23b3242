"""How often a chat model's call is another in bf16, and where its text is not cut: the numbers of docs/chat.md."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from rtcontrol.models.call import Call
from rtcontrol.models.checkpoint.chat_template import encode_marked
from tests.models.chat.families import Written, build, every, greedy, hub_snapshot
from tests.models.chat.test_chat_laws import tools

pytestmark = pytest.mark.slow
MOST = 300  # calls that the oracle lists
NEAR = 0.1  # of two scores that differ by less, rounding may choose


def drawn(examples: int) -> settings:
    """The same ones each time."""
    only: Any = {"phases": [Phase.generate], "suppress_health_check": list(HealthCheck), "database": None}
    return settings(max_examples=examples, deadline=None, derandomize=True, **only)


def test_bf16_gives_the_call_of_fp32_but_for_near_ties(model: Any) -> None:
    family, folder, judge = model
    leads: list[float] = []
    found = Counter[str]()

    @drawn(50)
    @given(given_tools=tools(), seen=st.text(max_size=12))
    def measure(given_tools: Any, seen: str) -> None:
        exact, rounded = (build(folder, given_tools, dtype=dtype) for dtype in ("fp32", "bf16"))
        schemas = exact.plan.tools
        paths = dict(every(Written(exact, family), schemas, MOST))
        assume(len(paths) <= MOST)
        prompt = [*exact.template.prefix_ids(schemas), *exact.template.suffix_ids("go left", seen)]
        _, lead = greedy(judge, prompt, list(paths))
        same = exact.decide(seen, "go left").call == rounded.decide(seen, "go left").call
        found[f"{'near-tie' if lead < NEAR else 'clear'}, {'same' if same else 'another'}"] += 1
        if not same:
            leads.append(lead)

    measure()
    print(f"{family}: {dict(found)}, leads of the others: {sorted(round(x, 3) for x in leads)}")
    assert found["clear, same"] and not found["clear, another"]


def test_where_the_cut_has_other_tokens_the_call_may_be_another(data: Path, tmp_path: Path) -> None:
    folder = hub_snapshot(tmp_path, data)
    judge = AutoModelForCausalLM.from_pretrained(folder).eval()
    found = Counter[str]()

    @drawn(40)
    @given(given_tools=tools(), seen=st.text(max_size=12))
    def measure(given_tools: Any, seen: str) -> None:
        decider = build(folder, given_tools)
        schemas = decider.plan.tools
        calls = [call for _, call in every(Written(decider, "hermes"), schemas, MOST)]
        assume(len(calls) <= MOST)
        whole = {encoded(decider.tokenizer, *call): call for call in calls}
        cut = {tuple(t for piece in decider.plan.pieces(Call(*call)) for t in piece) for call in calls}
        found["calls"] += len(calls)
        found["with the tokens of the whole"] += len(cut & set(whole))
        prompt = [*decider.template.prefix_ids(schemas), *decider.template.suffix_ids("go left", seen)]
        path, lead = greedy(judge, prompt, list(whole))
        call = decider.decide(seen, "go left").call
        assert call is not None
        same = (call.name, dict(call.arguments)) == whole[path]
        kind = "the same cut" if cut == set(whole) else "another cut"
        found[f"{kind}, {'same call' if same else 'near-tie' if lead < 1e-4 else 'another call'}"] += 1

    measure()
    print(dict(found))
    assert not found["the same cut, another call"]


def encoded(tokenizer: Any, name: str, arguments: dict[str, Any]) -> tuple[int, ...]:
    """Of the whole text at once."""
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return tuple(encode_marked(tokenizer, f"<tool_call>\n{written}\n</tool_call>"))
