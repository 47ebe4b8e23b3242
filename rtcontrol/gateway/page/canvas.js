// What the drawings share.

/** As large as it is shown, in the screen's own pixels. */
export function fit(canvas, dpr) {
  const [width, height] = [Math.round(canvas.clientWidth * dpr), Math.round(canvas.clientHeight * dpr)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
}

/** A line through these points. */
export function line(g, ...points) {
  g.beginPath();
  for (const [x, y] of points) g.lineTo(x, y);
  g.stroke();
}
