// What the village's modules say: `node village.mjs PAGE`, with sentences as the keys of a JSON map on its input.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [page] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${page}/${name}.js`));
const { Village } = await load("village");
const { meant } = await load("sayings");
const { TOOLS } = await load("village_tools");
const village = new Village(1);
const found = {};
for (const sentence of Object.keys(JSON.parse(readFileSync(0, "utf8")))) {
  const { villagers, goal, error } = meant(sentence, village);
  found[sentence] = error ?? [villagers.length, goal];
}
const errors = ["villager 99, go home", "everyone in red", " ! "].map((sentence) => meant(sentence, village).error);
const near = meant("those near the church, stop", village).villagers.length;
const looks = [];
for (let i = 0; i < 40; i += 1) {
  for (const one of village.villagers) village.act(one, { name: "walk", arguments: { direction: i % 3 ? "south" : "northwest" } });
  for (let step = 0; step < 60; step += 1) village.step(1 / 60);
  looks.push(...village.villagers.map((one) => village.look(one)));
}
console.log(JSON.stringify({ meant: found, errors, near, tools: TOOLS, looks }));
