"""Takes a run's events to its account and into an MCAP file that can be read whatever becomes of the run."""

from __future__ import annotations

import base64
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rtcontrol.envs.remote import RemotePicture
from rtcontrol.models.files import no_link, part_of
from rtcontrol.telemetry.channels import SCHEMA_VERSION
from rtcontrol.telemetry.encoder import Encoder
from rtcontrol.telemetry.recent import Recent
from rtcontrol.telemetry.run_folder import make_folder, older_part, older_parts, unmake, unwritable

# At most so much is lost with the process.
FLUSH_S = 0.25
# Events that wait for room on the disk: an hour at 30 Hz. A file takes so many at a time.
KEPT, AT_ONCE = 100_000, 1_000
# The way out waits so long for a disk that does not answer.
CLOSE_S = 10.0
# A record of bounded size has so many parts: the oldest goes when there is no more room.
PARTS = 8
# A part's index is in memory until it ends, and then takes the interpreter for a while: at most of so many chunks, more
# than an hour of them.
CHUNKS = 16_384
REPEATED = {"header", "start", "origin_ns"}
OPEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC

Stamped = tuple[int, dict[str, Any]]  # UTC in ns, and the event


@dataclass(slots=True)
class Part:
    """A file of a record: its place among them, the first tick that it may hold, and its bytes on the disk."""

    number: int = 1
    first_k: int = 0
    size: int = 0


class RecordFile:
    """A record on the disk. `path` is the newest part, and takes the name of an older one (`record.0001.mcap`) when it
    is an eighth of `most` bytes, or over an hour long; each begins with the header, and with how the run started. The
    oldest are removed so that no more than `most` bytes lie there, unless a full disk made a part wait for room.

    What the disk refuses is kept, and written when there is room again: `refused` until then, with the `error`.
    """

    def __init__(self, path: Path, most: int, provisional: bool) -> None:
        self.path, self._most = path, most
        self._state: Literal["provisional", "kept", "discarded"] = "provisional" if provisional else "kept"
        self._parts: deque[Part] = deque([Part()])
        self._repeated: list[dict[str, Any]] = []  # what each part begins with
        self._last = (0, -1)  # of the events in it: when it was written, the last tick
        self._ended = False  # its index is written, or waits to be
        self._bytes = b""  # for the disk
        self.unwritten = 0  # events in these
        self.refused = False
        self.error: str | None = None
        try:
            self._made = make_folder(path.parent)
            self.fd = os.open(no_link(self._name), OPEN, 0o644)
        except OSError as error:
            raise unwritable(path, error.strerror) from error
        self._encoder = Encoder()
        if not provisional:
            self._forget()

    @property
    def _name(self) -> Path:
        return self.path.with_name(self.path.name + ".part") if self._state == "provisional" else self.path

    @property
    def first_k(self) -> int:
        """The first tick that the parts which are left may hold."""
        return self._parts[0].first_k

    def keep(self) -> None:
        """The run has begun: from now on the record stands under its own name. Twice does no harm."""
        if self._state == "provisional":
            try:
                os.replace(self._name, self.path)
            except OSError as error:
                self.error = error.strerror
            self._forget()
            self._state = "kept"

    def discard(self) -> None:
        """The run never began: take away what was made for it. Does nothing after `keep`."""
        if self._state == "provisional":
            with contextlib.suppress(OSError):
                self._name.unlink()
                unmake(self._made)
            self._state = "discarded"  # what lies under its name is another run's

    def ready(self) -> bool:
        """Write what waits, and return whether there is room for more."""
        if self._ended and not self._begin_part():
            return False
        return not self._bytes or self._put()

    def add(self, events: Sequence[Stamped]) -> None:
        """Take these, for the disk; only when it is `ready`."""
        self.unwritten += len(events)
        for utc_ns, event in events:
            self._encoder.add(utc_ns, event)
            self._last = utc_ns, max(self._last[1], event.get("k", -1))
            if REPEATED & event.keys():
                self._repeated.append(event)
        self._bytes = self._encoder.take()

    def end_part(self) -> None:
        """End the newest part and begin another, where it is full and all of it is written."""
        full = self._parts[-1].size >= self._most // PARTS or self._encoder.chunks >= CHUNKS
        if full and not self._bytes and self._state == "kept":
            self._bytes, self._ended = self._encoder.finish(), True
            self._begin_part()

    def close(self, complete: bool) -> None:
        """Write the index where the record is `complete`, and close the file."""
        if complete and not self._bytes and not self._ended:
            self._bytes = self._encoder.finish()
            self._put()
        os.close(self.fd)

    def _forget(self) -> None:
        """Remove what an earlier run left of its older parts."""
        for part in older_parts(self.path):
            with contextlib.suppress(OSError):
                part.unlink()

    def _begin_part(self) -> bool:
        """Whether the part is on the disk to its end, under its name as an older one, and the next is begun."""
        if not self._put():
            return False
        new, newest = part_of(self.path), self._parts[-1]
        try:
            fd = os.open(new, OPEN, 0o644)
            try:
                os.replace(self.path, older_part(self.path, newest.number))
                os.replace(new, self.path)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            return self._refuse(error)
        os.close(self.fd)
        self.fd, self._ended, self._encoder = fd, False, Encoder()
        utc_ns, last_k = self._last  # what waits may have been written before now
        self._parts.append(Part(newest.number + 1, last_k + 1))
        for event in self._repeated:
            self._encoder.add(utc_ns, event)
        self._bytes = self._encoder.take()
        return self._put()

    def _make_room(self) -> None:
        """Remove the oldest parts until what is to be written is within the limit."""
        while len(self._parts) > 1 and sum(part.size for part in self._parts) + len(self._bytes) > self._most:
            with contextlib.suppress(OSError):
                older_part(self.path, self._parts[0].number).unlink()
            self._parts.popleft()

    def _put(self) -> bool:
        """Whether the file took all of the bytes. It goes on where it stopped, so that none is torn."""
        self._make_room()
        while self._bytes:
            try:
                written = os.write(self.fd, self._bytes)
            except OSError as error:
                return self._refuse(error)
            self._bytes = self._bytes[written:]
            self._parts[-1].size += written
        self.refused = False
        self.unwritten = 0
        return True

    def _refuse(self, error: OSError) -> bool:
        self.refused, self.error = True, error.strerror or str(error)
        return False


class Recorder:
    """Appends events to `path`, from a thread of its own, and `recent` takes each, in order; any thread may `write`,
    which never waits for the disk. What a full disk refuses waits in memory, is written when there is room again, and
    is counted in `lost` until then; `tell` is told of it at once.

    The first event is the run's header. A `provisional` record has another name (`record.mcap.part`) until its file's
    `keep`: a run that never starts takes nothing of an earlier one, and `discard` leaves no trace of it. `write` to a
    `patient` one may wait for its thread, and so for a disk that hangs: a world that waits makes events faster than it
    writes.
    What comes into `pictures` is recorded, too. The record has at most `most` bytes (`RecordFile`).
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        provisional: bool = False,
        tell: Callable[[str], None] = lambda line: None,
        patient: bool = False,
        most: int = 10**9,
        pictures: deque[RemotePicture] | None = None,
    ) -> None:
        self._tell, self._patient, self._pictures = tell, patient, deque() if pictures is None else pictures
        self.fault: str | None = None  # of ours, in what was told of an event: what was counted is not to be trusted
        self.recent = Recent()
        self.file = RecordFile(path, most, provisional)
        self._queue: deque[Stamped] = deque()  # by CLOCK_MONOTONIC
        self._waiting: deque[Stamped] = deque()  # counted, for the file
        self._dropped = 0
        self._anchor_ns = time.time_ns() - time.monotonic_ns()
        self._closing, self._due = threading.Event(), threading.Event()
        self._flushed_ns = time.monotonic_ns()
        header = header | {"clock_anchor": {"utc_minus_monotonic_ns": self._anchor_ns}}
        self.write({"header": header, "schema_version": SCHEMA_VERSION})
        self._flush()
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Events that the disk did not take."""
        return self._dropped + (len(self._waiting) + self.file.unwritten if self.file.refused else 0)

    def write(self, event: dict[str, Any]) -> None:
        """The event is the recorder's from now on."""
        now = time.monotonic_ns()
        self._queue.append((now, event))
        if "kind" in event and now - self._flushed_ns > FLUSH_S * 1e9:
            # Now rather than at an instant of the thread's own choosing: this tick is over.
            self._due.set()
        while self._patient and len(self._queue) > 4 * AT_ONCE and not self.file.refused:
            time.sleep(0.001)

    def close(self) -> None:
        """Writes what waits, as far as there is room, and the file's index. Twice does no harm."""
        self._closing.set()
        self._due.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._fail(self.file.error or "it does not answer")
        if self.file.refused:
            self._fold()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                self._flush()
                self._due.wait(2 * FLUSH_S)
                self._due.clear()
            self._flush()
            self.file.close(complete=not self._waiting)
        except Exception as error:  # a fault of ours: nothing more is written, and all of it is counted as lost
            self._fail(f"{type(error).__name__}: {error}")
            self._tell(f"The record ends here, and the run goes on without: {self.file.error}.")

    def _fail(self, why: str) -> None:
        self.file.refused, self.file.error = True, why

    def _flush(self) -> None:
        """Count what came, and write it; while the file does not take it nothing more is encoded."""
        self._flushed_ns, first = time.monotonic_ns(), self.file.error is None
        self._fold()
        while self.file.ready() and self._waiting:
            stamped = [self._waiting.popleft() for _ in range(min(len(self._waiting), AT_ONCE))]
            events = [(ns + self._anchor_ns, event) for ns, event in stamped]
            self.file.add([*events, *self._pictured(events[-1][0])])
        if not self._waiting:
            self.file.end_part()
        if first and self.file.refused:
            self._tell(
                f"The disk takes no more of {self.file.path} ({self.file.error}). It goes on without: free some space "
                "before the end, and what waits is written; or events of the record are lost."
            )

    def _pictured(self, utc_ns: int) -> Iterator[Stamped]:
        """Yield the pictures that came since the last time."""
        while self._pictures:
            picture = self._pictures.popleft()
            taken_ns = picture.t_ns + self._anchor_ns
            timestamp = {"sec": taken_ns // 10**9, "nsec": taken_ns % 10**9}
            data = base64.b64encode(picture.data).decode()
            yield utc_ns, {"timestamp": timestamp, "frame_id": "world", "data": data, "format": picture.format}

    def _fold(self) -> None:
        while self._queue:
            entry = self._queue.popleft()
            try:
                self.recent.add(entry[1])
            except Exception as error:  # the record goes on: it tells what led to it
                self.fault = self.fault or f"{type(error).__name__}: {error}"
            self._waiting.append(entry)
        while len(self._waiting) > KEPT:
            self._waiting.popleft()
            self._dropped += 1
