"""The messages, services and actions that a robot's file defines, as in ROS's own .msg, .srv and .action files."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rtcontrol_client.ros2.errors import Ros2BridgeError
from rtcontrol_client.ros2.msgs import FIELDS, MESSAGES, message_class
from rtcontrol_client.ros2.typehash import type_hash

FORMS = ("msg", "srv", "action")
NAME = re.compile(rf"[A-Za-z]\w*/({'|'.join(FORMS)})/[A-Za-z]\w*")
_LINE = re.compile(r"([\w/]+(?:<=\d+)?(?:\[(?:<=)?\d*\])?)\s+([A-Za-z]\w*)(.*)")
_BASE = {"bool", "byte", "char", "string", "float32", "float64"}
_BASE |= {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_EMPTY = "structure_needs_at_least_one_member"
# What every service and action needs, and the services that most robots have.
SHIPPED = {
    "unique_identifier_msgs/msg/UUID": "uint8[16] uuid",
    "action_msgs/msg/GoalInfo": """
        unique_identifier_msgs/UUID goal_id
        builtin_interfaces/Time stamp""",
    "action_msgs/msg/GoalStatus": """
        GoalInfo goal_info
        int8 status""",
    "action_msgs/msg/GoalStatusArray": "GoalStatus[] status_list",
    "action_msgs/srv/CancelGoal": """
        action_msgs/GoalInfo goal_info
        ---
        int8 return_code
        action_msgs/GoalInfo[] goals_canceling""",
    "std_srvs/srv/Empty": "---",
    "std_srvs/srv/SetBool": """
        bool data
        ---
        bool success
        string message""",
    "std_srvs/srv/Trigger": """
        ---
        bool success
        string message""",
}


@dataclass(frozen=True)
class ServiceType:
    """Classes of a service's two messages, and the hash of each; `form` is the type's name: `std_srvs/srv/SetBool`."""

    form: str
    request: Any
    response: Any
    hashes: tuple[str, str]


@dataclass(frozen=True)
class ActionType:
    """An action's parts: what its goal, feedback and result are, and the services and topics that carry them."""

    form: str
    goal: Any
    result: Any
    send: ServiceType
    ask: ServiceType
    cancel: ServiceType
    feedback: tuple[str, Any, str]
    status: tuple[str, Any, str]


class Definitions:
    """Types by their names: those of `texts`, and all that the bridge ships. A text is read when its type is asked for.
    Raises Ros2BridgeError then for one that is no definition, or holds what nobody defines."""

    def __init__(self, texts: Mapping[str, str], where: str) -> None:
        self._where, self._texts = where, {**SHIPPED, **texts}
        for name in texts:
            if not NAME.fullmatch(name):
                remedy = "Write package/msg/Name, package/srv/ or package/action/."
                raise self._error(name, "it is no name of a type", remedy)
        self._fields: dict[str, list[tuple[str, str]]] = dict(FIELDS)
        self._defaults: dict[str, dict[str, Any]] = {}
        self._made: dict[str, tuple[Any, str]] = dict(MESSAGES)
        for name in texts:
            if name in FIELDS:
                self._part(name, texts[name])
                if self._fields[name] != FIELDS[name]:
                    raise self._error(name, "it is another than the bridge's own", "Leave it out: the bridge has it.")

    def message(self, name: str) -> tuple[str, Any, str]:
        """Full name, class and type hash of `geometry_msgs/msg/Twist`, also written `geometry_msgs/Twist`. Raises
        ValueError with those that there are."""
        full = self._full(name, "msg")
        return full, *self._make(full)

    def service(self, name: str) -> ServiceType:
        """Of `std_srvs/srv/SetBool`, or `std_srvs/SetBool`. Raises ValueError with those that there are."""
        full = self._full(name, "srv")
        self._read(full)
        return self._service(full)

    def action(self, name: str) -> ActionType:
        """Of `nav2_msgs/action/NavigateToPose`, or `nav2_msgs/NavigateToPose`. Raises ValueError with those that there
        are."""
        full = self._full(name, "action")
        self._read(full)
        self._read("action_msgs/srv/CancelGoal")
        status = "action_msgs/msg/GoalStatusArray"
        return ActionType(
            full,
            self._make(f"{full}_Goal")[0],
            self._make(f"{full}_Result")[0],
            self._service(f"{full}_SendGoal"),
            self._service(f"{full}_GetResult"),
            self._service("action_msgs/srv/CancelGoal"),
            (f"{full}_FeedbackMessage", *self._make(f"{full}_FeedbackMessage")),
            (status, *self._make(status)),
        )

    def _full(self, name: str, form: str) -> str:
        full = name if name.count("/") != 1 else name.replace("/", f"/{form}/")
        known = [one for one in {**FIELDS, **self._texts} if one.split("/")[1] == form]
        if full not in known:
            short = name.rsplit("/", 1)[-1].lower()
            near = [one for one in known if one.rsplit("/", 1)[-1].lower() == short] or known
            kind = {"msg": "message", "srv": "service"}.get(form, form)
            shown = f"known are {', '.join(near)}" if near else "none is defined in `types` or `type_files`"
            raise ValueError(f"unknown {kind} type {name!r}; {shown}")
        return full

    def _read(self, name: str) -> None:
        if name not in self._fields and name in self._texts:
            self._add(name, self._texts[name])

    def _service(self, name: str) -> ServiceType:
        (request, asked), (response, told) = (self._make(f"{name}_{part}") for part in ("Request", "Response"))
        return ServiceType(name, request, response, (asked, told))

    # Reading.

    def _error(self, name: str, what: str, remedy: str = "") -> Ros2BridgeError:
        remedy = remedy or "Write it as in ROS's own files: TYPE NAME, a field a line."
        return Ros2BridgeError(f"{self._where}: types.{name}: {what}.", remedy)

    def _add(self, name: str, text: str) -> None:
        form = name.split("/")[1]
        parts = re.split(r"^\s*---\s*$", text, flags=re.M)
        wanted = {"msg": 1, "srv": 2, "action": 3}[form]
        if len(parts) != wanted:
            raise self._error(name, f"it has {len(parts)} parts, and a .{form} has {wanted}, with --- between them")
        if form == "msg":
            self._part(name, text)
            return
        if form == "srv":
            for end, part in zip(("Request", "Response"), parts, strict=True):
                self._part(f"{name}_{end}", part)
            return
        self._read("unique_identifier_msgs/msg/UUID")
        for end, part in zip(("Goal", "Result", "Feedback"), parts, strict=True):
            self._part(f"{name}_{end}", part)
        uuid, time = ("unique_identifier_msgs/msg/UUID", "goal_id"), ("builtin_interfaces/msg/Time", "stamp")
        self._fields |= {
            f"{name}_SendGoal_Request": [uuid, (f"{name}_Goal", "goal")],
            f"{name}_SendGoal_Response": [("bool", "accepted"), time],
            f"{name}_GetResult_Request": [uuid],
            f"{name}_GetResult_Response": [("int8", "status"), (f"{name}_Result", "result")],
            f"{name}_FeedbackMessage": [uuid, (f"{name}_Feedback", "feedback")],
        }

    def _part(self, name: str, text: str) -> None:
        fields: list[tuple[str, str]] = []
        defaults: dict[str, Any] = {}
        package = name.split("/")[0]
        for number, raw in enumerate(text.splitlines(), 1):
            line = re.sub(r"#.*", "", raw).strip() if '"' not in raw and "'" not in raw else raw.strip()
            if not line or line.startswith("#"):
                continue
            match = _LINE.fullmatch(line)
            if match is None:
                raise self._error(name, f"line {number}: {line!r} is no field")
            kind, label, rest = match[1], match[2], match[3].strip()
            if rest.startswith("="):
                continue  # a constant
            if label in [one for _, one in fields]:
                raise self._error(name, f"line {number}: {label} is there twice")
            if keyword.iskeyword(label):
                raise self._error(name, f"line {number}: {label} is a word of Python", "It cannot be used here.")
            fields.append((self._kind(name, package, kind), label))
            if rest and not rest.startswith("#"):
                defaults[label] = self._default(name, kind, label, rest)
        self._fields[name] = fields or [("uint8", _EMPTY)]
        self._defaults[name] = defaults

    def _kind(self, name: str, package: str, kind: str) -> str:
        inner = re.match(r"[\w/]+", kind)
        assert inner is not None
        base, rest = inner[0], kind[inner.end() :]
        if base == "wstring":
            raise self._error(name, "a wstring cannot be read or written here", "Use the rclpy node.")
        if base in _BASE:
            return base + rest
        if base == "Header":
            return "std_msgs/msg/Header" + rest
        parts = base.split("/")
        if len(parts) == 1:
            return f"{package}/msg/{base}{rest}"
        return (base if len(parts) == 3 else f"{parts[0]}/msg/{parts[1]}") + rest

    def _default(self, name: str, kind: str, label: str, text: str) -> Any:
        try:
            value = ast.literal_eval(text) if kind.startswith("string") else yaml.safe_load(text)
        except (ValueError, SyntaxError, yaml.YAMLError):
            value = text if kind.startswith("string") else None
        one = value[0] if isinstance(value, list) and value else value
        if kind.startswith("float") and isinstance(one, int) and not isinstance(one, bool):
            value = [float(v) for v in value] if isinstance(value, list) else float(value)
        wanted = str if kind.startswith("string") else bool if kind.startswith("bool") else int | float
        fits = isinstance(one, wanted) and (wanted is bool or not isinstance(one, bool))
        if "/" in kind or not (fits or value == []):
            raise self._error(name, f"{text!r} is no default of {kind} {label}")
        return value

    # Making.

    def _make(self, name: str, above: Sequence[str] = ()) -> tuple[Any, str]:
        if name in self._made:
            return self._made[name]
        self._read(name)
        for kind, _ in self._fields[name]:
            inner = re.split(r"[\[<]", kind)[0]
            if "/" not in inner:
                continue
            if inner == name or inner in above:
                raise self._error(name, f"it holds {inner}, and that one it")
            self._read(inner)
            if inner not in self._fields:
                raise self._error(name, f"it holds {inner}, which nobody defines", "Define that in `types` too.")
            self._make(inner, (*above, name))
        made = message_class(name, self._fields[name], self._made, self._defaults.get(name))
        self._made[name] = made, type_hash(name, self._fields)
        return self._made[name]


def _name_of(file: Path) -> str:
    """`px4_msgs/msg/Name` of `.../px4_msgs/msg/Name.msg`."""
    return "/".join((*file.absolute().parts[-3:-1], file.stem))


def read_types(listed: Sequence[str], folder: Path, where: str) -> dict[str, str]:
    """The texts of .msg, .srv and .action files, by their names; of a folder, all below it. Raises Ros2BridgeError."""
    found: dict[str, str] = {}
    for one in listed:
        path = (folder / one).expanduser()
        below = (file for form in FORMS for file in path.rglob(f"*.{form}") if NAME.fullmatch(_name_of(file)))
        files = sorted(below) if path.is_dir() else [path]
        if not files:
            raise Ros2BridgeError(f"{where}: type_files: {path} holds no definitions.", "Name a file, or their folder.")
        for file in files:
            name = _name_of(file)
            if not NAME.fullmatch(name) or file.suffix != f".{name.split('/')[1]}":
                remedy = "Keep it in PACKAGE/msg/NAME.msg, PACKAGE/srv/ or PACKAGE/action/, as ROS has it."
                raise Ros2BridgeError(f"{where}: type_files: {file} tells no package.", remedy)
            try:
                found[name] = file.read_text("utf-8")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
                raise Ros2BridgeError(
                    f"{where}: type_files: {file} cannot be read ({reason}).", "Correct it."
                ) from None
    return found
