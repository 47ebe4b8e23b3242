"""Environments in which calls act: simulations with scripted experts, paced and remote environments, and evaluation."""
