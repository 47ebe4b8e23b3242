"""Run the Godot project in the engine's web build, in a headless browser.

`RTCONTROL_GODOT4_WEB` names a folder with `index.js` and `index.wasm` from a web export of any Godot 4 project.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import re
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.bridges.client.worlds import ROOT, free_port
from tests.bridges.program import Program

PROJECT = ROOT / "bridges" / "godot"
ADDON = PROJECT / "addons" / "rtcontrol"
HERE = Path(__file__).resolve().parent
BUILD = os.environ.get("RTCONTROL_GODOT4_WEB", "")
BROWSER = shutil.which("chromium")
MISSING = "" if BUILD and BROWSER else "no web build of Godot 4 (RTCONTROL_GODOT4_WEB), or no chromium"
REL_FILEBASE = 2
TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html"}
SCENE = """[gd_scene load_steps=2 format=3]

[ext_resource type="Script" path="res://test.gd" id="1"]

[node name="Test" type="Node"]
script = ExtResource("1")
"""
PAGE = """<!DOCTYPE html><html><body><canvas id="canvas"></canvas><script src="index.js"></script><script>
let told = Promise.resolve();
const tell = (kind) => (...words) => {
  const body = JSON.stringify({ kind, text: words.join(' ') });
  told = told.then(() => fetch('/told', { method: 'POST', body })).catch(() => {});
};
window.commands = [];
(async () => {
  for (;;) {
    const command = await fetch('/command').then((answer) => answer.text()).catch(() => '');
    if (command) window.commands.push(command);
  }
})();
new Engine({ args: ARGS, executable: 'index', mainPack: 'game.pck',
  canvas: document.getElementById('canvas'), canvasResizePolicy: 0, focusCanvas: false, gdextensionLibs: [],
  fileSizes: {}, emscriptenPoolSize: 8, godotPoolSize: 4,
  onPrint: tell('out'), onPrintError: tell('error') }).startGame().catch((error) => tell('error')(String(error)));
</script></body></html>"""


def pack(files: dict[str, bytes]) -> bytes:
    """Pack a project's files in the engine's pack format (version 2)."""
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


def project(script: str, files: dict[str, Any]) -> dict[str, bytes]:
    """Return the project's files with a test script as main scene, and with further JSON files."""
    result = {p.relative_to(PROJECT).as_posix(): p.read_bytes() for p in PROJECT.rglob("*") if p.is_file()}
    # A web build has no editor.
    settings = re.sub(r"\[editor_plugins\].*?\n\n(?=\[)", "", result["project.godot"].decode(), flags=re.S)
    result["project.godot"] = settings.replace("res://main.tscn", "res://test.tscn").encode()
    result |= {"test.tscn": SCENE.encode(), "test.gd": (HERE / script).read_bytes()}
    return result | {name: json.dumps(value, ensure_ascii=False).encode() for name, value in files.items()}


class Engine(Program):
    """A browser that runs the project with a test script and its options."""

    begins = "{"

    def __init__(self, home: Path, script: str, *options: str, **files: Any) -> None:
        self._commands: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        port = free_port()
        args = json.dumps(["--headless", "--", *options])
        served = {
            "/": PAGE.replace("ARGS", args).encode(),
            "/game.pck": pack(project(script, {f"{k}.json": v for k, v in files.items()})),
        }
        self._server = ThreadingHTTPServer(("127.0.0.1", port), handler(self._command, self._told, served))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--mute-audio", "--use-angle=swiftshader"]
        flags += ["--enable-unsafe-swiftshader", "--disable-background-timer-throttling"]
        profile = f"--user-data-dir={home / f'browser-{port}'}"
        super().__init__([str(BROWSER), *flags, profile, f"http://127.0.0.1:{port}/"], stderr=subprocess.DEVNULL)
        if script != "vectors.gd":
            self.until(lambda event: event["event"] == "ready", "ready", 120.0)

    def _command(self) -> str:
        try:
            return self._commands.get(timeout=5.0)
        except queue.Empty:
            return ""

    def _told(self, kind: str, text: str) -> None:
        if kind == "error":
            self._errors.append(text)
        elif text.startswith(self.begins):
            self._lines.put(text)

    def say(self, command: str) -> None:
        self._commands.put(command)

    def stats(self) -> dict[str, Any]:
        self.say("stats")
        return self.event("stats")

    def errors(self) -> str:
        return "\n".join(self._errors)

    def faults(self) -> list[str]:
        """Return the script errors, which the engine prints before it continues."""
        return [line for line in self._errors if "SCRIPT ERROR" in line or "Parse Error" in line]

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()
        self._server.shutdown()


def handler(
    command: Callable[[], str], reported: Callable[[str, str], None], served: dict[str, bytes]
) -> type[BaseHTTPRequestHandler]:
    """Return the handler of the page's web server, which serves the engine and the game, and relays commands and
    output."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            file = Path(BUILD) / path.lstrip("/")
            body = command().encode() if path == "/command" else served.get(path)
            if body is None and file.is_file():
                body = file.read_bytes()
            self.send_response(200 if body is not None else 404)
            kind = TYPES.get(file.suffix, "application/octet-stream") if path != "/" else "text/html"
            self.send_header("Content-Type", kind)
            # The engine's threads need this header.
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            self.end_headers()
            with contextlib.suppress(OSError):  # the browser has ended
                self.wfile.write(body or b"")

        def do_POST(self) -> None:
            line: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reported(line["kind"], line["text"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Handler


Start = Callable[..., Engine]
