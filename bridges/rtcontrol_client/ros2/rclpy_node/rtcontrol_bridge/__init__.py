"""rtcontrol's bridge as a ROS 2 node."""
