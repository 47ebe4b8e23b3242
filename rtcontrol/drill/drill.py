"""Run a drill: inject faults in a seeded random order, judge the run's record, write drill.json, and print a table."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from rtcontrol.drill.faults import DrillFault
from rtcontrol.drill.judge import Injection, RecordedTick, recorded_ticks, verdict, violations
from rtcontrol.hosts.processes import module_command
from rtcontrol.models.errors import UserError
from rtcontrol.models.files import create_file, replace_file
from rtcontrol.run import assembly
from rtcontrol.run.options import RunOptions
from rtcontrol.run.run import MISSED, OK
from rtcontrol.telemetry.record_reader import read_record
from rtcontrol.telemetry.timeline import Timeline
from rtcontrol_client.console import printable
from rtcontrol_client.shutdown import STATUS, Shutdown, rest

START_S, END_S = 300.0, 60.0  # time limits in seconds for the start of a decoder, and for the end of a run
# A run is steady if the calls of the last STEADY_S seconds had no gap of more than STEADY_GAP_S seconds.
STEADY_S, STEADY_GAP_S = 1.0, 0.25
DECISIONS = 7  # the process that made most of the last 7 decisions is the main decoder
RESUME_NS = 50_000_000  # after SIGCONT, a stopped process may take this long to continue
COUNTS = ("injected", "attributed", "unknown", "uninjected", "invariants_violated", "misses")


class DrilledRun:
    """A context in which a child process executes `rtcontrol run` with `options`, and writes its record to `out`.
    `events`: what the run's environment has logged so far."""

    def __init__(self, out: Path, options: dict[str, Any], ending: Shutdown) -> None:
        self._out, self._ending, self._options = out, ending, options
        self._folder = tempfile.TemporaryDirectory(prefix="rtcontrol-drill-")
        path = Path(self._folder.name, "events")
        path.touch()
        self._lines = path.open()
        self.hang = path.with_name("hang")
        self.events: list[dict[str, Any]] = []
        self._decider_pids: deque[int] = deque(maxlen=DECISIONS)
        self._acted_s = 0.0  # when the last fresh call ended; 0 if none has

    def __enter__(self) -> Self:
        options = json.dumps({**self._options, "out": str(self._out)})
        with os.fdopen(create_file(self._out / "run.log"), "w") as log:
            self.process = subprocess.Popen(
                module_command("rtcontrol.drill.drilled", options, self._folder.name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def read_events(self) -> None:
        """Read the events that the run has logged since the last call of `read_events`."""
        for line in self._lines:
            event = json.loads(line)
            if event["event"] == "decision":
                self._decider_pids.append(event["pid"])
                continue
            self.events.append(event)
            if event.get("not_after") is not None and not event["failed"]:
                self._acted_s = event["end"] / 1e9

    @property
    def decoder_pid(self) -> int:
        """Return the id of the decoder's process, or 0 if the run's own process decides."""
        self.read_events()
        pid = Counter(self._decider_pids).most_common(1)[0][0] if self._decider_pids else 0
        return 0 if pid == self.process.pid else pid

    def must_stop(self) -> bool:
        """Return whether the user has stopped the drill, or the run has ended."""
        return self._ending.called() or self.process.poll() is not None

    def await_steady(self, until_s: float) -> bool:
        """Wait until the instant `until_s`, and then until the run is steady. Return False if the drill must stop or
        the run does not become steady within START_S."""
        steady_s = time.monotonic()
        while (now_s := time.monotonic()) < until_s or now_s - steady_s < STEADY_S:
            self.read_events()
            if now_s - self._acted_s > STEADY_GAP_S:
                steady_s = now_s
            if self.must_stop() or now_s > until_s + START_S:
                return False
            time.sleep(0.02)
        return True

    def require_calls(self) -> None:
        """Raise UserError if the run has not executed any call."""
        if not (self._ending.called() or self._acted_s):
            message = f"The run to be drilled has not executed any call. Its last output: {self.last_line()}"
            raise UserError(message, f"See {self._out / 'run.log'}.")

    def last_line(self) -> str:
        """Return the last line that the run has printed."""
        return (self._out / "run.log").read_text(errors="replace").strip().rpartition("\n")[2]

    def end(self) -> int | None:
        """End the run by SIGTERM. Return its exit status, or None if the run had to be killed."""
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        finally:
            self.read_events()

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.end()
        self._lines.close()
        self._folder.cleanup()


def inject(run: DrilledRun, fault: DrillFault) -> Injection:
    """Inject a fault for its duration, or until the drill must stop. Always undo the fault at the end."""
    begin_ns, injected = time.monotonic_ns(), True
    pid = run.decoder_pid if fault.name.endswith("_decoder") else run.process.pid
    with contextlib.ExitStack() as after:
        if fault.name == "busy_core":
            command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
            for _ in range(2 * (os.cpu_count() or 1)):
                process = subprocess.Popen(command, start_new_session=True)
                after.callback(process.wait)
                after.callback(process.kill)
        elif fault.name == "hang":
            run.hang.touch()
            after.callback(run.hang.unlink)
        else:
            injected = _send_signal(pid, signal.SIGKILL if fault.name == "kill_decoder" else signal.SIGSTOP)
            if fault.name != "kill_decoder":
                after.callback(_send_signal, pid, signal.SIGCONT)
        rest(run.must_stop, time.monotonic() + fault.seconds)
    return Injection(fault, begin_ns, time.monotonic_ns(), injected)


def _send_signal(pid: int, number: int) -> bool:
    """Send a signal to a process. Return False if there is no such process."""
    if pid <= 1:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def drill(options: dict[str, Any], order: Sequence[DrillFault], out: Path, ending: Shutdown, console: Console) -> int:
    """Execute a run, inject the faults of `order`, judge the run's record, and write drill.json to `out`.

    Return the exit status: 0 if every fault is attributed, no miss is unknown and no rule is violated; 3 otherwise. If
    a signal ended the drill, return the status for this signal. `options`: options of `rtcontrol run`."""

    def show_line(line: str) -> None:
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    config = RunOptions(**options)
    with DrilledRun(out, options, ending) as run:
        show_line("starting the run ...")
        injections = _inject_faults(run, order, config.seed, show_line)
        end_ns = time.monotonic_ns()
        status = run.end()
    stopped = [(i.begin_ns, i.end_ns + RESUME_NS) for i in injections if i.fault.name in ("stop_loop", "hang")]
    violated = violations(run.events, end_ns, config.period_ns, _hold_ns(config), stopped)
    if len(injections) < len(order) and not ending.called():
        violated.append((end_ns, f"{len(order) - len(injections)} of {len(order)} faults were not injected in time"))
    if status != STATUS["SIGTERM"]:
        violated.append((end_ns, f"the run ended with exit status {status}: {run.last_line()}"))
    result = verdict(injections, _ticks(config, out), violated, config.seed)
    path = out / "drill.json"
    try:
        replace_file(path, json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).", "Use another --out.") from error
    print_result(result, console)
    show_line(f"drill: {path}")
    clean = result["attributed"] == result["injected"] and not (result["unknown"] or result["invariants_violated"])
    return ending.status or (OK if clean else MISSED)


def _inject_faults(
    run: DrilledRun, order: Sequence[DrillFault], seed: int, show_line: Callable[[str], None]
) -> list[Injection]:
    """Inject each fault of `order` as soon as the run is steady. Return the injections."""
    injections: list[Injection] = []
    rng = random.Random(seed)  # random pauses let faults start at random times within a period
    run.await_steady(time.monotonic())
    run.require_calls()
    started_s = time.monotonic()
    for i, fault in enumerate(order, 1):
        # Inject each fault only when the run has recovered from the previous fault.
        if not run.await_steady(time.monotonic() + rng.random()):
            break
        show_line(f"[{i:3}/{len(order)}] {time.monotonic() - started_s:6.1f} s  {fault.name}: {fault.description}")
        injections.append(inject(run, fault))
        rest(run.must_stop, time.monotonic() + fault.recovery_s)
    return injections


def _hold_ns(config: RunOptions) -> int:
    agent = assembly.load_agent(config.agent or assembly.default_agent(config.env))
    return round(1e6 * (agent.fallback.hold_ms if config.hold_ms is None else config.hold_ms))


def _ticks(config: RunOptions, out: Path) -> list[RecordedTick]:
    timeline = Timeline()
    for event in read_record(out / "record.mcap"):
        timeline.add(event)
    return recorded_ticks(timeline.finish(), config.period_ns, config.deadline_ns)


def print_result(result: Mapping[str, Any], console: Console) -> None:
    """Print a table with a row for each kind of fault, then the errors and the totals."""
    table = Table("fault", "injected", "attributed", "misses", "recovered in s, at most", "reported as", box=None)
    for kind in dict.fromkeys(fault["fault"] for fault in result["faults"]):
        faults = [fault for fault in result["faults"] if fault["fault"] == kind]
        causes: Counter[str] = sum((Counter(fault["causes"]) for fault in faults), Counter())
        attributed, misses = (sum(fault[name] for fault in faults) for name in ("attributed", "misses"))
        slowest = max(fault["recovered_s"] or 0.0 for fault in faults)
        reported = ", ".join(f"{name} {count}" for name, count in causes.most_common())
        table.add_row(kind, str(len(faults)), str(attributed), str(misses), f"{slowest:.2f}", reported)
    console.print(table)
    errors = [f"{fault['fault']}: {'; '.join(fault['why'])}" for fault in result["faults"] if fault["why"]]
    errors += [f"violated: {violation['what']}" for violation in result["violations"]]
    errors += [f"tick {m['k']} missed without an injected fault: {m['called']}" for m in result["uninjected_misses"]]
    counts = ", ".join(f"{name.replace('_', ' ')} {result[name]}" for name in COUNTS)
    for line in (*errors, f"{counts}, seed {result['seed']}"):
        console.print(line, markup=False, soft_wrap=True)
