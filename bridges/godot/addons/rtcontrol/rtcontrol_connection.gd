# A connection to rtcontrol (protocol 1.1, JSON over WebSocket) for Godot 4: it greets, keeps the heartbeat,
# reconnects and resumes, and compares the clocks. rtcontrol_client.gd drives one node over it, rtcontrol_crowd.gd many.
# Everything happens in `_process`, so in the main thread; nothing blocks.
extends Node

signal welcomed(message) # a session began, or (`resumed`) goes on
signal lost(why) # the connection; it is made anew
signal instructed(text) # this instruction is in force now
signal trouble(text) # for people
signal ended(why) # refused for good: nothing is tried any more

enum { IDLE, CONNECTING, GREETING, LIVE, WAITING, ENDED }
const BEAT_NS = 1000000000
const CONNECT_NS = 2 * BEAT_NS # a connection that does not come up in this time is tried anew
const SILENCE_NS = 10 * BEAT_NS # a welcome may take longer, but not an answer to our pings
const CLOCK_NS = 10000000000 # between pings for the clocks
const LEAST_BEAT_NS = 50000000 # a server's heartbeat below this would be found dead at once
const LONGEST_BEAT_NS = 10000000000 # and one beyond this never
const LEAST_PERIOD_NS = 100000 # of ticks: the protocol's fastest rate
const RESETS = 256 # that are said again after a resume
const REFUSED_MS = 1000.0 # before a hello that was refused; doubled up to the next one
const LONGEST_REFUSED_MS = 4000.0
const FULL_BYTES = 65536 # that wait for the server to have read them
const LAST_TRIES = 10
const LEAST_SLEEP_NS = 250000000 # less is how a wall clock is adjusted
const DROPPED = 1000 # closes a WebSocket: in order; so does the server where it took us for dead, and keeps the session
const STOPPED = [1001, 1012] # it goes, or begins anew
const Wire = preload("rtcontrol_wire.gd")
const Driven = preload("rtcontrol_driven.gd")

@export var url: String = "ws://127.0.0.1:8080/ws"
@export var token: String = "" # the server's access token; a program on the server's machine needs none
@export_multiline var instruction: String = ""
@export var safe_tool: String = "" # the tool, without arguments, that makes it safe
@export var safe_tools: Array = [] # or several, one for each actuator; tried each frame until they are carried out
@export var hz: float = 16.0
@export var ttl_ms: float = 500.0 # how old (from its observation's stamp) a call may be
@export var persist: bool = true # a new session after the server's bye

var settings = {} # further fields of the hello: deadline_ms, on_miss, hold_ms, robot, model, ...
var state = IDLE
var address = "" # to which the newest connection goes
var counts = {"sessions": 0, "resumed": 0, "observed": 0, "fresh": 0, "held": 0, "safe": 0, "executed": 0,
	"expired": 0, "refused": 0, "failed": 0, "ignored": 0, "errors": 0}
var welcome = {}

var _tools = {}
var _ws = null
var _url = "" # of the WebSocket
var _session = ""
var _taken = null # the last instruction that the server has confirmed
var _untold = null # one that it has not
var _greeting = "" # that of this greeting's hello, which is repeated as it was
var _pings = 0
var _pinged_ns = 0
var _sent_bytes = 0 # on this connection
var _read_bytes = 0 # of them, as a pong showed
var _marks = {} # what was sent when a ping was, by its id
var _hello_from_ns = 0 # this connection's first hello; what refuses an earlier one says nothing of it
var _release_ns = -1 # of any of the session's ticks, on the server's clock
var _clock = [] # [round trip, the server's clock minus ours, when], ns
var _pause_ms = 100.0 # before the next connection
var _refused_ms = REFUSED_MS # before the next hello, if this one is refused
var _random = RandomNumberGenerator.new()
var _last_ns = [] # the last ticks of the engine, and the wall clock's time
var _slept_ns = 0 # how long the machine was suspended
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


# End the session for good, and act safe.
func stop(reason = "done"):
	if state == LIVE:
		_send({"type": "bye", "session": _session, "reason": reason})
		_ws.close(1000, "")
	_end(reason)


# The monotonic clock of all stamps, from the start of the engine. It counts while the machine is suspended: the wall clock
# jumps ahead then, while the engine's ticks may stand still. One that is put forward counts, too: calls end too early.
func now_ns():
	var ticks_ns = _ticks_ns()
	var wall_ns = _wall_ns()
	if not _last_ns.is_empty():
		var jump_ns = wall_ns - _last_ns[1] - (ticks_ns - _last_ns[0])
		if jump_ns > LEAST_SLEEP_NS:
			_slept_ns += jump_ns
	_last_ns = [ticks_ns, wall_ns]
	return ticks_ns + _slept_ns


func _ticks_ns():
	return Time.get_ticks_usec() * 1000


func _wall_ns():
	return int(Time.get_unix_time_from_system() * 1e6) * 1000


# A WebSocket that is not connected yet.
func _socket():
	return WebSocketPeer.new()


# An address for people and logs: without its query, which may hold an access token.
static func shown(one):
	return one.split("?")[0]


# Whether what waits on this connection is little enough to say more.
func has_room():
	return _sent_bytes - _read_bytes <= FULL_BYTES


# What keeps it from being connected, for people; empty where nothing does. Sets the WebSocket's address.
func _mistake():
	_url = _socket_of(url.strip_edges())
	if "," in _url or not (_url.begins_with("ws://") or _url.begins_with("wss://")):
		return "url has %s, which is no address: write ws://HOST:PORT/ws." % ("nothing" if _url == "" else shown(_url))
	return _unsafe()


# A URL of GET /connect as the WebSocket at the same place, which leads to one of its servers.
static func _socket_of(one):
	if not (one.begins_with("http://") or one.begins_with("https://")) or one.get_slice("/", 3) == "":
		return one
	return "ws%s//%s/ws" % [one.get_slice("/", 0).substr(4), one.get_slice("/", 2)]


# Why the safe tools cannot make it safe, for people; empty where they can.
func _unsafe():
	for name in _safe_names():
		if not _tools.has(name):
			return "safe_tool must name one of the tools %s." % [_tools.keys()]
		if not _tools[name]["parameters"]["required"].is_empty():
			return "the safe tool %s must do without arguments: make them optional." % name
	return ""


# Why a node cannot be driven, for people; empty where it can.
func _misfit(node):
	for name in _tools.keys() + ["observe"]:
		if not node.has_method(name):
			return "%s has no method %s." % [node, name]
	# The engine goes on after a call that does not fit its method, and the server would be told that it was executed.
	for method in node.get_method_list():
		var wanted = _tools.get(method["name"], {}).get("parameters", {}).get("properties", {}).size()
		if wanted > method["args"].size():
			return "the tool %s has %d parameters, its method takes %d." % [method["name"], wanted, method["args"].size()]
	return ""


# False, with an error in the console, where `why` says something.
func _works(why):
	if why != "":
		push_error("rtcontrol: " + why)
	return why == ""


func _begin():
	process_mode = Node.PROCESS_MODE_ALWAYS # a paused game must become safe too
	_random.randomize() # else each game draws the same numbers
	_connect()
	return true


func _safe_names():
	return [safe_tool] if safe_tools.is_empty() else safe_tools


static func _calls_of(names):
	var calls = []
	for name in names:
		calls.append({"name": name, "arguments": {}})
	return calls


# -- what a client of its kind has of its own --


# Whether what is driven is there no more.
func _gone():
	return false


# Ends what has outlived its time-to-live, and tries safe calls that would not again.
func _look(_now, _cause):
	pass


func _observe(_now):
	pass


# A session is there: resumed, or a new one.
func _begun(_message):
	pass


# Another server, or a new session: its clock and its ticks are others.
func _other_server():
	pass


# The connection is lost: what is in force runs to its own end.
func _all_lost():
	pass


# The session is over: safe at once.
func _all_left():
	pass


func _heard(_message, _now):
	pass


func _process(_delta):
	if state == IDLE:
		return
	if state == ENDED:
		_look(now_ns(), "left") # a safe call that would not
		return
	if _gone():
		stop("what is driven is gone")
		return
	if state == WAITING:
		if now_ns() >= _again_ns:
			_connect()
	else:
		_ws.poll()
		_read()
	_look(now_ns(), "expired")
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
		_look(now_ns(), "left") # nobody would later


func _connect():
	state = CONNECTING
	if address != _url:
		_clock.clear() # maybe another machine's
		_release_ns = -1
		_other_server()
	address = _url
	_sent_bytes = 0
	_read_bytes = 0
	_marks.clear()
	# Before the connection is made: the engine allocates them then.
	_ws = _socket()
	_ws.inbound_buffer_size = Wire.MAX_BYTES + 65536
	_ws.outbound_buffer_size = Wire.MAX_BYTES + 65536
	_ws.max_queued_packets = 2048
	var protocols = PackedStringArray(["rtcontrol.v1"])
	if token != "":
		protocols.append("rtcontrol.token." + token)
	_heard_ns = now_ns()
	_ws.supported_protocols = protocols
	if _ws.connect_to_url(address) != OK:
		_lost("%s cannot be connected to" % shown(address))


func _read():
	# The status is asked before each packet: a message may end the connection.
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


# Hello, ping, and whether the server is there at all.
func _keep_up(now):
	var beat_ns = int(clamp(welcome.get("heartbeat_ms", 1000) * 1e6, LEAST_BEAT_NS, LONGEST_BEAT_NS))
	var patience_ns = {CONNECTING: CONNECT_NS, GREETING: SILENCE_NS, LIVE: 3 * beat_ns}
	if _ws.get_ready_state() == WebSocketPeer.STATE_CLOSED:
		_closed()
	elif now - _heard_ns > patience_ns[state]:
		_lost("%s is silent" % shown(address))
	elif state == GREETING and now >= _hello_ns:
		_greet(true)
		_ping(now) # a server that takes its time with the welcome answers this
	elif state == LIVE and (now - _said_ns >= beat_ns or now - _pinged_ns >= (CLOCK_NS if has_room() else BEAT_NS)):
		_ping(now)


# The connection has ended. The engine gives no message that came in one piece with the end: a bye may be among those.
# A server that has stopped has said it. With 1000 nobody knows: safe at once, and the session is asked for.
func _closed():
	var _close = [_ws.get_close_code(), _ws.get_close_reason()]
	if state == LIVE and _close[0] in STOPPED:
		_left("The server closed the connection: %s %s" % _close, persist)
		return
	if state == LIVE and _close[0] == DROPPED:
		_all_left()
	_lost("no connection to %s" % shown(address))


func _ping(now):
	_pings += 1
	_pinged_ns = now
	_marks[_pings] = _sent_bytes
	_send({"type": "ping", "id": _pings, "t_ns": now})


func _greet(again = false):
	state = GREETING
	var now = now_ns()
	_hello_ns = now + BEAT_NS
	if not again:
		_hello_from_ns = now
		_greeting = _untold if _untold != null else _taken if _taken != null else instruction
	var safe = _calls_of(_safe_names())
	var tools = []
	for schema in _tools.values():
		tools.append({"type": "function", "function": schema})
	var hello = {"type": "hello", "protocol": [1, 1], "t_client_ns": now,
		"client": {"name": "godot4", "version": Engine.get_version_info()["string"].left(64), "language": "gdscript"},
		"tools": tools, "instruction": _greeting, "safe_call": safe[0],
		"safe_calls": safe, "hz": hz, "ttl_ms": ttl_ms}
	for more in [_asks(), settings]:
		for key in more:
			hello[key] = more[key]
	if _session != "":
		hello["resume"] = _session
	_send(hello)


# Fields of the hello of a client of its kind.
func _asks():
	return {}


# The clocks' comparison that is most exact, [round trip, the server's clock minus ours, when]; null where there is none.
func best_clock(now):
	var best = null
	for sample in _clock:
		if now - sample[2] <= 6 * CLOCK_NS and (best == null or sample[0] <= best[0]):
			best = sample
	return best


# The next instant that lies `lead_ns` before a tick's release; -1 where ticks or clock are not known.
func next_observation_ns(lead_ns, now):
	var best = best_clock(now)
	if state != LIVE or best == null or _release_ns < 0:
		return -1
	var period_ns = _period_ns()
	return now + period_ns - posmod(now - (_release_ns - best[1] - lead_ns), period_ns)


func _period_ns():
	return int(max(LEAST_PERIOD_NS, welcome["period_ms"] * 1e6))


func _clocked(message, now):
	var took = int(message["t_sent_ns"]) - int(message["t_received_ns"])
	var rtt = now - int(message["t_ping_ns"]) - took
	if rtt >= 0 and took >= 0:
		_clock.append([rtt, (int(message["t_received_ns"]) - int(message["t_ping_ns"]) + int(message["t_sent_ns"]) - now) / 2, now])
	if _marks.has(int(message["id"])):
		_read_bytes = max(_read_bytes, _marks[int(message["id"])])
		for id in _marks.keys():
			if id <= int(message["id"]):
				_marks.erase(id)
	if _clock.size() > 16:
		_clock.pop_front()


func _send(message):
	if _ws == null or _ws.get_ready_state() != WebSocketPeer.STATE_OPEN:
		return
	# The engine would write inf and nan as they are, and the whole message would be none.
	if not Wire.has_finite_numbers(message):
		trouble.emit("a %s with a number that is not finite is not sent" % message["type"])
		return
	_said_ns = now_ns()
	var packet = Wire.write(message).to_utf8_buffer()
	_sent_bytes += packet.size()
	_ws.send(packet, WebSocketPeer.WRITE_MODE_TEXT)


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
				_left("The server ended the session: %s" % message.get("reason", ""),
					persist or message.get("reconnect", false))
		_:
			_heard(message, now)


func _welcomed(message):
	var of_before = int(message["t_client_ns"]) < _hello_from_ns
	if state != GREETING or of_before or (message["resumed"] and message["session"] != _session):
		counts["ignored"] += 1 # the answer to a hello said before, or twice
		return
	var version = message["protocol"]
	var spoken = not version.is_empty() and Wire.is_of(version[0], "count") and int(version[0]) == 1
	if spoken and version.size() > 1:
		spoken = Wire.is_of(version[1], "count") and int(version[1]) >= 1
	if not spoken:
		return _end("The server speaks protocol %s, this client 1.1." % [message["protocol"]])
	state = LIVE
	welcome = message
	_pause_ms = 100.0
	_refused_ms = REFUSED_MS
	_look_ns = now_ns()
	_release_ns = int(message.get("release_ns", -1))
	if message["resumed"]:
		counts["resumed"] += 1
	else:
		counts["sessions"] += 1
		_session = message["session"]
		_clock.clear() # maybe another machine's
		_other_server()
	_ping(now_ns())
	_begun(message)
	if state != LIVE:
		return
	if message["instruction"] == _untold or (not message["resumed"] and _untold == _greeting):
		_confirmed(message["instruction"])
	for warning in message.get("warnings", []):
		trouble.emit(str(warning))
	welcomed.emit(message)
	if _untold != null:
		_instruct(_untold)


# It is said (again) after each welcome until the server confirms or refuses it.
func _instruct(text):
	_untold = text
	if state == LIVE:
		_send({"type": "instruct", "session": _session, "instruction": text})


func _confirmed(text):
	_taken = text
	_untold = null # of free words, too, this is the answer: what they were understood as
	instructed.emit(text)


func _refused(message, now):
	var code = message["code"]
	var retryable = message.get("retryable") == true
	var live = state == LIVE
	counts["errors"] += 1
	trouble.emit("%s: %s %s" % [code, message["message"], message.get("remedy", "")])
	if message.has("t_client_ns") and (live or message["t_client_ns"] < _hello_from_ns):
		return # the answer to a hello before
	if state == GREETING and (message.has("seq") or (code == "state" and retryable)):
		return # the answer to what was said before the hello
	if code == "instruction" and state == GREETING and _untold != null:
		_untold = null # the hello is said again at once, with the one before
		_greet()
		return
	if code == "instruction":
		_untold = null
	var again = state == GREETING and retryable # it lets nobody in now
	if message.get("fatal") == true:
		_left("%s: %s" % [code, message["message"]], retryable)
	elif live and (code == "session" or (code == "state" and retryable)):
		_greet() # to the server this is a new connection
	elif state == GREETING and code == "session" and _session != "":
		_session = "" # cannot be resumed: a new one
		_greet()
		return
	elif state == GREETING and code == "state" and not retryable:
		_lost("this connection has another session")
	elif state == GREETING and not retryable:
		_left("%s: %s" % [code, message["message"]], false)
	if again:
		_again_ns = now + _by_chance(_refused_ms)
		_hello_ns = _again_ns
		_refused_ms = min(LONGEST_REFUSED_MS, 2 * _refused_ms)


# A pause in ns, so that those who were refused together do not all come back together.
func _by_chance(longest_ms):
	return int(longest_ms * _random.randf_range(0.5, 1.0) * 1e6)


# The connection is gone, or the server silent: what is in force runs to its own end.
func _lost(why):
	_ws = null
	state = WAITING
	_again_ns = now_ns() + _by_chance(_pause_ms)
	_pause_ms = min(2000.0, 2 * _pause_ms)
	_all_lost()
	lost.emit(why)


# The session is over: safe at once.
func _left(why, again):
	_session = ""
	if not again:
		return _end(why)
	_all_left()
	_lost(why)


func _end(why):
	_session = ""
	_ws = null
	state = ENDED
	_all_left()
	ended.emit(why)
