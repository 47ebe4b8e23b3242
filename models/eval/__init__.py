"""How answers are judged and counted: rules, the official checker, heads, calibration, latency and pairs of runs."""
