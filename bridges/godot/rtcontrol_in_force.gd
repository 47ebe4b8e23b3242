# What is in force: docs/protocol.md, section 7. The caller brings the time, and carries out what is returned:
# {act: "", "call" or "safe", call, expired, tick}; a tick of -1 needs no acknowledgement.
extends Reference

var kind = "none"
var epoch = 0
var last_tick = -1
var expires_ns = -1 # never
var safe_call = null


static func too_old(t_obs_ns, ttl_ms, now):
	if t_obs_ns == null or now < int(t_obs_ns):
		return true
	return ttl_ms != 0 and now > int(t_obs_ns) + int(ttl_ms * 1e6)


# The welcome of a new session: a call of the one before ends, since nobody would end it later.
func new_session(new_epoch):
	var step = _safe(null, -1) if kind == "call" else _nothing()
	reset(new_epoch)
	last_tick = -1
	return step


func reset(new_epoch):
	epoch = new_epoch
	_set("none", -1)


func receive(message, now):
	if int(message["epoch"]) != epoch or int(message["tick"]) <= last_tick:
		return look(now)
	last_tick = int(message["tick"])
	if message["status"] == "safe":
		return _nothing() if kind == "safe" else _safe(message.get("call"), last_tick)
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
	if call != null:
		_set("call", until)
		return {"act": "call", "call": call, "expired": false, "tick": last_tick}
	# A decision to go on does not revive what has run out.
	var step = look(now)
	if kind == "call":
		expires_ns = until
	return step


func look(now):
	return _safe(null, -1) if kind == "call" and expires_ns >= 0 and now > expires_ns else _nothing()


# The server is dead: a call with a time-to-live lives on for it, one without ends now.
func lost():
	return _safe(null, -1) if kind == "call" and expires_ns < 0 else _nothing()


# The session has ended.
func left():
	return _nothing() if kind == "safe" else _safe(null, -1)


func _safe(call, tick):
	_set("safe", -1)
	return {"act": "safe", "call": safe_call if call == null else call, "expired": false, "tick": tick}


func _set(new_kind, until):
	kind = new_kind
	expires_ns = until


func _nothing():
	return {"act": "", "call": null, "expired": false, "tick": -1}
