// Runs the JSON side of the conformance vectors: `node vectors.mjs PAGE VECTORS`. Prints, as one JSON, what `check` gives.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { check } from "../../../bridges/javascript/check_vectors.mjs";

const [page, folder] = process.argv.slice(2);
const client = await import(pathToFileURL(`${page}/client/index.js`));
console.log(JSON.stringify(check((name) => readFileSync(`${folder}/${name}.json`, "utf8"), client)));
