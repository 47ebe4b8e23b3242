"""A free value's schema as a grammar: what of it is constrained token by token.

The grammar takes every value of the schema as the model writes it (compact JSON, keys in declared order, numbers
without exponent), and few others: what it does not know (`not`, `maxContains`, `uniqueItems`, ...) is left to the check
of the finished value. Objects with `properties` have no others unless they say so.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.schema.domain import json_text
from rtcontrol.models.schema.json_schema import flattened, of_kind
from rtcontrol.models.schema.pattern import NoText, PatternError, compiled, literal, matcher
from rtcontrol.models.schema.scalar_grammar import ScalarRules, Schema, Texts, texts_of

KINDS = ("string", "number", "boolean", "null", "array", "object")
COUNTED = 2_000  # rules of an object whose properties are counted
KEY = r'"(?:[^"\\\x{0}-\x{1f}\x{7f}]|\\["\\bfnrt]|\\u00(?:[01][0-9a-f]|7f))*"'


class SchemaGrammar(ScalarRules):
    """The grammar's `text` of a JSON schema, and its `parts`. `space` stands before JSON, and behind its separators.
    Raises UserError (`where` names tool and parameter) for a schema that has no value."""

    def __init__(self, schema: Schema, where: str, space: str = "") -> None:
        super().__init__(where, space)
        start = self._of(schema)
        if start is None:
            raise UserError(f"{where}: no value satisfies its schema.", "Loosen its rules.")
        begun = f"{json.dumps(space)} {start}" if space else start
        self.text = "\n".join([f"start: {begun}", *self._rules, ""])

    def _of(self, schema: Any) -> str | None:
        """The rule of a schema, made once; None where it has no value."""
        if schema is True or schema is False:
            return self._of({}) if schema else None
        key = json.dumps(schema, sort_keys=False, default=repr)
        if key not in self._known:
            self._known[key] = f"v{len(self._known)}"  # of `any`, which has itself as a part
            made = self._alternatives(schema)
            if made is None:
                self._known[key] = None
            else:
                self._rules.append(f"{self._known[key]}: {made}")
        return self._known[key]

    # -- alternatives ----------------------------------------------------------------------------------

    def _alternatives(self, schema: Schema) -> str | None:
        if schema.get("not") == {}:
            return None
        if "const" in schema or "enum" in schema:
            listed = [schema["const"]] if "const" in schema else schema["enum"]
            return self._listed(listed, schema)
        flat = flattened(schema)
        if len(flat) != 1 or flat[0] is not schema:
            return self._any([self._of(one) for one in flat])
        kinds = schema.get("type", KINDS)
        if not isinstance(kinds, str):
            return self._any([self._of(of_kind(schema, kind)) for kind in kinds])
        made: dict[str, Callable[[Schema], str | None]] = {
            "boolean": lambda _: self._literals(["true", "false"]),
            "null": lambda _: self._literals(["null"]),
            "string": self._string,
            "integer": self._number,
            "number": self._number,
            "array": self._array,
            "object": self._object,
        }
        return made[kinds](schema) if kinds in made else None

    # -- arrays and objects ----------------------------------------------------------------------------

    def _array(self, schema: Schema) -> str | None:
        first, rest = list(schema.get("prefixItems", ())), schema.get("items", True)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if schema.get("minContains", 1) and "contains" in schema:
            return self._containing(schema, first, rest, least, most)
        if most is not None:
            first = first[:most]
        rules = [self._of(part) for part in first]
        if None in rules:  # behind a place that nothing can take there is nothing
            rules = rules[: rules.index(None)]
            rest, most = False, len(rules)
        other = self._of(rest) if most is None or most > len(rules) else None
        end: str | None = None
        for count in range(len(rules), -1, -1):  # from behind: what may follow so many
            comma = f"{self._comma} " * (count > 0)
            stop = count >= least
            if count == len(rules):
                low, high = max(least - count, 0), None if most is None else most - count
                if other is None:
                    end = "" if stop else None
                elif count:
                    end = _repeated(f"{comma}{other}", low, high)
                else:
                    more = _repeated(f"{self._comma} {other}", max(low - 1, 0), None if high is None else high - 1)
                    end = f"({other} {more})" + "?" * (low == 0)
                continue
            if end is not None:
                end = f"({comma}{rules[count]} {end})" + "?" * stop
            elif stop:
                end = ""
        return None if end is None else f'"[" {end} "]"'

    def _containing(self, schema: Schema, first: list[Any], rest: Any, least: int, most: int | None) -> str | None:
        """Items, `least` to `most`, of which `minContains` or more are as `contains` says."""
        part, needed = schema["contains"], schema.get("minContains", 1)
        cap = max(least, most or 0, len(first), 1)
        if (cap + 1) * (needed + 1) > COUNTED:
            return self._array({k: v for k, v in schema.items() if k != "contains"})  # the finished value is checked
        mark = len(self._rules)
        known: dict[tuple[int, int], str | None] = {}
        whole = part
        if isinstance(part, Mapping) and part.get("type") == "integer":  # a number may be whole, and is written so
            whole = {"multipleOf": 1, **part, "type": "number"}

        def after(count: int, seen: int) -> str | None:
            """What follows so many items, of which so many are as it says."""
            if (count, seen) in known:
                return known[count, seen]
            name = known[count, seen] = f"c{mark}_{count}_{seen}"
            comma = f"{self._comma} " * (count > 0)
            own, more = first[count] if count < len(first) else rest, min(count + 1, cap)
            found = ['"]"'] if count >= least and seen == needed else []
            if most is None or count < most:
                numbers = isinstance(own, Mapping) and own.get("type") == "number"
                kinds = [({"allOf": [own, whole if numbers else part]}, seen + 1)] if seen < needed else []
                for kind, then in [*kinds, (own, seen)]:
                    again = (more, then) == (count, seen)  # without end, unless there is another way
                    if (found or not again) and (item := self._of(kind)) and (tail := after(more, then)):
                        found.append(f"{comma}{item} {tail}")
            if (made := self._any(found)) is None:
                known[count, seen] = None
                return None
            self._rules.append(f"{name}: {made}")
            return name

        body = after(0, 0)
        return None if body is None else f'"[" {body}'

    def _object(self, schema: Schema) -> str | None:
        properties, patterns = dict(schema.get("properties", {})), dict(schema.get("patternProperties", {}))
        required = [*schema.get("required", ())]
        rest = schema.get("additionalProperties", "properties" not in schema)
        for name in dict.fromkeys((*properties, *required)):
            own = [properties[name]] if name in properties else []
            own += [part for source, part in patterns.items() if compiled(source).matches(name)]
            other = rest if isinstance(rest, Mapping) else True
            properties[name] = {"allOf": own} if len(own) > 1 else own[0] if own else other
        self.parts.literals |= dict.fromkeys(map(json_text, properties))
        pairs: list[tuple[str, bool]] = []
        for name, part in properties.items():
            if (value := self._of(part)) is not None:
                key = json.dumps(json_text(name), ensure_ascii=False)
                pairs.append((f"{key} {json.dumps(self._colon)} {value}", name in required))
            elif name in required:
                return None
        others = self._others(schema, list(properties), patterns, rest)
        return self._members(pairs, others, schema.get("minProperties", 0), schema.get("maxProperties"))

    def _others(self, schema: Schema, known: list[str], patterns: Schema, rest: Any) -> list[str]:
        """Members with keys that are not declared."""
        names = schema.get("propertyNames", True)
        if isinstance(names, Mapping) and len(flat := flattened(names)) == 1:
            names = flat[0]
        judged = texts_of(names) if isinstance(names, Mapping) and not set(names) & {"enum", "const", "$ref"} else None
        own = [f'/"(?:{r})"/' for r in judged.regexes()[: len(judged.patterns)]] if judged else []
        if judged and (judged.least or judged.most is not None):
            character = KEY[4:-3]
            own.append(f'/"(?:{character}){{{judged.least},{"" if judged.most is None else judged.most}}}"/')
        if isinstance(names, Mapping) and (listed := names.get("enum", [names["const"]] if "const" in names else None)):
            own.append(f"/(?:{'|'.join(literal(json_text(n)) for n in listed if isinstance(n, str))})/")
        if names is False:
            return []
        if judged:
            self.parts.texts[judged] = None
        apart = [f"~/(?:{'|'.join(literal(json_text(name)) for name in known)})/"] if known else []
        found = []
        for source, part in patterns.items():
            if (value := self._of(part)) is not None:
                key = " & ".join([f'/"(?:{compiled(source).regex})"/', f"/{KEY}/", *own, *apart])
                if _some(key):
                    self.parts.texts[Texts((compiled(source), *(judged.patterns if judged else ())), 0, None)] = None
                    found.append(f"{self._terminal(key)} {json.dumps(self._colon)} {value}")
        if rest is not False and (value := self._of(rest)) is not None:
            none = [f'~/"(?:{compiled(source).regex})"/' for source in patterns]
            key = " & ".join([f"/{KEY}/", *own, *apart, *none])
            if not own or _some(key):
                found.append(f"{self._terminal(key)} {json.dumps(self._colon)} {value}")
        return found

    def _members(self, pairs: list[tuple[str, bool]], others: list[str], least: int, most: int | None) -> str | None:
        """Members in their order, each that is not required may be left out; in all `least` to `most`."""
        cap = max(least, 0 if most is None else most, 1)
        if (len(pairs) + 1) * (cap + 1) > COUNTED:
            least, most, cap = 0, None, 1  # the finished value is checked
        mark = len(self._rules)
        known: dict[tuple[int, int], str | None] = {}

        def after(i: int, count: int) -> str | None:
            """What follows `i` pairs of which `count` are written."""
            if (i, count) in known:
                return known[i, count]
            name = known[i, count] = f"m{mark}_{i}_{count}"
            comma = f"{self._comma} " * (count > 0)
            room, more = most is None or count < most, min(count + 1, cap)
            found: list[str | None] = []
            if i < len(pairs):
                pair, required = pairs[i]
                if room and (tail := after(i + 1, more)) is not None:
                    found.append(f"{comma}{pair} {tail}")
                if not required:
                    found.append(after(i + 1, count))
            else:
                found += [f"{comma}{other} {tail}" for other in others if room and (tail := after(i, more)) is not None]
                if count >= least:
                    found.append('"}"')
            if (made := self._any(found)) is None:
                known[i, count] = None
                return None
            self._rules.append(f"{name}: {made}")
            return name

        body = after(0, 0)
        return None if body is None else f'"{{" {body}'


def _some(key: str) -> bool:
    """Whether there is such a key: the library gives up on a terminal that no text has."""
    try:
        matcher(f"start: KEY\nKEY: {key}\n")
    except NoText:
        return False
    except PatternError:  # it gives up on this one alone
        pass
    return True


def _repeated(part: str, least: int, most: int | None) -> str:
    """A part so many times."""
    return "" if most == 0 else f"({part}){{{least},{'' if most is None else most}}}"
