"""One life of a session's loop: its record, its report, and what its session needs of the server."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rtcontrol.hosts.protocol import DecoderPool, Host
from rtcontrol.loop.config import RunConfig, size
from rtcontrol.loop.sampling import PauseWatch
from rtcontrol.models.errors import UserError
from rtcontrol.run.interpreting import Interpreters
from rtcontrol.serve import session_events as ev
from rtcontrol.serve.capacity import Need
from rtcontrol.serve.negotiate import Terms
from rtcontrol.serve.options import ServeOptions
from rtcontrol.serve.stats import Totals
from rtcontrol.telemetry import report
from rtcontrol.telemetry.account import Account
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol_client.wire import Code, WireError


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


class CountedLoop(Protocol):
    """A loop, as far as what it came to is looked at."""

    @property
    def account(self) -> Account: ...

    @property
    def recorder(self) -> Recorder: ...

    @property
    def host(self) -> Host: ...


Loop = TypeVar("Loop", bound=CountedLoop)


@dataclass(frozen=True, slots=True)
class Run(Generic[Loop]):
    """One life of a session's loop."""

    loop: Loop
    recorder: Recorder
    record: Path


def write_report(run: Run[Any], wire: Callable[[], dict[str, Any]]) -> str | None:
    """Write the run's report, with what `wire` says of its connection; a run without a release leaves nothing. Gives
    what went wrong; never raises, so that the session ends in order."""
    account = run.loop.account
    try:
        if not account.releases:
            run.record.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                run.record.parent.rmdir()
            return None
        account.check()
        assert run.recorder.fault is None, run.recorder.fault
        told = report.build(account, run.record.name, run.recorder.lost, ticks_from=run.recorder.ticks_from)
        told["wire"] = wire()
        path = run.record.with_name(run.record.name.replace("record", "report").replace(".mcap", ".json"))
        refused = report.write(told, path)
        return refused and f"the report could not be written ({refused})"
    except Exception as error:
        return f"no report ({type(error).__name__}: {error})"


def open_record(
    session: str, run: int, terms: Terms, config: RunConfig, tell: Callable[[str], None], **more: Any
) -> tuple[Recorder, Path]:
    """Return the record of a session's `run`, which is counted from 1, of the terms as `config` has them now; `more` is
    for its header.

    Raises WireError where it cannot be written.
    """
    path = terms.options.out / session / ("record.mcap" if run == 1 else f"record-{run}.mcap")
    try:
        header = config.header(terms.hold_ms, terms.agent) | more
        return Recorder(path, header, provisional=True, tell=tell, most=size(config.record_max)), path
    except UserError as error:
        raise WireError(Code.INTERNAL, error.what, error.remedy, fatal=True) from None
