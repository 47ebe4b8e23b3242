// The village of the page `/crowd`: who lives there, how they move, and what each sees as text. No DOM.

export const WIDTH = 100;
export const HEIGHT = 58;
export const DIRECTIONS = ["north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest"];

// What can be named, where it stands, how far around it one is `here`, and how wide it is to walk around.
export const PLACES = {
  well: { x: 50, y: 31, here: 10, solid: 2.2 },
  market: { x: 74, y: 37, here: 10, solid: 4.6 },
  mill: { x: 85, y: 16, here: 9, solid: 3.4 },
  church: { x: 21, y: 18, here: 10, solid: 4.6 },
  oak: { x: 17, y: 43, here: 9.5, solid: 1.6 },
  pond: { x: 45, y: 50, here: 11, solid: 5.2 },
};
export const HOUSES = [
  [36, 13],
  [48, 9],
  [61, 12],
  [34, 26],
  [66, 24],
  [8, 31],
  [30, 45],
  [62, 47],
  [78, 51],
  [93, 33],
].map(([x, y]) => ({ x, y, here: 5.5, solid: 2.9 }));
export const COLOURS = ["red", "blue", "green", "yellow", "purple"];
export const NAMES = (
  "Ada Ben Cora Dan Edda Finn Greta Hugo Ida Jon Kaja Leo Mia Nils Olga Paul Runa Sam Tilda Udo Vera Wim Yara Zeno Anna " +
  "Bert Clara Dora Emil Frida Gus Hanna Ivo Jana Karl Lotte Max Nora Otto Pia Rolf Sina Tom Ulla Viktor Wanda Xenia Yves " +
  "Zita Arno"
).split(" ");

const SPEED = { walk: 5.5, run: 11 }; // units a second
const TURN_S = 0.14; // until a new call's velocity is mostly taken up
const NEAR = 26;
const ROOM = 1.9; // between two villagers
const EDGE = 2.5;
const FOX = { here: 4, walk: 6, run: 11.5, shy: 8 };

/** Return a generator of random numbers from 0 to 1 that repeats for the same seed. */
function chance(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The unit vector of a direction; y grows to the south. */
export function vector(direction) {
  const turn = (DIRECTIONS.indexOf(direction) * Math.PI) / 4;
  return [Math.sin(turn), -Math.cos(turn)];
}

/** The nearest of the eight directions. */
export function direction(dx, dy) {
  return DIRECTIONS[(Math.round(Math.atan2(dx, -dy) / (Math.PI / 4)) + 8) % 8];
}

export class Village {
  constructor(seed, count = 50) {
    this.random = chance(seed);
    this.time = 0;
    this.fox = { x: 8, y: 52, vx: 0, vy: 0, aim: null };
    this.villagers = Array.from({ length: count }, (_, i) => {
      const home = HOUSES[i % HOUSES.length];
      const turn = this.random() * 2 * Math.PI;
      const place = { x: home.x + 4.5 * Math.cos(turn), y: home.y + 4.5 * Math.sin(turn) };
      const colour = COLOURS[(i + Math.floor(i / HOUSES.length)) % COLOURS.length];
      const name = NAMES[i % NAMES.length];
      const rest = { vx: 0, vy: 0, walked: 0, face: "south", call: null, whim: "none", whimUntil: 0 };
      return { id: `villager-${i + 1}`, number: i + 1, name, colour, home, ...place, ...rest };
    });
  }

  /** Set what a villager does from now on; null: stand. */
  act(villager, call) {
    villager.call = call;
    if (call?.arguments?.direction) villager.face = call.arguments.direction;
  }

  /** Advance the village by `dt` seconds. */
  step(dt) {
    this.time += dt;
    this.#moveFox(dt);
    for (const one of this.villagers) {
      if (this.time > one.whimUntil) this.#newWhim(one);
      const speed = SPEED[one.call?.name] ?? 0;
      const [x, y] = speed ? vector(one.call.arguments.direction) : [0, 0];
      const taken = 1 - Math.exp(-dt / TURN_S);
      one.vx += (x * speed - one.vx) * taken;
      one.vy += (y * speed - one.vy) * taken;
      one.x += one.vx * dt;
      one.y += one.vy * dt;
      one.walked += Math.hypot(one.vx, one.vy) * dt;
    }
    this.#makeRoom(dt);
  }

  /** Return the text that the model reads: direction and distance of each thing. */
  look(villager) {
    const things = { ...PLACES, home: villager.home, fox: { ...this.fox, here: FOX.here } };
    const seen = Object.entries(things).map(([name, thing]) => {
      const [dx, dy] = [thing.x - villager.x, thing.y - villager.y];
      const far = Math.hypot(dx, dy);
      return far <= thing.here ? `${name} here` : `${name} ${direction(dx, dy)} ${far < NEAR ? "near" : "far"}`;
    });
    return `${seen.join(" ")} whim ${villager.whim}`;
  }

  /** Whether somebody is at a thing, as its looks say it. */
  isAt(villager, name) {
    const thing = name === "home" ? villager.home : name === "fox" ? { ...this.fox, here: FOX.here } : PLACES[name];
    return Math.hypot(thing.x - villager.x, thing.y - villager.y) <= thing.here;
  }

  #newWhim(one) {
    one.whimUntil = this.time + 1.5 + 3 * this.random();
    if (this.random() < 0.25) one.whim = "none";
    else one.whim = DIRECTIONS[Math.floor(8 * this.random())];
    const [x, y] = one.whim === "none" ? [0, 0] : vector(one.whim);
    const [ahead, below] = [one.x + 12 * x, one.y + 12 * y];
    const outside = ahead < EDGE || ahead > WIDTH - EDGE || below < EDGE + 3 || below > HEIGHT - EDGE;
    if (outside) one.whim = direction(WIDTH / 2 - one.x, HEIGHT / 2 - one.y); // the village is where it is
  }

  /** Keep villagers apart, out of houses and inside the village. */
  #makeRoom(dt) {
    const { villagers } = this;
    const push = Math.min(1, 8 * dt);
    for (let i = 0; i < villagers.length; i += 1) {
      for (let j = i + 1; j < villagers.length; j += 1) apart(villagers[i], villagers[j], push);
    }
    for (const one of [...villagers, this.fox]) {
      for (const thing of [...Object.values(PLACES), ...HOUSES]) around(one, thing);
      one.x = Math.min(Math.max(one.x, EDGE), WIDTH - EDGE);
      one.y = Math.min(Math.max(one.y, EDGE + 3), HEIGHT - EDGE);
    }
  }

  /** From here to there, and away from whoever comes near. */
  #moveFox(dt) {
    const { fox } = this;
    const close = this.villagers.filter((one) => Math.hypot(one.x - fox.x, one.y - fox.y) < FOX.shy);
    if (!fox.aim || Math.hypot(fox.aim.x - fox.x, fox.aim.y - fox.y) < 2 || this.time > fox.until) {
      fox.aim = { x: EDGE + this.random() * (WIDTH - 2 * EDGE), y: 8 + this.random() * (HEIGHT - 12) };
      fox.until = this.time + 8;
    }
    let [dx, dy] = [fox.aim.x - fox.x, fox.aim.y - fox.y];
    if (close.length) {
      dx = close.reduce((sum, one) => sum + (fox.x - one.x), (WIDTH / 2 - fox.x) / 8);
      dy = close.reduce((sum, one) => sum + (fox.y - one.y), (HEIGHT / 2 - fox.y) / 8);
    }
    const far = Math.hypot(dx, dy) || 1;
    const speed = close.length ? FOX.run : FOX.walk;
    const taken = 1 - Math.exp(-dt / 0.25);
    fox.vx += ((dx / far) * speed - fox.vx) * taken;
    fox.vy += ((dy / far) * speed - fox.vy) * taken;
    fox.x += fox.vx * dt;
    fox.y += fox.vy * dt;
  }
}

function apart(one, other, push) {
  const [dx, dy] = [other.x - one.x, other.y - one.y];
  const far = Math.hypot(dx, dy);
  if (far >= ROOM) return;
  // Two at the very same spot part as well.
  const [x, y] = far > 1e-6 ? [dx / far, dy / far] : [1, 0];
  const by = ((ROOM - far) / 2) * push;
  one.x -= x * by;
  one.y -= y * by;
  other.x += x * by;
  other.y += y * by;
}

/** Out of a round thing, and a little along it, so that nobody stands before it for ever. */
function around(one, thing) {
  const [dx, dy] = [one.x - thing.x, one.y - thing.y];
  const far = Math.hypot(dx, dy);
  const least = thing.solid + 0.7;
  if (far >= least) return;
  const [x, y] = far > 1e-6 ? [dx / far, dy / far] : [0, 1];
  const side = one.vx * -y + one.vy * x >= 0 ? 1 : -1;
  const along = 0.05 * Math.hypot(one.vx, one.vy);
  one.x = thing.x + x * least - y * side * along;
  one.y = thing.y + y * least + x * side * along;
}
