"""`rtcontrol keys`: the CURVE keys of a server and the allow-list of its clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rtcontrol.cli.figures import group
from rtcontrol.models.errors import UserError
from rtcontrol.serve import zmq_auth

app = group(help="The keys of clients that may connect from other machines: make, list, revoke.")
Folder = Annotated[
    Path | None, typer.Option("--keys", help="Key folder. (default: ~/.config/rtcontrol/keys)", show_default=False)
]


@app.command()
def new(name: Annotated[str, typer.Argument(help="The client's name.")], keys: Folder = None) -> None:
    """Make a key pair for a client and put its public half on the allow-list, also of a running server.

    The server's own pair is made on first use.

    Example: rtcontrol keys new left-arm
    """
    folder = _folder(keys)
    if name == zmq_auth.SERVER:
        raise UserError(f"{name!r} is the server's own key.", "Choose another name.")
    with _told():
        # Before the server's pair is made, which would stay.
        zmq_auth.check_name(name)
        if not (folder / f"{zmq_auth.SERVER}.key_secret").exists():
            pair = zmq_auth.create(folder, zmq_auth.SERVER)
            print(f"Server key {zmq_auth.fingerprint(pair.public)} in {folder}")
        pair = zmq_auth.create(folder, name)
    print(f"Key {name} {zmq_auth.fingerprint(pair.public)} in {folder}")
    print(f"Move {name}.key_secret to the client's machine, copy {zmq_auth.SERVER}.key beside it, and connect with:")
    print(f'  Client.connect("tcp://HOST:5555", ..., keys="{name}.key_secret")')
    print(
        f"This server needs only {name}.key. Start it with: rtcontrol serve --bind tcp://0.0.0.0:5555 --keys {folder}"
    )


@app.command("list")
def show(keys: Folder = None) -> None:
    """The server's key and the allow-list: names and fingerprints, never secrets.

    Example: rtcontrol keys list
    """
    folder = _folder(keys)
    server = folder / f"{zmq_auth.SERVER}.key"
    if not server.exists():
        raise UserError(f"There are no keys in {folder}.", "Make one: rtcontrol keys new NAME")
    with _told():
        print(f"{zmq_auth.fingerprint(zmq_auth.load_public(server))}  {zmq_auth.SERVER} (this server)")
    allowed = zmq_auth.clients(folder)
    for name, public in allowed.items():
        kept = "  its secret is still here: move it to the client" if (folder / f"{name}.key_secret").exists() else ""
        print(f"{zmq_auth.fingerprint(public)}  {name}{kept}")
    for path in sorted(folder.glob("*.key")):
        if path.stem != zmq_auth.SERVER and path.stem not in allowed:
            print(f"{'-' * 16}  {path.name} is damaged: it lets nobody in")


@app.command()
def revoke(name: Annotated[str, typer.Argument(help="The client's name.")], keys: Folder = None) -> None:
    """Take a client off the allow-list. A running server closes its session within a second.

    Example: rtcontrol keys revoke left-arm
    """
    folder = _folder(keys)
    public = folder / f"{name}.key"
    if name == zmq_auth.SERVER or not zmq_auth.NAME.fullmatch(name):
        raise UserError(f"{name!r} is no client's key.", "See `rtcontrol keys list`.")
    if not public.exists():
        names = ", ".join(zmq_auth.clients(folder)) or "none"
        raise UserError(f"There is no key {name!r} in {folder}.", f"The keys there: {names}.")
    # The public half first: that is what admits.
    public.unlink()
    (folder / f"{name}.key_secret").unlink(missing_ok=True)
    print(f"Revoked {name}")


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except zmq_auth.KeyFileError as error:
        raise UserError(error.what, error.remedy) from None


def _folder(keys: Path | None) -> Path:
    """The one given, or the user's."""
    if (folder := keys or zmq_auth.default_folder()) is None:
        raise UserError(
            "Nobody knows a home folder to keep keys in (HOME is not set).",
            "Give --keys FOLDER, or set HOME or XDG_CONFIG_HOME.",
        )
    return folder
