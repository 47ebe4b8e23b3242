# The editor's part: two kinds of nodes to add.
@tool
extends EditorPlugin


func _enter_tree():
	add_custom_type("RtControl", "Node", preload("rtcontrol_client.gd"), null)
	add_custom_type("RtControlCrowd", "Node", preload("rtcontrol_crowd.gd"), null)


func _exit_tree():
	remove_custom_type("RtControl")
	remove_custom_type("RtControlCrowd")
