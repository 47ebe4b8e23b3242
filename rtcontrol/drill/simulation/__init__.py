"""Simulate loop, actuator, server and client, with random faults, in simulated time (`rtcontrol drill --simulate`)."""
