"""What is written down of every tick, readable after SIGKILL."""
