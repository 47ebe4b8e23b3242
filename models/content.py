"""What a model says beside its calls: the `<content>` head, decoded freely, a token a pass, and never before a call."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from rtcontrol.models.call import Call, Decision
from rtcontrol.models.checkpoint.checkpoint import Checkpoint, chats
from rtcontrol.models.checkpoint.special_tokens import NULL, closing, opening
from rtcontrol.models.decider import DeciderSpec
from rtcontrol.models.decode.protocol import Ask, Cancelled, NotFinite, Tree, Work
from rtcontrol.models.errors import UserError
from rtcontrol.models.in_flight import result
from rtcontrol.models.runners.torch_runner import TorchRunner
from rtcontrol.models.schema.tool_schema import tool_schemas

HEAD = "content"
AT_ONCE = 16  # tokens of a prompt between two chances for others
WRITTEN = 8  # tokens of a decision


class ContentDecider:
    """Writes the content head behind the prompt that calls are decided behind; its weights are shared with all deciders
    of the checkpoint, the cache is its own. Not thread-safe but for `cancel`."""

    def __init__(self, spec: DeciderSpec) -> None:
        checkpoint = Checkpoint.open(spec.model)
        if (why := lacks_content(spec.model, checkpoint)) is not None:
            raise UserError(why, "Ask for the call alone.")
        self.spec, self._template, self._tokenizer = spec, checkpoint.template, checkpoint.tokenizer
        self.runner = TorchRunner.load(checkpoint.folder, spec.dtype, spec.device, spec.threads)
        self._prefix = self._template.prefix_ids(tool_schemas(spec.tools))
        self.handle, self.prefix = self.runner.open(self._prefix)
        tokens = self._tokenizer
        self._head, self._end, self._null = map(tokens.special_id, (opening(HEAD), closing(HEAD), NULL))
        self._legal = np.zeros((1, self.runner.caps.vocabulary), bool)
        self._legal[0, : tokens.size] = True
        self._legal[0, [tokens.special_id(t) for t in tokens.specials]] = False
        self._legal[0, self._end] = True
        self._stop = threading.Event()
        self._so_far: tuple[list[int], Sequence[int]] = [], ()  # the last prompt, and what is said behind it

    def decide(self, observation: str, instruction: str, history: Sequence[str] = ()) -> Decision:
        """Its `call` is named `content` and has the `text` so far; None where the head is null. Whoever waits for a
        call must not wait for a whole text: while there is `more` to come, ask again, and it goes on from there. A text
        has at most the spec's `value_tokens` tokens. Raises UserError when the prompt does not fit, and NotFinite."""
        return result(self.decide_in_steps(observation, instruction, history, sliced=False))

    def decide_in_steps(
        self, observation: str, instruction: str, history: Sequence[str] = (), sliced: bool = True
    ) -> Generator[None, None, Decision]:
        """`decide`, which may be left alone, or given up, wherever it yields."""
        self._stop.clear()
        shown = history[-self.spec.history :] if self.spec.history else ()
        told = [*self._prefix, *self._template.suffix_ids(instruction, observation, shown)]
        before, said = self._so_far
        said = list(said) if before == told else []
        behind = [*told, self._head, *said]
        token = behind.pop()
        reused = self.handle.start(behind, reserve=WRITTEN)
        fresh = self.handle.fresh
        while sliced and self.handle.fresh > AT_ONCE:
            self.runner.prefill(self.handle, AT_ONCE)
            yield
        confidence, more = 1.0, False
        for node in range(WRITTEN):
            if node:
                yield
            if self._stop.is_set():
                raise Cancelled
            token, probability = self._next(token, node, null=not said)
            confidence *= probability
            more = token not in (self._end, self._null) and len(said) < self.spec.value_tokens
            if not more:
                break
            said.append(token)
        self._so_far = (told if more else [], tuple(said))
        call = None if token == self._null else Call(HEAD, {"text": self._tokenizer.decode(said), "more": more})
        return Decision(call, {HEAD: confidence}, None, node + 1, fresh + node + 1, reused)

    def _next(self, token: int, node: int, null: bool) -> tuple[int, float]:
        """What follows this token, and its probability."""
        self._legal[0, self._null] = null
        tree = Tree([token], [node - 1], [node], [Ask([0], masks=self._legal)])
        (((best, probability),),) = self.runner.run([Work(self.handle, tree)])[0]
        if not math.isfinite(probability):
            self.handle.forget()
            raise NotFinite
        return best, probability

    def cancel(self) -> None:
        """Stop the writing in flight before its next pass (from another thread)."""
        self._stop.set()

    def rest(self) -> None:
        """There is nothing to be found out."""

    def info(self) -> dict[str, Any]:
        """What writes."""
        return {"model": str(self.spec.model), **self.runner.caps.to_dict(), "prefix_tokens": self.prefix.tokens}


def lacks_content(model: str, checkpoint: Checkpoint) -> str | None:
    """Why a checkpoint writes no content: its template says whether it was trained to. None where it does."""
    if checkpoint.template.content:
        return None
    name = str(model).rpartition("/")[2]
    why = "it is a chat model" if chats(model) else "it was trained without that head (its template says so)"
    return f"The model {name} writes no content: {why}."
