"""The record of one life of a session's loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rtcontrol.envs.remote import RemoteEnvironment
from rtcontrol.loop.config import RunConfig, size
from rtcontrol.models.errors import UserError
from rtcontrol.serve.negotiate import Terms
from rtcontrol.telemetry.pictures import received
from rtcontrol.telemetry.recorder import Recorder
from rtcontrol_client.wire import Code, WireError


def open_record(
    path: Path, terms: Terms, config: RunConfig, env: RemoteEnvironment, tell: Callable[[str], None]
) -> Recorder:
    """Of the terms as `config` has them now. Raises WireError where it cannot be written."""
    try:
        header, most = config.header(terms.hold_ms, terms.agent), size(config.record_max)
        recorder = Recorder(path, header, provisional=True, tell=tell, most=most)
    except UserError as error:
        raise WireError(Code.INTERNAL, error.what, error.remedy, fatal=True) from None
    recorder.pictures = received(env, config.record_pictures, recorder.header)
    return recorder
