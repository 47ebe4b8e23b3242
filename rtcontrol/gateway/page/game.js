// The physics of the paddle game: a port of envs/paddle.py, whose text is its specification, to the last bit (a test
// compares the two step by step). "own" is the model's paddle on the right, "other" the person's on the left.

export const STEPS_A_SECOND = 60;
export const WIDTH = 100;
export const HEIGHT = 60;
export const BALL_HALF = 1;
export const PADDLE_HALF = 5;
export const OWN_FACE = 96;
export const OTHER_FACE = 4;
export const PADDLE_SPEED = 60;
export const LEVEL_SPEED = 20;
export const TOP = PADDLE_HALF;
export const BOTTOM = HEIGHT - PADDLE_HALF;

const REACH = PADDLE_HALF + BALL_HALF;
const OWN_PLANE = 95;
const OTHER_PLANE = 5;
const SERVE_SPEED = 45;
const SPEED_UP = 2.5;
const MAX_SPEED = 70;
const SERVE_SLOPE = 0.6;
const BOUNCE_SLOPE = 0.75;
const PAUSE_STEPS = 30;

const clamp = (v, low, high) => Math.min(Math.max(v, low), high);

export class World {
  constructor(seed = 0) {
    this.reset(seed);
  }

  reset(seed) {
    this.random = (Math.imul(2654435761, seed) + 1) >>> 0;
    this.own_y = this.other_y = HEIGHT / 2;
    this.own_v = this.other_v = 0;
    this.own_hits = this.other_hits = this.own_score = this.other_score = 0;
    this.#centre(1);
  }

  /** Set a velocity in units a second, clamped; positive is down. */
  setOwn(velocity) {
    this.own_v = clamp(velocity, -PADDLE_SPEED, PADDLE_SPEED);
  }

  setOther(velocity) {
    this.other_v = clamp(velocity, -PADDLE_SPEED, PADDLE_SPEED);
  }

  /** Advance the game by 1/60 s. */
  step() {
    this.own_y = clamp(this.own_y + this.own_v / STEPS_A_SECOND, TOP, BOTTOM);
    this.other_y = clamp(this.other_y + this.other_v / STEPS_A_SECOND, TOP, BOTTOM);
    if (this.pause > 0) {
      this.pause -= 1;
      if (this.pause === 0) this.#serve();
      return;
    }
    const before = this.ball_x;
    this.ball_x += this.ball_vx / STEPS_A_SECOND;
    this.ball_y += this.ball_vy / STEPS_A_SECOND;
    if (this.ball_y < BALL_HALF) {
      this.ball_y = 2 * BALL_HALF - this.ball_y;
      this.ball_vy = -this.ball_vy;
    }
    if (this.ball_y > HEIGHT - BALL_HALF) {
      this.ball_y = 2 * (HEIGHT - BALL_HALF) - this.ball_y;
      this.ball_vy = -this.ball_vy;
    }
    this.#paddles(before);
    if (this.ball_x >= WIDTH) {
      this.other_score += 1;
      this.#centre(1);
    } else if (this.ball_x <= 0) {
      this.own_score += 1;
      this.#centre(-1);
    }
  }

  /** Return the observation that the agent `paddle` reads. */
  observe() {
    const { ball_x, ball_y, ball_vx, ball_vy, own_y, other_y } = this;
    return { ball_x, ball_y, ball_vx, ball_vy, own_y, other_y };
  }

  #paddles(before) {
    const { ball_x: x, ball_y: y, ball_vx: vx } = this;
    if (vx > 0 && before < OWN_PLANE && x >= OWN_PLANE && Math.abs(y - this.own_y) <= REACH) {
      this.ball_x = 2 * OWN_PLANE - x;
      const speed = Math.min(vx + SPEED_UP, MAX_SPEED);
      this.ball_vx = -speed;
      this.ball_vy = BOUNCE_SLOPE * ((y - this.own_y) / REACH) * speed;
      this.own_hits += 1;
    } else if (vx < 0 && before > OTHER_PLANE && x <= OTHER_PLANE && Math.abs(y - this.other_y) <= REACH) {
      this.ball_x = 2 * OTHER_PLANE - x;
      const speed = Math.min(-vx + SPEED_UP, MAX_SPEED);
      this.ball_vx = speed;
      this.ball_vy = BOUNCE_SLOPE * ((y - this.other_y) / REACH) * speed;
      this.other_hits += 1;
    }
  }

  #centre(toward) {
    this.ball_x = WIDTH / 2;
    this.ball_y = HEIGHT / 2;
    this.ball_vx = this.ball_vy = 0;
    this.pause = PAUSE_STEPS;
    this.toward = toward;
  }

  #serve() {
    this.random = (Math.imul(1664525, this.random) + 1013904223) >>> 0;
    const slope = ((this.random >>> 16) / 32768 - 1) * SERVE_SLOPE;
    this.ball_vx = this.toward * SERVE_SPEED;
    this.ball_vy = slope * SERVE_SPEED;
  }
}
