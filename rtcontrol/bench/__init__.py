"""Benchmarks that measure rtcontrol and its baselines in one run, with the same model, on the same machine."""
