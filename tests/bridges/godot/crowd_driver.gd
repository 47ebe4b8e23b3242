# Runs the sample's village as it is (or, with `--bare`, a crowd whose members are recorders), tells what its client does as
# JSON lines on stdout, and takes commands as datagrams:
#     godot3-server --path bridges/godot -s DRIVER --url=ws://... --commands=PORT
extends SceneTree

var client
var commands = PacketPeerUDP.new()
var members = {}
var _stamps = {}
var _too_old = 0
var _frames = 0
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


func _initialize():
	var scene
	if "--bare" in OS.get_cmdline_args():
		scene = Node.new()
		client = load("res://rtcontrol_crowd.gd").new()
		client.name = "Crowd"
		client.safe_tool = "stop"
		client.add_tool("go", "Go.", {"way": {"type": "string", "enum": ["left", "right"]}, "fast": {"type": "boolean"}}, ["fast"])
		client.add_tool("stop", "Stop.")
		client.add_tool("hold", "Hold.")
		scene.add_child(client)
	else:
		scene = load("res://village.tscn").instance()
		client = scene.get_node("Crowd")
	for argument in OS.get_cmdline_args():
		if argument.begins_with("--commands="):
			commands.listen(int(argument.substr(11)), "127.0.0.1")
		if argument.begins_with("--url="):
			client.url = argument.substr(6)
		if argument.begins_with("--set="):
			_adjust(argument.substr(6))
	for what in ["welcomed", "lost", "heard_call", "acted", "told", "refused", "instructed", "trouble", "ended"]:
		client.connect(what, self, "_on_" + what)
	root.add_child(scene)
	for argument in OS.get_cmdline_args():
		if argument.begins_with("--join="):
			for id in argument.substr(7).split(","):
				_join(id, {})
		if argument.begins_with("--then="): # when they have joined, and before the start
			_adjust(argument.substr(7))
	if "--bare" in OS.get_cmdline_args():
		client.start()
	tell({"event": "ready"})


func _adjust(text):
	var pair = text.split(":", true, 1)
	client.set(pair[0], str2var(pair[1]))


func _join(id, terms):
	if members.has(id):
		members[id].queue_free()
	members[id] = Recorder.new()
	client.get_parent().add_child(members[id])
	return client.join(id, members[id], terms)


func _idle(_delta):
	_frames += 1
	_before_us = _began_us
	_began_us = OS.get_ticks_usec()
	while commands.get_available_packet_count() > 0:
		_obey(commands.get_packet().get_string_from_utf8())


func _obey(command):
	var words = command.split(" ", true, 2)
	match words[0]:
		"stats":
			var of = {}
			var accounts = {}
			for id in client.members():
				of[id] = client.call_of(id)
				accounts[id] = client.account(id)
			var village = client.get_parent()
			tell({"event": "stats", "statistics": client.statistics(), "state": client.state, "calls": of, "accounts": accounts,
				"address": client.address, "too_old": _too_old, "frames": _frames, "refusals": client.refusals,
				"gathered": village.gathered("well") if village.has_method("gathered") else 0})
		"join":
			tell({"event": "joined", "taken": _join(words[1], parse_json(words[2]))})
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
		"stall":
			OS.delay_msec(int(words[1]))
		"quit":
			quit()


func tell(event):
	event["at_ms"] = OS.get_ticks_usec() / 1e3
	print(to_json(event))


func _on_welcomed(message):
	tell({"event": "welcomed", "resumed": message["resumed"], "address": client.address})


func _on_heard_call(member, message, _latency_ms):
	_stamps[member] = message.get("t_obs_ns", 0)


func _on_acted(member, call, cause):
	var age_ms = (client.now_ns() - _stamps.get(member, 0)) / 1e6
	if cause == "call" and age_ms > client.ttl_ms + 1:
		_too_old += 1
	tell({"event": "acted", "member": member, "call": call, "cause": cause, "age_ms": age_ms,
		"frames_ms": (OS.get_ticks_usec() - _before_us) / 1e3})


func _on_told(member, outcome, message):
	tell({"event": "told", "member": member, "outcome": outcome, "tick": message["tick"]})


func _on_refused(member, why):
	tell({"event": "refused", "member": member, "why": why})


func _on_lost(why):
	tell({"event": "lost", "why": why})


func _on_instructed(text):
	tell({"event": "instructed", "text": text})


func _on_trouble(text):
	tell({"event": "trouble", "text": text})


func _on_ended(why):
	tell({"event": "ended", "why": why})
