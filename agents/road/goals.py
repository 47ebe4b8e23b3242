"""The goals of the driver agent, keyword rules that recognise them in an instruction, and phrasings of the goals."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from rtcontrol.agents.goal_tools import GoalKind
from rtcontrol.agents.phrasing import Grammar, Phrasings, fill_marks, integer_in_words, split_words
from rtcontrol.models.numbers import with_plain_numbers

RoadKind = Literal["drive", "speed", "lane", "follow", "turn", "overtake", "stop"]
KINDS: tuple[RoadKind, ...] = get_args(RoadKind)

SPEEDS = (20, 30, 40, 50, 60, 70, 80, 90)
GAPS = (5, 10, 15, 20, 30, 40, 50)
DEFAULT_GAP = 20
LANES = ("left", "middle", "right")
TURNS = ("left", "right", "straight")
VALUES: dict[RoadKind, tuple[int | str, ...]] = {"speed": SPEEDS, "lane": LANES, "follow": GAPS, "turn": TURNS}
# fmt: off
# In `turn left right now` the word `right` is not a direction, but in `turn right now` it is.
_RIGHT_NOW = re.compile(
    r"(?<!turn )(?<!go )(?<!going )(?<!is )(?<!the )(?<!next )(?<!a )(?<!^lane )"
    r"\bright (?:now|away|here|behind|in front)\b|\bstraight away\b|\ball right\b")
# Parts of an instruction that say what not to do, such as `do not overtake`.
_NEGATED = re.compile(
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
UNITS = ("m", "km/h", "km")
_SIDE = {"left": "left", "leftmost": "left", "inner": "left", "right": "right", "rightmost": "right",
         "outer": "right", "middle": "middle", "centre": "middle", "center": "middle", "straight": "straight"}
_AHEAD = re.compile(r"\b(go|drive|head|way is) ahead\b")
_WORD = re.compile(r"-?\d+(?:\.\d+)?|[a-z']+")
# fmt: on


@dataclass(frozen=True, slots=True)
class RoadGoal:
    """A goal of the driver, who obeys traffic lights for every goal.

    `kind` is one of: drive (at the speed limit, with the traffic), speed (at `value` km/h, with the traffic), lane
    (keep in the `value` lane: left, middle or right), follow (the car ahead at `value` metres), turn (left, right or
    straight at junctions, as `value` says), overtake (slower cars, on the left), stop (halt).
    """

    kind: RoadKind
    value: int | str | None = None

    def __post_init__(self) -> None:
        allowed = VALUES.get(self.kind, (None,))
        if self.value not in allowed:
            raise ValueError(f"RoadGoal({self.kind!r}, {self.value!r}): the value must be in {allowed}")

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
    """Return the goal that keywords in an instruction name, or None. For evaluation only, never for control.

    The first match wins, in this order: overtaking, following, a lane, a turn at a junction, a move to one side,
    stopping, a number as a speed, driving at the limit.
    """
    if (digits := with_plain_numbers(text.lower(), UNITS, spoken=True)) is None:
        return None
    words = " ".join(_WORD.findall(digits))
    plain = _NEGATED.sub(" ", _RIGHT_NOW.sub(" ", words))
    numbers = [float(word) for word in plain.split() if word[-1].isdigit()]
    sides = {_SIDE[word] for word in _LEFT_LANE.sub(" ", plain).split() if word in _SIDE}
    if _AHEAD.search(plain):
        sides.add("straight")
    if _OVERTAKE.search(plain):
        return RoadGoal("overtake")
    if _FOLLOW.search(plain):
        return _goal_with("follow", numbers or [DEFAULT_GAP])
    lanes, ways = sides - {"straight"}, sides - {"middle"}
    if _LANE.search(plain) and lanes:
        return RoadGoal("lane", lanes.pop()) if len(lanes) == 1 else None
    if _JUNCTION.search(plain) and ways:
        return RoadGoal("turn", ways.pop()) if len(ways) == 1 else None
    if _SIDEWAYS.search(plain) and len(lanes) == 1:
        return RoadGoal("lane", lanes.pop())
    if _STOP.search(plain):
        return RoadGoal("stop")
    if numbers and _SPEED.search(plain):
        return _goal_with("speed", numbers)
    return RoadGoal("drive") if _DRIVE.search(plain) else None


def _goal_with(kind: RoadKind, numbers: Sequence[float]) -> RoadGoal | None:
    """Return the goal with this number, or None if `numbers` has several numbers or the goal cannot have this value."""
    value = next((value for value in VALUES[kind] if {value} == {*numbers}), None)
    return None if value is None else RoadGoal(kind, value)


WEIGHTS: dict[RoadKind, float] = {
    "drive": 0.14,
    "speed": 0.16,
    "lane": 0.2,
    "follow": 0.14,
    "turn": 0.16,
    "overtake": 0.1,
    "stop": 0.1,
}
# By kind of goal that has a value: the name of the goal tool's parameter.
PARAMETER_NAMES: dict[RoadKind, str] = {"speed": "kmh", "lane": "lane", "follow": "metres", "turn": "way"}
FOLLOW_AT_DEFAULT_GAP = RoadGoal("follow", DEFAULT_GAP)


def _goal_kind(kind: RoadKind) -> GoalKind:
    goals = tuple(RoadGoal(kind, value) for value in VALUES.get(kind, (None,)))
    if (name := PARAMETER_NAMES.get(kind)) is None:
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
        """Return the goals that a pattern can name: those of the kind, or for `follow` without a number the default."""
        return (FOLLOW_AT_DEFAULT_GAP,) if kind == "follow" and "{" not in pattern else self.goals_of(kind)

    def sentences_of(self, pattern: str, goal: RoadGoal) -> Iterator[str]:
        """Yield every sentence that a pattern can produce for a goal; a sentence may occur more than once."""
        yield from self.value_words(goal).expand(pattern)

    def training_sentences(self, kind: RoadKind) -> Mapping[str, RoadGoal]:
        """Return all training sentences of a kind, each mapped to its goal."""
        return self._sentences(kind)

    def spoken_tables(self, goal: RoadGoal) -> tuple[Sequence[str], bool]:
        mirrored = goal.value == "right"
        if goal.kind == "turn":
            return ("turn_straight" if goal.value == "straight" else "turn_side",), mirrored
        if goal.kind == "lane":
            side = () if goal.value == "middle" else ("lane_side",)
            return ("lane", *side, f"lane_{goal.value}"), mirrored
        return (goal.kind, *(("follow_usual",) if goal == FOLLOW_AT_DEFAULT_GAP else ())), mirrored

    def with_values(self, rng: random.Random, pattern: str, goal: RoadGoal) -> str:
        """Replace the marks of a pattern by the goal's value: words for a lane, or a number in digits or in words."""
        if goal.kind == "lane":
            return self.value_words(goal).fill(rng, pattern)
        value = goal.value
        marks = {"V": str(value), "Vw": integer_in_words(rng, value)} if isinstance(value, int) else {}
        return fill_marks(pattern, marks)

    def _sample_sentence(self, rng: random.Random, goal: RoadGoal) -> str:
        without_number = self.tables["train_usual_gap"] if goal == FOLLOW_AT_DEFAULT_GAP else ()
        template = rng.choice(self.tables["train"][goal.kind] + without_number)
        return self.value_words(goal).fill(rng, self.grammar.fill(rng, template))

    def _words_of_values(self) -> Iterable[str]:
        phrases = (phrase for goal in self.named_goals() for phrase in self.value_words(goal).slots.values())
        return (word for phrase in itertools.chain(*phrases) for word in split_words(phrase))

    def _templates(self, kind: RoadKind) -> tuple[str, ...]:
        """Return the templates; those of `follow` without a mark for the gap mean FOLLOW_AT_DEFAULT_GAP."""
        without_number = self.tables["train_usual_gap"] if kind == "follow" else ()
        return tuple(self.tables["train"][kind] + without_number)

    def _all_sentences(self, kind: RoadKind) -> Mapping[str, RoadGoal]:
        patterns = set(self.training_patterns(kind))
        goals = {pattern: self.pattern_goals(pattern, kind) for pattern in patterns}
        return {text: goal for p in patterns for goal in goals[p] for text in self.sentences_of(p, goal)}

    def _value_words(self, goal: RoadGoal) -> Grammar:
        if goal.value is None:
            return Grammar({})
        listed = self.tables["values"].get(goal.kind)
        return Grammar({"V": (str(goal.value),)} if listed is None else listed[str(goal.value)])


PHRASINGS = RoadPhrasings()
