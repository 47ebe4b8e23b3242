"""What a call of each tool costs at worst: known from the schema and the tokenizer, before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rtcontrol.models.checkpoint.checkpoint import Checkpoint
from rtcontrol.models.checkpoint.tokenizer import STTokenizer
from rtcontrol.models.decode.core import DecoderCore
from rtcontrol.models.decode.grammar import MAX_TOKENS
from rtcontrol.models.decode.plan import compile_plan
from rtcontrol.models.decode.protocol import Budget
from rtcontrol.models.decode.walk import Walker
from rtcontrol.models.decode.worst_case_cost import worst_call
from rtcontrol.models.errors import UserError, too_long
from rtcontrol.models.schema.domain import ClosedDomain
from rtcontrol.models.schema.tool_schema import Overflow, ToolSchema

LOOKED = 128  # branching tokens of unlisted numbers, of which there may be any number, that are counted


@dataclass(frozen=True)
class ToolCost:
    """`passes`: forward passes of the worst call, in the layout that takes more. `prefix_tokens` describe the tool in
    the cached prompt."""

    name: str
    closed: bool
    passes: int
    prefix_tokens: int
    remedies: tuple[str, ...]


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
            limit = LOOKED if index in head.grids else None
            count = len(head.trie.needed(1 << index, limit=limit))
            if index not in head.free and count > budget.per_head:
                domain = slot.domain
                values = len(domain.values) if isinstance(domain, ClosedDomain) else head.grids[index].count
                more = " or more" * (count == limit)
                remedies.append(
                    f"{', '.join(p.name for p in slot.parameters)}: its {values} values make {count}{more} branching "
                    f"tokens, a pass carries {budget.per_head} of a head. Fewer values, or coarser steps."
                )
        size = len(tokenizer.encode(tool.canonical_json()))
        found.append(ToolCost(tool.name, not free, worst, size, tuple(remedies)))
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
    from rtcontrol.models.runners.packed import SLOTS

    config = checkpoint.config.get("text_config", checkpoint.config)
    context = min(SLOTS, config.get("max_position_embeddings") or SLOTS)
    if (size := len(checkpoint.template.prefix_ids(tools))) >= context:
        raise too_long(context, size)
