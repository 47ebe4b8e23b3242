// A game of the Neuro API (docs/neuro.md): collect coins on a board with rocks.

const SIZE = 7;
const ROCKS = 6;
const TURN_MS = 250;
const AGAIN_MS = 1000;
const GAME = "Coins";
const STEPS = { left: [-1, 0], right: [1, 0], up: [0, -1], down: [0, 1] };
export const ACTIONS = [
  {
    name: "move",
    description: "Move one cell.",
    schema: {
      type: "object",
      properties: { direction: { type: "string", enum: Object.keys(STEPS) } },
      required: ["direction"],
    },
  },
  { name: "wait", description: "Stay where you are." },
];
const QUERY = "Collect the coin.";

const at = (id) => document.getElementById(id);
const same = (a, b) => a[0] === b[0] && a[1] === b[1];

class Board {
  constructor() {
    this.player = [3, 3];
    this.rocks = [];
    this.coin = [0, 0];
    while (this.rocks.length < ROCKS) {
      const cell = this.empty();
      if (cell[0] % 2 && cell[1] % 2) this.rocks.push(cell); // so that there is a way around each
    }
    this.coin = this.empty();
    this.coins = 0;
  }

  empty() {
    for (;;) {
      const cell = [0, 1].map(() => Math.floor(Math.random() * SIZE));
      if (![this.player, this.coin, ...this.rocks].some((taken) => same(taken, cell))) return cell;
    }
  }

  free(direction) {
    const [x, y] = STEPS[direction].map((step, i) => step + this.player[i]);
    return x >= 0 && y >= 0 && x < SIZE && y < SIZE && !this.rocks.some((rock) => same(rock, [x, y]));
  }

  state() {
    const [dx, dy] = this.coin.map((place, i) => place - this.player[i]);
    const open = Object.keys(STEPS).filter((direction) => this.free(direction));
    return `coin ${Math.abs(dx)} ${dx < 0 ? "left" : "right"} ${Math.abs(dy)} ${dy < 0 ? "up" : "down"} free ${open.join(" ")}`;
  }

  move(direction) {
    if (!this.free(direction)) return false;
    this.player = this.player.map((place, i) => place + STEPS[direction][i]);
    if (same(this.player, this.coin)) {
      this.coins += 1;
      this.coin = this.empty();
    }
    return true;
  }
}

const board = new Board();
let socket = null;
let forcedAt = 0;
const counts = { turns: 0, answers: 0, refused: 0 };

function say(command, data) {
  socket.send(JSON.stringify({ command, game: GAME, ...(data && { data }) }));
}

function link(state, text) {
  at("link").dataset.state = state;
  at("link-text").textContent = text;
}

function draw() {
  const cells = [];
  for (let y = 0; y < SIZE; y += 1) {
    for (let x = 0; x < SIZE; x += 1) {
      const cell = document.createElement("span");
      if (same(board.player, [x, y])) cell.className = "player";
      else if (same(board.coin, [x, y])) cell.className = "coin";
      else if (board.rocks.some((rock) => same(rock, [x, y]))) cell.className = "rock";
      cells.push(cell);
    }
  }
  at("board").replaceChildren(...cells);
  at("coins").textContent = board.coins;
  at("turns").textContent = counts.turns;
}

function force() {
  if (!socket || socket.readyState !== WebSocket.OPEN || forcedAt) return;
  forcedAt = performance.now();
  counts.turns += 1;
  say("actions/force", {
    state: board.state(),
    query: QUERY,
    ephemeral_context: true,
    priority: "critical",
    action_names: ACTIONS.map((action) => action.name),
  });
}

function act({ id, name, data }) {
  at("latency").textContent = (performance.now() - forcedAt).toFixed(1);
  counts.answers += 1;
  let direction;
  try {
    direction = JSON.parse(data ?? "{}").direction;
  } catch {
    direction = undefined;
  }
  at("last").textContent = name === "move" ? `${name} ${direction}` : name;
  // A wall is no mistake that is worth another try in the same turn: what it sees next says what is free.
  const known = name === "wait" || (name === "move" && direction in STEPS);
  if (known && name === "move") board.move(direction);
  if (!known) counts.refused += 1;
  say("action/result", { id, success: known, message: known ? "" : "There is no such move." });
  if (known) forcedAt = 0;
  draw();
}

function connect() {
  const url = new URL(location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.pathname = "/";
  url.hash = "";
  socket = new WebSocket(url);
  socket.onopen = () => {
    say("startup");
    say("actions/register", { actions: ACTIONS });
    forcedAt = 0;
    link("live", "playing");
  };
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    if (message.command === "action") act(message.data);
    else if (message.command === "actions/reregister_all") say("actions/register", { actions: ACTIONS });
    else if (message.command.startsWith("shutdown/")) say("shutdown/ready");
  };
  socket.onclose = () => {
    link("lost", "connection lost");
    setTimeout(connect, AGAIN_MS);
  };
}

draw();
connect();
setInterval(force, TURN_MS);
// A page that the browser keeps for the way back would hold its place as a game; it connects again when it is shown.
addEventListener("pagehide", () => socket.close());
globalThis.rtcontrol = { counts, coins: () => board.coins, state: () => board.state() };
