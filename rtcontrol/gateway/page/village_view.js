// Draws the village, and tells which villager is at a point of the screen.

import { fit } from "./canvas.js";
import { ground, standing } from "./scenery.js";
import { HEIGHT, PLACES, vector, WIDTH } from "./village.js";

const MISS_MS = 900; // how long the ring of a miss is shown
const HEARD_MS = 1300; // how long the ring of a new instruction is shown
const TALL = 2.9;
const NAMES_AT = { well: 3.2, market: 4.2, mill: 4, church: 4.4, oak: 3, pond: 5.6 };
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class VillageView {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.ground = document.createElement("canvas");
    this.drawn = ""; // of which size and colours the ground is
    this.things = standing();
  }

  /** `state(villager)` as shown: { status, missedAt, heardAt, selected, away, unsure }; `now` by performance.now(). */
  draw(village, state, { colours: c, dpr, now }) {
    const { canvas, context: g } = this;
    fit(canvas, dpr);
    this.#ground(c);
    g.setTransform(1, 0, 0, 1, 0, 0);
    g.drawImage(this.ground, 0, 0);
    g.setTransform(canvas.width / WIDTH, 0, 0, canvas.height / HEIGHT, 0, 0);
    const time = calm.matches ? 0 : village.time;
    const people = village.villagers.map((one) => ({ y: one.y, draw: () => this.#villager(one, state(one), c, now) }));
    const fox = { y: village.fox.y, draw: () => this.#fox(village.fox, c, time) };
    for (const one of [...this.things, ...people, fox].sort((a, b) => a.y - b.y)) one.draw(g, c, time);
    this.#names(c);
  }

  /** The villager at a point in pixels of the page, null if there is none. */
  at(clientX, clientY, village) {
    const box = this.canvas.getBoundingClientRect();
    const style = getComputedStyle(this.canvas);
    const [left, top] = [box.left + parseFloat(style.borderLeftWidth), box.top + parseFloat(style.borderTopWidth)];
    const x = ((clientX - left) / this.canvas.clientWidth) * WIDTH;
    const y = ((clientY - top) / this.canvas.clientHeight) * HEIGHT;
    const far = (one) => Math.hypot(one.x - x, one.y - TALL / 2 - y);
    const nearest = village.villagers.reduce((best, one) => (far(one) < far(best) ? one : best));
    return far(nearest) <= Math.max(2, (14 / this.canvas.clientWidth) * WIDTH) ? nearest : null;
  }

  /** Return a villager's position in pixels of the page. */
  pointOf(villager) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const style = getComputedStyle(this.canvas);
    const x = left + parseFloat(style.borderLeftWidth) + (villager.x / WIDTH) * this.canvas.clientWidth;
    return [x, top + parseFloat(style.borderTopWidth) + ((villager.y - TALL / 2) / HEIGHT) * this.canvas.clientHeight];
  }

  #ground(c) {
    const { width, height } = this.canvas;
    const drawn = JSON.stringify([width, height, c]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    Object.assign(this.ground, { width, height });
    const g = this.ground.getContext("2d");
    g.setTransform(width / WIDTH, 0, 0, height / HEIGHT, 0, 0);
    ground(g, c);
  }

  #villager(one, { status, missedAt, heardAt, selected, away, unsure }, c, now) {
    const { context: g } = this;
    const moving = Math.hypot(one.vx, one.vy) > 0.6;
    const hop = moving && !calm.matches ? Math.abs(Math.sin(one.walked * 1.9)) * 0.32 : 0;
    const [x, y] = [one.x, one.y - hop];
    if (selected) this.#selected(one, c);
    g.globalAlpha = away ? 0.35 : 1;
    ellipse(g, c.shadow, one.x + 0.25, one.y + 0.1, 0.85, 0.33);
    // A held call is paler, a safe one paler still: the drawing shows the active call.
    g.globalAlpha = away ? 0.35 : ({ fresh: 1, held: 0.6 }[status] ?? 0.4);
    g.fillStyle = c.hair;
    const stride = moving ? Math.sin(one.walked * 1.9) * 0.3 : 0;
    g.fillRect(x - 0.42 + stride, one.y - 0.5, 0.32, 0.5);
    g.fillRect(x + 0.1 - stride, one.y - 0.5, 0.32, 0.5);
    g.fillStyle = c[one.colour];
    g.strokeStyle = c.outline;
    g.lineWidth = 0.14;
    g.beginPath();
    g.moveTo(x - 0.85, y - 0.35);
    g.quadraticCurveTo(x - 0.75, y - 2, x, y - 2.05);
    g.quadraticCurveTo(x + 0.75, y - 2, x + 0.85, y - 0.35);
    g.closePath();
    g.fill();
    g.stroke();
    const [fx, fy] = vector(one.face);
    ellipse(g, c.skin, x, y - 2.2, 0.68, 0.68, c.outline);
    // Hair: a cap that is turned away from where the villager looks; from behind nothing else is seen.
    g.fillStyle = c.hair;
    g.beginPath();
    if (fy < -0.5) g.arc(x, y - 2.2, 0.7, 0, 2 * Math.PI);
    else g.arc(x, y - 2.22, 0.7, Math.PI * (1.04 - fx * 0.16), Math.PI * (1.96 - fx * 0.16));
    g.closePath();
    g.fill();
    if (fy > -0.5) {
      for (const side of fx > 0.5 ? [0.3] : fx < -0.5 ? [-0.3] : [-0.22, 0.22]) {
        ellipse(g, c.eye, x + fx * 0.1 + side, y - 2.02, 0.09, 0.11);
      }
    }
    g.globalAlpha = 1;
    this.#ring(one, now - missedAt, MISS_MS, c.bad, 0.34);
    this.#ring(one, now - heardAt, HEARD_MS, c.heard, 0.2);
    if (!away && !unsure) return;
    g.fillStyle = c.ink;
    g.font = `italic ${away ? 1.5 : 2}px ${c.serif}`;
    g.fillText(away ? "z z" : "?", one.x + 0.9, one.y - 2.6);
  }

  /** Draw a ring that grows and fades. */
  #ring(one, age, whole, colour, width) {
    if (!(age >= 0 && age < whole)) return;
    const { context: g } = this;
    const share = age / whole;
    g.globalAlpha = 1 - share ** 2;
    g.strokeStyle = colour;
    g.lineWidth = width;
    g.beginPath();
    g.arc(one.x, one.y - 1.3, 1.7 + (calm.matches ? 0 : share * 1.1), 0, 2 * Math.PI);
    g.stroke();
    g.globalAlpha = 1;
  }

  #selected(one, c) {
    const { context: g } = this;
    g.strokeStyle = c.ink;
    g.lineWidth = 0.22;
    g.setLineDash([0.7, 0.5]);
    g.beginPath();
    g.ellipse(one.x, one.y, 1.7, 0.85, 0, 0, 2 * Math.PI);
    g.stroke();
    g.setLineDash([]);
    const way = one.call?.arguments?.direction;
    if (!way) return;
    const [x, y] = vector(way);
    g.beginPath();
    g.moveTo(one.x + x * 2, one.y + y * 1.3);
    g.lineTo(one.x + x * 4.2, one.y + y * 3.2);
    g.stroke();
    g.beginPath();
    g.arc(one.x + x * 4.2, one.y + y * 3.2, 0.4, 0, 2 * Math.PI);
    g.fillStyle = c.ink;
    g.fill();
  }

  #fox({ x, y, vx, vy }, c, time) {
    const { context: g } = this;
    const way = vx < 0 ? -1 : 1;
    const hop = calm.matches ? 0 : Math.abs(Math.sin(time * 11)) * 0.16 * Math.min(1, Math.hypot(vx, vy) / 4);
    ellipse(g, c.shadow, x, y + 0.1, 1.3, 0.35);
    g.save();
    g.translate(x, y - hop);
    g.scale(way, 1);
    ellipse(g, c.fox, -1.6, -1, 0.95, 0.42);
    ellipse(g, c.sail, -2.25, -1.05, 0.4, 0.3);
    ellipse(g, c.fox, 0, -0.85, 1.15, 0.58);
    g.fillRect(-0.8, -0.6, 0.28, 0.65);
    g.fillRect(0.5, -0.6, 0.28, 0.65);
    g.beginPath();
    for (const [px, py] of [
      [0.7, -1.6],
      [0.85, -2.3],
      [1.2, -1.75],
      [2.1, -1.15],
      [0.9, -0.75],
    ])
      g.lineTo(px, py);
    g.fill();
    ellipse(g, c.eye, 1.25, -1.35, 0.12, 0.12);
    g.restore();
  }

  #names(c) {
    const { context: g } = this;
    g.font = `italic 1.75px ${c.serif}`;
    g.textAlign = "center";
    g.lineJoin = "round";
    g.lineWidth = 0.55;
    g.strokeStyle = c.halo;
    g.fillStyle = c.label;
    for (const [name, { x, y }] of Object.entries(PLACES)) {
      g.strokeText(name, x, y + NAMES_AT[name]);
      g.fillText(name, x, y + NAMES_AT[name]);
    }
    g.textAlign = "left";
  }
}

function ellipse(g, fill, x, y, rx, ry, outline = null) {
  g.fillStyle = fill;
  g.beginPath();
  g.ellipse(x, y, rx, ry, 0, 0, 2 * Math.PI);
  g.fill();
  if (outline === null) return;
  g.strokeStyle = outline;
  g.lineWidth = 0.14;
  g.stroke();
}
