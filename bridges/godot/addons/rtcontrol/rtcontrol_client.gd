# A client of rtcontrol that drives one node. Enable the addon in the project's settings, put a node RtControl below what is to
# be driven, add the tools in the parent's `_ready`, then `start`:
#
#     $RtControl.add_tool("turn", "Turn.", {"side": {"type": "string", "enum": ["left", "right"]}})
#     $RtControl.start()
#
# The parent has a method for each tool, taking its parameters in order, and `observe`, whose String (or Dictionary) the
# model reads. A tool's method may return a String, told to the server, or false: it would not; a safe tool that would not
# is tried again each frame.
extends "rtcontrol_connection.gd"

signal heard_call(message, latency_ms) # as it came; latency from the observation's stamp, -1 where it names none
signal acted(call, cause) # what is active now (each of several safe calls); why: call, expired, server_lost, session_ended, new_session, refused, or the server's
signal told(outcome, message) # what the server was told of a call: executed, expired, refused, failed

const Phase = preload("rtcontrol_phase.gd")

@export var observe_hz: float = 0.0 # how often it looks; 0: once a tick, just in time for it

var world = null: # whose methods the tools are; the parent, unless set
	set = _drive
var _driven = Driven.new()
var rule = _driven.rule
var phase = Phase.new() # when to look
var _seq = 0
var _stamps = {} # of the last observations, by seq


func _init():
	_driven.tools = _tools
	_driven.now_ns = now_ns
	_driven.acted.connect(_on_acted)
	_driven.trouble.connect(_on_trouble)


# Connect, and keep connected. False, with an error in the console, where that cannot work.
func start():
	if world == null:
		_drive(get_parent())
	if not (_works(_misfit(world)) and _works(_mistake())):
		return false
	rule.safe_calls = _calls_of(_safe_names())
	return _begin()


# Change the goal. It is said (again) after each welcome until the server confirms or refuses it.
func instruct(text):
	_instruct(text)


# A new episode of the world began; `ended` tells how the one before did: {"return": 3, "success": true, "seconds": 20}.
func reset(ended = {}):
	rule.reset(rule.epoch + 1)
	if state == LIVE:
		_send({"type": "reset", "session": _session, "epoch": rule.epoch, "ended": ended})


func _drive(node):
	world = node
	_driven.world = node


func _on_acted(call, cause):
	acted.emit(call, cause)


func _on_trouble(text):
	trouble.emit(text)


func _gone():
	return not is_instance_valid(world)


func _look(now, cause):
	if is_instance_valid(world):
		_driven.carry_out(rule.look(now), cause)


func _all_lost():
	_driven.carry_out(rule.lost(), "server_lost")


func _all_left():
	_driven.carry_out(rule.left(), "session_ended")


func _asks():
	return {"capabilities": ["executed"]}


func _observe(now):
	var period_ns = int(1e9 / max(0.001, observe_hz if observe_hz > 0 else welcome["hz"]))
	_look_ns = _look_ns + period_ns if now - _look_ns < period_ns else now + period_ns
	var seen = world.observe()
	_seq += 1
	phase.observed(_seq, _period_ns(), now_ns())
	if observe_hz <= 0 and _release_ns >= 0:
		var timed_ns = phase.next(_release_ns, _period_ns(), best_clock(now), now_ns())
		_look_ns = timed_ns if timed_ns >= 0 else _look_ns
	_stamps[_seq] = now
	_stamps.erase(_seq - 256)
	var message = {"type": "observe", "session": _session, "seq": _seq, "epoch": rule.epoch, "t_ns": now}
	message["data" if seen is Dictionary else "text"] = seen if seen is Dictionary else str(seen)
	counts["observed"] += 1
	_send(message)


func _other_server():
	phase = Phase.new()


func _begun(message):
	if message["resumed"]:
		for epoch in range(int(message["epoch"]) + 1, int(min(rule.epoch, message["epoch"] + RESETS)) + 1):
			_send({"type": "reset", "session": message["session"], "epoch": epoch})
	else:
		_stamps.clear()
		_driven.carry_out(rule.new_session(int(message["epoch"])), "new_session")


func _heard(message, now):
	if message.get("type") != "call":
		return
	var stamp = message.get("t_obs_ns")
	# A stamp that is not its observation's would let the call live longer than it may.
	var wrong = message.has("seq_obs") and stamp != null and int(stamp) != _stamps.get(int(message["seq_obs"]), int(stamp))
	if state != LIVE or message["session"] != _session or wrong:
		counts["ignored"] += 1
		return
	counts[message["status"]] += 1
	_release_ns = int(message.get("release_ns", _release_ns))
	phase.heard(message, _period_ns(), now)
	heard_call.emit(message, -1.0 if stamp == null else (now - int(stamp)) / 1e6)
	rule.own_ttl_ms = settings.get("ttl_ms", ttl_ms)
	var step = rule.receive(message, now)
	var done = _driven.carry_out(step, "expired" if step["tick"] < 0 else "call" if step["act"] == "call" else message.get("cause", "told"))
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
	told.emit(done["outcome"], message)
