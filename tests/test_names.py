"""Public names are the field's terms: a name of these words says nothing of what it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VAGUE = {"told", "asked", "said", "found", "own", "word", "words"}
# Here it is words that are meant, those of a sentence.
LEFT = {
    "KnownWords", "Words", "common_words", "held_out_words", "hundredths_in_words", "instruction_words",
    "integer_in_words", "number_words", "seen_words", "some_words", "split_words", "unseen_words", "whole_words",
    "with_word_probes", "word_vectors", "words", "words_of",
}  # fmt: skip


def public(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
            yield node.name
            if isinstance(node, ast.ClassDef):
                yield from public(node)


def test_no_public_name_is_of_the_words_that_mean_nothing_but_those_that_are_listed() -> None:
    names = set()
    for floor in ("rtcontrol", "agents", "envs", "models", "bridges"):
        for file in (ROOT / floor).rglob("*.py"):
            names |= {file.stem, *public(ast.parse(file.read_text()))}
    parts = {name: {part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+", name)} for name in names}
    assert {name for name, of in parts.items() if of & VAGUE} == LEFT
