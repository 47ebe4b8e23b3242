"""Words of tool definitions and everyday English: a small model's tokenizer takes each as one token.

They are not trained; they keep a foreign tool's schema short, which would otherwise go byte by byte.
"""

# Marks between words as schemas write them, and as people do.
MARKS = (
    """{ } [ ] ( ) : , ; " ' ? ! . {" "} ": "," ":{" "}} ":[" "], "]} ": " ", " ':{"' ':"' '","' '"},' '":["' '-' '/'"""
)
# What stands between the words of every tool definition, each one token: half of a prompt's tools otherwise.
SCHEMA_PHRASES = (
    '{"type": "function", "function": {"name": "',
    '", "description": "',
    '.", "parameters": {"type": "object", "properties": {',
    '", "parameters": {"type": "object", "properties": {',
    '}, "required": []}}}',
    '": {"type": "integer", "enum": [',
    '": {"type": "number", "enum": [',
    '": {"enum": ["',
    '"], "type": "string"}',
    ']}}, "required": ["',
    '"}}, "required": ["',
    '}, "required": ["',
    '"]}}}',
    '"]}',
    '", "',
)
SCHEMA_WORDS = """
type object properties required description enum integer string number boolean array null minimum maximum function
parameters name title default items anyOf allOf oneOf const format additionalProperties maxLength minLength pattern
multipleOf exclusiveMinimum exclusiveMaximum minItems maxItems uniqueItems group tool tools arguments result strict
true false schema value values id key index
"""
ENGLISH_WORDS = """
a an the and or not no yes if then else when while until of in on at to from by for with without into over under above
below between near far this that these those it its is are was be been being do does did done has have had will would
can could should must may might as so than too very more most less least much many few all any each every both either
none one two three four five six seven eight nine ten first second third last next previous new old same other another
such i you he she we they me him her us them my your his our their mine yours what which who where why how here there
now later soon always never again once only just also still even back up down left right forward backward ahead behind
north south east west top bottom middle centre center side front rear edge corner end start begin stop go goes move
moves moved turn turns turned rotate look see find get give take put set make keep hold let leave open close push pull
pick place drop lift raise lower drive walk run jump fly land hover shoot fire attack defend dodge hit miss block
catch throw kick use press release wait stay remain follow avoid reach return send aim play win lose help try want
need like know think say tell ask answer show read write call calls count change increase decrease add remove select
choose speed velocity acceleration angle direction distance position height width length size depth radius time
seconds milliseconds ms minutes degrees radians meters metres percent unit units level power force thrust torque rate
limit range minimum maximum min max low high slow fast slowly quickly gently small large big short long target goal
state status mode action actions command robot arm hand finger gripper wheel motor engine main joint camera sensor
light lamp door window room wall floor ceiling table box object objects item player enemy enemies bullet ship car boat
ball paddle game score point points health ammo weapon map world screen field grid cell row column x y z vx vy vz
current positive negative zero off safe safely please ok okay good bad best nearest closest red green blue white black
temperature heat cool fan volume music song message text email user search query weather city date day night today
"""


def common_words() -> str:
    """All of them in one text, sorted."""
    return " ".join(sorted({*SCHEMA_WORDS.split(), *ENGLISH_WORDS.split()}))
