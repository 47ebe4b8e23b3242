"""Takes a run's events to its account and into an MCAP file that can be read whatever becomes of the run."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from mcap.writer import CompressionType, Writer

from rtcontrol.record.channels import CHANNELS, schema, topic_of
from rtcontrol.record.folder import make_folder, unmake, unwritable

SCHEMA_VERSION = 2
# At most so much is lost with the process.
FLUSH_S = 0.25
# Events that wait for room on the disk: an hour at 30 Hz. A file takes so many at a time.
KEPT, AT_ONCE = 100_000, 1_000
# The owner is told (`slow`) of a write that takes longer.
SLOW_NS = 10_000_000
# The way out waits so long for a disk that does not answer.
CLOSE_S = 10.0


class Recorder:
    """Appends events to `path`, from a thread of its own, and tells `fold` of each, in order; any thread may `write`,
    which never waits for the disk. What a full disk refuses waits in memory, is written when there is room again, and
    is counted in `lost` until then; `tell` is told of it at once.

    The first event is the run's header. A `provisional` record has another name (`record.mcap.part`) until `keep`: a
    run that never starts takes nothing of an earlier one, and `discard` leaves no trace of it. `write` to a `patient`
    one may wait for its thread, never for the disk: a world that waits makes events faster than it writes.
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        provisional: bool = False,
        tell: Callable[[str], None] = lambda line: None,
        patient: bool = False,
    ) -> None:
        self._path, self._tell, self._patient = path, tell, patient
        self._part = path.with_name(path.name + ".part") if provisional else None
        self.error: str | None = None
        self.written = 0  # events
        self.fold: Callable[[dict[str, Any]], None] = lambda event: None
        self.slow: Callable[[int, int], None] = lambda begin_ns, end_ns: None
        self._queue: deque[tuple[int, dict[str, Any]]] = deque()
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()  # folded, for the encoder
        self._taken = 0  # events that the encoder has, and the file not yet
        self._bytes = b""  # of these
        self._dropped = 0
        self._refused = False  # by the disk, the last time
        try:
            self._made = make_folder(path.parent)
            self._fd = os.open(self._part or path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(path, error.strerror) from error
        self._anchor_ns = time.time_ns() - time.monotonic_ns()
        self._encoder = _Encoder()
        self._closing = threading.Event()
        self._due = threading.Event()
        self._flushed_ns = time.monotonic_ns()
        anchor = {"utc_minus_monotonic_ns": self._anchor_ns}
        self.header = header | {"clock_anchor": anchor}
        self.write({"header": self.header, "schema_version": SCHEMA_VERSION})
        self._flush()
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Events that the disk did not take."""
        return self._dropped + (len(self._waiting) + self._taken if self._refused else 0)

    def write(self, event: dict[str, Any]) -> None:
        """The event is the recorder's from now on."""
        now = time.monotonic_ns()
        self._queue.append((now, event))
        if now - self._flushed_ns > FLUSH_S * 1e9:
            # Now rather than at an instant of the thread's own choosing: the tick that wrote it is over.
            self._due.set()
        while self._patient and len(self._queue) > 4 * AT_ONCE and not self._refused:
            time.sleep(0.001)

    def keep(self) -> None:
        """The run has begun: from now on the record stands under its own name. Twice does no harm."""
        if self._part is not None:
            try:
                os.replace(self._part, self._path)
            except OSError as error:
                self.error = error.strerror
            self._part = None

    def discard(self) -> None:
        """The run never began: take away what was made for it. Does nothing after `keep`."""
        if self._part is not None:
            with contextlib.suppress(OSError):
                self._part.unlink()
                unmake(self._made)
            self._part = None

    def close(self) -> None:
        """Writes what waits, as far as there is room, and the file's index. Twice does no harm."""
        self._closing.set()
        self._due.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._refused, self.error = True, self.error or "it does not answer"
            self._fold()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closing.is_set():
            self._due.wait(2 * FLUSH_S)
            self._due.clear()
            self._flush()
        self._flush()
        if not self._bytes and not self._waiting:
            self._bytes = self._encoder.finish()
            self._put()
        os.close(self._fd)

    def _flush(self) -> None:
        """Fold and encode what waits, and write it; while the file does not take it nothing more is encoded."""
        self._flushed_ns = time.monotonic_ns()
        self._fold()
        while (not self._bytes or self._put()) and self._waiting:
            for _ in range(min(len(self._waiting), AT_ONCE)):
                t_ns, event = self._waiting.popleft()
                self._encoder.add(t_ns + self._anchor_ns, event)
                self._taken += 1
            self._bytes = self._encoder.take()

    def _fold(self) -> None:
        while self._queue:
            entry = self._queue.popleft()
            self.fold(entry[1])
            self._waiting.append(entry)
        while len(self._waiting) > KEPT:
            self._waiting.popleft()
            self._dropped += 1

    def _put(self) -> bool:
        """Whether the file took all of the bytes. It goes on where it stopped, so that none is torn."""
        while self._bytes:
            began = time.monotonic_ns()
            try:
                self._bytes = self._bytes[os.write(self._fd, self._bytes) :]
                if (ended := time.monotonic_ns()) - began > SLOW_NS:
                    self.slow(began, ended)
            except OSError as error:
                if self.error is None:
                    self._tell(
                        f"The disk takes no more of {self._path} ({error.strerror}). It goes on without: free some "
                        "space before the end, and what waits is written; or events of the record are lost."
                    )
                self._refused, self.error = True, error.strerror or str(error)
                return False
        self._refused = False
        self.written += self._taken
        self._taken = 0
        return True


class _Encoder:
    """Events to the bytes of an MCAP file, a chunk for each `take`."""

    def __init__(self) -> None:
        self._out = _Stream()
        self._writer = Writer(self._out, compression=CompressionType.ZSTD)
        self._writer.start(profile="", library="rtcontrol")
        self._channels: dict[str, int] = {}
        for topic in CHANNELS:
            made = json.dumps(schema(topic), separators=(",", ":")).encode()
            number = self._writer.register_schema(f"rtcontrol{topic.replace('/', '.')}", "jsonschema", made)
            self._channels[topic] = self._writer.register_channel(topic, "json", number)

    def add(self, utc_ns: int, event: dict[str, Any]) -> None:
        data = json.dumps(event, separators=(",", ":"), default=str).encode()
        self._writer.add_message(self._channels[topic_of(event)], utc_ns, data, utc_ns)

    def take(self) -> bytes:
        """What came since the last time."""
        self._writer.flush()
        return self._out.take()

    def finish(self) -> bytes:
        """The end of the file: its index."""
        self._writer.finish()
        return self._out.take()


class _Stream(BytesIO):
    """Knows where it stands in the file, and holds only what was not taken."""

    def __init__(self) -> None:
        super().__init__()
        self._before = 0

    def tell(self) -> int:
        return self._before + super().tell()

    def take(self) -> bytes:
        data = self.getvalue()
        self._before += len(data)
        self.seek(0)
        self.truncate()
        return data
