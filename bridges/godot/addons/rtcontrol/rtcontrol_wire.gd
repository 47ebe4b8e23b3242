# Messages of protocol 1.1 as JSON, and what must be true of them.
extends RefCounted

const MAX_BYTES = 1048576
const MAX_DEPTH = 16
# What a message must have to be believed (null is absent; `?`: may be absent).
const NEEDED = {
	"welcome": {"session": "text", "resumed": "flag", "epoch": "count", "t_client_ns": "instant", "heartbeat_ms": "number", "hz": "number",
		"instruction": "text", "safe_call": "call?", "safe_calls": "calls?", "trained": "flag?", "release_ns": "instant?",
		"period_ms": "number", "warnings": "list?", "protocol": "list", "crowd": "terms?"},
	"call": {"session": "text", "tick": "count", "epoch": "count", "status": "text", "ttl_ms": "number",
		"seq_obs": "count?", "t_obs_ns": "instant?", "call": "call?", "calls": "calls?", "release_ns": "instant?", "confidence": "share?", "cause": "text?",
		"timing": "times?", "deadline_ns": "instant", "t_server_ns": "instant"},
	"instruct": {"session": "text", "instruction": "text"},
	"ping": {"id": "count", "t_ns": "instant"},
	"pong": {"id": "count", "t_ping_ns": "instant", "t_received_ns": "instant", "t_sent_ns": "instant"},
	"error": {"code": "text", "message": "text", "remedy": "text?", "t_client_ns": "instant?", "retryable": "flag?",
		"fatal": "flag?", "members": "refusals?"},
	"bye": {"session": "text?", "reason": "text?", "reconnect": "flag?"},
	"call_many": {"session": "text", "t_server_ns": "instant", "calls": "parts"},
}
# Of a crowd: a part of call_many, of an error, and the welcome's terms.
const CALL = {"id": "id", "tick": "count", "epoch": "count", "status": "text", "ttl_ms": "number", "seq_obs": "count?",
	"t_obs_ns": "instant?", "call": "call?", "calls": "calls?", "confidence": "share?", "cause": "text?", "timing": "times?"}
const REFUSAL = {"code": "text", "message": "text", "remedy": "text?", "id": "text?", "field": "text?", "seq": "count?"}
const TERMS = {"members": "count", "parts": "count"}
const PARTS = 1024
const STATUSES = ["fresh", "held", "safe"]


# Bytes to a message, or a String that says what is wrong with them. A message of an unknown type is an empty map.
static func read(packet):
	if packet.size() > MAX_BYTES:
		return "too large"
	# The engine's reader recurses without a bound, and ignores what follows the first value.
	var depth = 0
	var quoted = false
	var escaped = false
	var over = false
	for byte in packet:
		if over and not byte in [32, 9, 10, 13]:
			return "something follows the object"
		if escaped:
			escaped = false
		elif quoted:
			quoted = byte != 34
			escaped = byte == 92
		elif byte == 34:
			quoted = true
		elif byte == 123 or byte == 91:
			depth += 1
			if depth > MAX_DEPTH:
				return "nested too deeply"
		elif byte == 125 or byte == 93:
			depth -= 1
			over = depth == 0
	if not over or packet[0] != 123:
		return "no JSON object"
	var text = packet.get_string_from_utf8()
	# The engine replaces what is no UTF-8, and goes on.
	if text.to_utf8_buffer() != packet:
		return "no JSON object"
	var parser = JSON.new()
	if parser.parse(text) != OK or not parser.data is Dictionary:
		return "no JSON object"
	var message = parser.data
	if not has_finite_numbers(message):
		return "a number beyond what the engine can hold"
	_without_nulls(message)
	if not message.get("type") is String:
		return "type: missing, or no string"
	if not NEEDED.has(message["type"]):
		return {}
	var wrong = _wrong(message, NEEDED[message["type"]])
	if wrong == "" and message["type"] == "call" and not message["status"] in STATUSES:
		wrong = "status"
	if wrong != "":
		return "%s: missing or wrong" % wrong
	if message["type"] == "call_many":
		_leave_out_wrong_parts(message)
	return message


# The first field that is missing, or wrong; empty where none is.
static func _wrong(map, needed):
	for key in needed:
		var kind = needed[key]
		if not (is_of(map[key], kind.rstrip("?")) if map.has(key) else kind.ends_with("?")):
			return key
	return ""


static func _without_nulls(map):
	for key in map.keys():
		if map[key] == null:
			map.erase(key)


# Each part is refused by itself; `faults` says how many were.
static func _leave_out_wrong_parts(message):
	var given = message["calls"]
	var good = []
	for call in given:
		if call is Dictionary:
			_without_nulls(call)
			if _wrong(call, CALL) == "" and call["status"] in STATUSES:
				good.append(call)
	message["calls"] = good
	message["faults"] = given.size() - good.size()


# A message as JSON, with its keys in their order: a tool with its parameters in another order is another
# one. What JSON forbids, and the engine writes nevertheless, becomes a space: control characters, and \v.
static func write(message):
	var bytes = JSON.stringify(message, "", false, true).to_utf8_buffer()
	for i in bytes.size():
		if bytes[i] < 32:
			bytes[i] = 32
	var text = bytes.get_string_from_utf8()
	if "\\v" in text:
		var forbidden = RegEx.new()
		forbidden.compile("(?<!\\\\)((?:\\\\\\\\)*)\\\\v")
		text = forbidden.sub(text, "$1 ", true)
	return text



# Whether all numbers in a value are: the engine reads 1e999 as infinite.
static func has_finite_numbers(value):
	if value is Dictionary or value is Array:
		for one in value.values() if value is Dictionary else value:
			if not has_finite_numbers(one):
				return false
		return true
	return typeof(value) != TYPE_FLOAT or not (is_nan(value) or is_inf(value))


# Whether a value read from JSON (numbers are floats) is of a kind.
static func is_of(value, wanted):
	value = _wide(value)
	match wanted:
		"text":
			return value is String
		"flag":
			return value is bool
		"list":
			return value is Array
		"id":
			return value is String and value.length() in range(1, 65)
		"parts":
			return value is Array and value.size() <= PARTS
		"refusals":
			for one in value if value is Array else []:
				if not one is Dictionary:
					return false
				_without_nulls(one)
				if _wrong(one, REFUSAL) != "":
					return false
			return value is Array and value.size() <= 64
		"terms":
			return value is Dictionary and _wrong(value, TERMS) == ""
		"times":
			for key in value if value is Dictionary else {}:
				if not is_of(value[key], "number"):
					return false
			return value is Dictionary
		"call":
			return value is Dictionary and value.get("name") is String \
				and (value.get("arguments") == null or value["arguments"] is Dictionary)
		"calls":
			for call in value if value is Array else []:
				if not is_of(call, "call"):
					return false
			return value is Array and value.size() in range(1, 17)
		"number":
			return typeof(value) == TYPE_FLOAT and value >= 0 and value <= 1e9
		"share":
			return typeof(value) == TYPE_FLOAT and value >= 0 and value <= 1
	var over = 1 << 53 if wanted == "count" else 9.2e18
	return typeof(value) == TYPE_FLOAT and value >= 0 and value < over and value == floor(value)


# A number as a float, whatever the engine has read it as.
static func _wide(value):
	return float(value) if value is int else value


# An argument as its schema wants it, or null where it does not fit.
static func argument(given, schema):
	given = _wide(given)
	if typeof(given) == TYPE_FLOAT:
		if given < schema.get("minimum", -INF) or given > schema.get("maximum", INF):
			return null
		if schema.get("type") == "integer":
			# Beyond 2^53 the engine's numbers have gaps: it would be another integer.
			given = int(given) if given == floor(given) and abs(given) <= 1 << 53 else null
	var wanted = {"integer": TYPE_INT, "number": TYPE_FLOAT, "boolean": TYPE_BOOL, "string": TYPE_STRING,
		"array": TYPE_ARRAY, "object": TYPE_DICTIONARY}.get(schema.get("type"), typeof(given))
	if given == null or typeof(given) != wanted:
		return null
	if not schema.has("enum"):
		return given
	for one in schema["enum"]:
		if typeof(one) == typeof(given) and one == given or one is int and given is float and one == given:
			return given
	return null
