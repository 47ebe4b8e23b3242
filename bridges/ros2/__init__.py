"""The bridge to ROS 2 robots over DDS, with no ROS installation (`rtcontrol bridge ros2`)."""
