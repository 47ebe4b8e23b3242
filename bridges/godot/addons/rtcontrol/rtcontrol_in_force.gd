# What is in force: docs/protocol.md, section 7. The caller brings the time, and carries out what is returned:
# {act: "", "call" or "safe", calls, expired, tick}: all of `calls` in order (`safe` without any: stop in your own way); a
# tick of -1 needs no acknowledgement. Safe calls that would not are put into `owed`; the next look returns them again.
extends RefCounted

var kind = "none"
var calls = [] # in force
var epoch = 0
var last_tick = -1
var expires_ns = -1 # never
var captured_ns = -1 # the newest observation by which the call is in force
var safe_calls = []
var own_ttl_ms = 0.0 # no call outlives its arrival by more, whatever its message says; 0: no such limit
var owed = [] # safe calls that are still to be carried out


static func too_old(t_obs_ns, ttl_ms, now):
	if t_obs_ns == null or now < int(t_obs_ns):
		return true
	return ttl_ms != 0 and now > int(t_obs_ns) + int(ttl_ms * 1e6)


# The welcome of a new session: a call of the one before ends, since nobody would end it later.
func new_session(new_epoch):
	var step = _safe() if kind == "call" else _nothing()
	var still = owed
	reset(new_epoch)
	owed = still
	last_tick = -1
	return step


func reset(new_epoch):
	epoch = new_epoch
	_become("none", -1, [])


func receive(message, now):
	if int(message["epoch"]) != epoch or int(message["tick"]) <= last_tick:
		return look(now)
	last_tick = int(message["tick"])
	if message["status"] == "safe":
		return look(now) if kind == "safe" else _safe(listed(message), last_tick)
	if message["status"] == "held":
		return look(now)
	var call = message.get("call")
	if too_old(message.get("t_obs_ns"), message["ttl_ms"], now):
		var late = look(now)
		if call != null:
			late["expired"] = true
			late["tick"] = last_tick
		return late
	var until = int(message["t_obs_ns"]) + int(message["ttl_ms"] * 1e6) if message["ttl_ms"] != 0 else -1
	if own_ttl_ms > 0:
		var longest = now + int(own_ttl_ms * 1e6)
		until = longest if until < 0 else int(min(until, longest))
	if call != null:
		_become("call", until, [call])
		captured_ns = int(message["t_obs_ns"])
		return {"act": "call", "calls": [call], "expired": false, "tick": last_tick}
	# A decision to go on does not revive what has run out, and renews by a newer observation only.
	var step = look(now)
	if kind == "call" and int(message["t_obs_ns"]) > captured_ns:
		expires_ns = until
		captured_ns = int(message["t_obs_ns"])
	return step


func look(now):
	if not owed.is_empty():
		return {"act": "safe", "calls": owed, "expired": false, "tick": -1}
	return _safe() if over(now) else _nothing()


# Whether a call is in force whose time is over.
func over(now):
	return kind == "call" and expires_ns >= 0 and now > expires_ns


# The server is dead: a call with a time-to-live lives on for it, one without ends now.
func lost():
	return _safe() if kind == "call" and expires_ns < 0 else _nothing()


# The session has ended.
func left():
	return _nothing() if kind == "safe" else _safe()


# The safe calls of a message.
static func listed(message):
	return message.get("calls", [message["call"]] if message.get("call") else [])


func _safe(told = [], tick = -1):
	_become("safe", -1, safe_calls if told.is_empty() else told)
	return {"act": "safe", "calls": calls, "expired": false, "tick": tick}


func _become(new_kind, until, new_calls):
	kind = new_kind
	calls = new_calls
	expires_ns = until
	owed = []


func _nothing():
	return {"act": "", "calls": [], "expired": false, "tick": -1}
