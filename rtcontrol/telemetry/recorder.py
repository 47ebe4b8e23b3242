"""Write the events of a run to an MCAP file that is readable after any crash, and count the events."""

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
from rtcontrol.models.files import create_file, part_path
from rtcontrol.telemetry.account import LiveState
from rtcontrol.telemetry.events import CHANNELS, SCHEMA_VERSION, encode_event, schema_name, topic_of, topic_schema
from rtcontrol.telemetry.run_folder import make_folder, older_part, older_parts, remove_empty, unwritable_error

FLUSH_S = 0.25  # seconds between two writes, so that a killed process loses few events
MAX_WAITING, BATCH = 100_000, 1_000  # maximum waiting events (an hour at 30 Hz), and events per write
CLOSE_S = 10.0  # seconds to wait at shutdown for a disk that does not respond
PARTS = 8  # maximum files of a record; at the size limit of the record, the oldest is deleted
# Maximum chunks of a part (file), enough for an hour. The index of a part stays in memory until the part ends, and
# writing a long index would block the interpreter.
CHUNKS = 16_384
REPEATED_KEYS = {"header", "start", "origin_ns"}  # each part starts with copies of the events with these keys

TimedEvent = tuple[int, dict[str, Any]]  # (time in ns, UTC or monotonic, event)


class Encoder:
    """An encoder of events as MCAP. It is also the output stream of the MCAP library, which calls `write` and `tell`.

    `waiting`: encoded bytes that are not on the disk yet. `chunks`: number of completed chunks.
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
            text = json.dumps(topic_schema(topic), separators=(",", ":")).encode()
            number = self._writer.register_schema(schema_name(topic), "jsonschema", text)
            self._channels[topic] = self._writer.register_channel(topic, "json", number)

    def write(self, data: bytes) -> None:
        self.waiting += data
        self._size += len(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: RecordFile writes the bytes to the disk."""

    def add(self, utc_ns: int, event: dict[str, Any]) -> None:
        """Add an event to the current chunk."""
        self._writer.add_message(self._channels[topic_of(event)], utc_ns, encode_event(event), utc_ns)

    def end_chunk(self) -> None:
        """Complete the current chunk, so that its bytes can be written to the disk."""
        self.chunks += 1
        self._writer.flush()

    def finish(self) -> None:
        """Append the index and the end of the MCAP file."""
        self._writer.finish()
        self.finished = True


@dataclass(slots=True)
class Part:
    """A file of a record. `first_k`: the first tick that it may contain. `size`: bytes on the disk. `last_ns`: the time
    of its newest event. `last_k`: its newest tick."""

    number: int = 1
    first_k: int = 0
    size: int = 0
    last_ns: int = 0
    last_k: int = -1


class RecordFile:
    """A record on the disk in several files (parts), with at most `max_bytes` in total. `path`: the newest part.

    No file is created or deleted before `start_writing` is called, because a failed start must leave no files. After an
    eighth of `max_bytes`, or an hour, a part is renamed to `record.0001.mcap` and so on. If the limit is reached, the
    oldest parts are deleted. While the disk is full, bytes wait in memory, `refused` is True and `error` has the
    reason. `unwritten` and `dropped` count events. Raises UserError if the folder cannot be created.
    """

    def __init__(self, path: Path, max_bytes: int = 10**9) -> None:
        self.path, self._max_bytes = path, max_bytes
        self._parts: deque[Part] = deque([Part()])
        self._repeated_events: list[dict[str, Any]] = []
        self._encoder = Encoder()
        self.fd = -1
        self.unwritten = 0
        self.dropped = 0
        self.refused = False
        self.error: str | None = None
        self._writing = False
        try:
            self._folders = make_folder(path.parent)
        except OSError as error:
            raise unwritable_error(path, error.strerror) from error

    @property
    def first_k(self) -> int:
        """Return the number of the first tick that the existing parts may contain."""
        return self._parts[0].first_k

    def start_writing(self) -> None:
        """Allow writing to the disk, when the run has started. May be called twice."""
        self._writing = True

    def ready(self) -> bool:
        """Write the waiting bytes, and return whether `add` may be called."""
        if not self._writing or not self._open_file():
            return False
        if self._encoder.finished:
            return self._start_part()
        return not self._encoder.waiting or self._write_waiting()

    def add(self, events: Sequence[TimedEvent]) -> None:
        """Encode events. The next call of `ready` writes them. May be called only if `ready` returned True."""
        part = self._parts[-1]
        self.unwritten += len(events)
        for utc_ns, event in events:
            self._encoder.add(utc_ns, event)
            part.last_ns, part.last_k = utc_ns, max(part.last_k, event.get("k", -1))
            if REPEATED_KEYS & event.keys():
                self._repeated_events.append(event)
        self._encoder.end_chunk()

    def end_part(self) -> None:
        """End the newest part and start the next one, if the newest part is full and completely written."""
        full = self._parts[-1].size >= self._max_bytes // PARTS or self._encoder.chunks >= CHUNKS
        if full and not self._encoder.waiting:
            self._encoder.finish()
            self._start_part()

    def close(self, complete: bool) -> None:
        """Close the file. If the record is `complete`, write the index before. If no file was created, remove the empty
        folders that were created for it."""
        if self.fd < 0:
            remove_empty(self._folders)
            return
        if complete and not self._encoder.waiting and not self._encoder.finished:
            self._encoder.finish()
            self._write_waiting()
        os.close(self.fd)

    def _open_file(self) -> bool:
        """Unless the file is open, open it and delete the parts of an earlier run. Return whether it is open now."""
        if self.fd < 0:
            try:
                self.fd = create_file(self.path)
            except OSError as error:
                return self._set_disk_error(error)
            for part in older_parts(self.path):
                with contextlib.suppress(OSError):
                    part.unlink()
        return True

    def _start_part(self) -> bool:
        """Rename the newest part to an older part, and start the next one. Return False if the disk did not accept all
        bytes."""
        if not self._write_waiting():
            return False
        new, ended = part_path(self.path), self._parts[-1]
        try:
            fd = create_file(new)
            try:
                os.replace(self.path, older_part(self.path, ended.number))
                os.replace(new, self.path)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            return self._set_disk_error(error)
        os.close(self.fd)
        self.fd, self._encoder = fd, Encoder()
        self._parts.append(Part(ended.number + 1, ended.last_k + 1, 0, ended.last_ns, ended.last_k))
        for event in self._repeated_events:
            self._encoder.add(ended.last_ns, event)  # not the current time: waiting events may be older
        self._encoder.end_chunk()
        return self._write_waiting()

    def _write_waiting(self) -> bool:
        """Write the waiting bytes, after the rest of an incomplete write. Return whether all bytes are written."""
        self._make_room()
        while waiting := self._encoder.waiting:
            try:
                written = os.write(self.fd, waiting)
            except OSError as error:
                return self._set_disk_error(error)
            self._encoder.waiting = waiting[written:]
            self._parts[-1].size += written
        self.refused = False
        self.unwritten = 0
        return True

    def _make_room(self) -> None:
        """Delete the oldest parts until the waiting bytes fit within the limit."""
        needed = len(self._encoder.waiting) - self._max_bytes
        while len(self._parts) > 1 and sum(part.size for part in self._parts) + needed > 0:
            with contextlib.suppress(OSError):
                older_part(self.path, self._parts[0].number).unlink()
            self._parts.popleft()

    def _set_disk_error(self, error: OSError) -> bool:
        self.refused, self.error = True, error.strerror or str(error)
        return False


class Recorder:
    """A thread that counts the events of a run in `live_state`, and writes them to `file` in order.

    Any thread may call `write`. It waits for the disk if the recorder is `patient` (for lockstep runs, which are faster
    than the disk), and never otherwise. `notify` is called with a message when the disk is full. `header` is the first
    event. The recorder also writes the pictures that other threads append to `pictures`.
    """

    def __init__(
        self,
        file: RecordFile,
        header: dict[str, Any],
        notify: Callable[[str], None] = lambda line: None,
        patient: bool = False,
        pictures: deque[RemotePicture] | None = None,
    ) -> None:
        self.file, self.live_state = file, LiveState()
        self._notify, self._patient, self._pictures = notify, patient, deque() if pictures is None else pictures
        self._queue: deque[TimedEvent] = deque()  # new events with CLOCK_MONOTONIC times
        self._waiting: deque[TimedEvent] = deque()  # events that are counted, but not yet encoded
        self._anchor_ns = time.time_ns() - time.monotonic_ns()
        self._closing, self._wake = threading.Event(), threading.Event()
        self._flushed_ns = time.monotonic_ns()
        header = header | {"clock_anchor": {"utc_minus_monotonic_ns": self._anchor_ns}}
        self.write({"header": header, "schema_version": SCHEMA_VERSION})
        self._flush()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    @property
    def lost_events(self) -> int:
        """Return the number of events that are not on the disk because it was full."""
        waiting = len(self._waiting) + self.file.unwritten if self.file.refused else 0
        return self.file.dropped + waiting

    def write(self, event: dict[str, Any]) -> None:
        """Record an event. The caller must not change the event afterwards."""
        now = time.monotonic_ns()
        self._queue.append((now, event))
        if "kind" in event and now - self._flushed_ns > FLUSH_S * 1e9:
            self._wake.set()  # wake the recorder when the loop has just finished a tick, not at a random time
        while self._patient and len(self._queue) > 4 * BATCH and not self.file.refused:
            time.sleep(0.001)

    def close(self) -> None:
        """Write the waiting events, if the disk has space, and the index of the file. May be called twice."""
        self._closing.set()
        self._wake.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._set_failed(self.file.error or "the disk does not respond")
        if self.file.refused:
            self._count_new_events()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._flush()
                self._wake.wait(2 * FLUSH_S)
                self._wake.clear()
            self._flush()
            self.file.close(complete=not self._waiting)
        except Exception as error:  # after an internal error, all further events count as lost
            self._set_failed(f"{type(error).__name__}: {error}")
            self._notify(f"Recording failed ({self.file.error}). The run continues, but its further events are lost.")

    def _set_failed(self, why: str) -> None:
        self.file.refused, self.file.error = True, why

    def _flush(self) -> None:
        """Count new events and write them. If the file is not ready, leave them in the queue."""
        self._flushed_ns, first = time.monotonic_ns(), self.file.error is None
        self._count_new_events()
        while self.file.ready() and self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), BATCH))]
            events = [(ns + self._anchor_ns, event) for ns, event in batch]
            self.file.add([*events, *self._picture_events(events[-1][0])])
        if not self._waiting and self.file.fd >= 0:
            self.file.end_part()
        if first and self.file.refused:
            self._notify(
                f"{self.file.path} cannot be written ({self.file.error}). New events wait in memory. "
                "Free some disk space before the run ends, or these events are lost."
            )

    def _count_new_events(self) -> None:
        while self._queue:
            stamped = self._queue.popleft()
            self.live_state.add(stamped[1])
            self._waiting.append(stamped)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            self.file.dropped += 1

    def _picture_events(self, utc_ns: int) -> Iterator[TimedEvent]:
        while self._pictures:
            picture = self._pictures.popleft()
            taken_ns = picture.t_ns + self._anchor_ns
            timestamp = {"sec": taken_ns // 10**9, "nsec": taken_ns % 10**9}
            data = base64.b64encode(picture.data).decode()
            yield utc_ns, {"timestamp": timestamp, "frame_id": "world", "data": data, "format": picture.format}
