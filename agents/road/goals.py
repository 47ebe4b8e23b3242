"""The goals of the driver, the plain rule that reads them from an instruction, and many ways to say them."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from rtcontrol.agents.goal_tools import GoalKind
from rtcontrol.agents.phrasing import Grammar, Phrasings, integer_in_words, split_words, written_in

RoadKind = Literal["drive", "speed", "lane", "follow", "turn", "overtake", "stop"]
KINDS: tuple[RoadKind, ...] = get_args(RoadKind)

SPEEDS = (20, 30, 40, 50, 60, 70, 80, 90)
GAPS = (5, 10, 15, 20, 30, 40, 50)
DEFAULT_GAP = 20
LANES = ("left", "middle", "right")
TURNS = ("left", "right", "straight")
VALUES: dict[RoadKind, tuple[int | str, ...]] = {"speed": SPEEDS, "lane": LANES, "follow": GAPS, "turn": TURNS}
# fmt: off
# `turn left right now`; but `turn right now` is a turn to the right.
_RIGHT_NOW = re.compile(
    r"(?<!turn )(?<!go )(?<!going )(?<!is )(?<!the )(?<!next )(?<!a )(?<!^lane )"
    r"\bright (?:now|away|here|behind|in front)\b|\bstraight away\b|\ball right\b")
# What an instruction says is not to be done.
_DROPPED = re.compile(
    r"\b(?:do not|don't|dont|never|without|no|not)(?: (?:need|have|to|be|start|keep|do|any|more))*"
    r" (?:overtak\w*|pass(?:ing)?|follow\w*|(?:stop|halt|turn|brak|park)(?:s|p?ing|e)?|"
    r"(?:(?:go|drive|turn|take|use|stay|be|keep|move) )?(?:(?:in|on|to|at|the) )*"
    r"(?:left(?:most)?|right(?:most)?|middle|cent(?:re|er)|straight)(?: on| ahead| hand| one)*)\b"
    r"|\bstop (?:overtaking|passing|following|turning)\b|\blet (?:\w+ ){1,3}(?:pass|overtake)\b")
_LEFT_LANE = re.compile(r"\b(?:leave|from|out of) (?:the )?(?:left|right|middle|cent(?:re|er)) lane\b")
_OVERTAKE = re.compile(
    r"\b(overtak\w*|pass(ing)?|(get|go|zip|whizz) (us )?(past|by|around)|get ahead of"
    r"|(drive|move|travel|swing|out) around|leave .+ behind"
    r"|(do not|don't|never|refuse to) (stay|wait|drive|queue|sit|get stuck|dawdle) behind)\b")
_FOLLOW = re.compile(
    r"\b(follow(?!( on)? (the |this |your )?(speed )?(road|street|limit|signs|rules))\w*|behind|distance|gap|tail"
    r"|closer|\d+ ?(m|metres?|meters?) (away|ahead|to|from|in front|of separation|between))\b")
_LANE = re.compile(
    r"\blanes?\b|\b(side|left|right|middle|cent(re|er)) of the (road|street)\b"
    r"|\bkeep (to the )?(far )?(left|right)\b")
_JUNCTION = re.compile(
    r"\b(turn\w*|(t )?junctions?|crossings?|crossroads?|intersections?|corner|bend off|fork|roundabout|roads?|streets?"
    r"|(?<!all the )way|(go|going|drive|head|heading|keep|continue|bear) (left|right|straight)|straight on"
    r"|(take|make|hang) (a|the|the next|your next|the first) (left|right))\b")
_SIDEWAYS = re.compile(
    r"\b(keep|stay|drive|move|get|go|switch|change|shift) (over )?(to|on|in) the (far )?"
    r"(left|right|middle|cent(re|er))\b")
_STOP = re.compile(
    r"\b(stop|stopping|halt|standstill|stand still|park|wait|stay where you are"
    r"|brakes?(?! to \d)|pull over"
    r"|(do not|don't|never) (move|drive|drive on|go on|carry on)"
    r"(?! (at )?(faster|slower|more|above|over|in|on|\d+)\b))\b")
_DRIVE = re.compile(
    r"\b(limit|drive on|go on|carry on|continue|normal\w*|as usual|ordinary|just drive|follow the road|allowed|you may"
    r"|keep (on )?(going|driving|moving)|start (to drive|driving|going|moving)|with the traffic|like everybody else)\b")
_SPEED = re.compile(
    r"\b(drive|driving|go|going|do|move|moving|travel|speed|km|kmh|kph|kilomet(re|er)s|hour|fast|faster|slower|pace|slow"
    r"|keep|stay|get|hold|cruise|accelerate|brake|exceed|at most|maximum|minimum|velocity|decelerate)\b")
_NUMBER = re.compile(r"\d{1,9}")
_NUMBER_WORD = {"five": "5", "ten": "10", "fifteen": "15", "twenty": "20", "thirty": "30", "forty": "40", "fifty": "50",
                "sixty": "60", "seventy": "70", "eighty": "80", "ninety": "90"}
_SIDE = {"left": "left", "leftmost": "left", "inner": "left", "right": "right", "rightmost": "right",
         "outer": "right", "middle": "middle", "centre": "middle", "center": "middle", "straight": "straight"}
_AHEAD = re.compile(r"\b(go|drive|head|way is) ahead\b")
_WORD = re.compile(r"[a-z0-9']+")
# fmt: on


@dataclass(frozen=True, slots=True)
class RoadGoal:
    """One task for the driver.

    drive: at the limit, with the traffic. speed: at `value` km/h, with the traffic. lane: in the `value` lane (left,
    middle, right). follow: the car ahead at `value` metres. turn: `value` at junctions. overtake: what is slower, on
    the left. stop: halt. Lights hold for all of them.
    """

    kind: RoadKind
    value: int | str | None = None

    def __post_init__(self) -> None:
        allowed = VALUES.get(self.kind, (None,))
        assert self.value in allowed, f"RoadGoal({self.kind!r}, {self.value!r}): one of {allowed}"

    def text(self) -> str:
        """Return the canonical instruction, shared by `recognise` and the training data."""
        match self.kind:
            case "drive":
                return "drive on at the speed limit"
            case "speed":
                return f"drive at {self.value}"
            case "lane":
                return f"keep in the {self.value} lane"
            case "follow":
                return f"follow the car ahead at {self.value} metres"
            case "turn":
                way = "go straight on" if self.value == "straight" else f"turn {self.value}"
                return f"{way} at the next junction"
            case "overtake":
                return "overtake slow cars"
            case "stop":
                return "stop the car"


def recognise(text: str) -> RoadGoal | None:
    """Return the goal that an instruction plainly names, or None. For judging only, never for control.

    Checked in this order: overtaking, following, a lane, a turn at a junction, a side, a halt, a number as a speed, the
    limit.
    """
    words = " ".join(_NUMBER_WORD.get(word, word) for word in _WORD.findall(text.lower()))
    plain = _DROPPED.sub(" ", _RIGHT_NOW.sub(" ", words))
    number = next((int(found) for found in _NUMBER.findall(plain)), None)
    sides = {_SIDE[word] for word in _LEFT_LANE.sub(" ", plain).split() if word in _SIDE}
    if _AHEAD.search(plain):
        sides.add("straight")
    if _OVERTAKE.search(plain):
        return RoadGoal("overtake")
    if _FOLLOW.search(plain):
        return RoadGoal("follow", DEFAULT_GAP if number is None else min(GAPS, key=lambda gap: abs(gap - number)))
    lanes, ways = sides - {"straight"}, sides - {"middle"}
    if _LANE.search(plain) and lanes:
        return RoadGoal("lane", lanes.pop()) if len(lanes) == 1 else None
    if _JUNCTION.search(plain) and ways:
        return RoadGoal("turn", ways.pop()) if len(ways) == 1 else None
    if _SIDEWAYS.search(plain) and len(lanes) == 1:
        return RoadGoal("lane", lanes.pop())
    if _STOP.search(plain):
        return RoadGoal("stop")
    if number is not None and _SPEED.search(plain):
        return RoadGoal("speed", min(SPEEDS, key=lambda speed: abs(speed - number)))
    return RoadGoal("drive") if _DRIVE.search(plain) else None


WEIGHTS: dict[RoadKind, float] = {
    "drive": 0.14,
    "speed": 0.16,
    "lane": 0.2,
    "follow": 0.14,
    "turn": 0.16,
    "overtake": 0.1,
    "stop": 0.1,
}
# Of the kinds with a value: the tool's parameter.
VALUE_NAMES: dict[RoadKind, str] = {"speed": "kmh", "lane": "lane", "follow": "metres", "turn": "way"}
USUAL_GAP = RoadGoal("follow", DEFAULT_GAP)


def _goal_kind(kind: RoadKind) -> GoalKind:
    goals = tuple(RoadGoal(kind, value) for value in VALUES.get(kind, (None,)))
    if (name := VALUE_NAMES.get(kind)) is None:
        return GoalKind(kind, kind, goals[0].text(), goals=goals, weight=WEIGHTS[kind])
    listed = [goal.value for goal in goals]
    return GoalKind(
        kind,
        kind,
        "; ".join(goal.text() for goal in (goals if kind == "turn" else goals[:1])),
        lambda values: RoadGoal(kind, values[name]),
        lambda goal: {name: goal.value},
        {name: {"type": "string" if isinstance(listed[0], str) else "integer", "enum": listed}},
        goals=goals,
        weight=WEIGHTS[kind],
    )


class RoadPhrasings(Phrasings[RoadKind, RoadGoal]):
    def __init__(self) -> None:
        super().__init__("road", [*map(_goal_kind, KINDS)], recognise, seed="driver")
        self.value_words, self._sentences = cache(self._value_words), cache(self._all_sentences)

    def pattern_goals(self, pattern: str, kind: RoadKind) -> tuple[RoadGoal, ...]:
        """Return the goals that a pattern of a kind can name: all values of it, or the implied one."""
        return (USUAL_GAP,) if kind == "follow" and "{" not in pattern else self.goals_of(kind)

    def sentences_of(self, pattern: str, goal: RoadGoal) -> Iterator[str]:
        """Return every sentence of a pattern for a goal, with duplicates."""
        yield from self.value_words(goal).expand(pattern)

    def training_sentences(self, kind: RoadKind) -> Mapping[str, RoadGoal]:
        """Return every training sentence of a kind with its goal."""
        return self._sentences(kind)

    def spoken_tables(self, goal: RoadGoal) -> tuple[Sequence[str], bool]:
        partner = goal.value == "right"
        if goal.kind == "turn":
            return ("turn_straight" if goal.value == "straight" else "turn_side",), partner
        if goal.kind == "lane":
            side = () if goal.value == "middle" else ("lane_side",)
            return ("lane", *side, f"lane_{goal.value}"), partner
        return (goal.kind, *(("follow_usual",) if goal == USUAL_GAP else ())), partner

    def written(self, rng: random.Random, pattern: str, goal: RoadGoal) -> str:
        """Return the pattern with the value in figures or words as its mark requires, or with its lane."""
        if goal.kind == "lane":
            return self.value_words(goal).fill(rng, pattern)
        value = goal.value
        marks = {"V": str(value), "Vw": integer_in_words(rng, value)} if isinstance(value, int) else {}
        return written_in(pattern, marks)

    def _sampled(self, rng: random.Random, goal: RoadGoal) -> str:
        usual = self.tables["train_usual_gap"] if goal == USUAL_GAP else ()
        template = rng.choice(self.tables["train"][goal.kind] + usual)
        return self.value_words(goal).fill(rng, self.grammar.fill(rng, template))

    def _values(self) -> Iterable[str]:
        ways = (way for goal in self.named_goals() for way in self.value_words(goal).slots.values())
        return (word for way in itertools.chain(*ways) for word in split_words(way))

    def _templates(self, kind: RoadKind) -> tuple[str, ...]:
        """Return the templates; a `follow` pattern without a mark for its value is for USUAL_GAP only."""
        usual = self.tables["train_usual_gap"] if kind == "follow" else ()
        templates: tuple[str, ...] = self.tables["train"][kind] + usual
        return templates

    def _all_sentences(self, kind: RoadKind) -> Mapping[str, RoadGoal]:
        patterns = set(self.training_patterns(kind))
        goals = {pattern: self.pattern_goals(pattern, kind) for pattern in patterns}
        return {text: goal for one in patterns for goal in goals[one] for text in self.sentences_of(one, goal)}

    def _value_words(self, goal: RoadGoal) -> Grammar:
        if goal.value is None:
            return Grammar({})
        listed = self.tables["values"].get(goal.kind)
        return Grammar({"V": (str(goal.value),)} if listed is None else listed[str(goal.value)])


PHRASINGS = RoadPhrasings()
