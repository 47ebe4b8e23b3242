"""Conformance checks of any client over real sockets (`check_any_client`)."""

from tests.conformance.check.script import check_any_client
from tests.conformance.check.stand import Finding, table

__all__ = ["Finding", "check_any_client", "table"]
