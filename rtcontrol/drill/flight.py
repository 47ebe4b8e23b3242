"""One drilled run: the process of the run, and that of the judge.

`python -m rtcontrol.drill.flight` is the run: `rtcontrol run` with its world, agent and decider wrapped.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from rtcontrol.agents import Agent
from rtcontrol.drill.faults import Switches
from rtcontrol.drill.judge import end_with_parent
from rtcontrol.drill.wrappers import FaultySource, FaultyWorld, Line, always_calling, faulty_agent
from rtcontrol.envs.base import Environment
from rtcontrol.hosts.protocol import DeciderSource
from rtcontrol.models.errors import UserError
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import run
from rtcontrol_client.shutdown import Interrupted, Shutdown, rest

# A decoder may take so long to be there, and a run so long to end, its safe call on the way.
START_S, END_S = 300.0, 60.0
# A run is steady when for so long no two calls were further apart than that, or than three periods.
STEADY_S, STEADY_GAP_S = 1.0, 0.25


class Flight:
    """While it is entered, a run of these `options` flies in `out`; `rules` are the judge's."""

    def __init__(self, out: Path, options: dict[str, Any], rules: str, ending: Shutdown) -> None:
        self._out, self._ending = out, ending
        self._options, self._rules = options, rules
        self._gap_s = max(STEADY_GAP_S, 3 / options["hz"])
        self._folder = tempfile.TemporaryDirectory(prefix="rtcontrol-drill-")
        self._judge: subprocess.Popen[str] | None = None
        self._subject: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            return self._begin()
        except BaseException:
            self.__exit__()
            raise

    def _begin(self) -> Self:
        folder = Path(self._folder.name)
        address = str(folder / "judge")
        self.switches = Switches(folder / "switches", new=True)
        self._out.mkdir(parents=True, exist_ok=True)
        judge = [sys.executable, "-m", "rtcontrol.drill.judge", address, self._rules]
        self._judge = subprocess.Popen(judge, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._judge.stdout is not None, "stdout=PIPE"
        if self._judge.stdout.readline() != "ready\n":
            raise UserError("The judge's process does not start.", "Run with --debug.")
        self.line = Line(address)
        told = {"options": {**self._options, "out": str(self._out)}, "judge": address}
        told["switches"] = str(folder / "switches")
        with (self._out / "run.log").open("w") as log:
            self._subject = subprocess.Popen(
                [sys.executable, "-m", "rtcontrol.drill.flight", json.dumps(told)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        assert self._subject is not None, "entered"
        return self._subject.pid

    def over(self) -> bool:
        """Whether the drill was asked to end, or the run has ended by itself."""
        return self._ending.called() or self._subject is None or self._subject.poll() is not None

    def await_calls(self) -> bool:
        """Wait until a call acted. False where the drill is to end; UserError where the run has ended by itself."""
        rest(lambda: self.over() or self.switches["acted"] > 0.0, time.monotonic() + START_S)
        self.check()
        if not self._ending.called() and not self.switches["acted"]:
            raise UserError(f"The run that is drilled calls nothing for {START_S:g} s.", f"See {self._out}/run.log.")
        return not self._ending.called()

    def await_steady(self, until_s: float) -> bool:
        """Wait until that instant, and until calls act at each tick for a while. False where that does not come: the
        drill is to end, the run has ended by itself, or does not recover."""
        steady_s = time.monotonic()
        while (now_s := time.monotonic()) < until_s or now_s - steady_s < STEADY_S:
            if now_s - self.switches["acted"] > self._gap_s:
                steady_s = now_s
            if self.over() or now_s > until_s + START_S:
                return False
            time.sleep(0.02)
        return True

    def check(self) -> None:
        """UserError where the run has ended by itself."""
        status = None if self._subject is None else self._subject.poll()
        if status is not None and not self._ending.called():
            raise UserError(
                f"The run that is drilled ended by itself (exit status {status}): {self.last_line()}",
                f"See {self._out / 'run.log'}.",
            )

    def last_line(self) -> str:
        """The last line that the run said."""
        said = (self._out / "run.log").read_text(errors="replace").strip().splitlines()
        return said[-1] if said else "it said nothing"

    def end(self) -> tuple[int | None, dict[str, Any]]:
        """End the run by SIGTERM; return its exit status (None if it had to be killed) and the judge's verdict."""
        assert self._subject is not None and self._judge is not None, "entered"
        self.line.tell(asked=time.monotonic_ns())
        self._subject.send_signal(signal.SIGTERM)
        status = None
        try:
            status = self._subject.wait(END_S)
        except subprocess.TimeoutExpired:
            self._subject.kill()
            self._subject.wait()
        self.line.tell(over=True)
        verdict = json.loads(self._judge.communicate(timeout=END_S)[0])
        return status, verdict

    def __exit__(self, *exc: object) -> None:
        for process in (self._subject, self._judge):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                try:
                    process.wait(END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if self._judge is not None and self._judge.stdout is not None:
            self._judge.stdout.close()
        self._folder.cleanup()


# So much longer than the deadline what is made slow takes.
DELAY = 1.5


def main() -> None:
    end_with_parent(signal.SIGTERM)
    told: dict[str, Any] = json.loads(sys.argv[1])
    out = Path(told["options"].pop("out"))
    options = RunOptions(out=out, live=False, duration_s=1e6, **told["options"]).at(out)
    switches, line, delay_s = Switches(told["switches"]), Line(told["judge"]), DELAY * options.deadline_ns / 1e9

    def wrapped(agent: Agent, env: Environment, source: DeciderSource) -> tuple[Agent, Environment, DeciderSource]:
        world = FaultyWorld(env, switches, line, delay_s)
        faulty = faulty_agent(agent, world, switches, line, delay_s)
        return faulty, world, FaultySource(always_calling(source), told["switches"], delay_s)

    status = 1
    try:
        with Shutdown() as ending:
            status = run(options, ending, wrapped)
    except Interrupted as interrupted:
        status = interrupted.status
    except UserError as error:
        print(error, file=sys.stderr)
        status = 2
    sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main()
