"""The Godot 4 project in the engine's own web build, in a headless browser.

`RTCONTROL_GODOT4_WEB` names a folder with `index.js` and `index.wasm` of a web export of Godot 4 (any project's).
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import struct
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BUILD = os.environ.get("RTCONTROL_GODOT4_WEB", "")
BROWSER = shutil.which("chromium")
MISSING = "" if BUILD and BROWSER else "no web build of Godot 4 (RTCONTROL_GODOT4_WEB), or no chromium"
REL_FILEBASE = 2
TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html"}
PAGE = """<!DOCTYPE html><html><body><canvas id="canvas"></canvas><script src="index.js"></script><script>
let told = Promise.resolve();
const tell = (kind) => (...words) => {
  const body = JSON.stringify({ kind, text: words.join(' ') });
  told = told.then(() => fetch('/told', { method: 'POST', body })).catch(() => {});
};
new Engine({ args: ['--headless'], executable: 'index', mainPack: 'game.pck',
  canvas: document.getElementById('canvas'), canvasResizePolicy: 0, focusCanvas: false, gdextensionLibs: [],
  fileSizes: {}, emscriptenPoolSize: 8, godotPoolSize: 4,
  onPrint: tell('out'), onPrintError: tell('error') }).startGame().catch((error) => tell('error')(String(error)));
</script></body></html>"""


def pack(files: dict[str, bytes]) -> bytes:
    """The files of a project as the engine's pack (version 2)."""
    entries, body = b"", b""
    for path, data in files.items():
        name = path.encode()
        name += b"\0" * (-len(name) % 4)
        entries += struct.pack("<I", len(name)) + name + struct.pack("<QQ", len(body), len(data))
        entries += hashlib.md5(data, usedforsecurity=False).digest() + struct.pack("<I", 0)
        body += data + b"\0" * (-len(data) % 16)
    entries = struct.pack("<I", len(files)) + entries
    head = 4 * 5 + 4 + 8 + 64
    base = head + len(entries)
    return b"GDPC" + struct.pack("<IIIIIQ", 2, 4, 0, 0, REL_FILEBASE, base) + bytes(64) + entries + body


class WebEngine:
    """A browser that runs a project. What it prints comes as `lines`, errors of the engine as `errors`."""

    def __init__(self, home: Path, port: int, files: dict[str, bytes]) -> None:
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: list[str] = []
        served = {
            "/": PAGE.encode(),
            "/game.pck": pack(files),
        }
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                file = Path(BUILD) / path.lstrip("/")
                body = served.get(path) or (file.read_bytes() if file.is_file() else None)
                self.send_response(200 if body is not None else 404)
                kind = TYPES.get(file.suffix, "application/octet-stream") if path != "/" else "text/html"
                self.send_header("Content-Type", kind)
                # The engine's threads want it.
                self.send_header("Cross-Origin-Opener-Policy", "same-origin")
                self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
                self.end_headers()
                self.wfile.write(body or b"")

            def do_POST(self) -> None:
                told: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if told["kind"] == "error":
                    engine.errors.append(told["text"])
                else:
                    engine.lines.put(told["text"])
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--mute-audio", "--use-angle=swiftshader"]
        flags += ["--enable-unsafe-swiftshader", "--disable-background-timer-throttling", f"--user-data-dir={home}"]
        self._browser = subprocess.Popen(
            [str(BROWSER), *flags, f"http://127.0.0.1:{port}/"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def event(self, seconds: float = 60.0) -> dict[str, Any]:
        """The next line that is JSON."""
        while True:
            try:
                line = self.lines.get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"nothing is told: {self.errors[-20:]}") from None
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found

    def until(self, **fields: Any) -> dict[str, Any]:
        """The next event that has these fields."""
        while not (found := self.event()).items() >= fields.items():
            pass
        return found

    def end(self) -> None:
        self._browser.terminate()
        self._browser.wait()
        self._server.shutdown()
