"""The bridge to the CARLA simulator, in which tool calls drive an ego vehicle (`rtcontrol run --env carla-bridge`)."""
