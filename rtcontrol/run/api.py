"""Deciding from Python: a model once, and a session for each set of tools (`rtcontrol.load`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rtcontrol.agents import Tool, Tools
from rtcontrol.models.call import Call, Decision
from rtcontrol.models.decider import DeciderSpec, STDecider, decide_together
from rtcontrol.models.errors import UserError
from rtcontrol.run import assemble
from rtcontrol.run.trained import trained_on

Given = Sequence[Tool | Callable[..., Any] | Mapping[str, Any]]


class Model:
    """A checkpoint by bundled name or folder; its weights are loaded once, however many sessions it has.

    `dtype` is auto, fp32 or bf16; `device` torch's name of one (None: a GPU where there is one); `threads` limits
    torch's CPU threads (None: one for a small model).
    """

    def __init__(self, name: str, dtype: str = "auto", device: str | None = None, threads: int | None = None) -> None:
        self.name = name
        self._options: dict[str, Any] = {"dtype": dtype, "device": device, "threads": threads}

    def session(
        self,
        tools: Tools | Given | None = None,
        *,
        history: int = 6,
        value_tokens: int = 64,
        allow_null: bool = False,
        untrained: bool = False,
    ) -> ModelSession:
        """A session for these tools: functions, pydantic models or OpenAI-style definitions (None: those that a bundled
        model was trained on). The prompt shows the last `history` calls; a free value has at most
        `value_tokens` tokens; with `allow_null` a decision may be to leave
        the call in force.

        Raises UserError for tools that cannot be decoded, and for a bundled model that was trained on others, unless
        `untrained`: its calls are legal then, and nonsense.
        """
        if tools is None:
            own = [a.tools for a in assemble.agents().values() if a.model == self.name]
            if not own:
                raise UserError(f"{self.name} is no bundled model: its tools are not known.", "Give session(tools).")
            tools = own[0]
        chosen = tools if isinstance(tools, Tools) else Tools(tools)
        if not untrained and trained_on(chosen.schemas, self.name) is False:
            raise UserError(
                f"The model {self.name} was trained on other tools: its calls would be legal, and nonsense.",
                "Load a model that was trained on these, or say session(tools, untrained=True).",
            )
        options = {**self._options, "history": history, "allow_null": allow_null, "value_tokens": value_tokens}
        spec = DeciderSpec(self.name, tuple(chosen.openai()), **options)
        return ModelSession(chosen, spec.build())

    @staticmethod
    def decide(asked: Sequence[tuple[ModelSession, str, str]]) -> list[Decision | Exception]:
        """Decide for several of its sessions in the same forward passes, as for many characters of a game:
        of each (session, what is seen, what is told) the decision, or what `ModelSession.decide` would raise.

        Raises UserError for a session that is given twice."""
        if len({id(session.decider) for session, _, _ in asked}) < len(asked):
            raise UserError(
                "The same session is asked twice at once.",
                "Ask each session once: open one `model.session(tools)` for each character.",
            )
        return decide_together([(session.decider, (text, instruction, ())) for session, text, instruction in asked])


class ModelSession:
    """Decides for one set of tools. One decision at a time; `cancel` may be called from another thread."""

    def __init__(self, tools: Tools, decider: STDecider) -> None:
        self.tools, self.decider = tools, decider

    def decide(self, text: str, instruction: str, history: Sequence[str] = ()) -> Decision:
        """The call for what is seen (`text`) and told, after these calls (`Call.text()`), the newest last.

        Raises UserError where the prompt does not fit, DecodeError where no legal call could be decoded, and Cancelled.
        """
        decision = self.decider.decide(text, instruction, history)
        self.decider.rest()
        return decision

    def execute(self, call: Call) -> Any:
        """Run the function of a call's tool. Raises InvalidCall."""
        return self.tools.execute(self.tools.validate(call))

    def cancel(self) -> None:
        """Give up the decision under way, before its next forward pass."""
        self.decider.cancel()

    def info(self) -> dict[str, Any]:
        """What decides: engine, dtype, device, tokens of the cached prefix, how passes are laid out."""
        return self.decider.info()
