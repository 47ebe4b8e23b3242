# Runs the conformance vectors (docs/protocol.md, section 13) and prints a JSON line per case, which Python checks.
# Messages are texts in cases.json, so that nothing but the client reads them.
extends Node

const Client = preload("res://addons/rtcontrol/rtcontrol_client.gd")
const Crowd = preload("res://addons/rtcontrol/rtcontrol_crowd.gd")
const Wire = preload("res://addons/rtcontrol/rtcontrol_wire.gd")
const InForce = preload("res://addons/rtcontrol/rtcontrol_in_force.gd")


# Records the calls that a session executes.
class Recorder:
	extends Node
	var done = []

	func go(way = null):
		done.append(way)

	func stop():
		done.append("stop")

	func observe():
		return "here"


func _ready():
	var cases = JSON.parse_string(FileAccess.get_file_as_string("res://cases.json"))
	for case in cases["valid"]:
		tell({"of": "valid", "name": case["name"], "read": Wire.read(case["text"].to_utf8_buffer())})
	for case in cases["invalid"]:
		_invalid(case)
	for case in cases["crowd"]:
		_of_crowd(case)
	for case in cases["age"]:
		var late = InForce.too_old(case["t_obs_ns"], case["ttl_ms"], int(case["now_ns"]))
		tell({"of": "age", "name": case["name"], "verdict": "expire" if late else "execute"})
	for case in cases["phase"]:
		_phase(case)
	tell({"of": "end"})
	get_tree().quit()


func tell(line):
	print(Wire.write(line))


# Reads a message as if it arrived in the session that the vectors name.
func _invalid(case):
	var client = Client.new()
	var world = Recorder.new()
	world.add_child(client)
	client.world = world
	client.safe_tool = "stop"
	client.add_tool("go", "Go.", {"way": {"type": "string"}}, ["way"])
	client.add_tool("stop", "Stop.")
	client.rule.safe_calls = [{"name": "stop", "arguments": {}}]
	client.rule.epoch = 2
	client.state = client.LIVE
	client.welcome = {"hz": 16.0, "protocol": [1.0, 1.0]}
	client.set("_session", "q7Jr0c2yT5mX9vKd_f3A")
	client.hear(case["text"].to_utf8_buffer())
	tell({"of": "invalid", "name": case["name"], "done": world.done, "errors": client.counts["errors"],
		"session": client.get("_session"), "state": client.state})
	client.state = client.ENDED
	world.free()


# Reads a message as if it arrived at a crowd of two, in the session that the vectors name.
func _of_crowd(case):
	var crowd = Crowd.new()
	var worlds = {}
	crowd.safe_tool = "stop"
	crowd.add_tool("go", "Go.", {"way": {"type": "string"}}, ["way"])
	crowd.add_tool("stop", "Stop.")
	for id in ["anna", "bert"]:
		worlds[id] = Recorder.new()
		crowd.join(id, worlds[id])
	crowd.state = crowd.LIVE
	crowd.welcome = {"hz": 16.0, "protocol": [1.0, 1.0]}
	crowd.set("_session", "q7Jr0c2yT5mX9vKd")
	crowd.hear(case["text"].to_utf8_buffer())
	tell({"of": "crowd", "name": case["name"], "state": crowd.state, "errors": crowd.counts["errors"], "ignored": crowd.ignored,
		"done": [worlds["anna"].done, worlds["bert"].done]})
	crowd.state = crowd.ENDED
	crowd.free()
	for id in worlds:
		worlds[id].free()


# Prints when observations are due, by the client's estimate of the server's clock.
func _phase(case):
	var client = Client.new()
	var period = int(case["period_ns"])
	for i in range(case["steps"].size()):
		var step = case["steps"][i]
		if step.has("ping"):
			var t = step["ping"]
			client.call("_clocked", {"id": 0, "t_ping_ns": t[0], "t_received_ns": t[1], "t_sent_ns": t[2]}, int(t[3]))
		elif step.has("observed"):
			client.phase.observed(int(step["observed"]), period, int(step["now_ns"]))
		elif step.has("heard"):
			client.phase.heard(step["heard"], period, int(step["now_ns"]))
		else:
			var now = int(step["next"])
			var due = client.phase.next(int(step["release_ns"]), period, client.best_clock(now), now)
			tell({"of": "phase", "name": case["name"], "step": i, "due_ns": due})
	tell({"of": "waits", "name": case["name"], "waits_ns": client.phase.waits_ns})
	client.free()
