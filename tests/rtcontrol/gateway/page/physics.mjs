// Plays recorded games again: `node physics.mjs PAGE GAMES`. Prints, as JSON, how many steps there were and the first of
// those that differ.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [page, games] = process.argv.slice(2);
const { World } = await import(pathToFileURL(`${page}/game.js`));
const wrong = [];
let count = 0;
for (const { seed, steps } of JSON.parse(readFileSync(games, "utf8"))) {
  const world = new World(seed);
  steps.forEach(([own, other, ...expected], i) => {
    if (own !== null) world.setOwn(own);
    if (other !== null) world.setOther(other);
    world.step();
    count += 1;
    const got = [...Object.values(world.observe()), world.own_score, world.other_score, world.own_hits, world.other_hits];
    if (!got.every((v, k) => v === expected[k])) wrong.push({ seed, step: i, got, expected });
  });
}
console.log(JSON.stringify({ steps: count, wrong: wrong.slice(0, 3) }));
