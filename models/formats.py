"""Formats of strings that are kept while a value is decoded, as patterns.

`format` says nothing of what is valid (as `jsonschema` has it): a row whose text is of another form is no mistake. What
is decoded has the form, though. Formats that are not here are annotations.
"""

from __future__ import annotations

_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_ANY_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY = (
    f"(?:{_ANY_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_FOUR = "[0-9a-f]{1,4}"
_URI = r"[a-zA-Z][a-zA-Z0-9+.-]*:(?://)?(?:[a-zA-Z0-9._~!$&'()*+,;=:@/?#-]|%[0-9a-fA-F]{2})+"
FORMATS = {
    "date": f"^{_DAY}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DAY}T{_TIME}$",
    "duration": r"^P(?:[0-9]+W|[0-9]+D(?:T[0-9]+[HMS])?|T[0-9]+[HMS])$",
    "uuid": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    "email": rf"^[a-zA-Z0-9_+-]+(?:\.[a-zA-Z0-9_+-]+)*@{_HOST}$",
    "hostname": f"^{_HOST}$",
    "ipv4": rf"^{_BYTE}(?:\.{_BYTE}){{3}}$",
    "ipv6": f"^(?:(?:{_FOUR}:){{7}}{_FOUR}|(?:{_FOUR}:){{1,6}}(?::{_FOUR})|::(?:{_FOUR}(?::{_FOUR}){{0,5}})?)$",
    "uri": f"^{_URI}$",
}
