# A client of rtcontrol that drives many nodes of one kind over one connection (docs/crowds.md): the same tools and the same
# model, each with a goal, a rate, a priority, a time-to-live and safe tools of its own. Enable
# the addon in the project's settings, and add a node RtControlCrowd:
#
#     $Crowd.add_tool("turn", "Turn.", {"side": {"type": "string", "enum": ["left", "right"]}})
#     $Crowd.start()
#     $Crowd.join("anna", $Anna, {"instruction": "Go home.", "priority": 9})
#
# Each node has a method for each tool, and `observe`, as with rtcontrol_client.gd; `observe` returns null where a member has
# nothing to say. Members may join before the connection is there, and join again by themselves after it was lost.
extends "rtcontrol_connection.gd"

signal heard_call(member, message, latency_ms) # as it came; latency from the look's stamp, -1 where it names none
signal acted(member, call, cause) # what is active now for it; why: as of rtcontrol_client.gd, or left
signal told(member, outcome, message) # what became of a call: executed, expired, refused, failed
signal refused(member, why) # by the server; empty: of no member that it could tell

const STAMPS = 64 # newest looks of a member, whose calls may still come
const KEPT = 256 # refusals
const LATENCIES = 4096
const GONE = 4096 # who left lately
# Of a message: parts, items and bytes of text, far within the limits.
const PARTS = 256
const ITEMS = 8192
const TEXT_BYTES = 160000
# What a member may bring, and its bounds; the rest is as the crowd's.
const NUMBERS = {"hz": [0.001, 10000.0], "deadline_ms": [0.0, 1e9], "ttl_ms": [0.0, 1e9], "priority": [0, 9]}
const TERMS = ["instruction", "hz", "deadline_ms", "ttl_ms", "priority", "every_tick", "safe_tool", "safe_tools"]

@export var observe_hz: float = 20.0 # how often all of them look, and say it together
@export var most_members: int = 0 # there will be at most; 0: as many as the server takes

var refusals = [] # the newest of what the server refused of single members
var ignored = {} # calls, by why
var latencies_ms = [] # from a look's stamp to the arrival of its call, of the last fresh ones
var _members = {}
var _lives = 0 # a life has a higher number than all before it, whoever's they were
var _looks = {} # the newest of each that was not said
var _waiting = [] # what is said of members as soon as there is room
var _left_lately = []


# One member: its terms, what is in force for it, the stamps of its newest looks, and its accounts.
class CrowdMember:
	extends RefCounted
	var id = ""
	var terms = {}
	var driven
	var seq = 0
	var stamps = {}
	var refused = null # why it is not in
	var last = null # the newest call message
	var counts = {"observed": 0, "fresh": 0, "held": 0, "safe": 0, "missed": 0, "executed": 0, "expired": 0, "refused": 0,
		"failed": 0}
	var causes = {} # of misses


func _init():
	hz = 4.0
	ttl_ms = 1500.0


# Connect, and keep connected. False, with an error in the console, where that cannot work.
func start():
	return _works(_mistake()) and _renew_safe_calls() and _begin()


# A member comes in; `terms`: instruction, hz, deadline_ms, ttl_ms, priority (9 is the most urgent), every_tick (it is asked
# at its full rate also while nothing happens to it), safe_tool or safe_tools, each optional. False, with an error in the
# console: there is one of that name, or what the protocol forbids.
func join(id, node, terms = {}):
	if id is StringName:
		id = String(id) # as the name of a node is
	if not _works(_forbids(id, node, terms)):
		return false
	var one = CrowdMember.new()
	one.id = id
	one.terms = {"id": id, "epoch": _lives}
	for key in terms:
		if not key in ["safe_tool", "safe_tools"]:
			one.terms[key] = terms[key]
	var own = _own_safe_names(terms)
	if not own.is_empty():
		one.terms["safe_calls"] = _calls_of(own)
	one.driven = Driven.new()
	one.driven.world = node
	one.driven.tools = _tools
	one.driven.now_ns = now_ns
	one.driven.rule.epoch = _lives
	one.driven.rule.safe_calls = _calls_of(own if not own.is_empty() else _safe_names())
	one.driven.acted.connect(_on_acted.bind(id))
	one.driven.trouble.connect(_on_trouble.bind(id))
	_lives += 1
	_members[id] = one
	_say_terms([one])
	return true


# They go at once, and become safe; `ids` is one id or several. Of one that is not there, nothing.
func leave(ids):
	var gone = []
	for id in ids if ids is Array else [ids]:
		if _members.has(id):
			gone.append(id)
			var one = _members[id]
			_members.erase(id)
			_looks.erase(id)
			if is_instance_valid(one.driven.world):
				one.driven.carry_out(one.driven.rule.left(), "left")
	_left_lately += gone
	_left_lately = _left_lately.slice(max(0, _left_lately.size() - GONE), _left_lately.size()) if not _left_lately.is_empty() else []
	if not gone.is_empty() and state == LIVE:
		_waiting.append({"type": "leave", "session": _session, "ids": gone})


# Another goal: of these members (one id or several), or of all and of those to come. False: there is no such member.
func instruct(text, ids = null):
	var some = _members.keys() if ids == null else ids if ids is Array else [ids]
	for id in some:
		if not _works("" if _members.has(id) else "there is no member %s. Let it join() first." % id):
			return false
	var changed = []
	for id in some:
		_members[id].terms["instruction"] = text
		changed.append(_members[id])
	if ids == null:
		_instruct(text)
	_say_terms(changed)
	return true


# Who has joined, and not left.
func members():
	return _members.keys()


# What is in force for a member: {status: "fresh", "held" or "safe", calls, cause}; null where there is no such member.
func call_of(id):
	if not _members.has(id):
		return null
	var one = _members[id]
	var rule = one.driven.rule
	if one.refused != null:
		return {"status": "safe", "calls": rule.safe_calls, "cause": "refused"}
	if rule.kind == "none":
		return {"status": "safe", "calls": rule.safe_calls, "cause": "no_call_yet"}
	if rule.kind == "call" and not rule.over(now_ns()):
		return {"status": one.last["status"], "calls": rule.calls, "cause": one.last.get("cause", "")}
	if rule.kind == "call":
		return {"status": "safe", "calls": rule.safe_calls, "cause": "expired"}
	return {"status": "safe", "calls": rule.calls, "cause": one.driven.cause}


# A member's account: looks, calls by status, misses and their causes, and what became of its calls; null: no such member.
func account(id):
	if not _members.has(id):
		return null
	var made = _members[id].counts.duplicate()
	made["causes"] = _members[id].causes.duplicate()
	return made


# Counts over all members, and `latency_ms`: p50 and p99 of the last fresh calls (null: none yet).
func statistics():
	var sorted = latencies_ms.duplicate()
	sorted.sort()
	var found = counts.duplicate()
	found["members"] = _members.size()
	found["ignored_by_reason"] = ignored.duplicate()
	found["latency_ms"] = {}
	var shares = {"p50": 0.5, "p99": 0.99}
	var last = sorted.size() - 1
	for name in shares:
		var at = min(last, int(shares[name] * last + shares[name]))
		found["latency_ms"][name] = null if sorted.is_empty() else sorted[at]
	return found


# Why a member cannot come in, for people; empty where it can.
func _forbids(id, node, terms):
	if not (id is String and id.length() in range(1, 65)):
		return "a member's id is a String of 1 to 64 characters, not %s." % [id]
	if _members.has(id):
		return "there is a member %s already. Let it leave() first, or use instruct()." % id
	if _tools.is_empty():
		return "add the tools before %s joins." % id
	for key in terms:
		var value = terms[key]
		if not key in TERMS:
			return "%s is nothing that a member brings: it is one of %s." % [key, TERMS]
		if NUMBERS.has(key):
			var bounds = NUMBERS[key]
			if not typeof(value) in [TYPE_INT, TYPE_FLOAT] or value < bounds[0] or value > bounds[1] \
					or key == "priority" and value != floor(value) or key == "deadline_ms" and value == 0:
				return "%s of %s is %s, and must be a number within %s to %s." % [key, id, value, bounds[0], bounds[1]]
		elif key == "every_tick" and not value is bool or key == "instruction" and not value is String:
			return "%s of %s cannot be %s." % [key, id, value]
		elif key in ["safe_tool", "safe_tools"]:
			for name in [value] if key == "safe_tool" else value:
				if not _tools.has(name) or not _tools[name]["parameters"]["required"].is_empty():
					return "%s of %s must name tools without arguments, not %s." % [key, id, name]
	# Before the start the crowd's may still be set.
	var unsafe = _unsafe() if state != IDLE and _own_safe_names(terms).is_empty() else ""
	return unsafe if unsafe != "" else _misfit(node)


static func _own_safe_names(terms):
	return terms.get("safe_tools", [terms["safe_tool"]] if terms.has("safe_tool") else [])


# The crowd's safe calls, for members without their own. False, with an error in the console, where its safe tools are no
# tools: the members keep what they had.
func _renew_safe_calls():
	if not _works(_unsafe()):
		return false
	for one in _members.values():
		if not one.terms.has("safe_calls"):
			one.driven.rule.safe_calls = _calls_of(_safe_names())
	return true


func _on_acted(call, cause, id):
	acted.emit(id, call, cause)


func _on_trouble(text, id):
	trouble.emit("%s: %s" % [id, text])


# A member whose node is gone leaves by itself.
func _gone():
	for id in _members.keys():
		if _members.has(id) and not is_instance_valid(_members[id].driven.world):
			leave(id)
	return false


func _look(now, cause):
	for one in _members.values():
		if is_instance_valid(one.driven.world):
			if one.driven.rule.over(now):
				_count(one, "expired")
			one.driven.carry_out(one.driven.rule.look(now), cause)
	if state == LIVE:
		_flush()


func _all_lost():
	_looks.clear() # as old as the gap
	_waiting.clear()
	for one in _members.values():
		one.driven.carry_out(one.driven.rule.lost(), "server_lost")


func _all_left():
	_waiting.clear()
	for one in _members.values():
		one.driven.carry_out(one.driven.rule.left(), "session_ended")


func _asks():
	return {"crowd": {} if most_members == 0 else {"members": most_members}}


# What each of them sees; it replaces what is not said yet. Of one that was not let in nothing is said.
func _observe(now):
	var period_ns = int(1e9 / max(0.001, observe_hz))
	_look_ns = _look_ns + period_ns if now - _look_ns < period_ns else now + period_ns
	for one in _members.values():
		if _members.get(one.id) != one or not is_instance_valid(one.driven.world):
			continue
		if one.refused != null:
			_ignore("refused")
			continue
		var seen = one.driven.world.observe()
		if seen == null or _members.get(one.id) != one:
			continue
		one.seq += 1
		one.stamps[one.seq] = now
		one.stamps.erase(one.seq - STAMPS)
		_count(one, "observed")
		counts["superseded"] = counts.get("superseded", 0) + int(_looks.has(one.id))
		_looks[one.id] = {"id": one.id, "seq": one.seq, "t_ns": now, "data" if seen is Dictionary else "text":
			seen if seen is Dictionary else str(seen)}
	_flush()


func _begun(message):
	if not message.has("crowd"):
		return _end("The server knows no crowds. Update it, or use rtcontrol_client.gd for each.")
	_renew_safe_calls()
	_looks.clear()
	_waiting.clear()
	var gone = []
	for id in _left_lately:
		if not _members.has(id) and not id in gone:
			gone.append(id)
	# Who left lately is told again, as that may be lost; all that waited of members is told by their joining.
	if message["resumed"] and not gone.is_empty():
		_waiting.append({"type": "leave", "session": _session, "ids": gone})
	_say_terms(_members.values())
	if not message["resumed"]:
		for one in _members.values():
			one.driven.carry_out(one.driven.rule.new_session(one.terms["epoch"]), "new_session")


func _heard(message, now):
	if message.get("type") != "call_many":
		return
	if state != LIVE or message["session"] != _session:
		return _ignore("session")
	for _part in message["faults"]:
		_ignore("malformed")
	for call in message["calls"]:
		_called(call, now)


func _called(call, now):
	var one = _members.get(call["id"])
	var stamp = call.get("t_obs_ns")
	if one == null:
		return _ignore("member")
	if int(call["epoch"]) != one.driven.rule.epoch:
		return _ignore("epoch")
	if int(call["tick"]) <= one.driven.rule.last_tick:
		return _ignore("order")
	# A stamp that is not its look's would let the call live longer, or shorter, than it may.
	if call["status"] == "fresh" and stamp != null and int(stamp) != one.stamps.get(int(call.get("seq_obs", -1)), int(stamp)):
		return _ignore("stamp")
	one.refused = null
	one.last = call
	_count(one, call["status"])
	if call["status"] != "fresh":
		one.counts["missed"] += 1
		one.causes[call.get("cause", "")] = one.causes.get(call.get("cause", ""), 0) + 1
	var latency_ms = -1.0 if stamp == null else (now - int(stamp)) / 1e6
	if call["status"] == "fresh" and stamp != null:
		latencies_ms.append(latency_ms)
		if latencies_ms.size() > LATENCIES:
			latencies_ms.pop_front()
	heard_call.emit(one.id, call, latency_ms)
	if _members.get(one.id) != one:
		return # whoever heard it let it leave
	one.driven.rule.own_ttl_ms = one.terms.get("ttl_ms", settings.get("ttl_ms", ttl_ms))
	var step = one.driven.rule.receive(call, now)
	var done = one.driven.carry_out(step, "expired" if step["tick"] < 0 else "call" if step["act"] == "call" else call.get("cause", "told"))
	if step["tick"] < 0:
		return
	var outcome = "expired" if step["expired"] else done["outcome"]
	_count(one, outcome)
	told.emit(one.id, outcome, call)


func _refused(message, now):
	if not message.has("members") or message["members"].is_empty():
		return super._refused(message, now)
	counts["errors"] += 1
	for part in message["members"]:
		refusals.append(part)
		if refusals.size() > KEPT:
			refusals.pop_front()
		var one = _members.get(part.get("id"))
		if one != null and not part.has("seq") and one.driven.rule.last_tick < 0:
			one.refused = part # it was not let in
		refused.emit(part.get("id", ""), "%s: %s %s" % [part["code"], part["message"], part.get("remedy", "")])


func _count(one, name):
	one.counts[name] += 1
	counts[name] += 1


func _ignore(why):
	counts["ignored"] += 1
	ignored[why] = ignored.get(why, 0) + 1


# While there is no session, joining says them later. Whoever is refused again is told so again.
func _say_terms(some):
	var terms = []
	for one in some:
		if state == LIVE:
			one.refused = null
		terms.append(one.terms)
	_say("join", "members", terms)


# Said as soon as there is room; while there is no session, joining tells all of it later.
func _say(type, list, parts):
	if state == LIVE:
		for some in in_messages(parts):
			_waiting.append({"type": type, "session": _session, list: some})


# Says what there is room for: of members first, so that nobody is seen before it is in. What the engine's own buffer
# cannot take would end the connection without a word.
func _flush():
	while has_room() and not _waiting.is_empty():
		_sent(_waiting.pop_front())
	if _waiting.is_empty() and not _looks.is_empty() and has_room():
		for some in in_messages(_looks.values()):
			if not has_room():
				return
			for look in some:
				_looks.erase(look["id"])
			_sent({"type": "observe_many", "session": _session, "looks": some})


func _sent(message):
	_send(message)
	if _sent_bytes - _read_bytes > FULL_BYTES / 2 and _marks.is_empty():
		_ping(now_ns())


# The parts by messages, in order: as many as one may have.
static func in_messages(parts):
	var all = []
	var some = []
	var items = 0
	var bytes = 0
	for part in parts:
		var more = weight(part)
		if not some.is_empty() and (some.size() >= PARTS or items + more[0] > ITEMS or bytes + more[1] > TEXT_BYTES):
			all.append(some)
			some = []
			items = 0
			bytes = 0
		some.append(part)
		items += more[0]
		bytes += more[1]
	if not some.is_empty():
		all.append(some)
	return all


# Items, and bytes of text at most.
static func weight(value):
	if value is String:
		return [1, 3 * value.length()]
	var sum = [1, 8]
	if value is Dictionary or value is Array:
		for one in value.values() + value.keys() if value is Dictionary else value:
			var more = weight(one)
			sum = [sum[0] + more[0], sum[1] + more[1]]
	return sum
