// A village that is walked through from outside: `node village_walk.mjs PAGE`. Prints what all see as a line of JSON, and
// reads the calls of all, a quarter of a second after the other; `well` is how many are there.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [page] = process.argv.slice(2);
const { Village } = await import(pathToFileURL(`${page}/village.js`));
const village = new Village(3);
const tell = () => {
  const well = village.villagers.filter((one) => village.isAt(one, "well")).length;
  console.log(JSON.stringify({ looks: village.villagers.map((one) => village.look(one)), well }));
};
tell();
for await (const line of createInterface({ input: process.stdin })) {
  JSON.parse(line).forEach((call, i) => village.act(village.villagers[i], call));
  for (let step = 0; step < 15; step += 1) village.step(1 / 60);
  tell();
}
