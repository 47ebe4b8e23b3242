// Draws the court.

import { fit, line } from "./canvas.js";
import { BALL_HALF, HEIGHT, OTHER_FACE, OWN_FACE, PADDLE_HALF, WIDTH } from "./game.js";

const TRAIL = 14;
const THICK = 1.5;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class CourtView {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.trail = [];
    this.flash = { own: 0, other: 0 };
    this.hits = { own: 0, other: 0 };
  }

  /** `between`: the share (0..1) of a step since the world's last one. `call`: the active velocity. */
  draw(world, between, { colours, dpr, paused, level }) {
    const { canvas, context: g } = this;
    fit(canvas, dpr);
    g.setTransform(canvas.width / WIDTH, 0, 0, canvas.height / HEIGHT, 0, 0);
    g.clearRect(0, 0, WIDTH, HEIGHT);

    g.strokeStyle = colours.line;
    g.lineWidth = 0.35;
    g.setLineDash([1.2, 1.2]);
    line(g, [WIDTH / 2, 1.5], [WIDTH / 2, HEIGHT - 1.5]);
    g.setLineDash([]);

    g.fillStyle = colours.line;
    g.font = `400 13px ${colours.serif}`;
    g.textBaseline = "top";
    g.textAlign = "right";
    g.fillText(world.other_score, WIDTH / 2 - 5, 3.5);
    g.textAlign = "left";
    g.fillText(world.own_score, WIDTH / 2 + 5, 3.5);

    const dt = paused || world.pause > 0 ? 0 : between / 60;
    const x = world.ball_x + world.ball_vx * dt;
    const y = Math.min(Math.max(world.ball_y + world.ball_vy * dt, BALL_HALF), HEIGHT - BALL_HALF);
    this.#trail(x, y, world, colours);
    g.fillStyle = colours.ink;
    g.fillRect(x - BALL_HALF, y - BALL_HALF, 2 * BALL_HALF, 2 * BALL_HALF);

    this.#paddle("other", OTHER_FACE - THICK, world.other_y, world.other_hits, colours.you);
    this.#paddle("own", OWN_FACE, world.own_y, world.own_hits, colours.model);
    if (level) this.#intent(world.own_y, level, colours.model);
    if (paused) {
      g.fillStyle = colours.ink;
      g.font = `400 4.5px ${colours.serif}`;
      g.textAlign = "center";
      g.textBaseline = "middle";
      g.fillText("paused", WIDTH / 2, HEIGHT * 0.72);
    }
  }

  #trail(x, y, world, colours) {
    if (calm.matches) return;
    if (world.pause > 0) this.trail.length = 0;
    else this.trail.push([x, y]);
    if (this.trail.length > TRAIL) this.trail.shift();
    const g = this.context;
    g.strokeStyle = colours.ink;
    g.lineCap = "butt";
    for (let i = 1; i < this.trail.length; i += 1) {
      g.globalAlpha = (0.22 * i) / TRAIL;
      g.lineWidth = (2 * BALL_HALF * i) / TRAIL;
      line(g, this.trail[i - 1], this.trail[i]);
    }
    g.globalAlpha = 1;
  }

  #paddle(side, x, y, hits, colour) {
    const g = this.context;
    if (hits !== this.hits[side]) {
      this.hits[side] = hits;
      this.flash[side] = 1;
    }
    if (this.flash[side] > 0.02 && !calm.matches) {
      g.globalAlpha = 0.22 * this.flash[side];
      g.fillStyle = colour;
      const grow = 1.6;
      g.beginPath();
      g.roundRect(x - grow, y - PADDLE_HALF - grow, THICK + 2 * grow, 2 * (PADDLE_HALF + grow), 1.5);
      g.fill();
      g.globalAlpha = 1;
    }
    this.flash[side] *= 0.88;
    g.fillStyle = colour;
    g.beginPath();
    g.roundRect(x, y - PADDLE_HALF, THICK, 2 * PADDLE_HALF, 0.6);
    g.fill();
  }

  /** Draw the active call as chevrons behind the model's paddle: one for each step of velocity. */
  #intent(y, level, colour) {
    const g = this.context;
    const way = Math.sign(level);
    g.strokeStyle = colour;
    g.lineWidth = 0.4;
    g.lineCap = "round";
    for (let i = 0; i < Math.abs(level); i += 1) {
      const tip = y + way * (1.6 + i * 1.5);
      line(g, [97.85, tip - way], [98.75, tip], [99.65, tip - way]);
    }
  }
}
