# Runs the sample's scene in Godot 4 and tells what its client does as JSON lines; its settings are in flight.json.
extends Node

var client


func _ready():
	var given = JSON.parse_string(FileAccess.get_file_as_string("res://flight.json"))
	var scene = load("res://main.tscn").instantiate()
	client = scene.get_node("RtControl")
	for key in given:
		client.set(key, given[key])
	client.welcomed.connect(func(message): tell({"event": "welcomed", "resumed": message["resumed"]}))
	client.lost.connect(func(why): tell({"event": "lost", "why": why}))
	client.trouble.connect(func(text): tell({"event": "trouble", "text": text}))
	client.ended.connect(func(why): tell({"event": "ended", "why": why}))
	client.acted.connect(_acted)
	client.told.connect(func(outcome, _message): tell({"event": "told", "outcome": outcome}))
	add_child(scene)
	tell({"event": "ready"})


func _acted(call, cause):
	tell({"event": "acted", "name": call["name"], "cause": cause, "ages_ms": client.rule.expires_ns / 1e6 - client.now_ns() / 1e6,
		"counts": client.counts, "waits": client.phase.waits_ns.size()})


func tell(line):
	print(JSON.stringify(line))
