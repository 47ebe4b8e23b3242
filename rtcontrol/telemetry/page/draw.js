"use strict";
// Columns of a run, and the charts over them.

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

function unpack({ kind, data }) {
  const raw = atob(data);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new ARRAYS[kind](bytes.buffer);
}

// A run's ticks: what is not looked at is not unpacked.
class Ticks {
  constructor(run) {
    this.run = run;
    this.k = unpack(run.k);
    this.length = this.k.length;
    this.t = unpack(run.numbers.t_s);
    this.causes = run.words.cause.words;
    this.cause = unpack(run.words.cause.codes);
    this.columns = {};
  }

  // NaN where it is not known.
  number(name, row) {
    if (!(name in this.run.numbers)) return NaN;
    this.columns[name] ||= unpack(this.run.numbers[name]);
    return this.columns[name][row];
  }

  word(name, row) {
    const column = this.run.words[name];
    this.columns[`w:${name}`] ||= unpack(column.codes);
    return column.words[this.columns[`w:${name}`][row]];
  }

  // The first row at or after t.
  at(t) {
    let low = 0, high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.t[middle] < t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The row next to `row` that missed (of `cause`, if one is given), or -1.
  miss(row, step, cause) {
    for (let i = row + step; i >= 0 && i < this.length; i += step)
      if (this.cause[i] && (!cause || this.causes[this.cause[i]] === cause)) return i;
    return -1;
  }
}

const inks = {};
function ink(name) {
  return (inks[name] ||= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || ink("unknown"));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const name in inks) delete inks[name];
});

function axes(more = {}) {
  const plain = () => ({
    stroke: () => ink("muted"),
    grid: { stroke: () => ink("line"), width: 1 },
    ticks: { stroke: () => ink("line"), width: 1 },
    font: "12px system-ui, sans-serif",
  });
  return [{ ...plain(), size: 34, ...more.x }, { ...plain(), size: 56, ...more.y }];
}

// A chart whose one series `paint` draws by itself, from x = t in seconds.
function painted(element, ticks, top, paint, options) {
  const none = new Float32Array(ticks.length);
  const chart = new uPlot({
    width: element.clientWidth,
    height: element.clientHeight,
    legend: { show: false },
    scales: { x: { time: false }, y: { range: [0, top] } },
    series: [{}, { paths: () => null, points: { show: false } }],
    axes: axes(options.axes),
    cursor: { show: options.cursor !== false, y: false, points: { show: false }, drag: { x: true, y: false, dist: 5 } },
    hooks: { draw: [paint], ...options.hooks },
  }, [ticks.t, none], element);
  return chart;
}

// Where rows lie in a chart's pixels.
function pixels(chart, top) {
  const { left, top: up, width, height } = chart.bbox, { min, max } = chart.scales.x;
  return {
    left, up, width, height,
    x: (t) => left + ((t - min) / (max - min)) * width,
    y: (ms) => up + height * (1 - Math.min(ms, top) / top),
    one: devicePixelRatio,
  };
}

function timeline(element, ticks, state, hooks) {
  const { deadline_ms: deadline, hz } = ticks.run;
  const top = 2 * deadline;
  const paint = (chart) => {
    const { ctx } = chart, at = pixels(chart, top), { min, max } = chart.scales.x;
    const first = Math.max(0, ticks.at(min) - 1), last = Math.min(ticks.length, ticks.at(max) + 1);
    const wide = Math.max(at.one, Math.min(6 * at.one, at.width / Math.max(1, last - first) - at.one));
    const dot = Math.max(1.5 * at.one, Math.min(4 * at.one, wide));
    // Where many misses share a pixel they fade, so that how many there are is still to be seen.
    let crowd = 0;
    for (let i = first; i < last; i++) crowd += ticks.cause[i] ? 1 : 0;
    const faint = Math.max(0.04, Math.min(0.38, (0.12 * at.width) / at.one / Math.max(1, crowd)));
    ctx.save();
    ctx.beginPath();
    ctx.rect(at.left, at.up, at.width, at.height);
    ctx.clip();
    ctx.fillStyle = ink("on-time");
    for (let i = first; i < last; i++)
      if (!ticks.cause[i]) {
        const ms = ticks.number("latency_ms", i);
        if (ms === ms) ctx.fillRect(at.x(ticks.t[i]) - dot / 2, at.y(ms) - dot / 2, dot, dot);
      }
    for (let i = first; i < last; i++) {
      const x = at.x(ticks.t[i]), skipped = ticks.number("skipped", i);
      if (skipped > 0) {
        ctx.globalAlpha = 0.25;
        ctx.fillStyle = ink(ticks.word("skip_cause", i));
        const from = at.x(ticks.t[i] - skipped / hz);
        ctx.fillRect(from, at.up, Math.max(at.one, x - from), at.height);
      }
      if (!ticks.cause[i]) continue;
      const cause = ticks.causes[ticks.cause[i]], shown = !state.cause || state.cause === cause;
      ctx.fillStyle = ink(cause);
      ctx.globalAlpha = shown ? faint : 0.15 * faint;
      ctx.fillRect(x - wide / 2, at.up, Math.max(2 * at.one, wide), at.height);
      const ms = ticks.number("latency_ms", i);
      ctx.globalAlpha = shown ? 1 : 0.15;
      const y = at.y(ms === ms ? ms : deadline), size = dot + 2 * at.one;
      ctx.fillRect(x - size / 2, Math.max(at.up, y - size / 2), size, size);
    }
    ctx.globalAlpha = 1;
    ctx.fillStyle = ink("accent");
    for (const [t] of ticks.run.marks)
      if (t >= min && t <= max) {
        const x = at.x(t), half = 4 * at.one;
        ctx.beginPath();
        ctx.moveTo(x - half, at.up);
        ctx.lineTo(x + half, at.up);
        ctx.lineTo(x, at.up + 2 * half);
        ctx.fill();
      }
    ctx.strokeStyle = ctx.fillStyle = ink("bad");
    ctx.lineWidth = at.one;
    ctx.setLineDash([6 * at.one, 4 * at.one]);
    ctx.beginPath();
    ctx.moveTo(at.left, at.y(deadline));
    ctx.lineTo(at.left + at.width, at.y(deadline));
    ctx.stroke();
    ctx.font = `${12 * at.one}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    const label = [`deadline ${+deadline.toFixed(1)} ms`, at.left + 6 * at.one, at.y(deadline) - 5 * at.one];
    ctx.setLineDash([]);
    ctx.strokeStyle = ink("card");
    ctx.lineWidth = 4 * at.one;
    ctx.strokeText(...label);
    ctx.fillText(...label);
    if (state.row >= 0) {
      ctx.strokeStyle = ink("accent");
      ctx.lineWidth = 2 * at.one;
      ctx.strokeRect(at.x(ticks.t[state.row]) - wide / 2 - 2 * at.one, at.up, wide + 4 * at.one, at.height);
    }
    ctx.restore();
  };
  const marks = { y: { values: (u, ms) => ms.map((v) => (v === top ? `≥${+v.toFixed(0)}` : v)), label: "latency, ms", labelSize: 18 } };
  return painted(element, ticks, top, paint, { hooks, axes: { x: { values: (u, s) => s.map((v) => `${v} s`) }, ...marks } });
}

function jitter(element, ticks) {
  let top = 1;
  for (let i = 0; i < ticks.length; i++) top = Math.max(top, ticks.number("jitter_ms", i) || 0);
  top = Math.min(top, 2 * ticks.run.deadline_ms);
  const paint = (chart) => {
    const at = pixels(chart, top), { min, max } = chart.scales.x;
    chart.ctx.fillStyle = ink("accent");
    for (let i = Math.max(0, ticks.at(min)), last = Math.min(ticks.length, ticks.at(max) + 1); i < last; i++) {
      const ms = ticks.number("jitter_ms", i);
      if (ms === ms) chart.ctx.fillRect(at.x(ticks.t[i]) - at.one, at.y(ms) - at.one, 2 * at.one, 2 * at.one);
    }
  };
  const y = { label: "jitter, ms", labelSize: 18, space: 24 };
  return painted(element, ticks, top, paint, { cursor: false, axes: { x: { values: (u, s) => s.map((v) => `${v} s`) }, y } });
}

const PALETTE = ["decide", "pause", "wake", "no_observation", "execute", "invalid", "unknown", "stale_observation", "on-time", "accent", "host", "good"];

function curves(element, run, nines) {
  const names = Object.keys(run.curves);
  if (!names.length) return null;
  const percent = (n) => `p${+(100 * (1 - 10 ** -n)).toFixed(2)}`;
  const y = { label: "ms", labelSize: 18, values: (u, ms) => ms.map((v) => (v == null ? null : `${+v.toPrecision(2)}`)) };
  return new uPlot({
    width: element.clientWidth,
    height: 240,
    scales: { x: { time: false }, y: { distr: 3, log: 10 } },
    axes: axes({ x: { values: (u, at) => at.map((n) => (n % 1 ? "" : percent(n))) }, y }),
    series: [
      { label: "percentile", value: (u, n) => (n == null ? "–" : percent(n)) },
      ...names.map((label, i) => ({
        label,
        stroke: () => ink(PALETTE[i % PALETTE.length]),
        width: label === "latency" ? 3 : 1.5,
        value: (u, ms) => (ms == null ? "–" : `${ms.toFixed(2)} ms`),
        points: { show: false },
      })),
    ],
  }, [nines, ...names.map((name) => run.curves[name])], element);
}
