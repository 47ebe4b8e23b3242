# Runs a crowd whose members record their calls, prints events as JSON lines, and reads commands from the page.
# Options follow `--` (see web.py): --url=ADDRESS, --set=PROPERTY:VALUE, --join=ID,ID.
extends Node

var client
var members = {}
var _stamps = {}
var _began_us = 0
var _before_us = 0


class Recorder:
	extends Node
	var stuck = 0 # so often its safe tool would not
	var letters = 10
	var done = []

	func go(way, _fast = null):
		done.append(way)

	func stop():
		stuck -= 1
		if stuck >= 0:
			return false

	func hold():
		done.append("hold")

	func observe():
		return null if letters < 0 else "x".repeat(letters)


func _ready():
	client = load("res://addons/rtcontrol/rtcontrol_crowd.gd").new()
	client.safe_tool = "stop"
	client.add_tool("go", "Go.", {"way": {"type": "string", "enum": ["left", "right"]}, "fast": {"type": "boolean"}}, ["fast"])
	client.add_tool("stop", "Stop.")
	client.add_tool("hold", "Hold.")
	for argument in OS.get_cmdline_user_args():
		if argument.begins_with("--url="):
			client.url = argument.substr(6)
		if argument.begins_with("--set="):
			_adjust(argument.substr(6))
	for what in ["welcomed", "lost", "heard_call", "acted", "told", "refused", "trouble", "ended"]:
		client.connect(what, Callable(self, "_on_" + what))
	add_child(client)
	for argument in OS.get_cmdline_user_args():
		if argument.begins_with("--join="):
			for id in argument.substr(7).split(","):
				_join(id, {})
	client.start()
	tell({"event": "ready"})


func _adjust(text):
	var pair = text.split(":", true, 1)
	client.set(pair[0], str_to_var(pair[1]))


func _join(id, terms):
	if members.has(id):
		members[id].queue_free()
	members[id] = Recorder.new()
	add_child(members[id])
	return client.join(id, members[id], terms)


func _process(_delta):
	_before_us = _began_us
	_began_us = Time.get_ticks_usec()
	var command = JavaScriptBridge.eval("window.commands.shift() || ''", true)
	if command:
		_obey(command)


func _obey(command):
	var words = command.split(" ", true, 2)
	match words[0]:
		"stats":
			var of = {}
			var accounts = {}
			for id in client.members():
				of[id] = client.call_of(id)
				accounts[id] = client.account(id)
			tell({"event": "stats", "statistics": client.statistics(), "calls": of, "accounts": accounts})
		"join":
			tell({"event": "joined", "taken": _join(words[1], JSON.parse_string(words[2]))})
		"many":
			for number in int(words[1]):
				_join("member-%d" % number, {})
		"set":
			_adjust(words[1])
		"leave":
			client.leave(words[1])
		"free":
			members[words[1]].free()
		"stuck":
			members[words[1]].stuck = int(words[2])
		"letters":
			for one in members.values():
				one.letters = int(words[1])
		"instruct":
			client.instruct(words[2], null if words[1] == "all" else words[1])


func tell(event):
	event["at_ms"] = Time.get_ticks_usec() / 1e3
	print(JSON.stringify(event))


func _on_welcomed(message):
	tell({"event": "welcomed", "resumed": message["resumed"], "address": client.address})


func _on_heard_call(member, message, _latency_ms):
	_stamps[member] = message.get("t_obs_ns", 0)


func _on_acted(member, call, cause):
	var age_ms = (client.now_ns() - _stamps.get(member, 0)) / 1e6
	tell({"event": "acted", "member": member, "call": call, "cause": cause, "age_ms": age_ms,
		"frames_ms": (Time.get_ticks_usec() - _before_us) / 1e3})


func _on_told(member, outcome, message):
	tell({"event": "told", "member": member, "outcome": outcome, "tick": message["tick"]})


func _on_refused(member, why):
	tell({"event": "refused", "member": member, "why": why})


func _on_lost(why):
	tell({"event": "lost", "why": why})


func _on_trouble(text):
	tell({"event": "trouble", "text": text})


func _on_ended(why):
	tell({"event": "ended", "why": why})
