# Runs a client through the behaviour table (bridges/behaviour) with a simulated clock and sockets. Each command has the
# options of a case, or a step, as JSON; each answer has the client's actions and its state.
extends Node

const FRAME_NS = 10000000

var client
var world
var worlds = {} # of members, by their ids
var crowd = false
var at_ns = 0
var slept_ns = 0 # of it, while the machine was suspended
var up = false
var looks = false
var sockets = []
var connections = 0
var acts = []


# A simulated socket that opens and closes with the network.
class Socket:
	extends RefCounted
	var inbound_buffer_size = 0
	var outbound_buffer_size = 0
	var max_queued_packets = 0
	var supported_protocols = null
	var ready = WebSocketPeer.STATE_CONNECTING
	var packets = []
	var sent = []

	func connect_to_url(_url):
		return OK

	func poll():
		pass

	func get_ready_state():
		return ready

	func get_available_packet_count():
		return packets.size()

	func get_packet():
		return packets.pop_front()

	func was_string_packet():
		return true

	func send(bytes, _mode):
		sent.append(JSON.parse_string(bytes.get_string_from_utf8()))

	func close(_code, _reason):
		ready = WebSocketPeer.STATE_CLOSED

	func get_close_code():
		return -1

	func get_close_reason():
		return ""


# Clients that use the driver's clock and sockets, and observe only when a step says so.
class Timed:
	extends "res://addons/rtcontrol/rtcontrol_client.gd"
	var main

	func _ticks_ns():
		return main.at_ns - main.slept_ns

	func _wall_ns():
		return main.at_ns

	func _socket():
		return main.socket()

	func _observe(now):
		if main.looks:
			super._observe(now)


class TimedCrowd:
	extends "res://addons/rtcontrol/rtcontrol_crowd.gd"
	var main

	func _ticks_ns():
		return main.at_ns - main.slept_ns

	func _wall_ns():
		return main.at_ns

	func _socket():
		return main.socket()

	func _observe(now):
		if main.looks:
			super._observe(now)


class World:
	extends Node
	var text = null

	func left():
		pass

	func right():
		pass

	func stop():
		pass

	func dim():
		pass

	func observe():
		return text


func _ready():
	print(JSON.stringify({"event": "ready"}))


func _process(_delta):
	var command = JavaScriptBridge.eval("window.commands.shift() || ''", true)
	if command:
		print(JSON.stringify(obey(JSON.parse_string(command))))


func socket():
	sockets.append(Socket.new())
	return sockets[-1]


# Returns the answer to a command.
func obey(given):
	if given.has("options"):
		_begin(given["options"])
	else:
		_step(given)
	var sends = []
	for one in sockets:
		sends += one.sent
		one.sent = []
	var best = client.best_clock(at_ns)
	var seen = {"event": "seen", "sends": sends, "acts": acts, "active": "none" if crowd else _active(client.rule.kind, client.rule.calls, client._driven.cause),
		"state": {client.LIVE: "live", client.ENDED: "ended"}.get(client.state, "away"), "connections": connections,
		"offset_ms": null if best == null else best[1] / 1e6, "members": {}}
	for id in client.members() if crowd else []:
		var of = client.call_of(id)
		seen["members"][id] = "none" if of["cause"] == "no_call_yet" \
			else _active("safe" if of["status"] == "safe" else "call", of["calls"], of["cause"])
	acts = []
	return seen


func _active(kind, calls, cause):
	var names = []
	for call in calls:
		names.append(call["name"])
	return {"none": "none", "call": "call " + "+".join(names), "safe": "safe " + cause}[kind]


func _begin(options):
	if client != null:
		client.free()
		world.free()
	for id in worlds:
		worlds[id].free()
	worlds = {}
	at_ns = 1000000000
	slept_ns = 0
	up = false
	sockets = []
	connections = 0
	crowd = options["crowd"]
	world = World.new()
	client = TimedCrowd.new() if crowd else Timed.new()
	client.main = self
	client.instruction = options["instruction"]
	client.ttl_ms = options["ttl_ms"]
	client.persist = options["persist"]
	for tool in options["tools"]:
		client.add_tool(tool["function"]["name"], "")
	for call in options["safe_calls"]:
		client.safe_tools.append(call["name"])
	if not crowd:
		client.world = world
		client.acted.connect(_on_acted)
	client.start()


func _on_acted(call, _cause):
	acts.append(call["name"])


func _step(step):
	var until_ns = int(step["ms"] * 1e6)
	if step.get("sleeps"):
		slept_ns += until_ns - at_ns
		at_ns = until_ns
	while at_ns + FRAME_NS < until_ns:
		at_ns += FRAME_NS
		_frame()
	at_ns = until_ns
	_frame()
	if step.has("net"):
		up = step["net"] == "up"
	if step.has("receive"):
		sockets[-1].packets.append(JSON.stringify(step["receive"]).to_utf8_buffer())
	if step.has("bytes"):
		sockets[-1].packets.append(step["bytes"].to_utf8_buffer())
	if step.has("observe"):
		world.text = step["observe"]
	if step.has("instruct"):
		client.instruct(step["instruct"])
	if step.has("reset"):
		client.reset(step["reset"])
	if step.has("join"):
		worlds[step["join"]["id"]] = World.new()
		client.join(step["join"]["id"], worlds[step["join"]["id"]])
	if step.has("leave"):
		client.leave(step["leave"])
	for id in step.get("looks", {}):
		worlds[id].text = step["looks"][id]
	looks = step.has("observe") or step.has("looks")
	_frame()
	looks = false
	for id in worlds:
		worlds[id].text = null
	_frame()


func _frame():
	if up and sockets[-1].ready == WebSocketPeer.STATE_CONNECTING:
		sockets[-1].ready = WebSocketPeer.STATE_OPEN
		connections += 1
	elif not up and sockets[-1].ready == WebSocketPeer.STATE_OPEN:
		sockets[-1].ready = WebSocketPeer.STATE_CLOSED
	client._look_ns = at_ns
	client._process(0)
