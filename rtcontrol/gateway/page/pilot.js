// The player of the left paddle: the visitor by keys, mouse or touch, and a script until the visitor moves (and again after
// a while without a move), so that there is something to see.

import { BALL_HALF, BOTTOM, HEIGHT, OTHER_FACE, PADDLE_SPEED, TOP } from "./game.js";

const IDLE_MS = 15_000;
const KEYS = { ArrowUp: -1, KeyW: -1, ArrowDown: 1, KeyS: 1 };
const SCRIPT_SPEED = 0.7 * PADDLE_SPEED;

export class Pilot {
  constructor(court) {
    this.court = court;
    this.held = new Set();
    this.target = null; // the height that mouse or finger points at
    this.movedAt = -Infinity;
    this.off = 0;
    this.incoming = false;
    addEventListener("keydown", (event) => this.#key(event, true));
    addEventListener("keyup", (event) => this.#key(event, false));
    addEventListener("blur", () => this.held.clear());
    court.addEventListener("pointerdown", (event) => {
      court.setPointerCapture(event.pointerId);
      this.#point(event);
    });
    court.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse" || event.buttons) this.#point(event);
    });
  }

  /** Whether the visitor plays. */
  get manual() {
    return this.held.size > 0 || performance.now() - this.movedAt < IDLE_MS;
  }

  /** Return the paddle's velocity for the next step. */
  velocity(world) {
    if (!this.manual) return this.#script(world);
    if (this.held.size) {
      this.target = null;
      return [...this.held].reduce((sum, code) => sum + KEYS[code], 0) * PADDLE_SPEED;
    }
    return this.target === null ? 0 : (this.target - world.other_y) * 20;
  }

  #key(event, down) {
    if (!(event.code in KEYS) || event.target instanceof HTMLInputElement) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    if (down) this.held.add(event.code);
    else this.held.delete(event.code);
    this.movedAt = performance.now();
  }

  #point(event) {
    const box = this.court.getBoundingClientRect();
    this.target = Math.min(Math.max(((event.clientY - box.top) / box.height) * HEIGHT, TOP), BOTTOM);
    this.movedAt = performance.now();
  }

  #script(world) {
    const incoming = world.ball_vx < 0;
    // One error per ball, and not always the middle of the paddle.
    if (incoming && !this.incoming) this.off = (Math.random() + Math.random() - 1) * 7;
    this.incoming = incoming;
    let goal = HEIGHT / 2;
    if (incoming) {
      const seconds = (world.ball_x - OTHER_FACE - BALL_HALF) / -world.ball_vx;
      goal = fold(world.ball_y + world.ball_vy * seconds) + this.off;
    }
    return Math.min(Math.max(8 * (goal - world.other_y), -SCRIPT_SPEED), SCRIPT_SPEED);
  }
}

/** Return the position of a ball at `y` after reflection at the walls. */
function fold(y) {
  const span = HEIGHT - 2 * BALL_HALF;
  const place = (((y - BALL_HALF) % (2 * span)) + 2 * span) % (2 * span);
  return BALL_HALF + (place <= span ? place : 2 * span - place);
}
