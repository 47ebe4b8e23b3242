"""Train the model of the villagers on the page `/crowd`. A row has a sentence, an observation, and the right call.

python models/recipes/village.py      a quarter of an hour on one core: runs/village
"""

from __future__ import annotations

import argparse
import random
from typing import Any

from shared import options, run

import rtcontrol

DIRECTIONS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
PLACES = ("well", "market", "mill", "church", "oak", "pond")
THINGS = (*PLACES, "home", "fox")


def _tool(name: str, description: str, aims: bool = True) -> dict[str, Any]:
    direction = {"direction": {"type": "string", "enum": list(DIRECTIONS)}} if aims else {}
    parameters = {"type": "object", "properties": direction, "required": list(direction)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


tools = [
    _tool("walk", "Walk that way until the next call."),
    _tool("run", "Run that way until the next call."),
    _tool("look", "Stand, and look that way."),
    _tool("stay", "Stand still.", aims=False),
]

WALK = """
go to the {}|gather at the {}|gather around the {}|gather by the {}|walk to the {}|walk over to the {}
meet at the {}|meet me at the {}|come to the {}|come together at the {}|assemble at the {}|move to the {}
head to the {}|head for the {}|stand by the {}|stand at the {}|stand near the {}|stay at the {}|stay by the {}
wait at the {}|wait by the {}|off to the {}|visit the {}|to the {}|go to {}|go over to the {}|go near the {}
get to the {}|return to the {}|go back to the {}|make your way to the {}|follow the {}|go and see the {}|find the {}
be at the {}|join the others at the {}|the {}|sit by the {}
"""
RUN = """
run to the {}|hurry to the {}|rush to the {}|run quickly to the {}|go quickly to the {}|race to the {}
dash to the {}|run for the {}|chase the {}|catch the {}|hunt the {}|hunt down the {}|go to the {} as fast as you can
run over to the {}|hurry up to the {}|run after the {}|sprint to the {}
"""
FLEE = """
flee the {}|flee from the {}|run away from the {}|run from the {}|get away from the {}|keep away from the {}
stay away from the {}|keep off the {}|avoid the {}|escape the {}|escape from the {}|go away from the {}|leave the {}
beware of the {}|hide from the {}|do not go to the {}|don't go to the {}|do not go near the {}|don't go near the {}
never go near the {}|clear the {}|fear the {}
"""
LOOK = """
look at the {}|watch the {}|face the {}|look to the {}|look towards the {}|turn to the {}|turn towards the {}
stare at the {}|keep an eye on the {}|observe the {}|point at the {}|stand and watch the {}|look out for the {}
guard the {}
"""
WANDER = """
wander|wander about|wander around|walk around|walk about|take a walk|go for a walk|stroll|stroll around|stroll about
roam|roam about|roam around|go where you like|go where you want|do what you like|do what you want|as you like
explore|look around|go anywhere|ramble|take a stroll|go about your business|you are free|do as you please
"""
STAY = """
stay|stay here|stay there|stay where you are|stand still|stop|stop there|stop moving|stop it|halt|wait|wait here
freeze|do not move|don't move|rest|take a rest|sit down|hold still|be still|keep still|hold|stand|stand there
do nothing|pause
"""
HOME = {
    "walk": "go home|walk home|return home|go back home|head home|go to your house|go to your home|go to bed|come home|"
    "stay at home",
    "run": "run home|hurry home|rush home|run to your house|hide at home|hide in your house|run back home|hide",
    "flee": "leave home|leave your house|keep away from home|get out of your house|get away from home",
    "look": "look at your house|watch your house|face your house|guard your house|look towards your home|"
    "guard your home",
}
_BEFORE = "please|now|quick|all of you|everyone|you|ok|then|let them|you should|you must"
_AFTER = "please|now|at once|all of you|everybody|together|right now|again|for a while|today"
BEFORE, AFTER = _BEFORE.split("|"), _AFTER.split("|")
OFTEN = {"walk": 32, "run": 15, "flee": 20, "look": 13, "wander": 10, "stay": 10}


def _phrases(text: str) -> list[str]:
    return [phrase for line in text.strip().splitlines() for phrase in line.split("|")]


PHRASES = {"walk": _phrases(WALK), "run": _phrases(RUN), "flee": _phrases(FLEE), "look": _phrases(LOOK)}
BARE = {"wander": _phrases(WANDER), "stay": _phrases(STAY)}


def _sayings() -> dict[str, tuple[str, str | None]]:
    """Return for each sentence the tool and the thing that the sentence asks for."""
    sayings: dict[str, tuple[str, str | None]] = {}
    for kind, phrases in PHRASES.items():
        sayings |= {phrase.format(thing): (kind, thing) for phrase in phrases for thing in (*PLACES, "fox")}
        sayings |= dict.fromkeys(_phrases(HOME[kind]), (kind, "home"))
    for kind, phrases in BARE.items():
        sayings |= dict.fromkeys(phrases, (kind, None))
    return sayings


SAYINGS = _sayings()
_BY_KIND = {kind: [saying for saying, (of, _) in SAYINGS.items() if of == kind] for kind in OFTEN}
# A suffix that names nothing does not change "stay away" and similar sentences.
_CUT = sorted((*(f"{word} " for word in BEFORE), *(f" {word}" for word in AFTER)), key=len, reverse=True)


def situations(rng: random.Random) -> tuple[str, str]:
    """Return a random sentence and an observation: the direction and distance of each thing."""
    saying = rng.choice(_BY_KIND[rng.choices(list(OFTEN), list(OFTEN.values()))[0]])
    chance = rng.random()
    if chance < 0.12:
        saying = f"{rng.choice(BEFORE)} {saying}"
    elif chance < 0.24:
        saying = f"{saying} {rng.choice(AFTER)}"
    sights = []
    for thing in THINGS:
        near = rng.random() < 0.5
        away = "near" if near else "far"
        here = near and rng.random() < 0.25
        sights.append(f"{thing} here" if here else f"{thing} {rng.choice(DIRECTIONS)} {away}")
    whim = rng.choice(DIRECTIONS) if rng.random() < 0.75 else "none"
    return saying, f"{' '.join(sights)} whim {whim}"


def teacher(instruction: str, observation: str) -> dict[str, Any] | str:
    """Return the right call. Raises LookupError for an unknown sentence."""
    kind, thing = SAYINGS[_plain(instruction)]
    if kind == "stay":
        return "stay"
    words = observation.split()
    if thing is None:
        whim = words[words.index("whim") + 1]
        return "stay" if whim == "none" else _aimed("walk", whim)
    where, *far = words[words.index(thing) + 1 :][:2]
    if kind == "flee":
        if where == "here":
            return _aimed("run", DIRECTIONS[0])
        away = DIRECTIONS[(DIRECTIONS.index(where) + 4) % len(DIRECTIONS)]
        return _aimed("run", away) if far == ["near"] else "stay"
    return "stay" if where == "here" else _aimed(kind, where)


def _aimed(name: str, direction: str) -> dict[str, Any]:
    return {"name": name, "arguments": {"direction": direction}}


def _plain(instruction: str) -> str:
    """Return the sentence without the words of `BEFORE` and `AFTER`."""
    if instruction in SAYINGS:
        return instruction
    for word in _CUT:
        cut = instruction.removeprefix(word) if word.endswith(" ") else instruction.removesuffix(word)
        if cut != instruction and cut in SAYINGS:
            return cut
    raise LookupError(instruction)


def main(args: argparse.Namespace) -> str:
    """Run the recipe of the command line."""
    fitted = rtcontrol.fit(
        teacher=teacher, situations=situations, tools=tools, out=args.out, minutes=args.minutes, seed=args.seed
    )
    return f"Model: {fitted.folder}\nHeld-out rows: {fitted.score.message()}"


if __name__ == "__main__":
    parser = options(__doc__, "runs/village")
    parser.add_argument("--minutes", type=float, default=15.0, help="the most that it trains (%(default)s)")
    run(parser, main)
