"""Train the model of the villagers on the gateway's page `/crowd`, with `rtcontrol.fit`.

python models/recipes/village.py      a quarter of an hour on one core: runs/village
"""

from __future__ import annotations

import argparse
import random
from typing import Any

from shared import base_parser, run_script

import rtcontrol

DIRECTIONS = ("north", "northeast", "east", "southeast", "south", "southwest", "west", "northwest")
PLACES = ("well", "market", "mill", "church", "oak", "pond")
THINGS = (*PLACES, "home", "fox")


def _tool(name: str, description: str, has_direction: bool = True) -> dict[str, Any]:
    direction = {"direction": {"type": "string", "enum": list(DIRECTIONS)}} if has_direction else {}
    parameters = {"type": "object", "properties": direction, "required": list(direction)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


tools = [
    _tool("walk", "Walk that way until the next call."),
    _tool("run", "Run that way until the next call."),
    _tool("look", "Stand, and look that way."),
    _tool("stay", "Stand still.", has_direction=False),
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
FREQUENCIES = {"walk": 32, "run": 15, "flee": 20, "look": 13, "wander": 10, "stay": 10}


def _phrases(text: str) -> list[str]:
    return [phrase for line in text.strip().splitlines() for phrase in line.split("|")]


PHRASES = {"walk": _phrases(WALK), "run": _phrases(RUN), "flee": _phrases(FLEE), "look": _phrases(LOOK)}
PLAIN_PHRASES = {"wander": _phrases(WANDER), "stay": _phrases(STAY)}


def _sentences() -> dict[str, tuple[str, str | None]]:
    """Return (kind of action, thing that it is about) for each sentence."""
    sentences: dict[str, tuple[str, str | None]] = {}
    for kind, phrases in PHRASES.items():
        sentences |= {phrase.format(thing): (kind, thing) for phrase in phrases for thing in (*PLACES, "fox")}
        sentences |= dict.fromkeys(_phrases(HOME[kind]), (kind, "home"))
    for kind, phrases in PLAIN_PHRASES.items():
        sentences |= dict.fromkeys(phrases, (kind, None))
    return sentences


SENTENCES = _sentences()
_BY_KIND = {kind: [sentence for sentence, (of, _) in SENTENCES.items() if of == kind] for kind in FREQUENCIES}
# Words that may be removed from the start or end of a sentence, sorted from long to short.
_CUT = sorted((*(f"{word} " for word in BEFORE), *(f" {word}" for word in AFTER)), key=len, reverse=True)


def random_situation(rng: random.Random) -> tuple[str, str]:
    """Return a random (sentence, observation). The observation has the direction and distance of each thing."""
    sentence = rng.choice(_BY_KIND[rng.choices(list(FREQUENCIES), list(FREQUENCIES.values()))[0]])
    chance = rng.random()
    if chance < 0.12:
        sentence = f"{rng.choice(BEFORE)} {sentence}"
    elif chance < 0.24:
        sentence = f"{sentence} {rng.choice(AFTER)}"
    sights = []
    for thing in THINGS:
        near = rng.random() < 0.5
        away = "near" if near else "far"
        here = near and rng.random() < 0.25
        sights.append(f"{thing} here" if here else f"{thing} {rng.choice(DIRECTIONS)} {away}")
    whim = rng.choice(DIRECTIONS) if rng.random() < 0.75 else "none"
    return sentence, f"{' '.join(sights)} whim {whim}"


def right_call(instruction: str, observation: str) -> dict[str, Any] | str:
    """Return the right call for a sentence and an observation. Raises LookupError for an unknown sentence."""
    kind, thing = SENTENCES[_known_sentence(instruction)]
    if kind == "stay":
        return "stay"
    words = observation.split()
    if thing is None:
        whim = words[words.index("whim") + 1]
        return "stay" if whim == "none" else _directed_call("walk", whim)
    where, *far = words[words.index(thing) + 1 :][:2]
    if kind == "flee":
        if where == "here":
            return _directed_call("run", DIRECTIONS[0])
        away = DIRECTIONS[(DIRECTIONS.index(where) + 4) % len(DIRECTIONS)]
        return _directed_call("run", away) if far == ["near"] else "stay"
    return "stay" if where == "here" else _directed_call(kind, where)


def _directed_call(name: str, direction: str) -> dict[str, Any]:
    return {"name": name, "arguments": {"direction": direction}}


def _known_sentence(instruction: str) -> str:
    """Return the sentence of SENTENCES in an instruction, without words of `BEFORE` and `AFTER`."""
    if instruction in SENTENCES:
        return instruction
    for word in _CUT:
        cut = instruction.removeprefix(word) if word.endswith(" ") else instruction.removesuffix(word)
        if cut != instruction and cut in SENTENCES:
            return cut
    raise LookupError(instruction)


def train_village(args: argparse.Namespace) -> str:
    """Train the model and return a message."""
    fitted = rtcontrol.fit(
        teacher=right_call, situations=random_situation, tools=tools, out=args.out, minutes=args.minutes, seed=args.seed
    )
    return f"Model: {fitted.folder}\nHeld-out rows: {fitted.score.message()}"


if __name__ == "__main__":
    parser = base_parser(__doc__, "runs/village")
    parser.add_argument("--minutes", type=float, default=15.0, help="limit of the training time (%(default)s)")
    run_script(parser, train_village)
