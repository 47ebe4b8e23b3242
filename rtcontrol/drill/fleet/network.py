"""A network for the machines of a drilled fleet: namespaces of Linux, a bridge, and links that can be cut.

All of it is in a namespace of the drill's own, which is gone with its last process, and which touches no network of the
machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from rtcontrol.models.errors import UserError

BRIDGE, HEAD, MASK = "machines", "10.77.0.1", 24
LOOPBACK = "127.0.0.1"
# In the environment: how the drill's process was entered, or why it could not be.
ENTERED = "RTCONTROL_DRILL_NETWORK"
HERE = "here"
# The second way is that of a user who is not root, where the kernel allows it.
WAYS = (("--net",), ("--user", "--map-root-user", "--net"))
NEEDS = "no network of its own: that takes `ip` and `unshare`, and root or user namespaces"


def enter() -> None:
    """Begin this program anew in a network namespace of its own, where that can be had; else go on."""
    if ENTERED in os.environ:
        return
    os.environ[ENTERED] = NEEDS
    for way in WAYS if shutil.which("ip") and shutil.which("unshare") else ():
        tried = ["unshare", *way, "ip", "link", "add", BRIDGE, "type", "bridge"]
        if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
            os.environ[ENTERED] = HERE
            os.execvp("unshare", ["unshare", *way, sys.executable, "-m", "rtcontrol", *sys.argv[1:]])


class MachineNetwork:
    """Where the machines are. `missing`: why they share the host's loopback, and no link can be cut."""

    def __init__(self) -> None:
        self.missing = "" if os.environ.get(ENTERED) == HERE else NEEDS
        self._count = 0
        if not self.missing:
            _ip("link", "set", "lo", "up")
            _ip("link", "add", BRIDGE, "type", "bridge")
            _ip("addr", "add", f"{HEAD}/{MASK}", "dev", BRIDGE)
            _ip("link", "set", BRIDGE, "up")

    @property
    def head(self) -> str:
        """The address of the head, the servers and the clients."""
        return LOOPBACK if self.missing else HEAD

    @property
    def drops(self) -> bool:
        """Whether packets of one direction can be dropped."""
        listed = ["iptables", "-w", "-L", "OUTPUT"]
        return not self.missing and shutil.which("iptables") is not None and _does(listed)

    def link(self) -> MachineLink | None:
        """Of one more machine."""
        if self.missing:
            return None
        self._count += 1
        return MachineLink(f"m{self._count}", f"10.77.0.{10 + self._count}")


class MachineLink:
    """A machine's cable: a veth pair whose other end is in the bridge."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self._dropping = False

    def plug(self, pid: int) -> None:
        """Into the namespace of that process."""
        _ip("link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        _ip("link", "set", self.name, "master", BRIDGE, "up")

    def cut(self) -> None:
        """Nothing arrives any more, either way."""
        _ip("link", "set", self.name, "down")

    def drop(self) -> None:
        """Half open: what is sent to the machine is lost on the way, and nobody is told so."""
        _run(["iptables", "-w", *self._rule("-I")])
        self._dropping = True

    def mend(self) -> None:
        """After `cut` or `drop`."""
        if self._dropping:
            _run(["iptables", "-w", *self._rule("-D")])
        else:
            _ip("link", "set", self.name, "up")
        self._dropping = False

    def _rule(self, what: str) -> tuple[str, ...]:
        return what, "OUTPUT", "-d", self.address, "-j", "DROP"


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _does(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise UserError(f"`{' '.join(command)}` failed: {said}", "Leave faults of the network out: --only.")
