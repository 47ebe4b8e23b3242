# One that is driven: what is in force for it (rtcontrol_in_force.gd), carried out by methods named as the tools.
extends RefCounted

signal acted(call, cause)
signal trouble(text)

const Wire = preload("rtcontrol_wire.gd")
const InForce = preload("rtcontrol_in_force.gd")

var world = null # whose methods the tools are
var tools = {}
var rule = InForce.new()
var now_ns = Callable() # the clock
var cause = "" # why what is active began


# Carries out what begins to be in force now; what became of it, as `executed` tells. Safe calls that would not are owed.
func carry_out(step, why):
	var told = {}
	var again = not rule.owed.is_empty()
	var safe = step["act"] == "safe"
	var epoch = rule.epoch
	var owed = []
	var errors = PackedStringArray()
	var unfit = false
	var calls = step["calls"].duplicate()
	if step["act"] != "" and not again:
		cause = why
	for i in 2 * 16: # the calls, and own ones where one fits no tool
		if i >= calls.size():
			break
		var done = _invoke(calls[i])
		if done["outcome"] == "executed":
			acted.emit(calls[i], cause)
		elif done.has("error") and not again:
			trouble.emit(done["error"])
		if done.has("unfit"):
			if safe and not unfit:
				calls += rule.safe_calls
			unfit = true
		elif safe and done["outcome"] != "executed":
			owed.append(calls[i])
		if done.has("error"):
			errors.append(done["error"])
		told = done if told.is_empty() else told
	if not errors.is_empty():
		told = {"outcome": "failed" if step["calls"].size() > 1 else "refused", "error": "; ".join(errors)}
	if safe and rule.epoch == epoch:
		rule.owed = owed
	if not safe and unfit:
		carry_out(rule.left(), "refused") # else what was in force before would live as long as this call
	return told


func _invoke(call):
	if not is_instance_valid(world):
		return {"outcome": "refused", "error": "what is driven is gone"}
	if call == null or not tools.has(call["name"]):
		return {"outcome": "refused", "error": "there is no tool %s" % (call["name"] if call else ""), "unfit": true}
	var parameters = tools[call["name"]]["parameters"]
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
	while not arguments.is_empty() and arguments.back() == null:
		arguments.pop_back() # the method's own defaults
	if rule.over(now_ns.call()):
		return {"outcome": "expired"} # reading and hearing took their time; the next look is safe
	var result = world.callv(call["name"], arguments)
	if result is bool and not result:
		return {"outcome": "refused", "error": "%s would not" % call["name"]}
	return {"outcome": "executed", "result": result} if result is String else {"outcome": "executed"}
