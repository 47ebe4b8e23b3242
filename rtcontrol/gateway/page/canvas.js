// Helpers that all drawings share.

/** Fit a canvas to its displayed size in device pixels. */
export function fit(canvas, dpr) {
  const [width, height] = [Math.round(canvas.clientWidth * dpr), Math.round(canvas.clientHeight * dpr)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
}

/** Draw a line through these points. */
export function line(g, ...points) {
  g.beginPath();
  for (const [x, y] of points) g.lineTo(x, y);
  g.stroke();
}
