"""`rtcontrol devices`: those that were paired with a server by its code, and have an access token of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.options import group
from rtcontrol.gateway.devices import PairedDevices
from rtcontrol.gateway.options import read_token
from rtcontrol.models.errors import UserError

app = group(help="Devices that were paired by a code (`serve --pair`): list, revoke.")
TokenFile = Annotated[Path, typer.Option("--token-file", help="The file that the server was started with.")]


@app.command("list")
def show(token_file: TokenFile) -> None:
    """Names, and the day when each was paired; never the tokens.

    Example: rtcontrol devices list --token-file token
    """
    devices = _devices(token_file).listed()
    for device in devices:
        print(f"{device.since}  {device.name}")
    if not devices:
        print("No device is paired.")


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="As it is listed.")], token_file: TokenFile) -> None:
    """Take a device's token back, also on a running server, which cuts its connections off with the next message.

    Example: rtcontrol devices revoke phone --token-file token
    """
    _devices(token_file).revoke(name)
    print(f"Revoked {name}")


def _devices(token_file: Path) -> PairedDevices:
    if not token_file.is_file():
        raise UserError(f"--token-file {token_file} is no file.", "Give the one that the server was started with.")
    return PairedDevices(token_file, read_token(token_file))
