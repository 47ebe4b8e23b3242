# A client of rtcontrol (protocol 1.1, JSON over WebSocket) for Godot 3.2 and later 3.x. Copy this file into a project,
# put it on a Node that is the child of what is to be driven, add the tools in the parent's `_ready`, then `start`:
#
#     $RtControl.add_tool("turn", "Turn.", {"side": {"type": "string", "enum": ["left", "right"]}})
#     $RtControl.start()
#
# The parent has a method for each tool, taking its parameters in order, and `observe`, whose String (or Dictionary) the
# model reads. A tool's method may return a String, told to the server, or false: it would not; a safe tool that would not
# is tried again each frame. Everything happens in `_process`, so in the main thread; nothing blocks.
extends Node

signal welcomed(message) # a session began, or (`resumed`) goes on
signal lost(why) # the connection; it is made anew
signal heard_call(message, latency_ms) # as it came; latency from the observation's stamp, -1 where it names none
signal acted(call, cause) # what is in force now (each of several safe calls); why: call, told, expired, lost, left, refused
signal told(outcome, message) # what the server was told of a call: executed, expired, refused, failed
signal instructed(text) # this instruction is in force now
signal trouble(text) # for people
signal ended(why) # refused for good: nothing is tried any more

enum { IDLE, CONNECTING, GREETING, LIVE, WAITING, ENDED }
const BEAT_NS = 1000000000
const CLOCK_NS = 10000000000 # between pings for the clocks
const WAY_NS = 4000000 # of an observation to the server
const LAST_TRIES = 10
const Wire = preload("rtcontrol_wire.gd")
const InForce = preload("rtcontrol_in_force.gd")

export(String) var url = "ws://127.0.0.1:8080/ws"
export(String) var token = "" # the server's access token; a program on the server's machine needs none
export(String, MULTILINE) var instruction = ""
export(String) var safe_tool = "" # the tool, without arguments, that makes it safe
export(Array, String) var safe_tools = [] # or several, one for each actuator; tried each frame until they are carried out
export(float) var hz = 16.0
export(float) var ttl_ms = 500.0 # how old (from its observation's stamp) a call may be
export(float) var observe_hz = 60.0 # more often than the server ticks, so that it decides upon a fresh one; 0: just before each
export(bool) var persist = true # a new session after the server's bye

var settings = {} # further fields of the hello: deadline_ms, on_miss, hold_ms, robot, model, ...
var world = null # whose methods the tools are; the parent, unless set
var state = IDLE
var counts = {"sessions": 0, "resumed": 0, "observed": 0, "fresh": 0, "held": 0, "safe": 0, "executed": 0,
	"expired": 0, "refused": 0, "failed": 0, "ignored": 0, "errors": 0}
var rule = InForce.new()
var welcome = {}

var _tools = {}
var _ws = null
var _session = ""
var _seq = 0
var _stamps = {} # of the last observations, by seq
var _taken = null # the last instruction that the server has confirmed
var _untold = null # one that it has not
var _pings = 0
var _pinged_ns = 0
var _hello_from_ns = 0 # this connection's first hello; what refuses an earlier one says nothing of it
var _release_ns = -1 # of any of the session's ticks, on the server's clock
var _clock = [] # [round trip, the server's clock minus ours, when], ns
var _cause = "" # of the safe calls that are owed
var _pause_ms = 100.0
var _heard_ns = 0
var _said_ns = 0
var _hello_ns = 0 # when the next hello is due
var _again_ns = 0 # when to connect anew
var _look_ns = 0 # when the next observation is due


# A tool: the JSON schemas of its parameters by name, in the order of the method's; `optional` ones last.
func add_tool(name, description, properties = {}, optional = []):
	var required = []
	for key in properties:
		if not key in optional:
			required.append(key)
	_tools[name] = {"name": name, "description": description,
		"parameters": {"type": "object", "properties": properties, "required": required}}


# Connect, and keep connected. False, with an error in the console, where that cannot work.
func start():
	if world == null:
		world = get_parent()
	for name in _tools.keys() + ["observe"]:
		if not world.has_method(name):
			push_error("rtcontrol: %s has no method %s." % [world, name])
			return false
	# The engine goes on after a call that does not fit its method, and the server would be told that it was executed.
	for method in world.get_method_list():
		var wanted = _tools.get(method["name"], {}).get("parameters", {}).get("properties", {}).size()
		if wanted > method["args"].size():
			push_error("rtcontrol: the tool %s has %d parameters, its method takes %d." % [method["name"], wanted,
				method["args"].size()])
			return false
	for name in [safe_tool] if safe_tools.empty() else safe_tools:
		if not _tools.has(name):
			push_error("rtcontrol: safe_tool must name one of the tools %s." % [_tools.keys()])
			return false
		if not _tools[name]["parameters"]["required"].empty():
			push_error("rtcontrol: the safe tool %s must do without arguments: make them optional." % name)
			return false
	pause_mode = PAUSE_MODE_PROCESS # a paused game must become safe too
	rule.safe_calls = _safe_calls()
	_connect()
	return true


# End the session for good, and act safe.
func stop(reason = "done"):
	if state == LIVE:
		_send({"type": "bye", "session": _session, "reason": reason})
		_ws.disconnect_from_host(1000, "")
	_end(reason)


# Change the goal. It is said (again) after each welcome until the server confirms or refuses it.
func instruct(text):
	_untold = text
	if state == LIVE:
		_send({"type": "instruct", "session": _session, "instruction": text})


# A new episode of the world began; `ended` tells how the one before did: {"return": 3, "success": true, "seconds": 20}.
func reset(ended = {}):
	rule.reset(rule.epoch + 1)
	if state == LIVE:
		_send({"type": "reset", "session": _session, "epoch": rule.epoch, "ended": ended})


# The monotonic clock of all stamps, from the start of the engine.
static func now_ns():
	return OS.get_ticks_usec() * 1000


func _process(_delta):
	if state == IDLE:
		return
	if not is_instance_valid(world):
		return stop("what is driven is gone") if state != ENDED else null
	if state == ENDED:
		return _carry_out(rule.look(now_ns()), "left") # a safe call that would not
	if state == WAITING:
		if now_ns() >= _again_ns:
			_connect()
	else:
		_ws.poll()
		_read()
	_carry_out(rule.look(now_ns()), "expired")
	var now = now_ns()
	match state:
		CONNECTING, GREETING, LIVE:
			_keep_up(now)
	if state == LIVE and now >= _look_ns:
		_observe(now)


func _exit_tree():
	if state != IDLE and state != ENDED:
		stop("the scene ends")
	for _try in LAST_TRIES:
		_carry_out(rule.look(now_ns()), "left") # nobody would later


func _connect():
	state = CONNECTING
	_ws = WebSocketClient.new()
	_ws.set_buffers(Wire.MAX_BYTES / 1024, 2048, 256, 2048)
	var protocols = PoolStringArray(["rtcontrol.v1"])
	if token != "":
		protocols.append("rtcontrol.token." + token)
	_heard_ns = now_ns()
	if _ws.connect_to_url(url, protocols) != OK:
		_lost("%s cannot be connected to" % url)


func _read():
	# The status is asked before each packet: a message may end the connection, and reading on would not end.
	while _ws != null and _ws.get_connection_status() == WebSocketClient.CONNECTION_CONNECTED:
		if state == CONNECTING:
			state = GREETING
			_heard_ns = now_ns()
			_ws.get_peer(1).set_write_mode(WebSocketPeer.WRITE_MODE_TEXT)
			_greet()
		if _ws.get_peer(1).get_available_packet_count() == 0:
			return
		hear(_ws.get_peer(1).get_packet())


# Hello, ping, and whether the server is there at all.
func _keep_up(now):
	var beat_ns = int(welcome.get("heartbeat_ms", 1000) * 1e6)
	if _ws.get_connection_status() == WebSocketClient.CONNECTION_DISCONNECTED:
		_lost("no connection to %s" % url)
	elif now - _heard_ns > 3 * (beat_ns if state == LIVE else BEAT_NS):
		_lost("%s is silent" % url)
	elif state == GREETING and now >= _hello_ns:
		_greet(true)
		_ping(now) # a server that takes its time with the welcome answers this
	elif state == LIVE and (now - _said_ns >= beat_ns or now - _pinged_ns >= CLOCK_NS):
		_ping(now)


func _ping(now):
	_pings += 1
	_pinged_ns = now
	_send({"type": "ping", "id": _pings, "t_ns": now})


func _greet(again = false):
	state = GREETING
	var now = now_ns()
	_hello_ns = now + BEAT_NS
	if not again:
		_hello_from_ns = now
	var safe = _safe_calls()
	var tools = []
	for schema in _tools.values():
		tools.append({"type": "function", "function": schema})
	var hello = {"type": "hello", "protocol": [1, 1], "t_client_ns": now, "capabilities": ["executed"],
		"client": {"name": "godot", "version": Engine.get_version_info()["string"].left(64), "language": "gdscript"},
		"tools": tools, "instruction": instruction if _taken == null else _taken, "safe_call": safe[0],
		"safe_calls": safe, "hz": hz, "ttl_ms": ttl_ms}
	for key in settings:
		hello[key] = settings[key]
	if _session != "":
		hello["resume"] = _session
	_send(hello)


func _observe(now):
	var period_ns = int(1e9 / max(0.001, observe_hz if observe_hz > 0 else welcome["hz"]))
	var lead_ns = int(get_process_delta_time() * 1e9) + WAY_NS # a frame that is due comes up to a frame late
	var timed_ns = next_observation_ns(lead_ns, now) if observe_hz <= 0 else -1
	if timed_ns >= 0:
		_look_ns = timed_ns
	else:
		_look_ns = _look_ns + period_ns if now - _look_ns < period_ns else now + period_ns
	var seen = world.observe()
	_seq += 1
	_stamps[_seq] = now
	_stamps.erase(_seq - 256)
	var message = {"type": "observe", "session": _session, "seq": _seq, "epoch": rule.epoch, "t_ns": now}
	message["data" if seen is Dictionary else "text"] = seen if seen is Dictionary else str(seen)
	counts["observed"] += 1
	_send(message)


# The next instant that lies `lead_ns` before a tick's release; -1 where ticks or clock are not known.
func next_observation_ns(lead_ns, now):
	var best = null
	for sample in _clock:
		if now - sample[2] <= 6 * CLOCK_NS and (best == null or sample[0] <= best[0]):
			best = sample
	if state != LIVE or best == null or _release_ns < 0:
		return -1
	var period_ns = int(max(1, welcome["period_ms"] * 1e6))
	return now + period_ns - posmod(now - (_release_ns - best[1] - lead_ns), period_ns)


func _clocked(message, now):
	var took = int(message["t_sent_ns"]) - int(message["t_received_ns"])
	var rtt = now - int(message["t_ping_ns"]) - took
	if rtt >= 0 and took >= 0:
		_clock.append([rtt, (int(message["t_received_ns"]) - int(message["t_ping_ns"]) + int(message["t_sent_ns"]) - now) / 2, now])
	if _clock.size() > 16:
		_clock.pop_front()


func _send(message):
	if _ws == null or _ws.get_connection_status() != WebSocketClient.CONNECTION_CONNECTED:
		return
	_said_ns = now_ns()
	_ws.get_peer(1).put_packet(Wire.write(message).to_utf8())


# A message of the server, as bytes. Public for tests.
func hear(packet):
	var now = now_ns()
	_heard_ns = now
	var message = Wire.read(packet)
	if message is String:
		counts["errors"] += 1
		_send({"type": "error", "code": "invalid", "message": message})
		return
	match message.get("type"):
		"call":
			_called(message, now)
		"welcome":
			_welcomed(message)
		"ping":
			_send({"type": "pong", "id": int(message["id"]), "t_ping_ns": int(message["t_ns"]), "t_received_ns": now,
				"t_sent_ns": now_ns()})
		"pong":
			_clocked(message, now)
		"instruct":
			if message["session"] == _session:
				_confirmed(message["instruction"])
		"error":
			_refused(message, now)
		"bye":
			if state == LIVE and message.get("session", _session) == _session:
				_left("The server ended the session: %s" % message.get("reason", ""), persist)


func _welcomed(message):
	if state != GREETING or (message["resumed"] and message["session"] != _session):
		counts["ignored"] += 1 # the answer to a hello said twice
		return
	if message["protocol"].empty() or str(message["protocol"][0]) != "1":
		return _end("The server speaks protocol %s, this client 1.1." % [message["protocol"]])
	state = LIVE
	welcome = message
	_pause_ms = 100.0
	_look_ns = now_ns()
	_release_ns = int(message.get("release_ns", -1))
	_ping(now_ns())
	if message["resumed"]:
		counts["resumed"] += 1
		for epoch in range(int(message["epoch"]) + 1, rule.epoch + 1):
			_send({"type": "reset", "session": message["session"], "epoch": epoch})
	else:
		counts["sessions"] += 1
		_session = message["session"]
		_stamps.clear()
		_clock.clear() # maybe another machine's
		_carry_out(rule.new_session(int(message["epoch"])), "left")
	if message["instruction"] == _untold:
		_confirmed(_untold)
	for warning in message.get("warnings", []):
		emit_signal("trouble", str(warning))
	emit_signal("welcomed", message)
	if _untold != null:
		instruct(_untold)


func _confirmed(text):
	_taken = text
	_untold = null # of free words, too, this is the answer: what they were understood as
	emit_signal("instructed", text)


func _called(message, now):
	var stamp = message.get("t_obs_ns")
	# A stamp that is not its observation's would let the call live longer than it may.
	var wrong = message.has("seq_obs") and stamp != null and int(stamp) != _stamps.get(int(message["seq_obs"]), int(stamp))
	if state != LIVE or message["session"] != _session or wrong:
		counts["ignored"] += 1
		return
	counts[message["status"]] += 1
	_release_ns = int(message.get("release_ns", _release_ns))
	# A server of 1.0 knows the first of our safe calls alone.
	if message["status"] == "safe" and (welcome["protocol"].size() < 2 or welcome["protocol"][1] < 1):
		message["calls"] = rule.safe_calls
	emit_signal("heard_call", message, -1.0 if stamp == null else (now - int(stamp)) / 1e6)
	var step = rule.receive(message, now)
	var done = _carry_out(step, "expired" if step["tick"] < 0 else "call" if step["act"] == "call" else "told")
	if step["tick"] < 0 or state != LIVE:
		return
	if step["expired"]:
		done = {"outcome": "expired"}
	counts[done["outcome"]] += 1
	var answer = {"type": "executed", "session": _session, "tick": step["tick"], "epoch": int(message["epoch"]),
		"t_ns": now_ns()}
	for key in done:
		answer[key] = done[key]
	_send(answer)
	emit_signal("told", done["outcome"], message)


# Carries out what begins to be in force now; what became of it, as `executed` tells. Safe calls that would not are owed.
func _carry_out(step, cause):
	var told = {}
	var again = not rule.owed.empty()
	var safe = step["act"] == "safe"
	var epoch = rule.epoch
	var owed = []
	var errors = PoolStringArray()
	var unfit = false
	var calls = step["calls"].duplicate()
	_cause = _cause if again else cause
	for i in 2 * 16: # the calls, and own ones where one fits no tool
		if i >= calls.size():
			break
		var done = _invoke(calls[i])
		if done["outcome"] == "executed":
			emit_signal("acted", calls[i], _cause)
		elif done.has("error") and not again:
			emit_signal("trouble", done["error"])
		if done.has("unfit"):
			if safe and not unfit:
				calls += rule.safe_calls
			unfit = true
		elif safe and done["outcome"] != "executed":
			owed.append(calls[i])
		if done.has("error"):
			errors.append(done["error"])
		told = done if told.empty() else told
	if not errors.empty():
		told = {"outcome": "failed" if step["calls"].size() > 1 else "refused", "error": errors.join("; ")}
	if safe and rule.epoch == epoch:
		rule.owed = owed
	if not safe and unfit:
		_carry_out(rule.left(), "refused") # else what was in force before would live as long as this call
	return told


func _invoke(call):
	if not is_instance_valid(world):
		return {"outcome": "refused", "error": "what is driven is gone"}
	if call == null or not _tools.has(call["name"]):
		return {"outcome": "refused", "error": "there is no tool %s" % (call["name"] if call else ""), "unfit": true}
	var parameters = _tools[call["name"]]["parameters"]
	var given = call["arguments"] if call.get("arguments") else {}
	var arguments = []
	for key in parameters["properties"]:
		var value = given.get(key)
		if value == null and not key in parameters["required"]:
			arguments.append(null)
			continue
		value = Wire.argument(value, parameters["properties"][key])
		if value == null:
			return {"outcome": "refused", "error": "%s: %s cannot be %s" % [call["name"], key, given.get(key)], "unfit": true}
		arguments.append(value)
	while not arguments.empty() and arguments.back() == null:
		arguments.pop_back() # the method's own defaults
	if rule.over(now_ns()):
		return {"outcome": "expired"} # reading and hearing took their time; the next look is safe
	var result = world.callv(call["name"], arguments)
	if result is bool and not result:
		return {"outcome": "refused", "error": "%s would not" % call["name"]}
	return {"outcome": "executed", "result": result} if result is String else {"outcome": "executed"}


func _safe_calls():
	var calls = []
	for name in [safe_tool] if safe_tools.empty() else safe_tools:
		calls.append({"name": name, "arguments": {}})
	return calls


func _refused(message, now):
	var code = message["code"]
	var retryable = message.get("retryable") == true
	var live = state == LIVE
	counts["errors"] += 1
	emit_signal("trouble", "%s: %s %s" % [code, message["message"], message.get("remedy", "")])
	if message.has("t_client_ns") and (live or message["t_client_ns"] < _hello_from_ns):
		return # the answer to a hello before
	if state == GREETING and (message.has("seq") or (code == "state" and retryable)):
		return # the answer to what was said before the hello
	if code == "instruction":
		_untold = null
	if message.get("fatal") == true:
		_left("%s: %s" % [code, message["message"]], retryable)
	elif live and (code == "session" or (code == "state" and retryable)):
		_greet() # to the server this is a new connection
	elif state == GREETING and code == "session" and _session != "":
		_session = "" # cannot be resumed: a new one
		_greet()
	elif state == GREETING and code == "state" and not retryable:
		_lost("this connection has another session")
	elif state == GREETING and not retryable:
		_left("%s: %s" % [code, message["message"]], false)
	elif state == GREETING:
		_pause_ms = min(2000.0, 2 * _pause_ms)
		_hello_ns = now + int(max(_pause_ms, 250.0) * 1e6)


# The connection is gone, or the server silent: what is in force runs to its own end.
func _lost(why):
	_ws = null
	state = WAITING
	_again_ns = now_ns() + int(_pause_ms * rand_range(1.0, 1.5) * 1e6)
	_pause_ms = min(2000.0, 2 * _pause_ms)
	_carry_out(rule.lost(), "lost")
	emit_signal("lost", why)


# The session is over: safe at once.
func _left(why, again):
	_session = ""
	if not again:
		return _end(why)
	_carry_out(rule.left(), "left")
	_lost(why)


func _end(why):
	_session = ""
	_ws = null
	state = ENDED
	_carry_out(rule.left(), "left")
	emit_signal("ended", why)
