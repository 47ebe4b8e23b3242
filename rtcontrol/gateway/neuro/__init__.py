"""`rtcontrol serve --neuro`: plays the games that speak the Neuro API. docs/neuro.md."""

from rtcontrol.gateway.neuro.options import NeuroOptions
from rtcontrol.gateway.neuro.server import NeuroServer

__all__ = ["NeuroOptions", "NeuroServer"]
