"""Simulation of the loop, actuator, session and client with faults, in simulated time (`rtcontrol drill
--simulate`)."""
