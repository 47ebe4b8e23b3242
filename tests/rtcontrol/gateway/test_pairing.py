"""Pairing by the code that a server shows, and what attackers of it can try."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_served import TOKEN, Serve, Served
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from rtcontrol.gateway import GatewayOptions, access
from rtcontrol.gateway.access import Refusal
from rtcontrol.gateway.devices import MOST, DevicesFullError, PairedDevices
from rtcontrol.gateway.pairing import LONGEST_S, PAUSE_S, VALID_S, WRONG, Pairing, address_of_page
from rtcontrol.models.errors import UserError
from rtcontrol_client.wire import encode_json
from rtcontrol_client.wire.endpoint import is_public
from rtcontrol_client.wire.messages import Ping
from tests.helpers.processes import cli, until

SITE = "https://robot.example:8443"
ELSEWHERE = {"host": "192.0.2.7"}  # as another machine of the network names the server


class Shown:
    """A server that pairs, and what its terminal was told."""

    def __init__(self, serve: Serve, folder: Path, **options: Any) -> None:
        self.lines: list[str] = []
        self.file = folder / "token"
        if not self.file.exists():
            self.file.write_text(TOKEN)
            self.file.chmod(0o600)
        self.devices = PairedDevices(self.file, TOKEN)
        told = {"token": TOKEN, "origins": frozenset({SITE}), "model": "noop", "host": "0.0.0.0", **options}
        self.served: Served = serve(devices=self.devices, pair=True, say=self.lines.append, **told)
        self.url = f"http://127.0.0.1:{self.served.gateway.port}/"

    @property
    def code(self) -> str:
        """The newest code that was shown."""
        return "".join(re.findall(r"type (\d{3}) (\d{3}) ", "\n".join(self.lines))[-1])

    def pair(self, told: Any = None, **headers: str) -> httpx.Response:
        return httpx.post(f"{self.url}pair", json={} if told is None else told, headers=headers)

    def paired(self, name: str = "phone") -> str:
        self.pair()
        answer = self.pair({"code": self.code, "name": name})
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["token"]
        return token

    def other_code(self) -> str:
        """One that is wrong."""
        return f"{(int(self.code) + 1) % 10**6:06}"

    def open(self, token: str) -> ClientConnection:
        return connect(self.url.replace("http", "ws", 1) + f"ws?token={token}", origin=SITE, compression=None)  # type: ignore[arg-type]

    def status(self, token: str, path: str = "health") -> int:
        shown = {**ELSEWHERE, "authorization": f"Bearer {token}"}
        return httpx.get(self.url + path, headers=shown).status_code


@pytest.fixture
def shown(serve: Serve, tmp_path: Path) -> Shown:
    return Shown(serve, tmp_path)


def test_a_code_is_exchanged_for_a_token_of_the_devices_own(shown: Shown) -> None:
    asked = shown.pair(**ELSEWHERE)
    assert (asked.status_code, asked.json()["code"]) == (403, "code")
    answer = shown.pair({"code": shown.code, "name": "Ada's headset"}, **ELSEWHERE)
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    token = answer.json()["token"]
    assert answer.json()["name"] == "Ada's headset" and GatewayOptions(token=token)
    assert token != TOKEN and shown.status(token) == 200 and shown.status(f"{token}x") == 401
    with shown.open(token) as line:
        line.send(encode_json(Ping(id=1, t_ns=0)))
        assert '"pong"' in str(line.recv(timeout=10))


def test_a_code_is_good_for_one_device(shown: Shown) -> None:
    shown.pair()
    code = shown.code
    assert shown.pair({"code": code}).json()["name"] == "device"
    again = shown.pair({"code": code})
    assert (again.status_code, again.json()["code"]) == (403, "wrong_code")
    assert shown.code != code, "the next device has a code of its own"


# cc-buddy#16, screentinker#88: six digits without a bound of attempts are guessed within their time.
def test_guesses_end_the_code_however_many_come_at_once(shown: Shown) -> None:
    shown.pair()
    right, wrong = shown.code, shown.other_code()
    answers: list[httpx.Response] = []

    def guess() -> None:
        answers.append(shown.pair({"code": wrong}))

    threads = [threading.Thread(target=guess) for _ in range(4 * WRONG)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    codes = [answer.json()["code"] for answer in answers]
    assert codes.count("wrong_code") == WRONG and codes.count("locked") == 3 * WRONG
    late = shown.pair({"code": right})
    assert late.status_code == 429 and 0 < int(late.headers["retry-after"]) <= PAUSE_S
    assert shown.pair().status_code == 429, "nor is another code shown"
    assert not shown.devices.listed()
    # The operator's own token is no matter of codes.
    assert shown.status(TOKEN) == 200


# OwnPay#205: a counter for each address is passed by with the header of a proxy.
def test_a_header_of_a_proxy_gives_no_further_attempts_and_is_refused(shown: Shown) -> None:
    shown.pair()
    for name in ("x-forwarded-for", "forwarded", "x-real-ip"):
        answer = shown.pair({"code": shown.code}, **{name: "192.168.1.7"})
        assert (answer.status_code, answer.json()["code"]) == (403, "public"), name
    assert shown.pair({"code": shown.code}).status_code == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", ""]
)
def test_a_form_of_another_site_cannot_ask(shown: Shown, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    answer = httpx.post(f"{shown.url}pair", content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "content_type")
    assert shown.lines == [], "no code was shown"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "evil.example", "origin": "http://evil.example"}, 421),  # DNS rebinding
    ],
)
def test_pages_of_other_sites_and_rebound_names_do_not_pair(shown: Shown, headers: dict[str, str], status: int) -> None:
    shown.pair()
    for told in (None, {"code": shown.code}):
        answer = shown.pair(told, **headers)
        assert answer.status_code == status and "access-control-allow-origin" not in answer.headers
    assert not shown.devices.listed()


def test_an_allowed_site_may_pair_its_visitors_and_reads_why_not(shown: Shown) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert httpx.options(f"{shown.url}pair", headers={"origin": SITE, **asked}).status_code == 204
    assert shown.pair(origin=SITE).headers["access-control-allow-origin"] == SITE
    assert shown.pair({"code": shown.code}, origin=SITE).status_code == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_an_image_or_a_link_shows_no_code(shown: Shown, method: str) -> None:
    assert httpx.request(method, f"{shown.url}pair").status_code == 405
    assert shown.lines == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 422),
        (b'{"code": 123456}', 422),
        (b'{"code": "1", "name": "\\u001b[2Jphone"}', 422),
        (b'{"name": "phone\\u202e"}', 422),
        (b'{"name": "  "}', 422),
        (b'{"code": "1", "code": "2"}', 422),
        (b'{"code": "' + b"9" * 5000 + b'"}', 413),
        (b'{"code": "\\ud800"}', 422),
    ],
)
def test_a_body_of_another_shape_is_refused_and_is_no_attempt(shown: Shown, body: bytes, status: int) -> None:
    shown.pair()
    for _ in range(WRONG + 1):
        answer = httpx.post(f"{shown.url}pair", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status, answer.text
    assert shown.pair({"code": shown.code}).status_code == 200


def test_a_server_that_does_not_pair_has_no_such_path(served: Served) -> None:
    assert served.post("pair", {"code": "123456"}).status_code in (404, 405)


def test_a_device_that_is_revoked_is_cut_off_and_the_others_stay(shown: Shown) -> None:
    tokens = [shown.paired(), shown.paired()]
    assert [device.name for device in shown.devices.listed()] == ["phone", "phone 2"]
    lines = [shown.open(token) for token in tokens]
    done = cli("devices", "revoke", "phone", "--token-file", str(shown.file))
    assert done.returncode == 0, done.stderr

    def talks(line: ClientConnection) -> bool:
        try:
            line.send(encode_json(Ping(id=1, t_ns=0)))
            return '"pong"' in str(line.recv(timeout=10))
        except ConnectionClosed:
            return False

    until(lambda: not talks(lines[0]), "the device is still heard")
    assert talks(lines[1])
    lines[1].close()
    with pytest.raises(InvalidStatus):
        shown.open(tokens[0])
    assert [shown.status(token) for token in tokens] == [401, 200]
    assert cli("devices", "list", "--token-file", str(shown.file)).stdout.split("  ")[-1] == "phone 2\n"


def test_a_device_is_known_to_the_next_server_until_the_servers_own_token_changes(
    shown: Shown, serve: Serve, tmp_path: Path
) -> None:
    token = shown.paired()
    shown.served.gateway.close()
    assert Shown(serve, tmp_path).status(token) == 200
    other = f"{TOKEN}-another"
    assert PairedDevices(shown.file, other).holder(token) is None


def test_neither_list_nor_terminal_has_a_token(shown: Shown) -> None:
    token = shown.paired()
    text = shown.devices.path.read_text() + "\n".join(shown.lines) + repr(shown.devices.listed())
    assert token not in text and TOKEN not in text
    assert shown.devices.path.stat().st_mode & 0o777 == 0o600


def test_a_list_that_was_damaged_or_is_no_file_lets_nobody_in(shown: Shown) -> None:
    token = shown.paired()
    shown.devices.path.write_text("x" * 64 + " phone\n" + shown.devices.path.read_text()[1:])
    assert shown.status(token) == 401
    shown.devices.path.unlink()
    shown.devices.path.mkdir()
    assert shown.status(token) == 401 and shown.status(TOKEN) == 200
    shown.pair()
    answer = shown.pair({"code": shown.code})
    assert answer.status_code == 503 and "cannot be read" in answer.json()["error"]


def test_as_many_devices_as_may_be(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    devices = PairedDevices(file, TOKEN)
    tokens = [devices.add("phone")[1] for _ in range(MOST)]
    assert len({device.name for device in devices.listed()}) == MOST
    with pytest.raises(DevicesFullError):
        devices.add("phone")
    devices.revoke("phone")
    assert devices.holder(tokens[0]) is None and devices.holder(tokens[1]) is not None
    assert devices.add("phone")[0].name == "phone"
    with pytest.raises(UserError, match="phone 2"):
        devices.revoke("tablet")


@pytest.fixture
def clock() -> list[float]:
    """Its only item is the time, in seconds."""
    return [1000.0]


@pytest.fixture
def told() -> list[str]:
    """What the terminal shows."""
    return []


@pytest.fixture
def pairing(tmp_path: Path, clock: list[float], told: list[str]) -> Pairing:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    return Pairing(PairedDevices(file, TOKEN), told.append, lambda: "http://192.168.1.2/", lambda: clock[0])


def digits(told: list[str]) -> str:
    return "".join(re.findall(r"type (\d{3}) (\d{3}) ", told[-1])[0])


def test_a_code_ends_with_its_time_and_another_one_is_shown(
    pairing: Pairing, clock: list[float], told: list[str]
) -> None:
    pairing.show()
    code = digits(told)
    clock[0] += VALID_S - 0.001
    pairing.show()
    assert len(told) == 1, "it is still valid"
    clock[0] += 0.001
    for _ in range(2 * WRONG):
        # No guess: no code could be right, so nobody is kept out by it.
        with pytest.raises(Refusal) as late:
            pairing.exchange(code, "phone", "192.168.1.7")
        assert late.value.code == "wrong_code"
        assert len(told) == 2 and digits(told) != code
        clock[0] += VALID_S
        del told[1]
    pairing.show()
    assert pairing.exchange(digits(told), "phone", "192.168.1.7")[0] == "phone"


def test_pauses_double_up_to_an_hour_and_begin_anew_with_a_device(
    pairing: Pairing, clock: list[float], told: list[str]
) -> None:
    pauses = []
    for _ in range(9):
        pairing.show()
        wrong = f"{(int(digits(told)) + 1) % 10**6:06}"
        for _ in range(WRONG):
            with pytest.raises(Refusal):
                pairing.exchange(wrong, "phone", "192.168.1.7")
        pauses.append(pairing.pause_left_s)
        clock[0] += pauses[-1] - 0.5
        with pytest.raises(Refusal, match="Too many wrong codes"):
            pairing.show()
        clock[0] += 0.5
    assert pauses[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S] and pauses[-1] == LONGEST_S
    pairing.show()
    pairing.exchange(digits(told), "phone", "192.168.1.7")
    assert pairing.pause_left_s == 0


def test_wrong_codes_count_on_when_a_code_ends_with_its_time(
    pairing: Pairing, clock: list[float], told: list[str]
) -> None:
    for _ in range(WRONG):
        assert pairing.pause_left_s == 0
        pairing.show()
        with pytest.raises(Refusal):
            pairing.exchange("no code", "phone", "192.168.1.7")
        clock[0] += VALID_S - PAUSE_S / 2
        clock[0] += PAUSE_S / 2 if pairing.pause_left_s == 0 else 0
    assert "nobody can pair" in told[-1]


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_nobody_pairs_over_the_internet(shown: Shown, address: str) -> None:
    assert is_public(address)
    with pytest.raises(UserError, match="--pair"):
        GatewayOptions(host=address, token=TOKEN, devices=shown.devices, pair=True)

    async def ask(peer: str) -> httpx.Response:
        transport = httpx.ASGITransport(shown.served.gateway._made.gated, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url=shown.url) as client:
            return await client.post("pair", json={})

    answer = asyncio.run(ask(address))
    assert (answer.status_code, answer.json()["code"]) == (403, "public")
    assert asyncio.run(ask("192.168.1.7")).json()["code"] == "code"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "192.168.1.7",
        "10.0.0.1",
        "172.16.0.1",
        "169.254.1.1",
        "100.64.0.1",
        "fd00::1",
        "fe80::1",
        "robot.local",
    ],
)
def test_addresses_of_ones_own_network_are_not_the_internets(address: str) -> None:
    assert not is_public(address)


def test_the_page_is_told_by_an_address_that_other_machines_reach() -> None:
    assert address_of_page("http://192.168.1.2:80/", "192.168.1.2") == "http://192.168.1.2:80/"
    assert address_of_page("http://robot.local:80/", "robot.local") == "http://robot.local:80/"
    page = address_of_page("http://0.0.0.0:8080/", "0.0.0.0")
    assert re.fullmatch(r"http://[\d.]+:8080/", page)


def test_pairing_needs_a_file_to_keep_devices_in(tmp_path: Path) -> None:
    done = cli("serve", "--http", "127.0.0.1:0", "--pair", "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and "--token-file" in done.stderr and "Traceback" not in done.stderr
    without = cli("serve", "--pair", "--out", str(tmp_path / "out"))
    assert without.returncode == 2 and "--http" in without.stderr
    missing = cli("devices", "list", "--token-file", str(tmp_path / "none"))
    assert missing.returncode == 2 and "is no file" in missing.stderr
    assert not (tmp_path / "none").exists()


# mcdonc/klangk#3152, home-assistant/core#57091: what was open when a token was revoked went on being heard.
def test_what_a_revoked_device_has_sent_is_handed_on_no_more_and_nothing_is_sent_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "LOOK_S", 0.0)
    file = tmp_path / "token"
    file.write_text(TOKEN)
    devices = PairedDevices(file, TOKEN)
    device, token = devices.add("phone")
    cut, sent = [], []
    acts = {"type": "websocket.receive", "text": "{}"}

    async def receive() -> Any:
        return acts

    async def send(message: Any) -> None:
        sent.append(message)

    async def talk() -> None:
        scope = {"extensions": {access.ABORT: lambda: cut.append(device.name)}}
        hear, say = access.while_paired(devices, token, scope, receive, send)
        assert await hear() == acts
        await say({"type": "websocket.send", "text": "a"})
        devices.revoke("phone")
        for _ in range(2):
            assert await hear() == {"type": "websocket.disconnect", "code": 1008}
            await say({"type": "websocket.send", "text": "b"})

    asyncio.run(talk())
    assert [message["text"] for message in sent] == ["a"] and cut == ["phone"]
