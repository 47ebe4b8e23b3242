"""CURVE key files: zmq reads them, nobody else's eyes do, and damaged ones let nobody in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from zmq.auth import load_certificate

from rtcontrol.serve import zmq_auth


def test_zmq_reads_the_pair_and_only_the_owner_may(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        pair = zmq_auth.create(tmp_path / "keys", "arm")
    finally:
        os.umask(before)
    secret = tmp_path / "keys" / "arm.key_secret"
    assert load_certificate(secret) == (pair.public.encode(), pair.secret.encode())
    assert load_certificate(tmp_path / "keys" / "arm.key") == (pair.public.encode(), None)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700


def test_secret_that_others_may_read_is_refused_with_the_remedy(tmp_path: Path) -> None:
    zmq_auth.create(tmp_path, "arm")
    secret = tmp_path / "arm.key_secret"
    secret.chmod(0o640)
    with pytest.raises(zmq_auth.KeyFileError, match=r"mode 640.*chmod 600"):
        zmq_auth.load_pair(secret)


@pytest.mark.parametrize("name", ["", "../arm", "a/b", ".hidden", "a b", "x" * 65, "a.key", "a.key_secret"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(zmq_auth.KeyFileError, match="no name for a key"):
        zmq_auth.create(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_existing_key_is_never_replaced(tmp_path: Path) -> None:
    pair = zmq_auth.create(tmp_path, "arm")
    with pytest.raises(zmq_auth.KeyFileError, match="already"):
        zmq_auth.create(tmp_path, "arm")
    assert zmq_auth.load_pair(tmp_path / "arm.key_secret") == pair


@pytest.mark.parametrize("content", [b"", b"\x00\xff" * 50, b'curve\n    public-key = "short"\n', b"x" * 100_000])
def test_damaged_file_is_told_and_lets_nobody_in(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "arm.key").write_bytes(content)
    with pytest.raises(zmq_auth.KeyFileError, match="no ZeroMQ certificate"):
        zmq_auth.load_public(tmp_path / "arm.key")
    assert zmq_auth.clients(tmp_path) == {}


def test_allow_list_holds_clients_but_not_the_server(tmp_path: Path) -> None:
    for name in ("server", "arm"):
        zmq_auth.create(tmp_path, name)
    assert zmq_auth.clients(tmp_path) == {"arm": zmq_auth.load_public(tmp_path / "arm.key")}


def test_errors_and_representations_hold_no_secret(tmp_path: Path) -> None:
    pair = zmq_auth.create(tmp_path, "arm")
    secret = tmp_path / "arm.key_secret"
    secret.write_text(secret.read_text().replace('public-key = "', 'public-key = "x'))
    with pytest.raises(zmq_auth.KeyFileError) as caught:
        zmq_auth.load_pair(secret)
    assert pair.secret not in str(caught.value) + repr(caught.value) + repr(pair)
