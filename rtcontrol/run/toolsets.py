"""Tools from where people have them: Python functions and pydantic models, OpenAI tools JSON, an MCP server's list."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pydantic

from rtcontrol.agents import Agent, Tools, remote_tool
from rtcontrol.agents.tool import Tool
from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.grammar import MAX_TOKENS
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.decode.walk import Walker, worst_call
from rtcontrol.models.errors import UserError, read_text, strict_json, too_long
from rtcontrol.models.schema.domain import ClosedDomain, Free
from rtcontrol.models.schema.limits import Room, check_size
from rtcontrol.models.schema.mask import keywords, mask_of
from rtcontrol.models.schema.tool_schema import Overflow, ToolSchema
from rtcontrol.run.mcp_tools import MCP, listed
from rtcontrol.run.user_code import load_module
from rtcontrol_client.console import printable


@dataclass(frozen=True)
class ToolCost:
    """`passes`: forward passes of the worst call, in the layout that takes more. `prefix_tokens` describe the tool in
    the cached prompt. `rules`: see `rules_of`."""

    name: str
    closed: bool
    passes: int
    prefix_tokens: int
    remedies: tuple[str, ...]
    rules: Mapping[str, Mapping[str, Sequence[str]]]


def rules_of(tool: ToolSchema) -> dict[str, dict[str, list[str]]]:
    """Return by parameter which keywords of its schema the mask has `enforced`, and which are `checked` once a value is
    decoded. Those of the root schema stand under "the call"."""
    found: dict[str, dict[str, list[str]]] = {}
    for p in tool.parameters:
        given = dict.fromkeys(keywords(p.rules))
        checked = mask_of(p.domain, f"Tool {tool.name}, {p.name}").checked if isinstance(p.domain, Free) else ()
        found[p.name] = {"enforced": [k for k in given if k not in checked], "checked": list(checked)}
    if tool.rules is not None:
        kind = "checked" if tool.rules.values is None else "enforced"
        found["the call"] = {"enforced": [], "checked": [], kind: [*tool.rules.written]}
    return found


def costs(tools: Sequence[ToolSchema], tokenizer: STTokenizer, overflow: Overflow = "merge") -> list[ToolCost]:
    """Of each tool, where all of them may be called. Raises UserError for tools that cannot be decoded, as a session
    does."""
    plan = compile_plan(tools, tokenizer, overflow=overflow)
    DecoderCore(plan, tokenizer, tokenizer.size)  # compiles the grammars of the free values
    budget = Budget()
    layouts = [Walker(plan, replace(budget, function_first=first)) for first in (False, True)]
    found = []
    for index, tool in enumerate(tools):
        free = [d for head in plan.heads if (d := head.free.get(index)) is not None]
        worst = max(worst_call(walker, index)[0] for walker in layouts)
        worst += max((d.grid.longest if d.grid else MAX_TOKENS for d in free), default=0)
        remedies = []
        for head, slot in zip(plan.heads[1:], plan.slots[index], strict=False):
            count = len(head.trie.needed(1 << index))
            if isinstance(slot.domain, ClosedDomain) and count > budget.per_head:
                remedies.append(
                    f"{', '.join(p.name for p in slot.parameters)}: its {len(slot.domain.values)} values make {count} "
                    f"branching tokens, a pass carries {budget.per_head} of a head. Fewer values, or coarser steps."
                )
        size = len(tokenizer.encode(tool.canonical_json()))
        found.append(ToolCost(tool.name, not free, worst, size, tuple(remedies), rules_of(tool)))
    return found


def undecodable(tools: Sequence[ToolSchema], tokenizer: STTokenizer) -> dict[str, UserError]:
    """What is wrong with the tools that every session would be refused, by their names."""
    found: dict[str, UserError] = {}
    for tool in tools:
        try:
            DecoderCore(compile_plan([tool], tokenizer), tokenizer, tokenizer.size)
        except UserError as error:
            found[tool.name] = error
    return found


def check_context(tools: Sequence[ToolSchema], checkpoint: Checkpoint) -> None:
    """UserError where the prompt that describes the tools is longer than the checkpoint's context."""
    from rtcontrol.models.runners.lean import SLOTS

    config = checkpoint.config.get("text_config", checkpoint.config)
    context = min(SLOTS, config.get("max_position_embeddings") or SLOTS)
    if (size := len(checkpoint.template.prefix_ids(tools))) >= context:
        raise too_long(context, size)


SKIP = "--skip-unsupported"


def _on_stderr(line: str) -> None:
    print(printable(line), file=sys.stderr)


class Unsupported(UserError):
    """Tools of a source that cannot be taken: `errors` has what is wrong with each."""

    def __init__(self, source: str, count: int, errors: Sequence[UserError]) -> None:
        first = errors[0]
        more = f" {len(errors)} of the {count} tools of {source} are refused." if len(errors) > 1 else ""
        way = f"`rtcontrol tools check` lists all that is wrong; {SKIP} leaves such tools out." if count > 1 else ""
        super().__init__(f"{first.what}{more}", f"{first.remedy} {way}".strip())
        self.errors = tuple(errors)


def tools_from(source: str, say: Callable[[str], None] = _on_stderr, skip_unsupported: bool = False) -> Tools:
    """The tools of a .json, .jsonl (one a line) or .py file, or of `mcp:COMMAND` or `mcp:URL`. UserError where there
    are none. Of tools that cannot be taken all are told (Unsupported); with `skip_unsupported` they are left out, and
    told to `say`, a line each.

    A Python file has an `agent`, a list `tools`, or functions decorated with `tool` and pydantic models at its top; a
    model that is a part of another one is no tool. `say` is told, a line each, what else there was and is none.
    """
    if source.startswith(MCP):
        return _read(source, listed(source.removeprefix(MCP)), say, skip_unsupported)
    if source.endswith(".py"):
        return _of_module(source, say)
    path = Path(source)
    try:
        text = read_text(path)
        lines = text.split("\n") if path.suffix == ".jsonl" else ()
        found = [strict_json(line) for line in lines if line.strip()] if lines else strict_json(text)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{source} cannot be read as tools ({error}).",
            "Give a .json or .jsonl file with OpenAI-style tools, a .py file, mcp:COMMAND or mcp:URL.",
        ) from None
    definitions = found.get("tools", [found]) if isinstance(found, Mapping) else found
    if not isinstance(definitions, list):
        raise UserError(f"{source} holds no list of tools.", 'Write [{"name": ..., "parameters": {...}}, ...].')
    return _read(source, definitions, say, skip_unsupported)


def _read(source: str, listed: Sequence[Any], say: Callable[[str], None], skip: bool) -> Tools:
    check_size(listed)
    room = Room()
    found, errors = list[Tool](), list[UserError]()
    for definition in listed:
        try:
            found.append(remote_tool(definition, room))
        except UserError as error:
            errors.append(error)
    if found and (skip or errors):
        from rtcontrol.models.checkpoint.checkpoint import Checkpoint
        # rf

        bad = undecodable([tool.schema for tool in found], Checkpoint.open("lander").tokenizer)
        found, errors = [tool for tool in found if tool.name not in bad], [*errors, *bad.values()]
    if errors and not (skip and found):
        raise Unsupported(source, len(listed), errors)
    for refused in errors:
        say(f"{source}: left out: {refused}")
    return Tools(found)


def _of_module(source: str, say: Callable[[str], None]) -> Tools:
    module = load_module(source, "FILE")
    if isinstance(agent := vars(module).get("agent"), Agent):
        return agent.tools
    given = vars(module).get("tools")
    if isinstance(given, Tools):
        return given
    if not isinstance(given, list | tuple):
        own = [v for name, v in vars(module).items() if _module(v) == module.__name__ and not name.startswith("_")]
        given = [v for v in own if isinstance(v, Tool)]
        models = [v for v in own if isinstance(v, type) and issubclass(v, pydantic.BaseModel)]
        parts = {name for model in models for name in model.model_json_schema().get("$defs", {})}
        given += [model for model in models if model.__name__ not in parts]
        for why, names in (
            ("without the decorator `rtcontrol.agents.tool`", [v.__name__ for v in own if inspect.isfunction(v)]),
            ("a part of another model", sorted(parts & {model.__name__ for model in models})),
        ):
            if names:
                say(f"{source}: no tool: {', '.join(names)} ({why}).")
    if not given:
        raise UserError(
            f"{source} has no tools.",
            "Decorate functions with `rtcontrol.agents.tool`, or write `tools = [...]` of functions, dicts or models.",
        )
    return Tools(list(given))


def _module(value: Any) -> str:
    """Where it was defined: what a file imports is not its own."""
    return str(getattr(value.function if isinstance(value, Tool) else value, "__module__", ""))
