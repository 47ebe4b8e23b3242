"""Takes a run's events to its account and into an MCAP file that can be read whatever becomes of the run."""

from __future__ import annotations

import base64
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rtcontrol.envs.base import Environment
from rtcontrol.envs.remote import RemoteEnvironment, RemotePicture, RemotePictures
from rtcontrol.models.files import no_link, part_of
from rtcontrol.telemetry.channels import SCHEMA_VERSION
from rtcontrol.telemetry.encoder import Encoder
from rtcontrol.telemetry.recent import Recent
from rtcontrol.telemetry.run_folder import make_folder, older_part, older_parts, unmake, unwritable

# A second's worth at the most; they wait for the recorder's next turn, which is half a second away at most.
WAITING = 10


class ReceivedPictures:
    """At most `hz` a second, as they came; what is late is not made up for. `anchor_ns`: UTC minus CLOCK_MONOTONIC."""

    def __init__(self, pictures: RemotePictures, hz: float, anchor_ns: int) -> None:
        self._every_ns, self._due_ns, self._anchor_ns = round(1e9 / hz), 0, anchor_ns
        self._waiting: deque[RemotePicture] = deque(maxlen=WAITING)
        pictures.taken = self._take

    def _take(self, one: RemotePicture, now_ns: int) -> None:
        # On the transport's thread: what takes time is done on the recorder's.
        if now_ns >= self._due_ns:
            late = now_ns - self._due_ns > self._every_ns
            self._due_ns = (now_ns if late else self._due_ns) + self._every_ns
            self._waiting.append(one)

    def waiting(self) -> Iterator[dict[str, Any]]:
        """Yield those that came since the last time, in JSON's values."""
        while self._waiting:
            one = self._waiting.popleft()
            utc_ns = one.t_ns + self._anchor_ns
            timestamp = {"sec": utc_ns // 10**9, "nsec": utc_ns % 10**9}
            data = base64.b64encode(one.data).decode()
            yield {"timestamp": timestamp, "frame_id": "world", "data": data, "format": one.format}


def received(env: Environment, hz: float, header: Mapping[str, Any]) -> ReceivedPictures | None:
    """Return those of a world behind a wire, where pictures are wanted; `header`: the recorder's."""
    if not hz or not isinstance(env, RemoteEnvironment):
        return None
    return ReceivedPictures(env.pictures, hz, header["clock_anchor"]["utc_minus_monotonic_ns"])


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


class Recorder:
    """Appends events to `path`, from a thread of its own, and `recent` takes each, in order; any thread may `write`,
    which never waits for the disk. What a full disk refuses waits in memory, is written when there is room again, and
    is counted in `lost` until then; `tell` is told of it at once.

    The first event is the run's header. A `provisional` record has another name (`record.mcap.part`) until `keep`: a
    run that never starts takes nothing of an earlier one, and `discard` leaves no trace of it. `write` to a `patient`
    one may wait for its thread, and so for a disk that hangs: a world that waits makes events faster than it writes.

    `path` is the newest part of the record, and takes the name of an older one (`record.0001.mcap`) when it is an
    eighth of `most` bytes, or over an hour long; each begins with the header, and with how the run started. The oldest
    are removed so that no more than `most` bytes lie there, unless a full disk made a part wait for room.
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        provisional: bool = False,
        tell: Callable[[str], None] = lambda line: None,
        patient: bool = False,
        most: int = 10**9,
    ) -> None:
        self._path, self._tell, self._patient, self._most = path, tell, patient, most
        self._part = path.with_name(path.name + ".part") if provisional else None
        self.error: str | None = None
        self.fault: str | None = None  # of ours, in what was told of an event: what was counted is not to be trusted
        self.recent = Recent()
        self.pictures: ReceivedPictures | None = None
        self._older: deque[tuple[Path, int, int]] = deque()  # parts: bytes, first tick
        self._size = self._first_k = self._number = 0  # of the part that is written
        self._last_k = -1
        self._last_ns = 0  # of the last event in it
        self._ended = False  # its index is written, or waits to be
        self._repeated: list[dict[str, Any]] = []  # what each part begins with: the header, how the run started
        self._queue: deque[tuple[int, dict[str, Any]]] = deque()
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()  # folded, for the encoder
        self._taken = 0  # events that the encoder has, and the file not yet
        self._bytes = b""  # of these
        self._dropped = 0
        self._discarded = False  # what lies under its name is another run's
        self._refused = False  # by the disk, the last time
        try:
            self._made = make_folder(path.parent)
            self._fd = os.open(no_link(self._part or path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise unwritable(path, error.strerror) from error
        self._anchor_ns = time.time_ns() - time.monotonic_ns()
        self._encoder = Encoder()
        if self._part is None:
            self._forget()
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
    def ticks_from(self) -> int:
        """The first tick that the parts which are left may hold."""
        return self._older[0][2] if self._older else self._first_k

    @property
    def size(self) -> int:
        """Bytes that lie on the disk."""
        return sum(size for _, size, _ in self._older) + self._size

    @property
    def lost(self) -> int:
        """Events that the disk did not take."""
        return self._dropped + (len(self._waiting) + self._taken if self._refused else 0)

    def write(self, event: dict[str, Any]) -> None:
        """The event is the recorder's from now on."""
        now = time.monotonic_ns()
        self._queue.append((now, event))
        if "kind" in event and now - self._flushed_ns > FLUSH_S * 1e9:
            # Now rather than at an instant of the thread's own choosing: this tick is over.
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
            self._forget()
            self._part = None

    def discard(self) -> None:
        """The run never began: take away what was made for it. Does nothing after `keep`."""
        if self._part is not None:
            with contextlib.suppress(OSError):
                self._part.unlink()
                unmake(self._made)
            self._discarded, self._part = True, None

    def close(self) -> None:
        """Writes what waits, as far as there is room, and the file's index. Twice does no harm."""
        self._closing.set()
        self._due.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            self._refused, self.error = True, self.error or "it does not answer"
        if self._refused:
            self._fold()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._write_all()
        except Exception as error:  # a fault of ours: nothing more is written, and all of it is counted as lost
            self._refused, self.error = True, f"{type(error).__name__}: {error}"
            self._tell(f"The record ends here, and the run goes on without: {self.error}.")

    def _write_all(self) -> None:
        while not self._closing.is_set():
            self._flush()
            self._due.wait(2 * FLUSH_S)
            self._due.clear()
        self._flush()
        if not self._bytes and not self._waiting and not self._ended:
            self._bytes = self._encoder.finish()
            self._put()
        os.close(self._fd)

    def _forget(self) -> None:
        """Remove what an earlier run left of its older parts."""
        for part in older_parts(self._path):
            with contextlib.suppress(OSError):
                part.unlink()

    def _flush(self) -> None:
        """Fold and encode what waits, and write it; while the file does not take it nothing more is encoded."""
        self._flushed_ns = time.monotonic_ns()
        self._fold()
        if self._ended and not self._begin_part():
            return
        while (not self._bytes or self._put()) and self._waiting:
            for _ in range(min(len(self._waiting), AT_ONCE)):
                self._last_ns, event = self._waiting.popleft()
                utc_ns = self._last_ns + self._anchor_ns
                self._encoder.add(utc_ns, event)
                self._last_k = max(self._last_k, event.get("k", -1))
                if REPEATED & event.keys():
                    self._repeated.append(event)
                for picture in () if self.pictures is None else self.pictures.waiting():
                    self._encoder.add(utc_ns, picture)
                self._taken += 1
            self._bytes = self._encoder.take()
        full = self._size >= self._most // PARTS or self._encoder.chunks >= CHUNKS
        if full and not (self._bytes or self._waiting or self._part or self._discarded):
            self._bytes, self._ended = self._encoder.finish(), True
            self._begin_part()

    def _begin_part(self) -> bool:
        """Whether the part is on the disk to its end, under its name as an older one, and the next is begun."""
        if not self._put():
            return False
        new, old = part_of(self._path), older_part(self._path, self._number + 1)
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                os.replace(self._path, old)
                os.replace(new, self._path)
            except OSError:
                os.close(fd)
                raise
        except OSError as error:
            return self._refuse(error)
        os.close(self._fd)
        self._fd, self._ended, self._encoder = fd, False, Encoder()
        self._older.append((old, self._size, self._first_k))
        self._size, self._first_k, self._number = 0, self._last_k + 1, self._number + 1
        utc_ns = self._last_ns + self._anchor_ns  # what waits may have been written before now
        for event in self._repeated:
            self._encoder.add(utc_ns, event)
        self._bytes = self._encoder.take()
        return self._put()

    def _make_room(self) -> None:
        """Remove the oldest parts until what is to be written is within the limit."""
        while self._older and self.size + len(self._bytes) > self._most:
            with contextlib.suppress(OSError):
                self._older[0][0].unlink()
            self._older.popleft()

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

    def _put(self) -> bool:
        """Whether the file took all of the bytes. It goes on where it stopped, so that none is torn."""
        self._make_room()
        while self._bytes:
            try:
                written = os.write(self._fd, self._bytes)
                self._bytes, self._size = self._bytes[written:], self._size + written
            except OSError as error:
                return self._refuse(error)
        self._refused = False
        self._taken = 0
        return True

    def _refuse(self, error: OSError) -> bool:
        if self.error is None:
            self._tell(
                f"The disk takes no more of {self._path} ({error.strerror}). It goes on without: free some space "
                "before the end, and what waits is written; or events of the record are lost."
            )
        self._refused, self.error = True, error.strerror or str(error)
        return False
