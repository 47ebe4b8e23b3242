"""Run a server that checks the client that connects: `python -m tests.conformance.check --bind ENDPOINT`."""

from __future__ import annotations

import argparse
import sys

from tests.conformance.check import check_any_client, table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.check",
        description="Check a client (connect it to this address; it must stream observations until it receives bye) "
        "against protocol 1.0. Exit status: 0 all passed, 1 not, 2 could not be tried.",
    )
    parser.add_argument("--bind", metavar="ENDPOINT", required=True, help="such as tcp://127.0.0.1:5599")
    parser.add_argument("--wait-s", type=float, default=60.0, help="for the client (60)")
    given = parser.parse_args()
    try:
        findings = check_any_client(
            given.bind, lambda at: print(f"Connect the client to {at}", flush=True), given.wait_s
        )
    except OSError as error:
        print(f"{given.bind} cannot be used ({error.strerror}).", file=sys.stderr)
        return 2
    print(table(findings))
    return int(any(f.status == "failed" for f in findings))


if __name__ == "__main__":
    sys.exit(main())
