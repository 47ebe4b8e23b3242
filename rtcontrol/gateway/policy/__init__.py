"""`rtcontrol serve --openpi`: answers the clients of policy servers. docs/policies.md."""

from rtcontrol.gateway.policy.options import PolicyOptions
from rtcontrol.gateway.policy.server import PolicyServer

__all__ = ["PolicyOptions", "PolicyServer"]
