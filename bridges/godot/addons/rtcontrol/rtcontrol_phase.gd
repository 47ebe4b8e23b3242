# When to look at the world, so that the observation arrives just in time for the server's next tick: docs/protocol.md,
# section 6. It learns each observation's way, from the instant when it was due, by our clock, to its arrival, by the
# server's. Instants are in ns, and the caller brings the time.
extends RefCounted

const KEPT = 64 # the ways that count: the newest so many, no older than this
const YOUNG_NS = 10000000000
const LEAST = 8 # of fewer ways the longest one counts
const FIRST_NS = 5000000 # looking and sending, while no way is known
const MARGIN_NS = 1000000
const HANDOVER_NS = 5000000 # what was there so long before a tick was there for it

var waits_ns = [] # from an observation's arrival to its tick
var _ways = [] # [when it was learnt, the way]
var _begun = {} # by seq of an observation, when it was due
var _order = []
var _due = null
var _aimed = 0 # the tick of the instant due, by the server's clock
var _taken = null # and of the last look
var _learnt = -1


# The instant to look next, the same one until then; -1 where neither a way nor the clocks' offset is known. `release` is
# any tick of the session, `clock` [round trip, the server's clock minus ours] or null.
func next(release, period, clock, now):
	var lead = _lead(period, clock, now)
	if lead == null:
		return -1
	var aimed = now + lead - posmod(now + lead - release, period) + period
	if _taken != null and abs(aimed - _taken) < (period + 1) / 2:
		aimed += period
	_aimed = aimed
	_due = aimed - lead
	return _due


# An observation is sent.
func observed(number, period, now):
	var begun = now
	if _due != null and now >= _due and now - _due < period:
		begun = _due
		_taken = _aimed
		_due = null
	_begun[number] = begun
	_order.append(number)
	if _order.size() > KEPT:
		_begun.erase(_order.pop_front())


# A fresh call tells when its observation arrived; of one that was decided again there is nothing to learn.
func heard(message, period, now):
	var timing = message.get("timing", {})
	if message["status"] != "fresh" or not timing.has("age_ms") or not message.has("release_ns") or not message.has("seq_obs"):
		return
	var number = int(message["seq_obs"])
	if number <= _learnt:
		return
	_learnt = number
	if not _begun.has(number):
		return
	var arrived = int(message["t_server_ns"]) - int(round(timing["age_ms"] * 1e6))
	var release = int(message["release_ns"])
	var before = release - period
	# A plan's step, say: this tick is not the first that had it.
	var older = arrived + HANDOVER_NS < before
	# Else the tick before did not have it yet, whatever its stamp of arrival says.
	_ways.append([now, (arrived if older else int(max(arrived, before))) - _begun[number]])
	_begun.erase(number)
	if not older:
		waits_ns.append(release - arrived)
	if _ways.size() > KEPT:
		_ways.pop_front()
	if waits_ns.size() > KEPT:
		waits_ns.pop_front()


func _lead(period, clock, now):
	var ways = []
	for way in _ways:
		if now - way[0] <= YOUNG_NS:
			ways.append(way[1])
	if ways.is_empty():
		return null if clock == null else clock[1] + clock[0] / 2 + FIRST_NS
	ways.sort()
	var count = ways.size()
	var best = count - 1
	if count >= LEAST:
		# Mean age: the way, and a whole period for the share of those that come later; of equal ones the longer way.
		for i in range(count - 1, -1, -1):
			if _cost(ways, i, period) < _cost(ways, best, period):
				best = i
	return ways[best] + MARGIN_NS


static func _cost(ways, i, period):
	return ways.size() * (ways[i] - ways[0]) + (ways.size() - 1 - i) * period
