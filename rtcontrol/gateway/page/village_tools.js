// The tools of a villager, as trained (models/recipes/village.py): word for word, or it is unknown.

import { DIRECTIONS } from "./village.js";

function tool(name, description, aims = true) {
  const properties = aims ? { direction: { type: "string", enum: DIRECTIONS } } : {};
  return {
    type: "function",
    function: { name, description, parameters: { type: "object", properties, required: Object.keys(properties) } },
  };
}

export const TOOLS = [
  tool("walk", "Walk that way until the next call."),
  tool("run", "Run that way until the next call."),
  tool("look", "Stand, and look that way."),
  tool("stay", "Stand still.", false),
];
