"use strict";
// Calibration and latency of evaluations, one line each.

const runs = JSON.parse(document.getElementById("data").textContent);
const inkOf = (k) => () => ink(runs[k].ink);

// Lines over one axis: uPlot wants one list of x for all.
function joined(lines) {
  const xs = [...new Set(lines.flatMap((line) => line.map(([x]) => x)))].sort((a, b) => a - b);
  const columns = lines.map((line) => {
    const at = new Map(line);
    return xs.map((x) => (at.has(x) ? at.get(x) : undefined));
  });
  return [xs, ...columns];
}

function chart(id, lines, series, scales, labels) {
  const element = document.getElementById(id);
  if (!lines.some((line) => line.length)) {
    element.textContent = "not measured";
    return;
  }
  const made = new uPlot({
    width: element.clientWidth,
    height: element.clientHeight,
    legend: { show: false },
    scales: { x: { time: false, ...scales.x }, y: scales.y || {} },
    series: [{}, ...series],
    axes: axes(labels),
    cursor: { y: false },
  }, joined(lines), element);
  addEventListener("resize", () => made.setSize({ width: element.clientWidth, height: element.clientHeight }));
}

const line = (k) => ({ stroke: inkOf(k), width: 2, spanGaps: true, points: { show: true, size: 5, stroke: inkOf(k), fill: inkOf(k) } });
const bare = (k) => ({ stroke: inkOf(k), width: 2, spanGaps: true, points: { show: false } });

chart(
  "calibration",
  [[[0, 0], [1, 1]], ...runs.map((run) => run.calibration.map(([, sure, share]) => [sure, share]))],
  [{ stroke: () => ink("muted"), width: 1, dash: [4, 4], spanGaps: true, points: { show: false } }, ...runs.map((_, k) => line(k))],
  { x: { range: [0, 1] }, y: { range: [0, 1] } },
  {},
);
chart("latency", runs.map((run) => run.latency), runs.map((_, k) => bare(k)), { x: { range: [0, 100] } }, {});

const keys = document.getElementById("keys");
runs.forEach((run, k) => {
  const key = document.createElement("span");
  key.className = "key";
  key.style.background = inkOf(k)();
  keys.append(key, run.name);
});
