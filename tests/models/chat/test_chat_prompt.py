"""A chat model's prompt equals its template word for word, and user text in it never becomes control tokens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rtcontrol.models.checkpoint.chat_template import ChatTemplate
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.tool_schema import ToolSchema, tool_schemas
from tests.models.chat.families import TOLD, TURNS, checkpoint

QWEN = TURNS.replace("%TOLD%", TOLD["hermes"][0])
THINKING = QWEN.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
)
DATED = QWEN.replace(
    "{%- for m in messages", '{% set day = strftime_now("%d %b %Y") %}Today: {{ day }}\n{%- for m in messages'
)
# Tools in the user's own turn, before the user's words.
IN_USER = """{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == "user" %}{"parameters": dictionary}
{%- for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}{% endif %}{{ m.content | trim }}<|im_end|>
{% endfor %}<|im_start|>assistant\n"""
Opened = tuple[ChatTemplate, STTokenizer]


def tools(description: str) -> list[ToolSchema]:
    parameters = {"properties": {"x": {"enum": ["left", "right"]}}, "required": ["x"]}
    return tool_schemas([{"name": "go", "description": description, "parameters": parameters}])


@pytest.fixture(scope="module")
def small(tmp_path_factory: Any) -> Path:
    return checkpoint(tmp_path_factory.mktemp("small"), "hermes")


def chat_folder(folder: Path, small: Path, layout: str | None) -> Path:
    """Copy the small checkpoint and give it this template."""
    shutil.copytree(small, folder)
    (folder / "chat_template.jinja").unlink()
    if layout is not None:
        (folder / "chat_template.jinja").write_text(layout)
    return folder


def opened(folder: Path) -> Opened:
    tokenizer = STTokenizer.load(folder / "tokenizer.json")
    return ChatTemplate(folder, tokenizer), tokenizer


def prompt(template: ChatTemplate, schemas: list[ToolSchema], instruction: str, observation: str) -> list[int]:
    return [*template.prefix_ids(schemas), *template.suffix_ids(instruction, observation)]


def by_transformers(library: Any, template: ChatTemplate, schemas: list[ToolSchema], content: str) -> list[int]:
    messages = [
        {"role": template.syntax.role, "content": template.syntax.system_text},
        {"role": "user", "content": content},
    ]
    options = {"add_generation_prompt": True, "enable_thinking": False, "tokenize": False}
    text = library.apply_chat_template(messages, tools=[t.to_openai() for t in schemas], **options)
    return list(library(text, add_special_tokens=False).input_ids)


def test_chat_prompt_tokens_equal_transformers(small: Path, tmp_path: Path) -> None:
    for i, layout in enumerate((QWEN, THINKING, IN_USER)):
        folder = chat_folder(tmp_path / str(i), small, layout)
        template, tokenizer = opened(folder)
        library, schemas = AutoTokenizer.from_pretrained(str(folder)), tools("Go somewhere.")
        assert '"left"' in tokenizer.decode(template.prefix_ids(schemas)), "tools are cached"
        for instruction, observation in (("go left", "x 0.1 y -2"), ("Land!", "grün →\nof the")):
            expected = by_transformers(library, template, schemas, f"{instruction}\n\n{observation}")
            assert prompt(template, schemas, instruction, observation) == expected


def test_user_text_never_becomes_control_tokens(small: Path) -> None:
    template, tokenizer = opened(small)
    control = {tokenizer.special_id(mark) for mark in tokenizer.specials}
    plain = [i for i in prompt(template, tools("d"), "i", "o") if i in control]
    everything = "".join(tokenizer.specials)
    for mark in (*tokenizer.specials, everything):
        text = f"a{mark}b"
        ids = prompt(template, tools(text), text, text)
        assert [i for i in ids if i in control] == plain, mark
        assert tokenizer.decode(ids).count(text) == 3


def test_prompt_never_contains_the_date(small: Path, tmp_path: Path) -> None:
    template, tokenizer = opened(chat_folder(tmp_path / "dated", small, DATED))
    assert "Today: 26 Jul 2024" in tokenizer.decode(template.prefix_ids(tools("d")))


MISTAKES = [
    ("no template", None, "there is none", "instruct checkpoint"),
    ("no tool calls", "{{ messages }}{{ tools }}", "in none of the known forms", "chat:URL#NAME"),
    ("neither", "{{ messages }}", "ignores tools", "that can call tools"),
    ("no tools", "<tool_call>{% for m in messages %}{{ m.content }}{% endfor %}", "ignores tools", "trained"),
    ("a refusal", "<tool_call>{{ raise_exception('No system turn!') }}", "No system turn!", "trained"),
]


@pytest.mark.parametrize(("layout", "problem", "remedy"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_checkpoint_without_tool_calls_is_refused_with_a_hint(
    small: Path, tmp_path: Path, layout: str | None, problem: str, remedy: str
) -> None:
    folder = chat_folder(tmp_path / "model", small, layout)
    with pytest.raises(UserError) as error:
        opened(folder)[0].prefix_ids(tools("d"))
    assert problem in error.value.what and remedy in error.value.remedy and str(folder) in error.value.what
