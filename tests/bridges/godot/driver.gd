# Runs the sample's scene, prints the client's events as JSON lines, and reads commands from the page.
# Options follow `--` (see web.py): --url=ADDRESS, --set=PROPERTY:VALUE, --tool=NAME:PROPERTIES, --stubborn.
extends Node

var client
var _before_us = 0 # the start of the frame before this one
var _began_us = 0
var _stamp_ns = 0
var _slow_ms = 0


# The node that is driven with `--stubborn`: its safe tools fail `stuck` times.
class Stubborn:
	extends Node
	var stuck = 0

	func go(_direction, _speed = 2):
		pass

	func hold():
		return _would("hold")

	func stop():
		return _would("stop")

	func observe():
		return "here"

	func _would(name):
		stuck -= 1
		if stuck >= 0:
			print(JSON.stringify({"event": "stuck", "name": name}))
		return stuck < 0


func _ready():
	var scene = load("res://main.tscn").instantiate()
	client = scene.get_node("RtControl")
	for argument in OS.get_cmdline_user_args():
		if argument.begins_with("--set="):
			var pair = argument.substr(6).split(":", true, 1)
			client.set(pair[0], str_to_var(pair[1]))
		if argument == "--stubborn":
			client.world = Stubborn.new()
		if argument.begins_with("--tool="):
			var tool = argument.substr(7).split(":", true, 1)
			client.add_tool(tool[0], "", str_to_var(tool[1]))
	for what in ["welcomed", "lost", "heard_call", "acted", "instructed", "trouble", "ended"]:
		client.connect(what, Callable(self, "_on_" + what))
	add_child(scene)
	tell({"event": "ready"})


func _process(_delta):
	_before_us = _began_us
	_began_us = Time.get_ticks_usec()
	var command = JavaScriptBridge.eval("window.commands.shift() || ''", true)
	if command:
		_obey(command)


func _obey(command):
	var words = command.split(" ", true, 1)
	match words[0]:
		"stats":
			tell({"event": "stats", "counts": client.counts, "state": client.state, "active": client.rule.kind,
				"owed": client.rule.owed, "address": client.address, "waits": client.phase.waits_ns.size(),
				"clocks": client.get("_clock").size()})
		"slow":
			_slow_ms = int(words[1]) # is how long the next call's signal takes
		"stuck":
			client.world.stuck = int(words[1])
		"instruct":
			client.instruct(words[1])
		"stop":
			client.stop()
		"lose":
			client.world = Stubborn.new() # is driven instead, and is freed
			client.world.free()


func tell(event):
	event["at_ms"] = Time.get_ticks_usec() / 1e3
	print(JSON.stringify(event))


func _on_welcomed(message):
	tell({"event": "welcomed", "resumed": message["resumed"], "instruction": message["instruction"]})


func _on_heard_call(message, _latency_ms):
	OS.delay_msec(_slow_ms)
	_slow_ms = 0
	_stamp_ns = message.get("t_obs_ns", 0)


func _on_acted(call, cause):
	var age_ms = (client.now_ns() - _stamp_ns) / 1e6
	tell({"event": "acted", "call": call, "cause": cause, "age_ms": age_ms,
		"frames_ms": (Time.get_ticks_usec() - _before_us) / 1e3})


func _on_lost(why):
	tell({"event": "lost", "why": why})


func _on_instructed(text):
	tell({"event": "instructed", "text": text})


func _on_trouble(text):
	tell({"event": "trouble", "text": text})


func _on_ended(why):
	tell({"event": "ended", "why": why})
