"""Conformance checks over real sockets: of any client (`check_any_client`), of a live server (`check_client`)."""

from rtcontrol.bridges.client.check.finding import Finding, table
from rtcontrol.bridges.client.check.live import check_client
from rtcontrol.bridges.client.check.script import check_any_client

__all__ = ["Finding", "check_any_client", "check_client", "table"]
