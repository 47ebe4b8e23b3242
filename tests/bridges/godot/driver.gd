# Runs the sample's scene as it is, tells what its client does as JSON lines on stdout, and takes commands as datagrams:
#     godot3-server --path bridges/godot -s DRIVER --url=ws://... --commands=PORT
extends SceneTree

var client
var commands = PacketPeerUDP.new()
var latencies = []
var ages = []
var _frames = 0
var _began_us = 0 # the frame
var _before_us = 0 # the one before
var _stamp_ns = 0
var _too_old = 0
var _slow_ms = 0


# Is driven instead, with `--stubborn`: its safe tools would not, `stuck` times.
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
			print(to_json({"event": "stuck", "name": name}))
		return stuck < 0


func _initialize():
	var scene = load("res://main.tscn").instance()
	client = scene.get_node("RtControl")
	for argument in OS.get_cmdline_args():
		if argument.begins_with("--commands="):
			commands.listen(int(argument.substr(11)), "127.0.0.1")
		if argument.begins_with("--set="):
			var pair = argument.substr(6).split(":", true, 1)
			client.set(pair[0], str2var(pair[1]))
		if argument == "--stubborn":
			client.world = Stubborn.new()
		if argument.begins_with("--tool="):
			var tool = argument.substr(7).split(":", true, 1)
			client.add_tool(tool[0], "", str2var(tool[1]))
	for what in ["welcomed", "lost", "heard_call", "acted", "told", "instructed", "trouble", "ended"]:
		client.connect(what, self, "_on_" + what)
	root.add_child(scene)
	tell({"event": "ready"})


func _idle(_delta):
	_frames += 1
	_before_us = _began_us
	_began_us = OS.get_ticks_usec()
	while commands.get_available_packet_count() > 0:
		_obey(commands.get_packet().get_string_from_utf8())


func _obey(command):
	var words = command.split(" ", true, 1)
	match words[0]:
		"stats":
			tell({"event": "stats", "counts": client.counts, "state": client.state, "in_force": client.rule.kind, "owed": client.rule.owed,
				"epoch": client.rule.epoch, "too_old": _too_old, "latency_ms": latencies, "age_ms": ages,
				"memory_kb": OS.get_static_memory_usage() / 1024, "frames": _frames,
				"address": client.address, "parcels": root.get_child(0).parcels})
		"forget":
			latencies.clear()
			ages.clear()
			for key in client.counts:
				client.counts[key] = 0
		"stall":
			OS.delay_msec(int(words[1]))
		"slow":
			_slow_ms = int(words[1]) # takes whoever hears the next call
		"stuck":
			client.world.stuck = int(words[1])
		"next":
			var now = client.now_ns() # once: the machine may stand still between two looks
			tell({"event": "next", "in_ns": client.next_observation_ns(int(words[1]), now) - now,
				"release_ns": client.get("_release_ns"), "now_ns": now, "clock": client.get("_clock")})
		"pauses":
			var found = []
			for _i in range(8):
				found.append(client.call("_by_chance", 1000.0))
			tell({"event": "pauses", "ns": found, "refused_ms": client.get("_refused_ms")})
		"instruct":
			client.instruct(words[1])
		"reset":
			client.reset()
		"stop":
			client.stop()
		"leave":
			client.get_parent().free() # as a change of the scene does
		"lose":
			client.world = load("res://main.gd").new() # is driven instead, and goes
			client.world.free()
		"quit":
			quit()


func tell(event):
	event["at_ms"] = OS.get_ticks_usec() / 1e3
	print(to_json(event))


func _on_welcomed(message):
	tell({"event": "welcomed", "resumed": message["resumed"], "instruction": message["instruction"]})


func _on_heard_call(message, latency_ms):
	OS.delay_msec(_slow_ms)
	_slow_ms = 0
	_stamp_ns = message.get("t_obs_ns", 0)
	if message["status"] == "fresh":
		latencies.append(latency_ms)


func _on_acted(call, cause):
	var age_ms = (client.now_ns() - _stamp_ns) / 1e6
	if cause == "call":
		ages.append(age_ms)
		if age_ms > client.ttl_ms + 1:
			_too_old += 1
	tell({"event": "acted", "call": call, "cause": cause, "age_ms": age_ms,
		"frames_ms": (OS.get_ticks_usec() - _before_us) / 1e3})


func _on_told(outcome, message):
	if outcome != "executed":
		tell({"event": "told", "outcome": outcome, "tick": message["tick"]})


func _on_lost(why):
	tell({"event": "lost", "why": why})


func _on_instructed(text):
	tell({"event": "instructed", "text": text})


func _on_trouble(text):
	tell({"event": "trouble", "text": text})


func _on_ended(why):
	tell({"event": "ended", "why": why})
