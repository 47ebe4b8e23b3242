"""Pass-through functions: one string, taken word for word from what is asked.

The paper's training data has 2,000 groups of them ("Special (pass-through functions)", appendix "Training Data
Statistics") and says no more. Here one is a function that hands a passage on unchanged, among other rows' tools; the
passages are other rows' queries, so that they are language and not noise.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from rtcontrol.models.call import Call
from rtcontrol.models.data.row import DataRow
from rtcontrol.models.data.types import tool
from rtcontrol.models.errors import UserError

SOURCE = "pass-through"
OTHERS = 4
# Name, what it does, parameter, and how it is asked for.
FUNCTIONS = (
    ("say", "Says a text aloud.", "text", ("Say: {}", 'Please say "{}".', "Read this out: {}")),
    ("reply", "Sends an answer to the user.", "answer", ("Answer with: {}", 'Reply "{}".', "Tell me this: {}")),
    (
        "forward_message",
        "Hands a message on as it is.",
        "message",
        ("Forward this: {}", 'Pass "{}" on.', "Hand on: {}"),
    ),
    ("take_note", "Keeps a note.", "note", ("Note: {}", 'Write down "{}".', "Keep this in mind: {}")),
    (
        "ask_expert",
        "Puts a question to an expert.",
        "question",
        ("Ask an expert: {}", 'Ask them "{}".', "{} Ask them."),
    ),
    ("search", "Looks a text up.", "query", ("Look this up: {}", 'Search for "{}".', "{} Search for exactly that.")),
)


def rows(count: int, others: Sequence[DataRow], seed: int) -> Iterator[DataRow]:
    """So many rows, each another one, with tools of the other rows beside its own. Raises UserError where those have
    too few queries."""
    drawn = random.Random(seed)
    passages = sorted({row.instruction.strip() for row in others if row.instruction.strip()})
    every = [(f, words, p) for f in FUNCTIONS for words in f[3] for p in range(len(passages))]
    if count > len(every):
        raise UserError(
            f"{count} pass-through rows are more than {len(passages)} queries give ({len(every)}).", "Ask for fewer."
        )
    for n, ((name, about, parameter, _), words, at) in enumerate(drawn.sample(every, count)):
        schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
        shown: dict[str, Any] = {name: tool(name, about, schema)}
        for one in drawn.choice(others).tools[: drawn.randint(0, OTHERS)]:
            shown.setdefault(one.get("function", one)["name"], one)
        order = list(shown.values())
        drawn.shuffle(order)
        call = Call(name, {parameter: passages[at]})
        asked = words.format(passages[at])
        yield DataRow(f"pass_through_{n}", f"pass_through_{n}", SOURCE, asked, "", tuple(order), (), call)
