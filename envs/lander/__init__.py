"""Gymnasium's continuous LunarLander as a world; instructions say where to land or hover."""
