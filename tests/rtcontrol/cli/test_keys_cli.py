"""`rtcontrol keys`: what it writes, what it shows, and what it never shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rtcontrol.serve import keyring

ROOT = Path(__file__).resolve().parents[3]


def keys(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    command = [sys.executable, "-m", "rtcontrol", "keys", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_new_list_revoke_in_the_default_folder(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    folder = tmp_path / "rtcontrol" / "keys"
    made = keys("new", "arm", **env)
    assert made.returncode == 0, made.stderr
    server, client = keyring.load_pair(folder / "server.key_secret"), keyring.load_pair(folder / "arm.key_secret")
    listed = keys("list", **env)
    assert keyring.fingerprint(client.public) in listed.stdout
    assert keyring.fingerprint(server.public) in listed.stdout
    revoked = keys("revoke", "arm", **env)
    assert revoked.returncode == 0
    assert sorted(p.name for p in folder.iterdir()) == ["server.key", "server.key_secret"]
    again = keys("revoke", "arm", **env)
    assert again.returncode == 2
    assert "no key 'arm'" in again.stderr
    for done in (made, listed, revoked, again):
        assert server.secret not in done.stdout + done.stderr
        assert client.secret not in done.stdout + done.stderr


def test_second_client_keeps_the_servers_key(tmp_path: Path) -> None:
    folder = str(tmp_path / "keys")
    assert keys("new", "one", "--keys", folder).returncode == 0
    server = keyring.load_pair(tmp_path / "keys" / "server.key_secret")
    assert keys("new", "two", "--keys", folder).returncode == 0
    assert keyring.load_pair(tmp_path / "keys" / "server.key_secret") == server


def test_server_and_paths_are_no_names_of_clients(tmp_path: Path) -> None:
    folder = str(tmp_path / "keys")
    assert keys("new", "server", "--keys", folder).returncode == 2
    assert keys("new", "../arm", "--keys", folder).returncode == 2
    assert keys("new", "arm", "--keys", folder).returncode == 0
    assert keys("revoke", "server", "--keys", folder).returncode == 2
    assert (tmp_path / "keys" / "server.key").exists()


def test_refused_name_leaves_nothing(tmp_path: Path) -> None:
    done = keys("new", "a/b", "--keys", str(tmp_path / "keys"))
    assert done.returncode == 2 and "no name for a key" in done.stderr
    assert not (tmp_path / "keys").exists() and "Server key" not in done.stdout
