"""A small parent of the server: starts it again when it dies, and kills it when its memory grows beyond a limit.

libzmq keeps every part of a multipart message until the last one has come, without a bound: whoever may connect can
fill the memory (docs/security.md). That cannot be prevented from inside; so the process is ended from outside, and
clients resume. Only the standard library is imported here, so that the parent stays small and does not fail itself.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from rtcontrol_client.shutdown import write_now

LOOK_S = 0.05
BACKOFF_S = (0.5, 30.0)
# A server that lived so long was well: the back-off begins anew.
WELL_S = 60.0
# So many deaths within YOUNG_S of their start, one after the other: there is no use in going on.
GIVE_UP, YOUNG_S = 5, 10.0
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Ends that are meant.
FINAL = {0: "done", 2: "a mistake in what was given", **{128 + n: f"{n.name} to the server itself" for n in FORWARDED}}


def supervise(
    command: Sequence[str],
    limit_mb: float | None,
    say: Callable[[str], None],
    backoff_s: tuple[float, float] = BACKOFF_S,
) -> int:
    """Run the command until it ends by itself or a signal asks us to; returns its exit status (128 + N for signal N).

    `limit_mb` bounds its resident memory, in MB of 10^6 bytes, looked at every 50 ms. Every start and end is said.
    """
    asked: list[int] = []
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: object) -> None:
        asked.append(number)
        if child is not None and child.poll() is None:
            child.send_signal(number)

    # What is ignored (SIGHUP under nohup) stays so, here and in the child.
    before = {n: signal.signal(n, forward) for n in FORWARDED if signal.getsignal(n) is not signal.SIG_IGN}
    try:
        restarts = young = 0
        pause_s = backoff_s[0]
        while True:
            began_s = time.monotonic()
            # A group of its own: Ctrl-C reaches it through us, and what it started ends with it.
            child = subprocess.Popen(list(command), start_new_session=True, preexec_fn=_end_with_parent)
            if asked:
                child.send_signal(asked[-1])
            say(f"started the server (pid {child.pid}{f', restart {restarts}' if restarts else ''})")
            killed = _watch(child, limit_mb)
            lived_s = time.monotonic() - began_s
            status = child.returncode if child.returncode >= 0 else 128 - child.returncode
            how = killed or (f"was ended by {signal.Signals(status - 128).name}" if child.returncode < 0 else "ended")
            ended = f"the server (pid {child.pid}) {how} after {lived_s:.1f} s with status {status}"
            meant = f"{signal.Signals(asked[0]).name} asked for it" if asked else not killed and FINAL.get(status)
            young = young + 1 if lived_s < YOUNG_S else 0
            if meant or young >= GIVE_UP:
                meant = meant or f"it died {young} times within {YOUNG_S:g} s of its start; mend what it says above"
                say(f"{ended}: not started again ({meant}), {restarts} restarts in all")
                return status
            if lived_s > WELL_S:
                pause_s = backoff_s[0]
            restarts += 1
            say(f"{ended}: restart {restarts} in {pause_s:g} s; `rtcontrol report` makes the reports that it could not")
            _sleep(pause_s, asked)
            if asked:
                say(f"not started again ({signal.Signals(asked[0]).name} asked for it), {restarts - 1} restarts in all")
                return 128 + asked[0]
            pause_s = min(backoff_s[1], 2 * pause_s)
    finally:
        for number, handler in before.items():
            # One that was asked to end is over: a further signal changes nothing.
            signal.signal(number, signal.SIG_IGN if asked else handler)


def _watch(child: subprocess.Popen[bytes], limit_mb: float | None) -> str | None:
    """Wait for its end; why it was ended by us, if it was."""
    while True:
        try:
            child.wait(LOOK_S)
            return None
        except subprocess.TimeoutExpired:
            pass
        used_mb = resident_mb(child.pid) if limit_mb else None
        if used_mb is not None and limit_mb and used_mb > limit_mb:
            # At once: it may be growing by gigabytes a second, and cannot end in order with no memory left.
            _kill_group(child)
            child.wait()
            return f"was killed at {used_mb:.0f} MB, above the limit of {limit_mb:g} MB,"


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        child.kill()


def _sleep(seconds: float, asked: list[int]) -> None:
    end_s = time.monotonic() + seconds
    while not asked and (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, 0.1))


def resident_mb(pid: int) -> float | None:
    """The resident memory of a process, in MB; None if it has none to be read."""
    try:
        with open(f"/proc/{pid}/statm") as file:  # noqa: PTH123 (no pathlib: twenty times a second)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except OSError:
        pass
    try:
        told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(told.stdout) * 1024 / 1e6
    except (OSError, ValueError):
        return None


def _end_with_parent() -> None:
    """In the child, before it begins: SIGTERM when its parent dies, however that was (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def command_line(arguments: Sequence[str], limit_mb: float | None, more: Sequence[str] = ()) -> list[str]:
    """How to run `rtcontrol ARGUMENTS MORE` under supervision: a command for `os.execv`."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--memory-limit-mb":
            next(rest, None)
        elif argument not in ("--supervise", "--no-supervise") and not argument.startswith("--memory-limit-mb="):
            kept.append(argument)
    limit = [] if limit_mb is None else ["--memory-limit-mb", f"{limit_mb:g}"]
    return [
        sys.executable,
        "-m",
        __spec__.name,
        *limit,
        "--",
        sys.executable,
        "-m",
        "rtcontrol",
        *kept,
        "--no-supervise",
        *more,
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rtcontrol.serve.supervise")
    parser.add_argument("--memory-limit-mb", type=float)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()

    def say(line: str) -> None:
        # Whoever does not read must keep it neither from looking at the memory nor from passing signals on.
        write_now(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} supervise: {line}\n".encode())

    return supervise(given.command, given.memory_limit_mb, say)


if __name__ == "__main__":
    sys.exit(main())
