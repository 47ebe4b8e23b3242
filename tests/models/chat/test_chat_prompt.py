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


# How templates of chat models write the calls of an assistant's turn.
WITH_CALLS = """{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if loop.first and tools %}
{{ tools | tojson }}
Answer like this: %FORM%{% endif %}{% for c in m.tool_calls %}%CALL%{% endfor %}<|im_end|>\n{% endfor %}"""
OBJECT = '{"name": "{{ c.function.name }}", "%s": {{ c.function.arguments | tojson }}'
PAIRS = "{% for k, v in c.function.arguments.items() %}%s{% endfor %}"
KNOWN = {
    "qwen 2.5": ("<tool_call>", "\n<tool_call>\n" + OBJECT % "arguments" + "}\n</tool_call>"),
    "qwen 3": ("<tool_call>", "<tool_call>\n" + OBJECT % "arguments" + "}\n</tool_call>"),
    "llama 3": ('{"name": n, "parameters": p}', OBJECT % "parameters" + "}"),
    "mistral": ("[TOOL_CALLS][", "[TOOL_CALLS][" + OBJECT % "arguments" + ', "id": "{{ c.id }}"}]'),
    "ministral": ("[ARGS]", "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"),
    "a dump": ("<tool_call>", "{% if loop.first %}{{ m.tool_calls | tojson }}{% endif %}"),
    "no calls": ("<tool_call>", ""),
    "an error": ("<tool_call>", "{{ raise_exception('No results!') }}"),
}
OTHER = {
    "qwen 3 coder": (
        "<tool_call>",
        "<tool_call>\n<function={{ c.function.name }}>\n"
        + PAIRS.replace("%s", "<parameter={{ k }}>\n{{ v }}\n</parameter>\n")
        + "</function>\n</tool_call>",
    ),
    "glm 4.5": (
        "<tool_call>",
        "<tool_call>{{ c.function.name }}\n"
        + PAIRS.replace("%s", "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n")
        + "</tool_call>",
    ),
    "hunyuan": ('"parameters":', "<tool_calls>[" + OBJECT % "arguments" + "}]</tool_calls>"),
    "hunyuan, named": (
        "<tool_call>",
        "<tool_calls><tool_call>{{ c.function.name }}<tool_sep></tool_call></tool_calls>",
    ),
    "qwen 3 coder, arguments as text": (
        "<tool_call>",
        "<tool_call>\n{{ '<function=' + c.function.name + '>' + c.function.arguments }}</function>",
    ),
    "qwen 3 coder, calls never written": ("<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE", ""),
    "llama with arguments": ('"parameters":', OBJECT % "arguments" + "}"),
}


@pytest.mark.parametrize("kind", [*KNOWN, *OTHER])
def test_template_that_writes_calls_in_another_form_is_refused(small: Path, tmp_path: Path, kind: str) -> None:
    form, call = (KNOWN | OTHER)[kind]
    layout = WITH_CALLS.replace("%FORM%", form).replace("%CALL%", call)
    template, _ = opened(chat_folder(tmp_path / "m", small, layout))
    if kind in KNOWN:
        assert template.syntax.key
    else:
        with pytest.raises(UserError, match=r"writes (a tool call as '.*|tool calls )in none of the known forms"):
            template.prefix_ids(tools("d"))


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
