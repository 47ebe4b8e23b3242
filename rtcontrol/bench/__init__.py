"""Benchmarks: every figure beside its baselines, same model, same machine, one run, raw milliseconds kept."""
