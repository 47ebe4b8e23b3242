# Takes a client through the behaviour table (bridges/behaviour), with a clock and sockets of its own. Each command is the
# options of a case, or a step, as JSON; each answer tells what the client did, and how it is.
extends Node

const FRAME_NS = 10000000

var client
var world
var now_ns = 0


# A socket that opens and closes with the network.
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


# The client, which looks only when a step says so.
class Timed:
	extends "res://addons/rtcontrol/rtcontrol_client.gd"
	var at_ns = 0
	var up = false
	var looks = false
	var sockets = []
	var connections = 0
	var acts = []

	func now_ns():
		return at_ns

	func _socket():
		sockets.append(Socket.new())
		return sockets[-1]

	func _observe(now):
		if looks:
			super._observe(now)
		looks = false

	func frame(now):
		at_ns = now
		var socket = sockets[-1]
		if up and socket.ready == WebSocketPeer.STATE_CONNECTING:
			socket.ready = WebSocketPeer.STATE_OPEN
			connections += 1
		elif not up and socket.ready == WebSocketPeer.STATE_OPEN:
			socket.ready = WebSocketPeer.STATE_CLOSED
		_look_ns = at_ns if looks else at_ns + 1
		_process(0)

	func note(call, _cause):
		acts.append(call["name"])

	func sends():
		var all = []
		for socket in sockets:
			all += socket.sent
			socket.sent = []
		return all


class World:
	extends Node
	var text = ""

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


# The answer to a command.
func obey(given):
	if given.has("options"):
		_begin(given["options"])
	else:
		_step(given)
	var names = []
	for call in client.rule.calls:
		names.append(call["name"])
	var kinds = {"none": "none", "call": "call " + "+".join(names), "safe": "safe " + client._driven.cause}
	var best = client.best_clock(now_ns)
	var seen = {"event": "seen", "sends": client.sends(), "acts": client.acts, "active": kinds[client.rule.kind],
		"state": {client.LIVE: "live", client.ENDED: "ended"}.get(client.state, "away"), "connections": client.connections,
		"offset_ms": null if best == null else best[1] / 1e6}
	client.acts = []
	return seen


func _begin(options):
	if client != null:
		client.free()
		world.free()
	world = World.new()
	client = Timed.new()
	client.world = world
	now_ns = 1000000000
	client.at_ns = now_ns
	client.instruction = options["instruction"]
	client.ttl_ms = options["ttl_ms"]
	client.persist = options["persist"]
	for tool in options["tools"]:
		client.add_tool(tool["function"]["name"], "")
	for call in options["safe_calls"]:
		client.safe_tools.append(call["name"])
	client.acted.connect(client.note)
	client.start()


func _step(step):
	var at_ns = int(step["ms"] * 1e6)
	while now_ns + FRAME_NS < at_ns:
		now_ns += FRAME_NS
		client.frame(now_ns)
	now_ns = at_ns
	client.frame(now_ns)
	if step.has("net"):
		client.up = step["net"] == "up"
	if step.has("receive"):
		client.sockets[-1].packets.append(JSON.stringify(step["receive"]).to_utf8_buffer())
	if step.has("bytes"):
		client.sockets[-1].packets.append(step["bytes"].to_utf8_buffer())
	if step.has("observe"):
		world.text = step["observe"]
		client.looks = true
	if step.has("instruct"):
		client.instruct(step["instruct"])
	if step.has("reset"):
		client.reset(step["reset"])
	client.frame(now_ns)
	client.frame(now_ns)
