"""The content head: written as the model would alone, in parts, and only by models that were trained to."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.content import WRITTEN, ContentDecider
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.errors import UserError
from tests.models.small import MARGIN, TOLD, WORDS, Oracle, law, tool

TOOLS = (tool("go", where=["left", "right"]),)
LIMIT = 20


def talker(folder: Path, to: Path) -> Path:
    """A copy of a checkpoint whose template says that it writes content."""
    shutil.copytree(folder, to)
    template = json.loads((to / "st_template.json").read_text())
    (to / "st_template.json").write_text(json.dumps({**template, "content": True}))
    return to


@pytest.fixture(scope="module")
def writer(checkpoint: tuple[Path, Oracle], tmp_path_factory: pytest.TempPathFactory) -> tuple[ContentDecider, Oracle]:
    folder, oracle = checkpoint
    own = talker(folder, tmp_path_factory.mktemp("content") / "model")
    return ContentDecider(DeciderSpec(str(own), TOOLS, value_tokens=LIMIT)), oracle


def alone(writer: ContentDecider, oracle: Oracle, told: tuple[str, str]) -> tuple[str | None, float]:
    """The text that Hugging Face writes token after token, and the smallest margin between the best two."""
    made = Checkpoint.open(writer.spec.model)
    tokens, margin = made.tokenizer, float("inf")
    special = {tokens.special_id(t) for t in tokens.specials}
    head, end, null = (tokens.special_id(t) for t in ("<content>", "</content>", "<|null|>"))
    # Observation first, then instruction: as decisions are asked for.
    ids = [*writer._prefix, *made.template.suffix_ids(told[1], told[0]), head]
    said: list[int] = []
    while True:
        row = oracle.logits([*ids, *said])[-1]
        legal = [i for i in range(tokens.size) if i not in special or i == end or (i == null and not said)]
        first, second = sorted((float(row[i]) for i in legal), reverse=True)[:2]
        margin = min(margin, first - second)
        best = max(legal, key=lambda i: float(row[i]))
        if best == null:
            return None, margin
        if best == end or len(said) == LIMIT:
            return tokens.decode(said), margin
        said.append(best)


@law(10)
@given(told=TOLD)
def test_the_content_is_what_the_model_writes_alone_and_never_control(
    writer: tuple[ContentDecider, Oracle], told: tuple[str, str]
) -> None:
    decider, oracle = writer
    expected, margin = alone(decider, oracle, told)
    parts, text, more = 0, None, True
    while more:
        made = decider.decide(*told)
        parts += 1
        text, more = (None, False) if made.call is None else (made.call.arguments["text"], made.call.arguments["more"])
        assert 0 < made.confidence["content"] <= 1 and made.forward_passes <= WRITTEN
    if margin > MARGIN:
        assert text == expected
    assert parts <= LIMIT // WRITTEN + 1


def test_another_question_in_between_begins_anew_and_changes_nothing(writer: tuple[ContentDecider, Oracle]) -> None:
    decider, oracle = writer

    def whole(told: tuple[str, str], *between: tuple[str, str]) -> Any:
        while (made := decider.decide(*told).call) is not None and made.arguments["more"]:
            for other in between:
                decider.decide(*other)
            between = ()
        return made and made.arguments["text"]

    # Those about which there is most to say.
    written = {told: alone(decider, oracle, told) for told in itertools.product(WORDS.split()[:4], repeat=2)}
    clear = [told for told in written if written[told][1] > MARGIN and written[told][0]]
    first, second = sorted(clear, key=lambda told: -len(written[told][0] or ""))[:2]
    assert (whole(first, second), whole(second, first)) == (written[first][0], written[second][0])


def test_a_model_that_was_trained_without_the_head_says_so(folder: Path) -> None:
    with pytest.raises(UserError, match="writes no content"):
        ContentDecider(DeciderSpec(str(folder), TOOLS))
    with pytest.raises(UserError, match="lander writes no content"):
        ContentDecider(DeciderSpec("lander", TOOLS))
