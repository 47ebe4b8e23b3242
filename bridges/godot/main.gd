# A courier on a field of 20 by 12 metres: a world with two tools and one observation, all that a client needs.
extends Node2D

const FIELD = Vector2(20, 12)
const SCALE = 40.0 # pixels a metre
const WAYS = {"left": Vector2.LEFT, "right": Vector2.RIGHT, "up": Vector2.UP, "down": Vector2.DOWN}
const ROUND = 10 # parcels

var place = FIELD / 2
var parcel = FIELD / 2
var speed = Vector2.ZERO
var parcels = 0
var seconds = 0.0


func _ready():
	seed(1)
	_put_parcel()
	var client = $RtControl
	for argument in OS.get_cmdline_user_args():
		if argument.begins_with("--url="):
			client.url = argument.substr(6)
	client.add_tool("go", "Walk in a direction, in metres a second, until told otherwise.", {
		"direction": {"type": "string", "enum": ["left", "right", "up", "down"]},
		"speed": {"type": "integer", "minimum": 1, "maximum": 4},
	}, ["speed"])
	client.add_tool("stop", "Stand still.")
	client.trouble.connect(_say)
	client.lost.connect(_say)
	client.ended.connect(_say)
	client.start()


func go(direction, metres_a_second = 2):
	speed = WAYS[direction] * metres_a_second


func stop():
	speed = Vector2.ZERO


func observe():
	var to = parcel - place
	return "parcel %s %.1f %s %.1f" % ["right" if to.x > 0 else "left", abs(to.x), "down" if to.y > 0 else "up", abs(to.y)]


func _physics_process(delta):
	seconds += delta
	place += speed * delta
	place = Vector2(clamp(place.x, 0, FIELD.x), clamp(place.y, 0, FIELD.y))
	if place.distance_to(parcel) < 0.5:
		parcels += 1
		_put_parcel()
		if parcels % ROUND == 0:
			$RtControl.reset({"return": ROUND, "success": true, "seconds": seconds})
			seconds = 0.0
	queue_redraw()


func _put_parcel():
	parcel = Vector2(randf_range(1, FIELD.x - 1), randf_range(1, FIELD.y - 1))


func _draw():
	draw_rect(Rect2(Vector2.ZERO, FIELD * SCALE), Color(0.15, 0.2, 0.15))
	draw_rect(Rect2(parcel * SCALE - Vector2(8, 8), Vector2(16, 16)), Color(0.85, 0.65, 0.3))
	draw_circle(place * SCALE, 12, Color(0.4, 0.7, 1.0))


func _say(text):
	print("rtcontrol: ", text)
