// The strip chart: one bar a call (how long from the observation to the call), the deadline, misses and instructions.

import { fit, line } from "./canvas.js";

const SPAN_MS = 6_000; // the time that the chart shows
const KEPT_MS = 30_000; // the time over which figures are computed

const sorted = (values) => values.filter((v) => v !== null).sort((a, b) => a - b);
const at = (values, q) => values[Math.min(values.length - 1, Math.floor(q * values.length))] ?? null;

export class StripChart {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.calls = []; // { at, latency, age, decide, missed }
    this.marks = []; // instants (ms) at which an instruction became active
    this.deadline = 0;
    this.top = 0;
  }

  add(entry) {
    this.calls.push(entry);
    const old = entry.at - KEPT_MS;
    while (this.calls.length && this.calls[0].at < old) this.calls.shift();
    while (this.marks.length && this.marks[0] < old) this.marks.shift();
  }

  /**
   * { p50, p99, decide, wire } in ms over the last thirty seconds; null without calls. `decide` is the median time that
   * the model took, `wire` the median of what neither it nor the wait for the tick took: both ways and the page.
   */
  figures() {
    const latency = sorted(this.calls.map((c) => c.latency));
    if (!latency.length) return null;
    const decide = sorted(this.calls.map((c) => c.decide));
    const wire = sorted(this.calls.map((c) => (c.latency === null || c.age === null ? null : c.latency - c.age)));
    return { p50: at(latency, 0.5), p99: at(latency, 0.99), decide: at(decide, 0.5), wire: at(wire, 0.5) };
  }

  draw(now, colours, dpr) {
    const { canvas, context: g } = this;
    const [w, h] = [canvas.clientWidth, canvas.clientHeight];
    fit(canvas, dpr);
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    g.clearRect(0, 0, w, h);
    const shown = this.calls.filter((c) => c.at > now - SPAN_MS);
    const worst = shown.reduce((m, c) => Math.max(m, c.latency ?? 0), 0);
    // Eased, so that one late call does not make everything jump.
    const wanted = Math.max(this.deadline * 1.35, Math.min(worst * 1.1, this.deadline * 4), 10);
    this.top = this.top ? this.top + (wanted - this.top) * 0.08 : wanted;
    const floor = h - 1;
    const y = (ms) => floor - (Math.min(ms, this.top) / this.top) * (h - 14);
    const x = (at) => w - ((now - at) / SPAN_MS) * w;

    g.fillStyle = colours.line;
    g.fillRect(0, floor, w, 1);
    for (const c of shown) {
      if (c.latency === null) continue;
      g.fillStyle = c.missed ? colours.bad : colours.muted;
      g.globalAlpha = c.missed ? 1 : 0.45;
      g.fillRect(x(c.at), y(c.latency), 1.2, floor - y(c.latency));
      if (c.decide !== null && !c.missed) {
        g.fillStyle = colours.model;
        g.globalAlpha = 1;
        g.fillRect(x(c.at), y(c.decide), 1.2, floor - y(c.decide));
      }
    }
    g.globalAlpha = 1;
    g.fillStyle = colours.bad;
    for (const c of shown) if (c.missed) g.fillRect(x(c.at) - 1, 0, 3, 6);

    g.strokeStyle = colours.you;
    g.lineWidth = 1;
    for (const at of this.marks) {
      const marked = Math.round(x(at)) + 0.5;
      if (at > now - SPAN_MS) line(g, [marked, 0], [marked, floor]);
    }
    if (this.deadline) {
      g.strokeStyle = colours.ink;
      g.setLineDash([4, 4]);
      const height = Math.round(y(this.deadline));
      line(g, [0, height + 0.5], [w, height + 0.5]);
      g.setLineDash([]);
      g.font = `11px ${colours.mono}`;
      g.fillStyle = colours.ink;
      g.textAlign = "left";
      g.fillText(`deadline ${Number(this.deadline.toPrecision(3))} ms`, 0, height - 4);
    }
  }
}
