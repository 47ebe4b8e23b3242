// The ground, houses and places of the village, drawn on `g` in the village's units.

import { HEIGHT, HOUSES, PLACES, WIDTH } from "./village.js";

const TREES = [
  [5, 9],
  [11, 6],
  [29, 7],
  [41, 6],
  [70, 6],
  [75, 9],
  [96, 7],
  [97, 47],
  [91, 54],
  [66, 55],
  [6, 55],
  [22, 54],
  [3, 22],
  [97, 24],
  [57, 19],
  [28, 35],
  [59, 53],
  [4, 37],
  [88, 42],
  [13, 10],
  [72, 53],
  [94, 51],
];
const PATHS = [
  ["well", "market"],
  ["well", "church"],
  ["well", "pond"],
  ["market", "mill"],
  ["oak", "well"],
  ["oak", "church"],
  ["market", "pond"],
];

function shape(g, fill, ...points) {
  g.fillStyle = fill;
  g.beginPath();
  for (const [x, y] of points) g.lineTo(x, y);
  g.closePath();
  g.fill();
}

function oval(g, fill, x, y, rx, ry = rx) {
  g.fillStyle = fill;
  g.beginPath();
  g.ellipse(x, y, rx, ry, 0, 0, 2 * Math.PI);
  g.fill();
}

function box(g, fill, x, y, width, height, radius = 0.2) {
  g.fillStyle = fill;
  g.beginPath();
  g.roundRect(x, y, width, height, radius);
  g.fill();
}

/** Meadow, paths, water and the shadows of what stands: drawn once for a size. */
export function ground(g, c) {
  g.fillStyle = c.grass;
  g.fillRect(0, 0, WIDTH, HEIGHT);
  for (let i = 0; i < 26; i += 1)
    oval(g, c.meadow, (i * 37.7) % 104, (i * 23.3) % 62, 6 + ((i * 7) % 6), 2.5 + ((i * 5) % 3));
  g.strokeStyle = c.path;
  g.lineCap = "round";
  for (const [from, to] of PATHS) road(g, PLACES[from], PLACES[to], 2.3);
  HOUSES.forEach((house) => road(g, house, nearestPlace(house), 1.2));
  for (const { x, y } of [PLACES.well, PLACES.market]) oval(g, c.path, x, y + 0.6, 6.4, 3.9);
  const { x, y } = PLACES.pond;
  oval(g, c.shore, x, y, 6.4, 4.1);
  oval(g, c.water, x, y, 5.7, 3.5);
  oval(g, c.ripple, x - 1.6, y - 1, 2, 0.35);
  oval(g, c.ripple, x + 1.8, y + 0.9, 1.4, 0.28);
  for (let i = 0; i < 90; i += 1) {
    const [gx, gy] = [(i * 61.8) % WIDTH, (i * 38.2 + (i % 7) * 3) % HEIGHT];
    oval(g, i % 9 ? c.blade : c.flower, gx, gy, i % 9 ? 0.16 : 0.26);
  }
}

function road(g, from, to, width) {
  g.lineWidth = width;
  g.beginPath();
  g.moveTo(from.x, from.y + 1);
  g.quadraticCurveTo(
    (from.x + to.x) / 2 + (to.y - from.y) / 7,
    (from.y + to.y) / 2 - (to.x - from.x) / 9,
    to.x,
    to.y + 1,
  );
  g.stroke();
}

function nearestPlace(house) {
  const far = ({ x, y }) => Math.hypot(x - house.x, y - house.y);
  return Object.values(PLACES).reduce((best, place) => (far(place) < far(best) ? place : best));
}

/** What stands, each with the line on the ground by which it is before or behind others. */
export function standing() {
  const trees = TREES.map(([x, y], i) => ({ y, draw: (g, c) => tree(g, c, x, y, 0.85 + ((i * 7) % 5) / 11) }));
  const houses = HOUSES.map(({ x, y }, i) => ({ y: y + 2, draw: (g, c) => house(g, c, x, y, i) }));
  const places = Object.entries({ well, market, mill, church, oak }).map(([name, draw]) => {
    const { x, y, solid } = PLACES[name];
    return { y: y + solid / 2, draw: (g, c, time) => draw(g, c, x, y, time) };
  });
  return [...trees, ...houses, ...places];
}

function tree(g, c, x, y, size) {
  oval(g, c.shadow, x + 0.5, y + 0.2, 1.9 * size, 0.7 * size);
  box(g, c.wood, x - 0.28 * size, y - 1.6 * size, 0.56 * size, 1.8 * size);
  oval(g, c.leaf, x, y - 3.1 * size, 1.75 * size, 2.1 * size);
  oval(g, c.leafLight, x - 0.45 * size, y - 3.7 * size, 0.95 * size, 1.1 * size);
}

function oak(g, c, x, y) {
  oval(g, c.shadow, x + 1, y + 0.5, 4.8, 1.5);
  shape(g, c.wood, [x - 1.1, y + 0.7], [x - 0.55, y - 3.5], [x + 0.55, y - 3.5], [x + 1.1, y + 0.7]);
  for (const [dx, dy, r] of [
    [-2.6, -4.4, 2.3],
    [2.6, -4.5, 2.4],
    [0, -4.2, 2.8],
    [-1.3, -6.8, 2.3],
    [1.5, -6.9, 2.2],
  ])
    oval(g, c.leaf, x + dx, y + dy, r);
  for (const [dx, dy, r] of [
    [-2.4, -5.2, 1.1],
    [1, -7.5, 1.2],
    [2.6, -5.3, 0.9],
    [-0.7, -5.3, 1],
  ])
    oval(g, c.leafLight, x + dx, y + dy, r);
}

function house(g, c, x, y, i) {
  const roof = [c.roof, c.roofDark, c.thatch][i % 3];
  oval(g, c.shadow, x + 0.8, y + 2, 3.9, 1);
  box(g, c.wall, x - 2.7, y - 1.4, 5.4, 3.4);
  box(g, c.wallShade, x + 0.9, y - 1.4, 1.8, 3.4);
  shape(g, roof, [x - 3.4, y - 1.1], [x - 2, y - 4.1], [x + 2, y - 4.1], [x + 3.4, y - 1.1]);
  box(g, c.stone, x + 1, y - 5, 0.8, 1.7);
  box(g, c.wood, x - 0.55, y + 0.1, 1.1, 1.9, 0.3);
  for (const dx of [-2, 1.1]) box(g, c.window, x + dx, y - 0.5, 1, 1);
}

function church(g, c, x, y) {
  oval(g, c.shadow, x + 1, y + 2.4, 6, 1.3);
  box(g, c.wall, x - 4.6, y - 2.2, 7.2, 4.6);
  shape(g, c.roofDark, [x - 5.1, y - 1.9], [x - 3.7, y - 5], [x + 1.6, y - 5], [x + 3, y - 1.9]);
  box(g, c.wallShade, x + 1.7, y - 6.2, 3.1, 8.6);
  shape(g, c.roof, [x + 1.2, y - 6], [x + 3.25, y - 10.4], [x + 5.3, y - 6]);
  box(g, c.stone, x + 3.1, y - 12, 0.3, 1.9, 0);
  box(g, c.stone, x + 2.65, y - 11.5, 1.2, 0.3, 0);
  for (const dx of [-3.7, -1.9, -0.1]) box(g, c.window, x + dx, y - 1.2, 0.9, 1.9, 0.45);
  oval(g, c.window, x + 3.25, y - 4.4, 0.6);
  box(g, c.wood, x + 2.6, y + 0.3, 1.3, 2.1, 0.6);
}

function mill(g, c, x, y, time) {
  oval(g, c.shadow, x + 0.9, y + 2, 4, 1.1);
  shape(g, c.wall, [x - 2.5, y + 2], [x - 1.7, y - 4.6], [x + 1.7, y - 4.6], [x + 2.5, y + 2]);
  shape(g, c.wallShade, [x + 0.6, y + 2], [x + 0.5, y - 4.6], [x + 1.7, y - 4.6], [x + 2.5, y + 2]);
  shape(g, c.roofDark, [x - 2.1, y - 4.4], [x, y - 7.2], [x + 2.1, y - 4.4]);
  box(g, c.wood, x - 0.6, y - 0.1, 1.2, 2.1, 0.6);
  box(g, c.window, x - 0.4, y - 2.6, 0.8, 0.9);
  g.save();
  g.translate(x, y - 4.6);
  g.rotate(time * 0.7);
  for (let i = 0; i < 4; i += 1) {
    g.rotate(Math.PI / 2);
    box(g, c.wood, -0.13, 0, 0.26, 5.2, 0);
    box(g, c.sail, 0.13, 1, 1, 4, 0.1);
  }
  g.restore();
  oval(g, c.wood, x, y - 4.6, 0.45);
}

function market(g, c, x, y) {
  oval(g, c.shadow, x + 0.8, y + 2.2, 5.6, 1.1);
  for (const dx of [-4.2, 3.9]) box(g, c.wood, x + dx, y - 2, 0.35, 4.2, 0);
  box(g, c.wood, x - 4.3, y + 0.2, 8.6, 1.7);
  [c.roof, c.leafLight, c.thatch, c.roof, c.leafLight].forEach((fill, i) =>
    oval(g, fill, x - 3.4 + i * 1.7, y + 0.1, 0.75, 0.5),
  );
  for (let i = 0; i < 8; i += 1)
    shape(
      g,
      i % 2 ? c.sail : c.awning,
      [x - 4 + i, y - 4.2],
      [x - 3 + i, y - 4.2],
      [x - 3.6 + 1.2 * i, y - 1.7],
      [x - 4.8 + 1.2 * i, y - 1.7],
    );
}

function well(g, c, x, y) {
  oval(g, c.shadow, x + 0.5, y + 1, 2.8, 0.9);
  for (const dx of [-1.7, 1.4]) box(g, c.wood, x + dx, y - 3, 0.3, 3.2, 0);
  box(g, c.stone, x - 2, y - 0.6, 4, 1.8, 0.6);
  oval(g, c.stoneLight, x, y - 0.5, 2, 0.75);
  oval(g, c.water, x, y - 0.5, 1.4, 0.45);
  shape(g, c.roof, [x - 2.5, y - 2.6], [x - 1, y - 4.4], [x + 1, y - 4.4], [x + 2.5, y - 2.6]);
}
