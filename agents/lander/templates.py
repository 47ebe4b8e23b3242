"""The sentences that the lander's instructions are made of.

`{slot}` takes any of the slot's alternatives, `{D}` is left or right and `{O}` the other one, `{X}` and `{Y}` are a
hover's numbers. The evaluation templates build sentences that no training template can produce, from its words.
"""

from __future__ import annotations

SLOTS: dict[str, tuple[str, ...]] = {
    "lead": ("", "please", "now", "ok", "can you", "try to", "i want you to", "you should", "next"),
    "end": ("", "please", "now", "at once", "when you can"),
    "manner": ("", "gently", "slowly", "softly", "carefully", "safely"),
    "descend": (
        "land",
        "touch down",
        "set down",
        "come down",
        "go down",
        "settle down",
        "descend",
        "park",
        "put the lander down",
        "bring the ship down",
    ),
    "on": ("on", "onto"),
    "pad": ("pad", "landing pad", "platform", "landing zone"),
    "part": ("side", "half", "part"),
    "slight": ("a little", "slightly", "a bit", "just", "somewhat"),
    "centre": ("centre", "center", "middle"),
    "go": ("go", "move", "fly", "drift", "steer"),
    "hover": ("hover", "hold", "stay", "float", "hang", "hold position", "keep hovering", "remain", "hold station"),
    "height": ("height", "altitude", "y"),
}

TRAIN_LAND = (
    "land on the pad",
    "{lead} {descend} {on} the {pad} {manner}",
    "{lead} {manner} {descend} in the {centre} of the {pad}",
    "{lead} {descend} {manner} {end}",
    "{lead} {descend} at the {centre} {end}",
    "the {centre} of the {pad} {end}",
    "the {pad} {end}",
    "{lead} {go} to the {pad} and {descend} {end}",
    "{lead} {descend} between the flags {end}",
    "{lead} use the {centre} of the {pad} to {descend}",
    "aim for the {centre} of the {pad} and {descend} {manner}",
    "{lead} aim for the {pad} {end}",
    "do not hover {descend} {on} the {pad}",
    "{lead} stop hovering and {descend} {end}",
    "your target is the {pad} {descend} there then",
    "{lead} take the ship to the {pad} {manner}",
    "do not stay in the air {descend} {end}",
    "you have a {pad} below use it",
)
EVAL_LAND = (
    "{on} the {pad} {manner} {descend} {end}",
    "{manner} {go} the ship {on} the {pad} {end}",
    "{go} to the {centre} then {descend} {manner} between the flags",
    "stop hovering now and take the lander to the {pad}",
    "there is a {pad} below you {descend} there",
    "{lead} use the {pad} and {descend} in the {centre}",
    "your target is the {centre} then {descend} {manner}",
    "{descend} {manner} then stop in the {centre}",
    "aim for the flags then {descend} between the flags {end}",
    "you have a ship in the air {descend} {manner} {end}",
)

TRAIN_SIDE = (
    "land on the {D} side of the pad",
    "{lead} {descend} {on} the {D} {part} of the {pad} {manner}",
    "{lead} {manner} {descend} {on} the {D} {part} {end}",
    "{lead} {descend} {slight} {D} of the {centre} {end}",
    "{lead} {descend} {slight} to the {D} of the {centre} of the {pad}",
    "{slight} {D} of the {centre} {end}",
    "{lead} {go} {D} and {descend} {end}",
    "{lead} {go} {slight} to the {D} and {descend} {manner}",
    "{lead} {descend} on the {D} {end}",
    "{D} {part} of the {pad} {end}",
    "{lead} {descend} {D} {end}",
    "{D} {end}",
    "the {D} {part} {end}",
    "{lead} use the {D} {part} of the {pad} to {descend}",
    "aim for the {D} {part} of the {pad} {end}",
    "{lead} aim {D} then {descend} {manner}",
    "do not hover {descend} {on} the {D} {part}",
    "{lead} stop hovering and {descend} to the {D} {end}",
    "your target is the {D} {part} {descend} there then",
    "{lead} take the ship to the {D} {part} of the {pad}",
    "you have a {pad} below use the {D} {part} of it",
    "{descend} on the {D} not on the {O} {end}",
    "{D} not {O} {end}",
    "{descend} on the {D} {part} of the {pad} not on the {O} {part}",
)
EVAL_SIDE = (
    "on the {D} {part} of the {pad} {manner} {descend} {end}",
    "{manner} {go} {slight} {D} then {descend} {end}",
    "aim {slight} to the {D} of the {centre} and {descend}",
    "{go} to the {D} {part} then {descend} {manner}",
    "there is a {pad} below you {descend} on the {D}",
    "use the {D} of the {pad} and {descend} {manner}",
    "your target is {slight} {D} of the {centre} {end}",
    "take the lander {D} then {descend} {manner} on the {pad}",
    "{D} of the {centre} is your target {descend} there",
    "stop hovering and aim for the {D} {part} {end}",
)

TRAIN_HEIGHT = (
    "hover at {Y}",
    "{lead} {hover} at {Y} {end}",
    "{lead} {hover} at {height} {Y} {end}",
    "{lead} {hover} at a {height} of {Y}",
    "{lead} {hover} {Y} above the {pad} {end}",
    "{lead} {hover} {Y} high {end}",
    "{height} {Y} {end}",
    "{Y} high {end}",
    "{lead} {go} to {height} {Y} and {hover} there",
    "{lead} {go} to {Y} and {hover} {end}",
    "do not land {hover} at {Y} {end}",
    "{lead} stay in the air at {height} {Y} {end}",
    "{lead} keep the ship at {height} {Y}",
    "{lead} keep the lander {Y} above the {pad}",
    "{lead} {hover} in the {centre} at {Y} {end}",
    "your target is {height} {Y} then {hover} {end}",
)
TRAIN_PLACE = (
    "hover at {Y} and x {X}",
    "{lead} {hover} at {Y} and x {X} {end}",
    "{lead} {hover} at {height} {Y} and x {X} {end}",
    "{lead} {hover} at x {X} and {height} {Y} {end}",
    "{lead} {hover} at x {X} and a {height} of {Y}",
    "{lead} {hover} {Y} high at x {X} {end}",
    "{hover} x {X} {height} {Y} {end}",
    "x {X} {height} {Y} {end}",
    "{height} {Y} x {X} {end}",
    "{lead} {go} to x {X} and {hover} at {height} {Y}",
    "{lead} {go} to {height} {Y} above x {X} and {hover} there",
    "do not land {hover} at {Y} over x {X} {end}",
    "{lead} stay in the air at x {X} and {height} {Y}",
    "{lead} keep the ship at {height} {Y} with x {X}",
    "{lead} keep the lander above x {X} at {Y} {end}",
    "your target is x {X} and {height} {Y} then {hover} {end}",
)
EVAL_HEIGHT = (
    "at {height} {Y} {lead} {hover} {end}",
    "keep {height} {Y} and do not land {end}",
    "{go} the ship to {height} {Y} then {hover}",
    "stay at {Y} in the air above the {pad}",
    "your {height} is {Y} {hover} there {end}",
    "the target is {Y} above the {pad} then {hover}",
)
EVAL_PLACE = (
    "at x {X} and {height} {Y} {lead} {hover} {end}",
    "keep {height} {Y} over x {X} and do not land",
    "{go} the ship above x {X} then {hover} at {Y} {end}",
    "your x is {X} and your {height} is {Y} {hover} there",
    "the target is {height} {Y} with x {X} {end}",
    "{hover} over x {X} {Y} above the {pad}",
)

UNSEEN_LAND = (
    "ground the craft",
    "perch upon the base",
    "alight where the markers stand",
    "kill your speed and return home",
    "get us onto solid earth without breaking anything",
    "finish this flight inside the marked area",
    "Houston says: bring her in.",
    "cut thrust as soon as the feet rest",
)
UNSEEN_SIDE = {
    "left": (
        "alight toward the west end",
        "perch near the port flag",
        "leftmost marker, if possible",
        "choose the western portion",
        "ground the craft leftwards",
        "favour the left-hand flag",
    ),
    "right": (
        "alight toward the east end",
        "perch near the starboard flag",
        "rightmost marker, if possible",
        "choose the eastern portion",
        "ground the craft rightwards",
        "favour the right-hand flag",
    ),
}
UNSEEN_HOVER = (
    "levitate around {Y}, horizontally {X}",
    "loiter with elevation={Y} / x={X}",
    "maintain {Y} vertical, {X} lateral",
    "maintain elevation {Y} directly over x={X}",
    "remain airborne: y={Y}, x={X}",
    "suspend yourself {Y} up, horizontal coordinate {X}",
)
