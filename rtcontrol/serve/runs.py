"""The record and the report of one life of a session's loop, and what its session needs of the server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rtcontrol.hosts.protocol import DecoderPool
from rtcontrol.loop.config import RunConfig, size
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.run.interpreting import Interpreters
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.refusals import refused_as
from rtcontrol.serve.session_state import Need
from rtcontrol.serve.stats import CountedLoop, Totals
from rtcontrol.telemetry import report
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol_client.wire import Code


class SessionOwner(Protocol):
    """What a session's threads need of the server that it belongs to."""

    options: ServeOptions
    pool: DecoderPool
    watch: PauseWatch
    stats: Totals
    say: Callable[[str], None]
    interpreters: Interpreters
    turns: dict[bool, threading.Semaphore]  # of those that open for the first time (True), or again

    def tell(self, event: ev.Event) -> list[ev.Action]:
        """Let the core take the event, do what it says, and return what is the caller's to do."""

    def needs(self) -> dict[str, Need]:
        """Return what each session needs of the decoder, as far as it is known, by their ids."""


def open_record(session: str, run: int, terms: Terms, config: RunConfig, **more: Any) -> tuple[Recorder, Path]:
    """Return the record of a session's `run`, counted from 1, and its path. `more`: `tell`, and what is for the header.
    Raises WireError where it cannot be written."""
    path = terms.options.out / session / ("record.mcap" if run == 1 else f"record-{run}.mcap")
    tell = more.pop("tell")
    with refused_as(Code.INTERNAL):
        header = config.header(terms.hold_ms, terms.agent) | more
        return Recorder(path, header, provisional=True, tell=tell, most=size(config.record_max)), path


def finish(loop: CountedLoop, record: Path, wire: dict[str, Any]) -> str | None:
    """Close a run's record and write its report, with `wire` of its connection; a run without a release leaves nothing.
    Return what went wrong; never raises, so that the session ends in order."""
    account, recorder = loop.account, loop.recorder
    try:
        recorder.discard()
        recorder.close()
        if not account.releases:
            record.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                record.parent.rmdir()
            return None
        account.check()
        assert recorder.fault is None, recorder.fault
        told = report.build(account, record.name, recorder.lost, ticks_from=recorder.ticks_from)
        told["wire"] = wire
        name = record.name.replace("record", "report").replace(".mcap", ".json")
        refused = report.write(told, record.with_name(name))
        return refused and f"the report could not be written ({refused})"
    except Exception as error:
        return f"no report ({type(error).__name__}: {error})"
