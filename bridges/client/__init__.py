"""The client: joins any program to the control loop. Needs pyzmq, msgpack and pydantic, and nothing else."""

from rtcontrol.bridges.client.aio import AsyncClient
from rtcontrol.bridges.client.client import Client
from rtcontrol.bridges.client.errors import ClientError, Closed, Declined, Refused
from rtcontrol.bridges.client.options import Options
from rtcontrol.bridges.client.session import Standing

__all__ = ["AsyncClient", "Client", "ClientError", "Closed", "Declined", "Options", "Refused", "Standing"]
