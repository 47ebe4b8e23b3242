"""The child of a `ProcessHost`: builds the decider it is sent, and answers until its parent is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from queue import Queue
from typing import IO, Any

from rtcontrol.hosts.deciders import answer_in_steps, build, describe, rest
from rtcontrol.hosts.process import receive, send
from rtcontrol.hosts.protocol import Decider, DecisionRequest
from rtcontrol.models.errors import UserError

NICE = 5  # behind the loop, its decoder and its actuator


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, whose end ends this process
    with contextlib.suppress(OSError):
        os.nice(NICE)
    # Whatever prints must not stand among the messages.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked: Queue[DecisionRequest] = Queue()
    gone: set[int] = set()
    try:
        source = receive(sys.stdin.buffer)
        threading.Thread(target=_listen, args=(sys.stdin.buffer, asked, gone), name="listen", daemon=True).start()
        decider = build(source)
    except UserError as error:
        send(out, (error.what, error.remedy))
        return
    except (AttributeError, ImportError) as error:
        send(out, (f"The decider cannot be built in a process of its own: {error}.", "Write it into a module."))
        return
    send(out, describe(decider))
    while True:
        request = asked.get()
        if request.tick not in gone:
            _answer(out, decider, request, gone)
        gone.discard(request.tick)


def _answer(out: IO[bytes], decider: Decider, request: DecisionRequest, gone: set[int]) -> None:
    steps = answer_in_steps(decider, request)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            send(out, done.value)
            break
        if request.tick in gone:
            steps.close()
            break
    rest(decider)


def _listen(pipe: IO[bytes], asked: Queue[DecisionRequest], gone: set[int]) -> None:
    try:
        while True:
            told: tuple[str, Any] = receive(pipe)
            if told[0] == "cancel":
                gone.add(told[1])
            else:
                asked.put(told[1])
    except (EOFError, OSError, ValueError):
        os._exit(0)  # at once, whatever is decided: nobody waits for it


if __name__ == "__main__":
    main()
