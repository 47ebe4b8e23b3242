# Two members of a crowd in Godot 4; tells what is done for them as JSON lines. Its settings are in flight.json.
extends Node

const Crowd = preload("res://addons/rtcontrol/rtcontrol_crowd.gd")


class Cart:
	extends Node

	func go(_way = null):
		pass

	func stop():
		pass

	func observe():
		return "left 40 right 10"


func _ready():
	var given = JSON.parse_string(FileAccess.get_file_as_string("res://flight.json"))
	var crowd = Crowd.new()
	for key in given:
		crowd.set(key, given[key])
	crowd.instruction = "Drive."
	crowd.safe_tool = "stop"
	crowd.add_tool("go", "Go.", {"way": {"type": "string", "enum": ["left", "right"]}})
	crowd.add_tool("stop", "Stop.")
	crowd.acted.connect(func(id, call, cause): print(JSON.stringify({"event": "acted", "id": id, "name": call["name"], "cause": cause})))
	crowd.trouble.connect(func(text): print(JSON.stringify({"event": "trouble", "text": text})))
	add_child(crowd)
	for id in ["anna", "bert"]:
		var cart = Cart.new()
		cart.name = id
		add_child(cart)
		crowd.join(cart.name, cart)
	crowd.start()
