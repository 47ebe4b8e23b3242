"""`python -m tests.conformance.check`: conformance of a client (--bind) or of a server (--connect)."""

from __future__ import annotations

import argparse
import sys

from rtcontrol_client.client.errors import ClientError
from tests.conformance.check import check_any_client, check_client, table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.check",
        description="Check a client (--bind: connect it to this address; it must stream observations until told bye) "
        "or a live server (--connect) against protocol 1.0. Exit status: 0 all passed, 1 not, 2 could not be tried.",
        epilog="Example: python -m tests.conformance.check --bind tcp://127.0.0.1:5599",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--bind", metavar="ENDPOINT", help="be a server, and check the client that connects")
    which.add_argument("--connect", metavar="ENDPOINT", help="be a client, and check the server there")
    parser.add_argument("--agent", help="of --connect: the server's agent (default: a tool of its own)")
    parser.add_argument("--keys", help="of --connect: this client's .key_secret file")
    parser.add_argument("--wait-s", type=float, default=60.0, help="for the client, or the welcome (60)")
    given = parser.parse_args()
    try:
        if given.bind:
            findings = check_any_client(given.bind, _started, given.wait_s)
        else:
            options = {name: value for name in ("agent", "keys") if (value := getattr(given, name))}
            findings = check_client(given.connect, wait_s=given.wait_s, **options)
    except ClientError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{given.bind or given.connect} cannot be used ({error.strerror}).", file=sys.stderr)
        return 2
    print(table(findings))
    return int(any(f.status == "failed" for f in findings))


def _started(endpoint: str) -> None:
    print(f"Connect the client to {endpoint}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
