# Twenty villagers over one connection, who gather at the well: all that a crowd's client needs. The tools are word for
# word those that the bundled model `village` was taught; what a villager sees is worded as it was taught, too.
#     godot --headless --path bridges/godot village.tscn
extends Node2D

const SIZE = Vector2(100, 58)
const SCALE = 8.0 # pixels a unit
const COUNT = 20
const DIRECTIONS = ["north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest"]
# What can be named, where it stands, and how far around it one is there.
const PLACES = {
	"well": [Vector2(50, 31), 10.0],
	"market": [Vector2(74, 37), 10.0],
	"mill": [Vector2(85, 16), 9.0],
	"church": [Vector2(21, 18), 10.0],
	"oak": [Vector2(17, 43), 9.5],
	"pond": [Vector2(45, 50), 11.0],
}
const HOUSES = [Vector2(36, 13), Vector2(61, 12), Vector2(8, 31), Vector2(62, 47), Vector2(93, 33)]
const HOUSE_HERE = 5.5
const FOX_HERE = 4.0
const NEAR = 26.0
const PARAMETERS = {"direction": {"type": "string", "enum": DIRECTIONS}}

var villagers = []
var fox = Vector2(8, 52)
var _aim = Vector2(90, 8)


# One of them. Its methods are the tools.
class Villager:
	extends Node2D
	var village
	var home = Vector2.ZERO
	var speed = Vector2.ZERO
	var face = "south"

	func walk(direction):
		_go(direction, 5.5)

	func run(direction):
		_go(direction, 11.0)

	func look(direction):
		_go(direction, 0.0)

	func stay():
		speed = Vector2.ZERO

	func observe():
		return village.seen_from(self)

	func _go(direction, fast):
		face = direction
		speed = Vector2.UP.rotated(DIRECTIONS.find(direction) * PI / 4) * fast


func _ready():
	seed(1)
	var crowd = $Crowd
	for argument in OS.get_cmdline_user_args():
		if argument.begins_with("--url="):
			crowd.url = argument.substr(6)
	crowd.add_tool("walk", "Walk that way until the next call.", PARAMETERS)
	crowd.add_tool("run", "Run that way until the next call.", PARAMETERS)
	crowd.add_tool("look", "Stand, and look that way.", PARAMETERS)
	crowd.add_tool("stay", "Stand still.")
	crowd.trouble.connect(_say)
	crowd.lost.connect(_say)
	crowd.ended.connect(_say)
	for number in COUNT:
		var one = Villager.new()
		one.village = self
		one.name = "villager-%d" % (number + 1)
		one.home = HOUSES[number % HOUSES.size()]
		one.position = one.home + Vector2(4, 0).rotated(number)
		villagers.append(one)
		add_child(one)
		crowd.join(str(one.name), one)
	crowd.start()


# Where each thing is, and how far: what the model reads.
func seen_from(one):
	var seen = []
	for name in PLACES:
		seen.append(_seen(one.position, name, PLACES[name][0], PLACES[name][1]))
	seen.append(_seen(one.position, "home", one.home, HOUSE_HERE))
	seen.append(_seen(one.position, "fox", fox, FOX_HERE))
	return " ".join(PackedStringArray(seen)) + " whim none"


func _seen(from, name, thing, here):
	var to = thing - from
	if to.length() <= here:
		return name + " here"
	var turn = int(round(atan2(to.x, -to.y) / (PI / 4)) + 8) % 8
	return "%s %s %s" % [name, DIRECTIONS[turn], "near" if to.length() < NEAR else "far"]


# How many are there.
func gathered(place):
	var count = 0
	for one in villagers:
		count += int(is_instance_valid(one) and one.position.distance_to(PLACES[place][0]) <= PLACES[place][1])
	return count


func _physics_process(delta):
	if fox.distance_to(_aim) < 2:
		_aim = Vector2(randf_range(5, SIZE.x - 5), randf_range(5, SIZE.y - 5))
	fox += (_aim - fox).normalized() * 6 * delta
	for one in villagers:
		if is_instance_valid(one):
			one.position += one.speed * delta
			one.position = Vector2(clamp(one.position.x, 2, SIZE.x - 2), clamp(one.position.y, 2, SIZE.y - 2))
	queue_redraw()


func _draw():
	draw_rect(Rect2(Vector2.ZERO, SIZE * SCALE), Color(0.18, 0.24, 0.16))
	for name in PLACES:
		draw_circle(PLACES[name][0] * SCALE, 14, Color(0.5, 0.5, 0.55))
	for house in HOUSES:
		draw_rect(Rect2(house * SCALE - Vector2(14, 14), Vector2(28, 28)), Color(0.55, 0.35, 0.25))
	draw_circle(fox * SCALE, 6, Color(0.9, 0.5, 0.1))
	for one in villagers:
		if is_instance_valid(one):
			draw_circle(one.position * SCALE, 6, Color(0.4, 0.7, 1.0) if one.speed.length() > 0 else Color(0.7, 0.7, 0.8))


func _say(text):
	print("rtcontrol: ", text)
