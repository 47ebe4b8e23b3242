"""`python -m rtcontrol_client.carla.standin --port P [--state FILE]`: the CARLA stand-in.

Once it listens it prints `listening on 127.0.0.1:PORT`. It ends on SIGTERM or SIGINT. Lines on the
standard input make things go wrong, and each is answered with `done: LINE`:

  freeze       answer and stream nothing any more, with all connections open; `thaw` ends it
  garbage      send one packet that makes CARLA's client library abort its process
  state        write the state file now
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
from pathlib import Path

from rtcontrol_client.carla.standin.server import HOST, Server
from rtcontrol_client.carla.standin.wire import VERSION
from rtcontrol_client.carla.standin.world import World


def read_lines(loop: asyncio.AbstractEventLoop, server: Server, leashed: bool) -> None:
    for line in sys.stdin:
        if line.strip():
            loop.call_soon_threadsafe(server.command, line)
    if leashed:
        loop.call_soon_threadsafe(server.stopped.set)


async def serve(options: argparse.Namespace) -> None:
    server = Server(World(), options.claim_version, options.state)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stopped.set)
    port = await server.listen(options.port)
    threading.Thread(target=read_lines, args=(loop, server, options.leash), daemon=True).start()
    print(f"listening on {HOST}:{port}", flush=True)
    await server.run()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rtcontrol_client.carla.standin",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=2000, help="port of the RPC; 0 takes a free one")
    parser.add_argument("--state", type=Path, help="JSON file that is written each second and at the end")
    parser.add_argument("--leash", action="store_true", help="end when the standard input is closed")
    parser.add_argument("--claim-version", default=VERSION, help="the version to claim to clients")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
