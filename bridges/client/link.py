"""The one thread that owns the client's socket: connects, sends what is due, hears, ends what expired."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from rtcontrol.bridges.client.core import Core
from rtcontrol.bridges.client.errors import ClientError
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.client.transport import HIGH_WATER, Dealer
from rtcontrol.bridges.wire import Message, WireError, decode_msgpack, encode_msgpack
from rtcontrol.bridges.wire.messages import Bye

log = logging.getLogger(__name__)


class Link:
    """Carries a Core over a Dealer. `lock` guards the core; `changed` is called, without the lock, in the link's thread
    whenever something a user may wait for has changed."""

    def __init__(self, endpoint: str, options: Options, listens: bool, changed: Callable[[], None]) -> None:
        self.core, self.lock = Core(options, time.monotonic_ns(), listens), threading.Lock()
        self._changed, self._closing = changed, False
        keys = options.key_pairs()
        if listens and keys is not None:
            raise ClientError("A client that listens uses no keys.", "Listen on loopback, or let the server bind.")
        self._dealer = Dealer(endpoint, keys, listens)
        self.wake = self._dealer.wake
        self._thread = threading.Thread(target=self._run, name="rtcontrol-client", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say bye and end the thread; takes milliseconds."""
        self._closing = True
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(0.5)

    def _run(self) -> None:
        why = ClientError("The client was closed.", "Connect anew.")
        try:
            while not self._closing:
                self._turn()
        except Exception as error:  # a fault of ours must end safe, not silently
            log.exception("The client's thread failed.")
            why = ClientError(f"The client failed ({type(error).__name__}: {error}).", "Report it.")
        with self.lock:
            try:
                if self.core.connection.open:
                    bye = Bye(session=self.core.welcome.session if self.core.welcome else None, reason="closed")
                    self._send([*self.core.due(time.monotonic_ns()), bye])
            except Exception as error:
                log.warning("No goodbye could be said (%s: %s).", type(error).__name__, error)
            finally:
                self.core.end(why, time.monotonic_ns())
        self._changed()
        self._dealer.close()

    def _turn(self) -> None:
        core, now_ns = self.core, time.monotonic_ns()
        with self.lock:
            version = core.version
            for why in self._dealer.events(core.connection.up):
                if why is None:
                    core.connected(now_ns)
                else:
                    core.lost(now_ns, why or core.connection.trouble)
            if core.reconnects(now_ns):
                self._dealer.open()
            core.look(now_ns)
            self._send(core.due(now_ns))
            wake_ns = core.wake_ns(now_ns)
        if version != core.version:
            self._changed()
        # Rounded up: a timer that fires too early would spin.
        self._dealer.wait(-(-(wake_ns - now_ns) // 1_000_000))
        self._hear()

    def _hear(self) -> None:
        version = self.core.version
        # Bounded, so that a flood cannot keep what is in force from ending; read without the lock, so that nobody else
        # waits for that.
        for _ in range(HIGH_WATER):
            if (parts := self._dealer.receive()) is None:
                break
            now_ns = time.monotonic_ns()
            try:
                message = decode_msgpack(parts)
            except WireError as error:
                with self.lock:
                    self.core.tally.ignored[str(error.code)] += 1
                continue
            with self.lock:
                self.core.hear(message, now_ns)
                self.core.look(time.monotonic_ns())
        if version != self.core.version:
            self._changed()

    def _send(self, messages: list[Message]) -> None:
        for i, message in enumerate(messages):
            if not self._dealer.send(encode_msgpack(message)):
                self.core.unsent(messages[i:], time.monotonic_ns())
                return
