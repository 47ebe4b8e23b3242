"""`python -m tests.bridges.godot.port`: write the Godot 4 addon from the Godot 3 client.

One source: what the engine tests say of the Godot 3 files holds for the port, but for what is replaced here. Each rule
must be of use, and each piece must be there, so that a change of the source that the port would not follow is an error.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3] / "bridges" / "godot"
TARGET = SOURCE / "godot4"
ADDON = "addons/rtcontrol"
SCRIPTS = ("wire", "in_force", "phase", "driven", "connection", "client", "crowd")
SCENES = ("main", "village")
HEAD = (
    "# Written by `python -m tests.bridges.godot.port` from the file of the same name for Godot 3: change that one.\n"
)

# The same everywhere: what Godot 4 has another name or form for.
RULES = (
    (r"\bextends Reference\b", "extends RefCounted"),
    (r"\bexport\(String, MULTILINE\) var (\w+) =", r"@export_multiline var \1: String ="),
    (r"\bexport\(String\) var (\w+) =", r"@export var \1: String ="),
    (r"\bexport\(float\) var (\w+) =", r"@export var \1: float ="),
    (r"\bexport\(bool\) var (\w+) =", r"@export var \1: bool ="),
    (r"\bexport\(int\) var (\w+) =", r"@export var \1: int ="),
    (r"\bexport\(Array, String\) var (\w+) =", r"@export var \1: Array ="),
    (r"\bvar world = null setget _drive #([^\n]*)", r"var world = null: #\1\n\tset = _drive"),
    (r"\.empty\(\)", ".is_empty()"),
    (r"\bPoolStringArray\b", "PackedStringArray"),
    (r"\berrors\.join\(\"; \"\)", '"; ".join(errors)'),
    (r"\bPackedStringArray\(seen\)\.join\(\" \"\)", '" ".join(PackedStringArray(seen))'),
    (r"\bTYPE_REAL\b", "TYPE_FLOAT"),
    (r"\bOS\.get_ticks_usec\b", "Time.get_ticks_usec"),
    (r"\bOS\.get_cmdline_args\b", "OS.get_cmdline_user_args"),
    (r"\brand_range\b", "randf_range"),
    (r"\.to_utf8\(\)", ".to_utf8_buffer()"),
    (r"\bpause_mode = PAUSE_MODE_PROCESS\b", "process_mode = Node.PROCESS_MODE_ALWAYS"),
    (r"(\w+)\.connect\(\"(\w+)\", self, \"(\w+)\", \[(\w+)\]\)", r"\1.\2.connect(\3.bind(\4))"),
    (r"([\w.]+)\.connect\(\"(\w+)\", self, \"(\w+)\"\)", r"\1.\2.connect(\3)"),
    (r"\bemit_signal\(\"(\w+)\"(?:, )?", r"\1.emit("),
    (r"\breturn \._refused\(", "return super._refused("),
    (r"\bupdate\(\)", "queue_redraw()"),
    (r"\bgodot3-server --path bridges/godot\b", "godot --headless --path bridges/godot/godot4"),
    (r"for Godot 3\.2 and later 3\.x", "for Godot 4"),
    (r"\"godot\", \"version\"", '"godot4", "version"'),
)  # fmt: skip

# A file's own pieces: (as it is after the rules, as it becomes).
PIECES: dict[str, tuple[tuple[str, str], ...]] = {
    "wire": (
        (
            """	var escaped = false
	var over = false
	var coded = false
""",
            """	var escaped = false
	var over = false
""",
        ),
        (
            """			escaped = false
			coded = coded or byte == 117
""",
            """			escaped = false
""",
        ),
        (
            """	var text = packet.get_string_from_utf8()
	if coded:
		text = _paired(text)
	var parsed = JSON.parse(text)
	if text == "" or parsed.error != OK or not parsed.result is Dictionary:
		return "no JSON object"
	var message = parsed.result
""",
            """	var text = packet.get_string_from_utf8()
	# The engine replaces what is no UTF-8, and goes on.
	if text.to_utf8_buffer() != packet:
		return "no JSON object"
	var parser = JSON.new()
	if parser.parse(text) != OK or not parser.data is Dictionary:
		return "no JSON object"
	var message = parser.data
""",
        ),
        ("; unlike to_json it keeps the order of keys, for", ", with its keys in their order:"),
        ("# No RegEx where none is needed: Debian's 3.2.3 prints an error at each use of one.\n", ""),
        ("JSON.print(message)", 'JSON.stringify(message, "", false, true)'),
    ),
    "connection": (
        (
            """		_ws.disconnect_from_host(1000, "")
""",
            """		_ws.close(1000, "")
""",
        ),
        (
            """	_ws = WebSocketClient.new()
	_ws.set_buffers(Wire.MAX_BYTES / 1024, 2048, 256, 2048)
""",
            """	# Before the connection is made: the engine allocates them then.
	_ws = WebSocketPeer.new()
	_ws.inbound_buffer_size = Wire.MAX_BYTES + 65536
	_ws.outbound_buffer_size = Wire.MAX_BYTES + 65536
	_ws.max_queued_packets = 2048
""",
        ),
        (
            """	_close = [-1, ""]
	_ws.server_close_request.connect(_on_close_request)
""",
            "",
        ),
        (
            """var _close = [-1, ""] # what the server closed the WebSocket with: code, reason
""",
            "",
        ),
        (
            """func _on_close_request(code, reason):
	_close = [code, reason]


""",
            "",
        ),
        (
            """func _closed():
	if state""",
            """func _closed():
	var _close = [_ws.get_close_code(), _ws.get_close_reason()]
	if state""",
        ),
        (
            """	if _ws.connect_to_url(address, protocols) != OK:
""",
            """	_ws.supported_protocols = protocols
	if _ws.connect_to_url(address) != OK:
""",
        ),
        (
            """: a message may end the connection, and reading on would not end.
	while _ws != null and _ws.get_connection_status() == WebSocketClient.CONNECTION_CONNECTED:
		if state == CONNECTING:
			state = GREETING
			_heard_ns = now_ns()
			_ws.get_peer(1).set_write_mode(WebSocketPeer.WRITE_MODE_TEXT)
			_greet()
		if _ws.get_peer(1).get_available_packet_count() == 0:
			return
		hear(_ws.get_peer(1).get_packet())
""",
            """: a message may end the connection.
	if state == CONNECTING and _ws.get_ready_state() == WebSocketPeer.STATE_OPEN:
		state = GREETING
		_heard_ns = now_ns()
		_greet()
	while _ws != null and state != CONNECTING and _ws.get_available_packet_count() > 0:
		var packet = _ws.get_packet()
		if _ws.was_string_packet():
			hear(packet)
		else:
			counts["errors"] += 1 # a binary message is none of the protocol's
""",
        ),
        (
            """	if _ws.get_connection_status() == WebSocketClient.CONNECTION_DISCONNECTED:
""",
            """	if _ws.get_ready_state() == WebSocketPeer.STATE_CLOSED:
""",
        ),
        (
            """	if _ws == null or _ws.get_connection_status() != WebSocketClient.CONNECTION_CONNECTED:
		return
	_said_ns""",
            """	if _ws == null or _ws.get_ready_state() != WebSocketPeer.STATE_OPEN:
		return
	# The engine would write inf and nan as they are, and the whole message would be none.
	if not Wire.has_finite_numbers(message):
		trouble.emit("a %s with a number that is not finite is not sent" % message["type"])
		return
	_said_ns""",
        ),
        (
            """	_ws.get_peer(1).put_packet(packet)
""",
            """	_ws.send(packet, WebSocketPeer.WRITE_MODE_TEXT)
""",
        ),
    ),
    "client": (
        (
            """ Copy it with the five files rtcontrol_connection.gd, rtcontrol_driven.gd,
# rtcontrol_in_force.gd, rtcontrol_phase.gd and rtcontrol_wire.gd into a folder of a project, put it on a Node that is
# the child of what is to be driven, add""",
            """ Enable the addon in the project's settings, put a node RtControl below what is to
# be driven, add""",
        ),
    ),
    "crowd": (
        (
            """ Copy it with the four files
# rtcontrol_connection.gd, rtcontrol_driven.gd, rtcontrol_in_force.gd and rtcontrol_wire.gd, and put it on a Node:
""",
            """ Enable
# the addon in the project's settings, and add a node RtControlCrowd:
""",
        ),
        (
            """func join(id, node, terms = {}):
""",
            """func join(id, node, terms = {}):
	if id is StringName:
		id = String(id) # as the name of a node is
""",
        ),
    ),
}  # fmt: skip
# What no piece can say in a few lines: a function that Godot 4 has no need of, its parser pairs surrogates itself.
LEFT_OUT = {
    "wire": r"\n\n# The engine reads an escaped character beyond 16 bits[^\n]*\nstatic func _paired\(.*?(?=\n\n\n)"
}

PLUGIN_CFG = """[plugin]

name="rtcontrol"
description="Lets an rtcontrol server drive nodes by function calls in real time: RtControl, RtControlCrowd."
author="rtcontrol"
version="0.1.0"
script="plugin.gd"
"""
PLUGIN = """# The editor's part: two kinds of nodes to add.
@tool
extends EditorPlugin


func _enter_tree():
	add_custom_type("RtControl", "Node", preload("rtcontrol_client.gd"), null)
	add_custom_type("RtControlCrowd", "Node", preload("rtcontrol_crowd.gd"), null)


func _exit_tree():
	remove_custom_type("RtControl")
	remove_custom_type("RtControlCrowd")
"""
PROJECT = """; Engine configuration file of Godot 4. Open this folder in the editor: see ../README.md.

config_version=5

[application]

config/name="rtcontrol courier"
run/main_scene="res://main.tscn"
run/max_fps=60
config/features=PackedStringArray("4.2")

[editor_plugins]

enabled=PackedStringArray("res://addons/rtcontrol/plugin.cfg")

[display]

window/size/viewport_width=800
window/size/viewport_height=480
"""


class PortError(Exception):
    """A rule or a piece that fits nothing any more."""


def script(name: str, text: str) -> str:
    """A Godot 3 script as one for Godot 4. Raises PortError where a piece of its own is not there."""
    for pattern, into in RULES:
        text = re.sub(pattern, into, text)
    for before, after in PIECES.get(name, ()):
        if text.count(before) != 1:
            raise PortError(f"{name}: {text.count(before)} times, not once:\n{before}")
        text = text.replace(before, after)
    if name in LEFT_OUT:
        text, found = re.subn(LEFT_OUT[name], "", text, flags=re.DOTALL)
        if found != 1:
            raise PortError(f"{name}: {found} times, not once: {LEFT_OUT[name]}")
    return HEAD + text


def scene(text: str) -> str:
    """A Godot 3 scene as one for Godot 4."""
    text = text.replace(" format=2]", " format=3]")
    text = re.sub(
        r"\[ext_resource path=\"([^\"]+)\" type=\"(\w+)\" id=(\d+)\]",
        r'[ext_resource type="\2" path="\1" id="\3"]',
        text,
    )
    text = re.sub(r"ExtResource\( (\d+) \)", r'ExtResource("\1")', text)
    return text.replace("res://rtcontrol_", f"res://{ADDON}/rtcontrol_")


def files() -> dict[str, str]:
    """Every file of the Godot 4 project by its path in it. Raises PortError."""
    sources = {name: (SOURCE / f"rtcontrol_{name}.gd").read_text("utf-8") for name in SCRIPTS}
    scenes = {name: (SOURCE / f"{name}.gd").read_text("utf-8") for name in SCENES}
    together = "\n".join([*sources.values(), *scenes.values()])
    for pattern, into in RULES:
        together, found = re.subn(pattern, into, together)
        if not found:
            raise PortError(f"the rule {pattern} is of no use any more")
    made = {f"{ADDON}/rtcontrol_{name}.gd": script(name, text) for name, text in sources.items()}
    made |= {f"{name}.gd": script(name, text) for name, text in scenes.items()}
    made |= {f"{name}.tscn": scene((SOURCE / f"{name}.tscn").read_text("utf-8")) for name in SCENES}
    made |= {f"{ADDON}/plugin.cfg": PLUGIN_CFG, f"{ADDON}/plugin.gd": PLUGIN, "project.godot": PROJECT}
    made[f"{ADDON}/LICENSE"] = (SOURCE.parent / "LICENSE").read_text("utf-8")
    return made


def main() -> int:
    made = files()
    for path, text in made.items():
        file = TARGET / path
        if not file.is_file() or file.read_text("utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8", newline="\n")
            print(path)
    for file in sorted(TARGET.rglob("*")):
        if file.is_file() and file.relative_to(TARGET).as_posix() not in made:
            file.unlink()
            print(f"{file.relative_to(TARGET).as_posix()} (removed)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
