// Who is meant by a sentence: plain rules, no model. "everyone in red, gather at the well" is for those in red, and
// they are told "gather at the well". What they then do is the model's. No DOM.

import { COLOURS, NAMES, PLACES } from "./village.js";

const NEAR = 18; // units
const any = (words) => words.join("|");
const COLOUR = any(COLOURS);
const PLACE = any(Object.keys(PLACES));
const LISTED = "(?:\\s*,\\s*|\\s+and\\s+|\\s+or\\s+)(?:the\\s+)?";
const COLOUR_LIST = `(?:${COLOUR})(?:s|(?:\\s+ones))?(?:${LISTED}(?:${COLOUR})s?)*`;
const NUMBERS = "\\d+(?:(?:\\s*,\\s*|\\s+and\\s+)\\d+)*";
const NAMED = `(?:${any(NAMES.map((name) => name.toLowerCase()))})`;

const EVERYONE = "(?:everyone|everybody|all of you|all(?:\\s+(?:the\\s+)?villagers)?|(?:the\\s+)?villagers)";
const DRESSED = `(?:\\s+(?:dressed\\s+|wearing\\s+|who wear\\s+)?(?:in\\s+)?(${COLOUR_LIST}))?`;
const STANDING = `(?:\\s+(?:who are\\s+|standing\\s+)?(?:near|at|by|around|close to)\\s+the\\s+(${PLACE}))?`;
const OUT = `${COLOUR_LIST}|${NAMED}(?:(?:\\s*,\\s*|\\s+and\\s+)${NAMED})*|(?:villagers?|numbers?)\\s+${NUMBERS}`;
// Those who are not meant: at any place of the sentence.
const BUT = new RegExp(
  `,?\\s*\\b(?:but|except|without|not)(?:\\s+(?:for|not))?\\s+(?:the\\s+)?(?:(?:those|people)\\s+in\\s+)?(${OUT})(?:\\s+(?:ones|villagers|people|team))?(?=\\s|,|:|$)`,
);
const END = "(?=\\s|,|:|$)\\s*[,:]?\\s*(.*)$";

// The first rule that fits counts. Each returns the villagers that are meant and the rest of the sentence.
const RULES = [
  [
    new RegExp(`^(?:villagers?|numbers?)\\s+(${NUMBERS})${END}`),
    ([, numbers]) => ({ numbers: numbers.match(/\d+/g).map(Number) }),
  ],
  [
    new RegExp(`^(${NAMED}(?:(?:\\s*,\\s*|\\s+and\\s+)${NAMED})*)${END}`),
    ([, names]) => ({ names: names.match(new RegExp(`\\b${NAMED}\\b`, "g")) }),
  ],
  [
    new RegExp(`^(?:all\\s+)?(?:the\\s+)?(${COLOUR_LIST})(?:\\s+(?:ones|villagers|people|team))?${STANDING}${END}`),
    ([, colours, place]) => ({ colours: coloursOf(colours), place }),
  ],
  [
    new RegExp(`^(?:${EVERYONE}|those|the\\s+ones|people)${DRESSED}${STANDING}${END}`),
    ([, colours, place]) => ({ colours: colours && coloursOf(colours), place }),
  ],
];

const coloursOf = (text) => text.match(new RegExp(COLOUR, "g"));

/** Return a sentence as the model reads it: lower case, no punctuation. */
export const plain = (text) =>
  text
    .toLowerCase()
    .replace(/[’`]/g, "'")
    .replace(/[^a-z0-9' ]+/g, " ")
    .replace(/\s+/g, " ")
    .trim();

/**
 * { villagers, goal, who }: those who are meant, what they are told, and the words for them; `error` where nobody is, or
 * where they are told nothing.
 */
export function meant(sentence, village) {
  const whole = sentence.toLowerCase().replace(/[’`]/g, "'").replace(/\s+/g, " ").trim();
  const but = BUT.exec(whole)?.[1];
  const text = whole.replace(BUT, " ").replace(/\s+/g, " ").replace(/^[\s,:]+/, "").trim();
  const without = but ? `, without ${but}` : "";
  for (const [rule, read] of RULES) {
    const found = rule.exec(text);
    if (!found) continue;
    const goal = plain(found.at(-1));
    const villagers = chosen({ ...read(found), but }, village);
    const who = text.slice(0, text.length - found.at(-1).length).replace(/[\s,:]+$/, "") + without;
    if (!villagers.length)
      return { error: `Nobody is meant by “${who}”. There are villagers 1 to ${village.villagers.length}.` };
    if (!goal) return { error: `${count(villagers)} meant by “${who}”: say what they are to do, too.` };
    return { villagers, goal, who };
  }
  const goal = plain(text);
  const villagers = chosen({ but }, village);
  return goal ? { villagers, goal, who: `everyone${without}` } : { error: "Say who is to do what." };
}

function chosen({ numbers, names, colours, place, but }, village) {
  const [outNames, outColours, outNumbers] = [new RegExp(`\\b${NAMED}\\b`, "g"), new RegExp(COLOUR, "g"), /\d+/g].map(
    (part) => but?.match(part) ?? [],
  );
  return village.villagers.filter((one) => {
    const name = one.name.toLowerCase();
    if (numbers && !numbers.includes(one.number)) return false;
    if (names && !names.includes(name)) return false;
    if (colours && !colours.includes(one.colour)) return false;
    if (place && Math.hypot(one.x - PLACES[place].x, one.y - PLACES[place].y) > NEAR) return false;
    return !(outNames.includes(name) || outColours.includes(one.colour) || outNumbers.includes(`${one.number}`));
  });
}

/** Return the number of villagers in words with a verb. */
export const count = (villagers) => (villagers.length === 1 ? `${villagers[0].name} is` : `${villagers.length} are`);
