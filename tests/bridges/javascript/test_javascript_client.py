"""The npm package in Node: the packed files, vectors, behaviour table, and sessions with a real server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rtcontrol_client.wire.messages import Hello
from tests import conformance
from tests.bridges.behaviour import Seen, cases, check, options_of
from tests.bridges.client.worlds import STEER, STRAIGHT, free_port
from tests.bridges.program import Program, garbage, starting
from tests.bridges.web_ends import Relay, Served
from tests.conformance.check import check_any_client
from tests.conformance.check.stand import Stand
from tests.helpers.processes import ROOT

NO_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="there is no node: apt-get install nodejs")
pytestmark = [pytest.mark.serial, NO_NODE]
SOURCE = ROOT / "bridges" / "javascript"
HERE = Path(__file__).resolve().parent
OPTIONS: dict[str, Any] = {"tools": [STEER], "instruction": "Steer.", "safeCall": STRAIGHT, "hz": 20, "ttlMs": 500}
BESIDE = {"ws": "8.18.3", "typescript": "5.9.3"}
SCRIPTS = ("check_vectors.mjs", "driver.mjs", "vectors.mjs")


def npm(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["npm", *arguments], cwd=folder, capture_output=True, text=True, timeout=240, check=False)


def packed(folder: Path) -> tuple[Path, list[str]]:
    """Pack the package as for publishing; return the archive and its files."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm: apt-get install npm")
    shutil.copytree(SOURCE, folder / "source")
    done = npm("pack", "--json", "--pack-destination", str(folder), folder=folder / "source")
    assert done.returncode == 0, done.stderr
    (reported,) = json.loads(done.stdout)
    return folder / reported["filename"], [file["path"] for file in reported["files"]]


class NodeClient(Program):
    """A process of `driver.mjs` in a folder with the installed package."""

    begins = '{"event"'

    def __init__(self, home: Path, url: str, *flags: str, **options: Any) -> None:
        self._errors = (home / f"errors-{id(self)}.txt").open("w+")
        command = ["node", *flags, "--no-warnings", "driver.mjs", url, json.dumps(options)]
        super().__init__(command, cwd=home, stdin=subprocess.PIPE, stderr=self._errors)

    def do(self, script: str) -> Any:
        """Run a script in the program and return its result."""
        self.say(script)
        return self.event("did")["value"]

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()


Start = Callable[..., NodeClient]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program's folder with the package and the other packages that the tests need."""
    folder = tmp_path_factory.mktemp("node")
    tarball, _ = packed(folder)
    home = folder / "program"
    home.mkdir()
    wanted = {**BESIDE, "rtcontrol-client": f"file:{tarball}"}
    (home / "package.json").write_text(json.dumps({"private": True, "type": "module", "dependencies": wanted}))
    try:
        done = npm("install", "--no-audit", "--no-fund", "--prefer-offline", folder=home)
    except subprocess.TimeoutExpired:
        pytest.skip("npm install took longer than 240 s")
    if done.returncode:
        pytest.skip(f"npm cannot install {', '.join(BESIDE)}: {done.stderr.strip()[-300:]}")
    for script in SCRIPTS:
        shutil.copy(HERE / script, home)
    return home


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one = Served(tmp_path_factory.mktemp("served"))
    one.start()
    yield one
    one.stop()


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    made = starting(lambda url, given, *flags: NodeClient(home, url, *flags, **given))
    begin = next(made)
    yield lambda url, *flags, **options: begin(url, {**OPTIONS, **options}, *flags)
    next(made, None)


def fresh(game: NodeClient, count: int = 5) -> None:
    """Wait until a number of calls have been executed."""
    for _ in range(count):
        game.event("call")


def in_time(game: NodeClient) -> None:
    """Check that no call was executed after its time-to-live."""
    calls = [event for event in game.events if event["event"] == "call"]
    assert calls and all(event["ageMs"] <= event["ttlMs"] for event in calls)


def test_npm_package_has_only_the_module_and_its_types(tmp_path: Path) -> None:
    _, files = packed(tmp_path)
    modules = {f"src/{path.name}" for path in (SOURCE / "src").iterdir()}
    assert set(files) == {"LICENSE", "README.md", "package.json", *modules}
    reported = json.loads((SOURCE / "package.json").read_text())
    assert "dependencies" not in reported and reported["license"] == "Apache-2.0"
    assert (ROOT / "LICENSE").read_text() == (SOURCE / "LICENSE").read_text()


def test_npm_version_equals_the_other_distributions() -> None:
    from rtcontrol import __version__

    assert json.loads((SOURCE / "package.json").read_text())["version"] == __version__
    assert f'VERSION = "{__version__}"' in (SOURCE / "src" / "client.js").read_text()


def test_npm_package_passes_the_conformance_vectors(home: Path) -> None:
    command = ["node", "vectors.mjs", str(conformance.FOLDER)]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["wrong"] == []


TYPED = """
import { connect, Crowd, Session, type Call, type InForceNow } from "rtcontrol-client";
// As the package ws has it.
declare class Socket {
  constructor(address: string | URL, protocols?: string | string[], options?: { handshakeTimeout?: number });
  readonly readyState: 0 | 1 | 2 | 3;
  readonly bufferedAmount: number;
  send(data: string | Uint8Array, done?: (error?: Error) => void): void;
  close(code?: number, reason?: string): void;
  terminate(): void;
}
const go: Call = { name: "go", arguments: { speed: 1, ways: ["left"] } };
const game = connect("ws://127.0.0.1:8080/ws", {
  tools: [{ name: "go", parameters: { type: "object", properties: {} } }],
  instruction: "Go.", safeCall: [go], hz: 10, WebSocket: Socket,
  observe: () => ({ x: 1, seen: { y: [1, 2] } }),
  onCall: (call, message) => console.log(call.name, message?.confidence?.toFixed(1)),
  onSafe: (call) => console.log(call?.name),
});
const now: InForceNow = game.inForce();
game.ready.then((welcome) => console.log(welcome.period_ms, now.endsInMs));
game.observe("a text");
game.reset({ success: true });
const crowd = new Crowd("ws://a/ws", { agent: "lander" }, { act: (id, call) => console.log(id, call?.name) });
crowd.join("anna", { instruction: "Go.", priority: 9 });
new Session("ws://a/ws", { agent: "lander" }, { act: (call) => console.log(call?.name) }).look();
"""
WRONG = """
import { connect } from "rtcontrol-client";
connect("ws://a/ws", { hertz: 10 });
connect("ws://a/ws", { hz: "10" });
connect("ws://a/ws", { onCall: (call) => call.nme });
connect(5);
connect("ws://a/ws").observe(new Map());
"""


# colyseus.js#9: a package without types counts as `any`, so that a misspelt option is not reported.
def test_types_match_the_module_and_detect_errors(home: Path) -> None:
    (home / "names.mjs").write_text(
        "import * as m from 'rtcontrol-client'; console.log(JSON.stringify(Object.keys(m)));"
    )
    done = subprocess.run(["node", "names.mjs"], cwd=home, capture_output=True, text=True, timeout=60, check=False)
    names = json.loads(done.stdout)
    listed = ", ".join(names)
    (home / "all.ts").write_text(f'import {{ {listed} }} from "rtcontrol-client"; console.log({listed});')
    (home / "right.ts").write_text(TYPED)
    (home / "wrong.ts").write_text(WRONG)
    command = ["node_modules/.bin/tsc", "--noEmit", "--strict", "--target", "es2022", "--lib", "es2022,dom"]
    command += ["--skipDefaultLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext", "--pretty", "false"]
    command += ["all.ts", "right.ts", "wrong.ts"]
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=240, check=False)
    errors = re.findall(r"^(\S+)\((\d+),\d+\): error TS", done.stdout, re.MULTILINE)
    assert {(file, int(line)) for file, line in errors} == {("wrong.ts", line) for line in (3, 4, 5, 6, 7)}, done.stdout
    # Everything in the types also exists in the module.
    types = (SOURCE / "src" / "index.d.ts").read_text()
    assert set(re.findall(r"^export (?:class|function|const) (\w+)", types, re.MULTILINE)) == set(names)


@pytest.mark.parametrize("own", [False, True])
def test_session_with_a_real_server_is_driven(served: Served, start: Start, own: bool) -> None:
    game = start(served.url, *(["--experimental-websocket"] if own else []), own=own)
    game.event("ready")
    fresh(game, 30)
    reported = game.do("game.inForce()")
    assert reported["status"] == "fresh" and reported["call"]["name"] == "steer" and 0 < reported["endsInMs"] <= 500
    assert game.do("game.instruct('Steer to the left.')") is True
    assert game.do("game.reset({success: true, return: 1.5})") is True
    assert game.do("game.epoch") == 1
    fresh(game)
    in_time(game)
    offset = game.do("game.clockOffset")
    assert offset["roundTripMs"] >= 0
    game.say("game.close('the test is over')")
    safe = game.event("safe")
    assert safe["call"] == STRAIGHT
    game.event("state", state="closed")
    states = [event["state"] for event in game.events if event["event"] == "state"]
    assert states[:3] == ["connecting", "opening", "live"]


def test_connect_url_leads_to_the_websocket_of_the_same_host(start: Start, stand: Stand) -> None:
    with closing(Relay(stand.endpoint)) as relay:
        game = start(relay.url.replace("ws://", "http://").replace("/ws", "/connect"))
        stand.expect(Hello, 20.0, "hello")
        stand.welcome()
        assert game.do("game.address") == relay.url


def test_client_passes_the_conformance_check(start: Start) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with closing(Relay(endpoint)) as relay:
        start(relay.url, agent="lander", tools=None, instruction=None)
        findings = check_any_client(endpoint)
        assert [(f.name, f.detail) for f in findings if f.status != "passed"] == []
        assert relay.refused == []


# socket.io#3236, engine.io-client#528: a closed client prevented Node from ending.
@pytest.mark.parametrize("when", ["live", "waiting", "hanging"])
def test_closed_client_lets_the_program_end(served: Served, start: Start, when: str) -> None:
    with garbage([]) as (address, _):
        game = start({"live": served.url, "hanging": f"ws://{address}/ws"}.get(when, "ws://127.0.0.1:9/ws"))
        if when != "hanging":
            game.event("state", state=when)
        game.do("game.close()")
        game.say("leave")
        assert game.process.wait(20) == 0, game.errors()


def test_throwing_call_leads_to_safe_and_safe_is_retried(served: Served, start: Start) -> None:
    game = start(served.url)
    fresh(game)
    game.do("(stuck.steer = 4, null)")
    game.event("stuck")
    safe = game.event("safe")
    kinds = [event["kind"] for event in game.events if event["event"] == "stuck"]
    assert kinds[0] == "call" and set(kinds) <= {"call", "safe"} and safe["call"] == STRAIGHT
    fresh(game)


def test_wrong_arguments_throw_where_they_are_passed(served: Served, start: Start) -> None:
    mistakes = [
        ("game.observe({x: NaN})", "x: not finite"),
        ("game.observe({far: new Float32Array(2)})", "far: a Float32Array"),
        ("game.observe(5)", "text: not a string"),
        ("game.observe(null)", "one of text, data and arrays is needed"),
        ("game.instruct(5)", "instruction: not a string"),
        ("game.reset({seconds: -1})", "ended.seconds: not within"),
        ("client.connect('http://a/')", "is no address"),
        ("client.connect('ws://a/ws,ws://b/ws', {agent: 'a', WebSocket: class {}})", "is no address"),
        ("client.connect('ws://a/ws', {hertz: 5})", "There is no option hertz"),
        ("client.connect('ws://a/ws', {hz: -5})", "hz: not within"),
        ("client.connect('ws://a/ws', {onCall: 5})", "onCall is no function"),
        ("client.connect('ws://a/ws', {observeHz: 0})", "observeHz is 0"),
        ("client.connect('ws://a/ws', {safeCall: {arguments: {}}})", "safe_call.name: missing"),
    ]
    game = start(served.url, looks=False)
    game.event("ready")
    for script, message in mistakes:
        reported = game.do(script)
        assert message in reported["error"], (script, reported)
    assert game.do("game.state") == "live"


def test_readme_example_runs(served: Served, home: Path) -> None:
    (code,) = (SOURCE / "README.md").read_text().split("```js\n")[1:]
    code = code.split("```")[0].replace("ws://127.0.0.1:8080/ws", served.url)
    assert len(code.splitlines()) <= 20
    (home / "example.mjs").write_text(f'import WebSocket from "ws";\nglobalThis.WebSocket ??= WebSocket;\n{code}')
    done = subprocess.run(["node", "example.mjs"], cwd=home, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["connecting", "opening", "live"] and lines[-1] == "closed"
    assert sum(line.startswith("drive ") for line in lines) >= 3


# The behaviour table, with a simulated clock and sockets.


class Node(Program):
    """A process of `behaviour.mjs`, which answers each line with a line."""

    def step(self, step: dict[str, Any]) -> Seen:
        return Seen(**self.ask(json.dumps(step)))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    one = Node(["node", str(HERE / "behaviour.mjs"), str(SOURCE / "src" / "index.js")])
    yield one
    one.end()


@cases("javascript")
def test_client_follows_the_behaviour_table(node: Node, case: dict[str, Any]) -> None:
    node.ask(json.dumps({"options": options_of(case)}))
    check(case, node)


def test_throwing_handlers_and_full_connections_affect_nothing_else() -> None:
    command = ["node", str(HERE / "faults.mjs"), str(SOURCE / "src")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "ok\n", done.stderr
