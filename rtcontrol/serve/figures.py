"""What there is to see of a session: its figures from outside, and the report that it leaves."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtcontrol.loop.loop import ControlLoop
from rtcontrol.record.recorder import Recorder
from rtcontrol.report import report
from rtcontrol.report.series import Series
from rtcontrol.serve.totals import COUNTS

if TYPE_CHECKING:
    from rtcontrol.serve.session import Session


@dataclass(frozen=True, slots=True)
class Run:
    """One life of a session's loop."""

    loop: ControlLoop
    recorder: Recorder
    record: Path


def figures(session: Session) -> dict[str, Any]:
    """What there is to see of it from outside; no secret."""
    shown: dict[str, Any] = {"id": session.id, "state": session.state, "client": session.hello.client.name}
    peer = session.peer
    shown |= {"peer": None if peer is None else peer.name, "refused": dict(session.refused)}
    if (terms := session.terms) is not None:
        shown |= {"agent": terms.named, "model": Path(terms.model).name, "pacing": terms.hello.pacing}
        shown |= {"hz": terms.config.hz}
    if (loop := session.loop) is not None:
        account = loop.account
        shown |= {name: getattr(account, name) for name in (*COUNTS, "misses", "miss_rate")}
        shown |= {"misses_by_cause": dict(account.misses_by_cause)}
        shown["lost_lines"] = loop.recorder.lost
        shown["latency_ms"] = Series(list(account.recent_ms)).summary()  # at once: it grows meanwhile
    if session.env is not None:
        shown |= session.env.traffic.to_dict()
    return shown


def write_report(session: Session, run: Run) -> str | None:
    """Write the run's report; a run without a release leaves nothing. Gives what went wrong; never raises, so that
    the session ends in order."""
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
        told["wire"] = _wire(session)
        path = run.record.with_name(run.record.name.replace("record", "report").replace(".mcap", ".json"))
        refused = report.write(told, path)
        return refused and f"the report could not be written ({refused})"
    except Exception as error:
        return f"no report ({type(error).__name__}: {error})"


def _wire(session: Session) -> dict[str, Any]:
    client = session.hello.client
    traffic = {} if session.env is None else session.env.traffic.to_dict()
    return {"client": client.model_dump(), "session": session.id, "refused": dict(session.refused), **traffic}
