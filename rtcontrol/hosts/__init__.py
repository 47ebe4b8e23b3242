"""Hosts, which run deciders (models, scripts, remote servers) outside the control loop's thread."""
