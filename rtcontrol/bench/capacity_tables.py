"""Tables of capacities: what costs were fitted, how far they are from runs that they were not fitted to, and plans."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rtcontrol.bench.capacity import Measured, read
from rtcontrol.bench.plan import Sizing
from rtcontrol.models.errors import UserError
from rtcontrol.telemetry.figure_table import NOT_MEASURED, Document, Table, markdown

# What docs/scaling.md plans for: how many, whether they are characters of crowds, and at what rate.
PLANNED = (
    (10, False, 10.0),
    (100, False, 10.0),
    (1_000, False, 5.0),
    (10_000, False, 5.0),
    (100, True, 5.0),
    (1_000, True, 5.0),
    (10_000, True, 2.0),
    (100_000, True, 2.0),
    (1_000_000, True, 1.0),
)
MODEL, CORES = "lander", 16
PAGE = "scaling.md"
BUSY = 0.5  # of the load before: others work there
DOOR = {
    "tick_ms": "door with sessions: a tick, ms of a core",
    "idle_ms": "door with sessions: each second, ms of a core",
    "call_ms": "door with crowds: a member's call, ms of a core",
    "crowd_ms": "door with crowds: a period of a crowd, ms of a core",
    "crowd_idle_ms": "door with crowds: each second, ms of a core",
    "decoder_idle_ms": "decoder: each second, ms of a core",
    "session_factor": "decoder: a session's decision in a server, times one in a process that does nothing else",
    "crowd_factor": "decoder: a member's decision, the same",
    "tick_bytes": "wire: a session's tick with its two looks, bytes",
    "call_bytes": "wire: a member's call with its two looks, bytes",
    "crowd_bytes": "wire: a period of a crowd, bytes",
    "door_mib": "door, MiB",
    "door_session_mib": "door: each session, MiB",
    "decoder_mib": "decoder beside the model, MiB",
    "decoder_session_mib": "decoder: each session beside the model's own, MiB",
    "ray_mib": "Ray on a machine, MiB",
    "ray_ms": "Ray on a machine: each second, ms of a core",
}


def capacity(document: Document) -> list[Table]:
    """Of `bench capacity`: costs by model, costs of the other parts, and the checks."""
    costs = document["costs"]
    return [_models(costs["models"]), _parts(costs["door"]), _checks(document)]


def _models(models: Document) -> Table:
    rows = []
    for name, cost in models.items():
        batch = cost["batch"]
        alone = batch["pass_ms"] + batch["each_ms"]
        most = batch["pass_ms"] / batch["most"] + batch["each_ms"]
        sequence = cost["session_mib"] + cost["prefix_tokens"] * cost["token_mib"]
        figures = (f"{batch['pass_ms']:.2f}", f"{batch['each_ms']:.2f}", f"{1e3 / alone:.0f}", f"{1e3 / most:.0f}")
        kept = (
            f"{cost['model_mib']:.0f}",
            f"{sequence:.2f}",
            str(cost["prefix_tokens"]),
            f"{1e3 * cost['token_mib']:.2f}",
        )
        rows.append((name, *figures, *kept))
    columns = ("model", "a pass, ms", "a decision in it, ms", "decisions a second alone", "64 together", "process, MiB")
    more = ("a session, MiB", "prefix tokens", "1,000 tokens of prefix, MiB")
    return Table("Of a core and a model", (*columns, *more), tuple(rows), f"GPU: {NOT_MEASURED}.")


def _parts(door: Document) -> Table:
    rows = tuple(
        (text, f"{door[name]:,.0f}" if door[name] >= 100 else f"{door[name]:.3g}") for name, text in DOOR.items()
    )
    return Table("Of the parts that know no model", ("", "cost"), rows)


def _checks(document: Document) -> Table:
    rows = [
        (
            f"{one['model']}: {one['what']}, {one['unit']}",
            f"{one['predicted']:.2f}",
            f"{one['measured']:.2f}",
            f"{one['deviation']:+.0%}",
        )
        for one in document["checks"]
    ]
    worst = max((abs(one["deviation"]) for one in document["checks"]), default=0.0)
    quick = "; a few decisions only, to see that it works" if document["quick"] else ""
    note = f"Nothing was fitted to these runs. The largest deviation: {worst:.0%}."
    note += f" Load of the machine before: {document['load']:g}{quick}."
    if document["load"] > BUSY:
        note += " So it was busy with other work: these figures serve to develop, and are to be measured again."
    return Table("Predicted and measured", ("run", "predicted", "measured", "deviation"), tuple(rows), note)


def plans(measured: Measured) -> Table:
    """From ten robots to a million characters."""
    rows = []
    for count, crowd, hz in PLANNED:
        plan = Sizing(measured.of(MODEL), count, hz, crowd, CORES)
        first, after = plan.limits[:2]
        figures = (f"{plan.doors:,}", f"{plan.decoders:,}", f"{plan.cores:,}", f"{plan.nodes:,}", gib(plan.mib))
        rest = (f"{plan.link_mbit(count):,.1f}", f"{plan.together_ms:.0f}", first.name, after.name)
        rows.append((f"{count:,} {'characters' if crowd else 'robots'} at {hz:g} Hz", *figures, *rest))
    columns = (
        "",
        "doors",
        "decoders",
        "cores",
        f"nodes of {CORES} cores",
        "GiB",
        "Mbit/s",
        "all at once, ms",
        "breaks first",
        "then",
    )
    return Table(f"By `rtcontrol plan --model {MODEL} --cores-per-node {CORES}`", columns, tuple(rows))


def gib(mib: float) -> str:
    return f"{mib / 1024:,.1f}"


def blocks(measured: Measured) -> Iterator[tuple[str, str]]:
    """What stands between the page's marks, by name."""
    models, parts, checks = capacity(dict(measured.document))
    machine = f"Measured: {measured.where}. Command: `rtcontrol bench capacity`."
    yield "costs", f"{markdown([models, parts])}\n\n{machine}"
    yield "checks", markdown([checks])
    yield "plans", markdown([plans(measured)])


def filled(text: str, measured: Measured) -> str:
    """The page with the tables in place of those that it has. Raises UserError where a mark is missing."""
    for name, block in blocks(measured):
        begin, end = f"<!-- capacity: {name} -->", f"<!-- /capacity: {name} -->"
        if begin not in text or end not in text:
            raise UserError(f"{PAGE} lacks {begin} or {end}.", "Put both where the table is to stand.")
        whole = f"{begin}\n{block}\n{end}"
        text = re.sub(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, new=whole: new, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def write_plans(folder: Path) -> Sequence[Path]:
    """Put the bundled costs into the page beside the folder of figures, where there is one; gives what changed."""
    page = folder.parent / PAGE
    if not page.exists():
        return ()
    text = page.read_text("utf-8")
    new = filled(text, read(None))
    if new == text:
        return ()
    page.write_text(new, "utf-8")
    return (page,)


def sizing_table(plan: Sizing, price: float | None) -> Table:
    """Of one plan, for the terminal."""
    document: dict[str, Any] = plan.document(price)
    crowds = f", in crowds of {plan.per_crowd} at most" if plan.crowd else ""
    kind = document["kind"]
    rows = [
        (
            "doors (`rtcontrol serve`, a core each)",
            f"{plan.doors:,}",
            f"{plan.at_a_door:,} {kind} at each, {plan.door_busy(plan.at_a_door):.0%} of its core",
        ),
        (
            "decoders (a core each)",
            f"{plan.decoders:,}",
            f"{plan.on_a_decoder:,} {kind} on each{crowds}, {plan.decoder_busy(plan.on_a_decoder):.0%} of its core",
        ),
        (f"nodes of {plan.cores_per_node} cores", f"{plan.nodes:,}", f"{plan.cores:,} cores"),
        ("memory", f"{gib(plan.mib)} GiB", f"{gib(plan.node_mib)} GiB on a full node"),
        ("network", f"{plan.link_mbit(plan.count):,.1f} Mbit/s", f"{plan.link_mbit(plan.at_a_door):,.1f} at each door"),
        ("all ticks of a decoder at once", f"{plan.together_ms:.0f} ms", f"of a period of {1e3 / plan.hz:,.0f} ms"),
        ("p99", plan.waits.partition(":")[0], plan.waits.partition(": ")[2]),
        ("GPU", NOT_MEASURED, ""),
    ]
    if price is not None:
        rows.insert(3, ("cost an hour", f"{document['cost']['hour']:,.2f}", f"at {price:g} for a node"))
    for i, limit in enumerate(plan.limits[:3]):
        rows.append((("breaks first", "then", "then")[i], limit.name, f"has {limit.share:.0%} of what it may have"))
    title = f"{plan.count:,} {kind} at {plan.hz:g} Hz, {plan.capacity.model}, at most {plan.busy_max:.0%} of a core"
    return Table(title, ("", "", ""), tuple(rows))
