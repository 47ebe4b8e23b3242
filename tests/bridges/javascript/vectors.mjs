// Runs check_vectors.mjs on the installed npm package: `node vectors.mjs VECTORS`.

import { readFileSync } from "node:fs";
import * as client from "rtcontrol-client";
import { check } from "./check_vectors.mjs";

const [folder] = process.argv.slice(2);
console.log(JSON.stringify(check((name) => readFileSync(`${folder}/${name}.json`, "utf8"), client)));
