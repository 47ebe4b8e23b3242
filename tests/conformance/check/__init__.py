"""Conformance checks over real sockets: of any client (`check_any_client`), of a live server (`check_client`)."""

from tests.conformance.check.finding import Finding, table
from tests.conformance.check.live import check_client
from tests.conformance.check.script import check_any_client

__all__ = ["Finding", "check_any_client", "check_client", "table"]
