"""A headless Chromium that is controlled by the debugging protocol."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
from websockets.sync.client import connect

from tests.helpers.processes import until

BINARY = next((b for b in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if b), None)
in_chromium = pytest.mark.skipif(BINARY is None, reason="there is no Chromium to show the page")
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio", "--no-first-run")
KEYS = {"ArrowLeft": 37, "ArrowRight": 39, "Tab": 9, "Enter": 13, "Escape": 27}


class Chromium:
    """A browser page; `errors` has the messages of the console."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        assert BINARY is not None, "no Chromium"
        command = [BINARY, *ARGUMENTS, "--remote-debugging-port=0", f"--user-data-dir={folder}", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        reported = folder / "DevToolsActivePort"
        until(lambda: reported.exists() and reported.read_text(), "Chromium did not start", 30, 0.05)
        port = reported.read_text().splitlines()[0]
        target = httpx.put(f"http://127.0.0.1:{port}/json/new?about:blank").json()
        self._socket = connect(target["webSocketDebuggerUrl"], max_size=None, compression=None)
        self._ids = itertools.count(1)
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(20)

    def call(self, method: str, **params: Any) -> Any:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            self._note(message)
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(str(params["entry"]))

    def open(self, url: str, width: int = 1280, height: int = 800) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def until(self, expression: str, timeout_s: float = 20.0) -> None:
        requested = f"typeof rtcontrol === 'undefined' ? null : ({expression})"
        until(lambda: self.value(requested), f"not so: {expression}; errors: {self.errors}", timeout_s, 0.05)

    def key(self, name: str) -> None:
        text = {"Enter": "\r"}.get(name, name if len(name) == 1 else "")
        code = name if name in KEYS else f"Key{name.upper()}"
        stroke = {"key": name, "code": code, "windowsVirtualKeyCode": KEYS.get(name, ord(name[0].upper()))}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **stroke)
        self.call("Input.dispatchKeyEvent", type="keyUp", **stroke)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)
