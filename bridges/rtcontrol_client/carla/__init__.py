"""The bridge to the CARLA simulator: drives an ego vehicle by calls (`rtcontrol run --env carla-bridge`)."""
