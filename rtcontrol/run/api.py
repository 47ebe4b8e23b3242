"""Deciding from Python: a model once, and a session for each set of tools (`rtcontrol.load`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rtcontrol.agents import Goals, Tool, Tools
from rtcontrol.hosts.remote_api import is_endpoint
from rtcontrol.loop.confidence_monitor import ConfidenceGate, heads_of, never_taught
from rtcontrol.loop.config import check_interpreter
from rtcontrol.loop.interpreter import LIMIT_S, Understood
from rtcontrol.models.call import Call, Decision, StandingCall
from rtcontrol.models.checkpoint.checkpoint import resolve
from rtcontrol.models.checkpoint.training_metadata import TrainingMetadata
from rtcontrol.models.decider import DeciderSpec, STDecider, decide_together
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners import registry
from rtcontrol.run import assembly, interpreting
from rtcontrol.run.deadline import InTime
from rtcontrol.run.drafter import Draft, Drafter
from rtcontrol.run.heard_instruction import HeardInstruction, end_with
from rtcontrol.run.model_compatibility import difference, trained_on
from rtcontrol.run.session_checks import check_safe, confidence_gate, hysteresis_of, kind_of, why_held
from rtcontrol.run.steady_session import GivenCall

MAX_DRAFT_MS = 60_000.0
MAX_DEADLINE_MS = 3_600_000.0
Given = Sequence[Tool | Callable[..., Any] | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class SessionDecision(Decision):
    """A decision as a session gives it: `call` is what may act. Where the decision is too unsure, `held` says so in
    words, and `unsure` is what it would have called; `missed`: it was not there by its deadline. Then `call` is the
    session's safe call, None where it has none. `confidence` goes by `function` and the parameters' names."""

    held: str | None = None
    missed: bool = False
    unsure: Call | None = None


class Model:
    """A checkpoint by bundled name, folder or hub id; its weights are loaded with the first session, once for all.
    Raises UserError where there is none.

    `engine` is torch, transformers or vllm; `dtype` is auto, fp32 or bf16; `device` torch's
    name of one (None: a GPU where there is one); `threads` limits torch's CPU threads (None: one for a small model).
    """

    def __init__(
        self,
        name: str,
        dtype: str = "auto",
        device: str | None = None,
        threads: int | None = None,
        engine: str = "torch",
    ) -> None:
        if is_endpoint(name):
            api = name.partition(":")[0]
            raise UserError(
                f"{name} is an endpoint, no model: there is nothing of it to load.",
                f"Fly it (`rtcontrol run --model {api}:URL`, `rtcontrol serve`), or ask it with a client of its own.",
            )
        registry.check(engine)
        registry.check_options(engine, dtype, device, threads)
        resolve(name)
        self.name = name
        self._drafting = threading.Lock()  # one decision at a time, whoever's draft it is
        self._options: dict[str, Any] = {"engine": engine, "dtype": dtype, "device": device, "threads": threads}

    def session(
        self,
        tools: Tools | Given | None = None,
        *,
        history: int | None = None,
        value_tokens: int = 64,
        arguments: str = "sequential",
        allow_null: bool | None = None,
        untrained: bool = False,
        min_confidence: float | Mapping[str, float] | None = None,
        safe_call: Call | None = None,
        draft: Draft | Model | None = None,
        draft_ms: float = 20.0,
        interpreter: str | None = None,
        goals: Goals | None = None,
        interpreter_s: float = LIMIT_S,
        hysteresis: str | None = None,
    ) -> ModelSession:
        """A session for these tools: functions, pydantic models or OpenAI-style definitions (None: those that a bundled
        or fitted model was trained on). The prompt shows the last `history` calls (None: as many as the model was
        trained with, where that is known, else 6); a free value has at most `value_tokens` tokens; with `allow_null`
        (None: where a fitted model learnt so) a decision may be to leave the call in force. Of a chat model, which
        always calls a tool, each of the `arguments` sees those before it (sequential) or none of the others (parallel).

        A decision that is less sure than `min_confidence` is held (None: than the checkpoint's gate, where it has one
        for these tools; 0: none is): a number is for all, a mapping for `function` and parameters. `safe_call` is given
        in its place, and in that of one that is late.

        `draft` guesses each call before it is decided: a smaller model, or a function of what is seen, what is told and
        the history's texts. Free values of its guess are looked at in the same pass: what is decided stays the same,
        and takes fewer passes where the guess is right. It is waited for `draft_ms` at most; a guess that is late,
        wrong or raises is done without.

        `interpreter` (a checkpoint, or chat:URL#NAME) maps what `ModelSession.instruct` gets to one of the `goals`
        (None: those of the bundled agent whose model this is), within `interpreter_s` seconds.

        With `hysteresis` (margin=0.2, ticks=3 or both: docs/steadiness.md) the function and each argument keep the
        value that was given last until another one is clearly preferred; by another instruction, and after
        `ModelSession.forget`, nothing is kept.

        Raises UserError for options out of range, for tools that cannot be decoded, for a safe call that they do not
        allow, for an interpreter that cannot be started, and for a bundled model that was trained on others, unless
        `untrained`: its calls are legal then, and nonsense.
        """
        own = next((a for a in assembly.agents().values() if a.model == self.name), None)
        learnt = TrainingMetadata.of(resolve(self.name))
        if tools is None and own is not None:
            tools = own.tools
        elif tools is None:
            if learnt is None or learnt.tools is None:
                raise UserError(f"{self.name} does not say which tools it learnt.", "Give session(tools).")
            tools = Tools(learnt.tools)
        if isinstance(tools, str | Mapping) or not isinstance(tools, Tools | Sequence):
            raise UserError(f"{str(tools)[:80]!r} is no list of tools.", "Give a list, as session([drive]).")
        if history is None:
            history = learnt.history if learnt is not None else 6 if own is None else own.history
        for option, value, least in (("value_tokens", value_tokens, 1), ("history", history, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{option}={str(value)[:80]!r} is no count.", f"Give a whole number, {least} or more.")
        if not isinstance(draft_ms, int | float) or not 0 <= draft_ms <= MAX_DRAFT_MS:
            raise UserError(f"draft_ms={str(draft_ms)[:80]!r} is no time to wait.", f"Give 0 to {MAX_DRAFT_MS:g} ms.")
        chosen = tools if isinstance(tools, Tools) else Tools(tools)
        if not untrained and trained_on(chosen.schemas, self.name) is False:
            raise UserError(
                f"The model {self.name} was trained on other tools: its calls would be legal, and nonsense."
                + difference(chosen.schemas, self.name),
                "Load a model that was trained on these, or say session(tools, untrained=True).",
            )
        knows = learnt is not None and learnt.knows(chosen.schemas)
        gate = confidence_gate(chosen, min_confidence, learnt if knows else None, allow_null)
        check_safe(chosen, safe_call)
        if allow_null is None:
            # Of tools that it never saw, null says nothing.
            allow_null = learnt is not None and learnt.allow_null and knows
        options = {**self._options, "history": history, "allow_null": allow_null, "value_tokens": value_tokens}
        options |= {"arguments": arguments, "hysteresis": hysteresis_of(hysteresis)}
        spec = DeciderSpec(self.name, tuple(chosen.openai()), **options)
        drafter = None
        if isinstance(draft, Model):
            second = draft.session(chosen, history=history, value_tokens=value_tokens, untrained=untrained)
            drafter = Drafter(draft._draft(second), draft_ms / 1e3, second.cancel)
        elif draft is not None:
            if not callable(draft):
                raise UserError(f"draft={str(draft)[:80]!r} guesses nothing.", "Give a loaded model, or a function.")
            drafter = Drafter(draft, draft_ms / 1e3)
        told = None
        if interpreter is not None:
            check_interpreter(interpreter, interpreter_s)
            if goals is not None:
                known = goals.goal_tools("session")
            elif own is not None and own.tools.openai() == chosen.openai():
                known = interpreting.goals_of(own)
            else:
                raise UserError("interpreter= needs goals.", "Give goals=Goals({...}) (docs/interpreter.md).")
            told = HeardInstruction(interpreting.of_goals(interpreter, known, interpreter_s))
        decider = spec.build()
        if told is not None:
            try:
                told.start()
            except BaseException:
                told.close()
                raise
        steady = None if hysteresis is None else GivenCall()
        session = ModelSession(chosen, decider, drafter, gate, safe_call, told, steady)
        if told is not None:
            end_with(session, told)
        return session

    def _draft(self, session: ModelSession) -> Draft:
        def guess(text: str, instruction: str, history: Sequence[str]) -> Call | None:
            with self._drafting:
                return session.decided(text, instruction, session.shown(history)).call

        return guess

    @staticmethod
    def decide(
        asked: Sequence[tuple[ModelSession, str, str] | tuple[ModelSession, str, str, Sequence[Call | str]]],
    ) -> list[SessionDecision | Exception]:
        """Decide for several of its sessions in the same forward passes, as for many characters of a game: of each
        (session, what is seen, what is told) or (session, what is seen, what is told, history) the decision, or what
        `ModelSession.decide` would raise.

        Raises UserError for a session that is given twice, and for what is no text or no history."""
        for session, text, instruction, *_ in asked:
            session.check(text, instruction)
        given = [(one[0], (one[1], one[2], one[0].shown(one[3] if len(one) == 4 else ()))) for one in asked]
        if len({id(session.decider) for session, _ in given}) < len(given):
            raise UserError(
                "The same session is asked twice at once.",
                "Ask each session once: open one `model.session(tools)` for each character.",
            )
        for session, told in given:
            session.settle()
            session.ask_draft(*told)
        for session, _ in given:
            session.take_draft()
        made = decide_together([(session.decider, (*told, session.standing(told[1]))) for session, told in given])
        return [
            one if isinstance(one, Exception) else session.given(one)
            for (session, _), one in zip(given, made, strict=True)
        ]


class ModelSession:
    """Decides for one set of tools. One decision at a time; `cancel` may be called from another thread."""

    def __init__(
        self,
        tools: Tools,
        decider: STDecider,
        drafter: Drafter | None,
        gate: ConfidenceGate,
        safe_call: Call | None = None,
        told: HeardInstruction | None = None,
        steady: GivenCall | None = None,
    ) -> None:
        self._told, self._steady = told, steady
        self.tools, self.decider, self._drafter = tools, decider, drafter
        self.gate, self.safe_call = gate, safe_call
        named = {tool: {head: name for name, head in heads.items()} for tool, heads in heads_of(tools).items()}
        self._names = {tool: {h: n for h, n in names.items() if n != "function"} for tool, names in named.items()}
        self._in_time = InTime()

    @property
    def instruction(self) -> str | None:
        """With an interpreter: the canonical instruction in force; None before anything was understood."""
        return None if self._told is None else self._told.text

    @property
    def understood(self) -> Understood | None:
        """With an interpreter: what came of the sentence that was answered last."""
        return None if self._told is None else self._told.understood

    def instruct(self, said: str, wait: bool = False) -> Understood | None:
        """Somebody says it, in their own words: it is understood off the clock, and the instruction before stays in
        force meanwhile. With `wait` the answer is waited for, and given. UserError without an interpreter."""
        if self._told is None:
            raise UserError("This session has no interpreter.", "Open it with session(..., interpreter=NAME).")
        return self._told.instruct(said, wait)

    def close(self) -> None:
        """End its interpreter, where it has one."""
        if self._told is not None:
            self._told.close()

    def decide(
        self,
        text: str,
        instruction: str | None = None,
        history: Sequence[Call | str] = (),
        *,
        deadline_ms: float | None = None,
    ) -> SessionDecision:
        """The call for what is seen (`text`) and told (None: what was understood last), after these calls (or their
        `Call.text()`), the newest last.

        With `deadline_ms` it returns by then, whatever the model does: what is not there is `missed`. The forward pass
        under way goes on, and its result is dropped; the next decision waits for it, within its own deadline.

        Raises UserError where the prompt does not fit, DecodeError where no legal call could be decoded, and Cancelled.
        """
        called_s = time.monotonic()
        if instruction is None and (instruction := self.instruction) is None:
            raise UserError("Nothing was said that is understood.", "Give decide(text, instruction), or instruct().")
        self.check(text, instruction)
        shown = self.shown(history)
        if deadline_ms is None:
            self.settle()
            decision = self.decided(text, instruction, shown)
            self.decider.rest()
            return self.given(decision)
        if isinstance(deadline_ms, bool) or not isinstance(deadline_ms, int | float):
            raise UserError(f"deadline_ms={str(deadline_ms)[:80]!r} is no time.", "Give milliseconds, such as 20.")
        if not 0 < deadline_ms <= MAX_DEADLINE_MS:
            raise UserError(f"deadline_ms={deadline_ms:g} is out of range.", f"Give above 0 to {MAX_DEADLINE_MS:g}.")
        made = self._in_time.until(
            called_s + deadline_ms / 1e3, lambda: self.decided(text, instruction, shown), self.decider.cancel
        )
        if not made:
            if self._steady is not None:
                self._steady.given(None, False, self.safe_call)
            return SessionDecision(self.safe_call, missed=True)
        self._in_time.after(self.decider.rest)
        return self.given(made[0])

    def settle(self) -> None:
        """Wait for a decision that missed its deadline, and is still under way."""
        self._in_time.settle()

    def decided(self, text: str, instruction: str, shown: Sequence[str]) -> Decision:
        """What the model decides, whatever its confidence."""
        self.ask_draft(text, instruction, shown)
        self.take_draft()
        return self.decider.decide(text, instruction, shown, self.standing(instruction))

    def standing(self, instruction: str) -> StandingCall | None:
        """The call in force, for hysteresis; None without."""
        return None if self._steady is None else self._steady.standing(instruction)

    def forget(self) -> None:
        """A new episode, say: hysteresis keeps nothing of what was in force."""
        if self._steady is not None:
            self._steady.forget()

    def given(self, decision: Decision) -> SessionDecision:
        """A decision as it is given: by the gate, with parameters' names."""
        told = {field.name: getattr(decision, field.name) for field in fields(Decision)}
        doubt, call = self.gate.doubt(decision), decision.call
        if self._steady is not None:
            self._steady.given(decision, doubt is not None, self.safe_call)
        names = self._names.get(call.name, {}) if call is not None else {}
        told["confidence"] = {names.get(head, head): sure for head, sure in decision.confidence.items()}
        if doubt is None:
            return SessionDecision(**told)
        head = names.get(doubt.head, doubt.head)
        held = why_held(doubt, head, call) + (f"; {never_taught(decision.unknown)}" if decision.unknown else "")
        return SessionDecision(**told | {"call": self.safe_call}, held=held, unsure=call)

    def ask_draft(self, text: str, instruction: str, history: Sequence[str]) -> None:
        """Begin to guess the next decision's call, where there is a draft."""
        if self._drafter is not None:
            self._drafter.ask(text, instruction, history)

    def take_draft(self) -> None:
        """Wait for the guess, and have it looked at in the next decision."""
        if self._drafter is not None:
            self.decider.decoding.draft(self._drafter.call())

    @staticmethod
    def check(text: str, instruction: str) -> None:
        """Raises UserError for what is no text."""
        for what, given in (("seen", text), ("told", instruction)):
            if not isinstance(given, str):
                raise UserError(
                    f"What is {what} is a {type(given).__name__}, no text.",
                    "Word it as the model was trained: decide(text, instruction).",
                )

    @staticmethod
    def shown(history: Sequence[Call | str]) -> list[str]:
        """The calls' texts. Raises UserError for what is no list of calls."""
        whole = isinstance(history, str) or not isinstance(history, Sequence)
        if wrong := [one for one in ([history] if whole else history) if whole or not isinstance(one, Call | str)]:
            what = f"`history` {'is' if whole else 'holds'} {kind_of(wrong[0])}."
            raise UserError(what, "Give a list of calls, the newest last: [decision.call].")
        return [call.text() if isinstance(call, Call) else call for call in history]

    def execute(self, call: Call) -> Any:
        """Run the function of a call's tool. Raises InvalidCall (of rtcontrol.agents) for a call that the tools do not
        allow, UserError for what is no call, and for a tool that has no function here."""
        if not isinstance(call, Call):
            remedy = (
                "Give decision.call; where that is None (null, held, missed), execute nothing: what is in force stays."
            )
            raise UserError(f"What is to be executed is {kind_of(call)}, no call.", remedy)
        if any(tool.elsewhere for tool in self.tools if tool.name == call.name):
            raise UserError(
                f"The tool {call.name} has no function here: checkpoints keep definitions, not functions.",
                f"Give the functions, all that it learnt: session([{call.name}, ...]), or "
                f"session(Tools([...]).bind({call.name}=function)); or use call.arguments (of a pydantic model: "
                f"{call.name}(**call.arguments)).",
            )
        return self.tools.execute(self.tools.validate(call))

    def cancel(self) -> None:
        """Give up the decision under way, before its next forward pass."""
        self.decider.cancel()

    def info(self) -> dict[str, Any]:
        """What decides: engine, dtype, device, tokens of the cached prefix, how passes are laid out."""
        return self.decider.info()
