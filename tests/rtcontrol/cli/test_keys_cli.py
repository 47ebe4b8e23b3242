"""`rtcontrol keys`: what it writes, what it shows, and what it never shows."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from commands import call

from rtcontrol.serve import zmq_auth
from tests.helpers.processes import cli

keys = partial(cli, "keys")


def test_new_list_revoke_in_the_default_folder(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    folder = tmp_path / "rtcontrol" / "keys"
    made = keys("new", "arm", env=env)
    assert made.returncode == 0, made.stderr
    server, client = zmq_auth.load_pair(folder / "server.key_secret"), zmq_auth.load_pair(folder / "arm.key_secret")
    listed = keys("list", env=env)
    assert zmq_auth.fingerprint(client.public) in listed.stdout
    assert zmq_auth.fingerprint(server.public) in listed.stdout
    revoked = keys("revoke", "arm", env=env)
    assert revoked.returncode == 0
    assert sorted(p.name for p in folder.iterdir()) == ["server.key", "server.key_secret"]
    again = keys("revoke", "arm", env=env)
    assert again.returncode == 2
    assert "no key 'arm'" in again.stderr
    for done in (made, listed, revoked, again):
        assert server.secret not in done.stdout + done.stderr
        assert client.secret not in done.stdout + done.stderr


def test_second_client_keeps_the_servers_key(tmp_path: Path) -> None:
    folder = str(tmp_path / "keys")
    assert call("keys", "new", "one", "--keys", folder) == 0
    server = zmq_auth.load_pair(tmp_path / "keys" / "server.key_secret")
    assert call("keys", "new", "two", "--keys", folder) == 0
    assert zmq_auth.load_pair(tmp_path / "keys" / "server.key_secret") == server


def test_server_and_paths_are_no_names_of_clients(tmp_path: Path) -> None:
    folder = str(tmp_path / "keys")
    assert call("keys", "new", "server", "--keys", folder) == 2
    assert call("keys", "new", "../arm", "--keys", folder) == 2
    assert call("keys", "new", "arm", "--keys", folder) == 0
    assert call("keys", "revoke", "server", "--keys", folder) == 2
    assert (tmp_path / "keys" / "server.key").exists()


def test_refused_name_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("keys", "new", "a/b", "--keys", str(tmp_path / "keys")) == 2
    said = capsys.readouterr()
    assert "no name for a key" in said.err and "Server key" not in said.out
    assert not (tmp_path / "keys").exists()
