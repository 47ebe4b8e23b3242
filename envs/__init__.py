"""Environments in which calls act: simulations, the paced environment around them, scripted experts, rollouts,
evaluation."""
