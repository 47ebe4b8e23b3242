"""Write the events of a run to an MCAP file that stays readable after any crash, and count the events."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcap.writer import CompressionType, Writer

from rtcontrol.envs.remote import RemotePicture
from rtcontrol.models.files import no_link, part_of
from rtcontrol.telemetry.account import Recent
from rtcontrol.telemetry.events import CHANNELS, SCHEMA_VERSION, encoded, schema, schema_name, topic_of
from rtcontrol.telemetry.run_folder import make_folder, older_part, older_parts, remove_empty, unwritable

FLUSH_S = 0.25  # seconds of events that may be lost with the process
KEPT, AT_ONCE = 100_000, 1_000  # the most events that wait for room on the disk (an hour at 30 Hz); events in one write
CLOSE_S = 10.0  # seconds that the shutdown waits for a disk that does not answer
PARTS = 8  # parts of a record of bounded size, whose oldest part is removed if the space is used up
# The most chunks of a part, more than an hour of them. The index of a part is in memory until the part ends, and
# writing it then blocks the interpreter.
CHUNKS = 16_384
REPEATED = {"header", "start", "origin_ns"}  # each part begins with these events
OPEN = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC

Stamped = tuple[int, dict[str, Any]]  # UTC in ns, and the event


class Encoder:
    """An encoder of events as an MCAP file, which is also the stream that the MCAP writer writes to.

    `waiting` has the bytes that are not on the disk yet, `chunks` counts ended chunks.
    """

    def __init__(self) -> None:
        self.waiting = b""
        self.chunks = 0
        self.finished = False
        self._size = 0
        stream: Any = self
        self._writer = Writer(stream, compression=CompressionType.ZSTD)
        self._writer.start(profile="", library="rtcontrol")
        self._channels: dict[str, int] = {}
        for topic in CHANNELS:
            text = json.dumps(schema(topic), separators=(",", ":")).encode()
            number = self._writer.register_schema(schema_name(topic), "jsonschema", text)
            self._channels[topic] = self._writer.register_channel(topic, "json", number)

    def write(self, data: bytes) -> None:
        self.waiting += data
        self._size += len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: the bytes wait for the disk."""

    def add(self, utc_ns: int, event: dict[str, Any]) -> None:
        """Add an event to the current chunk."""
        self._writer.add_message(self._channels[topic_of(event)], utc_ns, encoded(event), utc_ns)

    def end_chunk(self) -> None:
        """End the current chunk."""
        self.chunks += 1
        self._writer.flush()

    def finish(self) -> None:
        """Write the index, which ends the file."""
        self._writer.finish()
        self.finished = True


@dataclass(slots=True)
class Part:
    """A part (file) of a record: number, first tick that it may contain, bytes on the disk, time of the last event, and
    last tick so far."""

    number: int = 1
    first_k: int = 0
    size: int = 0
    last_ns: int = 0
    last_k: int = -1


class RecordFile:
    """A record on the disk, in parts of at most `most` bytes together. `path` is the newest part.

    Writing starts with `keep`, so that a run that never starts leaves no file and removes none. After an eighth of
    `most`, or an hour, a part gets the name of an older part (`record.0001.mcap`). The oldest parts are removed to stay
    within `most`, unless a full disk made a part wait. Bytes that the disk refuses are written when there is room;
    until then the file is `refused`, with the `error`. `unwritten` and `dropped` count events. Raises UserError if the
    folder cannot be made.
    """

    def __init__(self, path: Path, most: int = 10**9) -> None:
        self.path, self._most = path, most
        self._parts: deque[Part] = deque([Part()])
        self._repeated: list[dict[str, Any]] = []
        self._encoder = Encoder()
        self.fd = -1
        self.unwritten = 0
        self.dropped = 0
        self.refused = False
        self.error: str | None = None
        self._kept = False
        try:
            self._folders = make_folder(path.parent)
        except OSError as error:
            raise unwritable(path, error.strerror) from error

    @property
    def first_k(self) -> int:
        """Return the first tick that the remaining parts may contain."""
        return self._parts[0].first_k

    def keep(self) -> None:
        """Write the record from now on, since the run has started. May be called twice."""
        self._kept = True

    def ready(self) -> bool:
        """Write waiting bytes, and return whether there is room for more."""
        if not self._kept or not self._opened():
            return False
        if self._encoder.finished:
            return self._start_part()
        return not self._encoder.waiting or self._put()

    def add(self, events: Sequence[Stamped]) -> None:
        """Encode events for the disk. Call this only if the file is `ready`."""
        part = self._parts[-1]
        self.unwritten += len(events)
        for utc_ns, event in events:
            self._encoder.add(utc_ns, event)
            part.last_ns, part.last_k = utc_ns, max(part.last_k, event.get("k", -1))
            if REPEATED & event.keys():
                self._repeated.append(event)
        self._encoder.end_chunk()

    def end_part(self) -> None:
        """End the newest part and start another one, if the part is full and completely written."""
        full = self._parts[-1].size >= self._most // PARTS or self._encoder.chunks >= CHUNKS
        if full and not self._encoder.waiting:
            self._encoder.finish()
            self._start_part()

    def close(self, complete: bool) -> None:
        """Write the index if the record is `complete`, and close the file. Without a file, remove the folders that were
        made for it."""
        if self.fd < 0:
            remove_empty(self._folders)
            return
        if complete and not self._encoder.waiting and not self._encoder.finished:
            self._encoder.finish()
            self._put()
        os.close(self.fd)

    def _opened(self) -> bool:
        """Open the file if necessary, and return whether it is open. First remove the files of an earlier run."""
        if self.fd < 0:
            try:
                self.fd = os.open(no_link(self.path), OPEN, 0o644)
            except OSError as error:
                return self._refuse(error)
            for part in older_parts(self.path):
                with contextlib.suppress(OSError):
                    part.unlink()
        return True

    def _start_part(self) -> bool:
        """Rename the ended part as an older one and start the next part. Return False if bytes still wait for the
        disk."""
        if not self._put():
            return False
        new, ended = part_of(self.path), self._parts[-1]
        try:
            fd = os.open(new, OPEN, 0o644)
            try:
                os.replace(self.path, older_part(self.path, ended.number))
                os.replace(new, self.path)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            return self._refuse(error)
        os.close(self.fd)
        self.fd, self._encoder = fd, Encoder()
        self._parts.append(Part(ended.number + 1, ended.last_k + 1, 0, ended.last_ns, ended.last_k))
        for event in self._repeated:
            self._encoder.add(ended.last_ns, event)  # not the current time, since waiting events may be older
        self._encoder.end_chunk()
        return self._put()

    def _put(self) -> bool:
        """Write waiting bytes, and return whether all are written. A write continues where the last one stopped."""
        self._make_room()
        while waiting := self._encoder.waiting:
            try:
                written = os.write(self.fd, waiting)
            except OSError as error:
                return self._refuse(error)
            self._encoder.waiting = waiting[written:]
            self._parts[-1].size += written
        self.refused = False
        self.unwritten = 0
        return True

    def _make_room(self) -> None:
        """Remove the oldest parts until the new bytes are within the limit."""
        needed = len(self._encoder.waiting) - self._most
        while len(self._parts) > 1 and sum(part.size for part in self._parts) + needed > 0:
            with contextlib.suppress(OSError):
                older_part(self.path, self._parts[0].number).unlink()
            self._parts.popleft()

    def _refuse(self, error: OSError) -> bool:
        self.refused, self.error = True, error.strerror or str(error)
        return False


class Recorder:
    """A recorder that counts the events of a run (`recent`) and writes them to `file` in order, on a separate thread.

    Any thread may call `write`, which never waits for the disk unless the recorder is `patient`, since a lockstep world
    makes events faster than they are written. The first event is the run's `header`. A full disk is reported to `tell`
    at once. Pictures that are added to `pictures` are recorded, too.
    """

    def __init__(
        self,
        file: RecordFile,
        header: dict[str, Any],
        tell: Callable[[str], None] = lambda line: None,
        patient: bool = False,
        pictures: deque[RemotePicture] | None = None,
    ) -> None:
        self.file, self.recent = file, Recent()
        self._tell, self._patient, self._pictures = tell, patient, deque() if pictures is None else pictures
        self._queue: deque[Stamped] = deque()  # by CLOCK_MONOTONIC
        self._waiting: deque[Stamped] = deque()  # counted events for the file
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
        """Return how many events were not written to the disk."""
        waiting = len(self._waiting) + self.file.unwritten if self.file.refused else 0
        return self.file.dropped + waiting

    def write(self, event: dict[str, Any]) -> None:
        """Record an event. The caller must not change the event afterwards."""
        now = time.monotonic_ns()
        self._queue.append((now, event))
        if "kind" in event and now - self._flushed_ns > FLUSH_S * 1e9:
            self._due.set()  # give up the processor now, after a tick, rather than at a random time
        while self._patient and len(self._queue) > 4 * AT_ONCE and not self.file.refused:
            time.sleep(0.001)

    def close(self) -> None:
        """Write waiting events, as far as there is room, and the index of the file. May be called twice."""
        self._closing.set()
        self._due.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._fail(self.file.error or "it does not answer")
        if self.file.refused:
            self._count()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._closing.is_set():
                self._flush()
                self._due.wait(2 * FLUSH_S)
                self._due.clear()
            self._flush()
            self.file.close(complete=not self._waiting)
        except Exception as error:  # an internal error: all further events count as lost
            self._fail(f"{type(error).__name__}: {error}")
            self._tell(f"The record ends here, and the run continues without: {self.file.error}.")

    def _fail(self, why: str) -> None:
        self.file.refused, self.file.error = True, why

    def _flush(self) -> None:
        """Count new events and write them. Nothing is encoded while the file is not ready."""
        self._flushed_ns, first = time.monotonic_ns(), self.file.error is None
        self._count()
        while self.file.ready() and self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), AT_ONCE))]
            events = [(ns + self._anchor_ns, event) for ns, event in batch]
            self.file.add([*events, *self._new_pictures(events[-1][0])])
        if not self._waiting and self.file.fd >= 0:
            self.file.end_part()
        if first and self.file.refused:
            self._tell(
                f"The disk takes no more of {self.file.path} ({self.file.error}). The run continues without: free some "
                "space before the end, and what waits is written; or events of the record are lost."
            )

    def _count(self) -> None:
        while self._queue:
            stamped = self._queue.popleft()
            self.recent.add(stamped[1])
            self._waiting.append(stamped)
        while len(self._waiting) > KEPT:
            self._waiting.popleft()
            self.file.dropped += 1

    def _new_pictures(self, utc_ns: int) -> Iterator[Stamped]:
        while self._pictures:
            picture = self._pictures.popleft()
            taken_ns = picture.t_ns + self._anchor_ns
            timestamp = {"sec": taken_ns // 10**9, "nsec": taken_ns % 10**9}
            data = base64.b64encode(picture.data).decode()
            yield utc_ns, {"timestamp": timestamp, "frame_id": "world", "data": data, "format": picture.format}
