"""Build the report of a run: the content of report.json from the run's `Account`, and lines of text for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rtcontrol.models.errors import open_input
from rtcontrol.models.files import replace_file
from rtcontrol.telemetry.account import ANSWERS, OTHER_KINDS, TIMES, Account
from rtcontrol.telemetry.causes import advice
from rtcontrol.telemetry.histogram import Histogram

SCHEMA_VERSION = 3
MAX_SHOWN, MAX_ROWS = 5, 20  # the text lists at most 5 errors, causes or crowd members, and 20 instructions
MANY_HELD = 0.1  # from this share of withheld decisions on, the line `on time` warns of them
TIME_TITLES = {name: title for name, (_, title) in TIMES.items()}
STATISTICS = ("p50", "p90", "p99", "p99_9", "max", "mean")


def build_report(
    account: Account, record: str, lost_lines: int = 0, ended_by: str | None = None, ticks_from: int | None = None
) -> dict[str, Any]:
    """Return the content of report.json.

    `record`: name of the record file. `lost_lines`: number of events that it lacks. `ended_by`: what ended the run, if
    the record does not say it (default: `killed`). `ticks_from`: the first tick in the record, if its oldest events
    were deleted (default: the first counted tick)."""
    header, info, n = account.header, account.run["start"].get("host_info", {}), account.counts
    end, by, k = account.run["end"], account.breakdowns, max(2, round(header.get("hz", 16)))
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: header.get(name) for name in ("env", "agent", "model", "backup", "engine", "host", "clock", "hz")},
        **({"engine": info["engine"]} if "engine" in info else {}),
        **{name: header.get(name) for name in ("period_ms", "deadline_ms", "max_age_ms", "pipeline", "seed")},
        **{name: header.get(name) for name in ("on_miss", "hold_ms", "instruction")},
        "instruction_changes": account.listed["/instruction"],
        **({"interpreter": header["interpreter"]} if header.get("interpreter") else {}),
        **({"understood": account.listed["/understood"]} if account.listed["/understood"] else {}),
        "people": account.listed["/people"],
        "started_at": header.get("started_at"),
        "duration_s": end.get("t_s", account.tick_range.last_t_s),
        "ended_by": end.get("end") or ended_by or "killed",
        **{name: n[name] for name in ("releases", "ticks", "on_time", "misses", "skipped_releases", *OTHER_KINDS)},
        "miss_rate": account.miss_rate,
        **({"unfamiliar": dict(by["unfamiliar"])} if by["unfamiliar"] else {}),
        "held_by": dict(by["held_by"]),
        **{name: dict(by[name]) for name in ("misses_by_cause", "misses_by_subcause")},
        **{name: dict(by[name]) for name in ("skipped_by_cause", "skipped_by_subcause")},
        "advice": _advice_rows(by),
        "instructions": [_instruction_counts(text, counts) for text, counts in list(account.instructions.items())],
        **{name: n[name] for name in ("late_used", "late_dropped", "safe_calls", "fallback_errors")},
        "acknowledged": dict(by["acknowledged"]),
        "errors": list(account.errors.values()),
        **({"crowd": _crowd_counts(account.members)} if account.members else {}),
        "longest_miss_run": account.miss_runs.longest,
        "worst_window": {"m": account.miss_runs.worst_window(k), "k": k},
        "superseded_observations": n["superseded"],
        **{name: account.times[name].summary() for name in TIMES},
        "decided_by": {name: n[f"decided_by_{name}"] for name in ("first", "backup")},
        "first_answers": {name: n[f"first_{name}"] for name in ANSWERS},
        "first_losses": dict(by["first_losses"]),
        **_plan_counts(account),
        "calls": _total_mean_max(n["calls_acted"], n["call_ticks"], n["calls_most"]),
        "calls_cut": n["calls_cut"],
        "steadiness": {
            "repeated": n["repeated"],
            "repeated_share": round(n["repeated"] / n["call_ticks"], 6) if n["call_ticks"] else None,
            "kept_by_hysteresis": n["kept"],
        },
        "forward_passes": _series_total(account.times["passes"]),
        "tokens": _series_total(account.times["tokens"]),
        "warmup": account.run["start"].get("warmup", {}),
        "host_events": account.listed["/host"],
        "host_info": info,
        "machine": header.get("machine"),
        "record": {
            "file": record,
            "lost_lines": lost_lines,
            "ticks_from": account.tick_range.first_k if ticks_from is None else ticks_from,
        },
        "outcome": {"episodes": account.listed["/episode"], "successes": n["successes"], "judged": n["judged"]},
    }


def _advice_rows(by: Mapping[str, Counter[Any]]) -> list[dict[str, Any]]:
    """Return name, count, meaning and hint of each sub-cause of misses and skipped releases, most frequent first.
    The name is the cause if the cause has no sub-causes."""
    counts = by["misses_by_subcause"] + by["skipped_by_subcause"]
    for cause, n in (by["misses_by_cause"] + by["skipped_by_cause"]).items():
        counts[cause] = n - sum(m for name, m in counts.items() if name.startswith(f"{cause}."))
    return [{"name": name, "count": n, **advice(name)._asdict()} for name, n in (+counts).most_common()]


def _instruction_counts(text: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """Return the report's entry for an instruction: counts of its ticks, and of calls by function (no safe calls)."""
    counts = dict(counts)
    called = {name.removeprefix("called "): n for name, n in _by_count(counts) if name.startswith("called ")}
    ticks, misses = counts.get("ticks", 0), counts.get("misses", 0)
    entry = {"instruction": text, "ticks": ticks, "on_time": ticks - misses, "held": counts.get("held", 0)}
    return {**entry, "misses": misses, "skipped": counts.get("skipped", 0), "called": called}


def _series_total(series: Histogram) -> dict[str, float]:
    return _total_mean_max(round(series.total), series.count, round(series.maximum))


def _total_mean_max(total: int, count: int, maximum: int) -> dict[str, float]:
    return {"total": total, "mean": round(total / count, 2) if count else 0.0, "max": maximum}


def _plan_counts(account: Account) -> dict[str, Any]:
    """Return the counts of plans (several calls from one decision), or an empty dict if there were no plans.

    `steps`: the median and the maximum of the numbers (from 0) of the plan's steps that decided ticks."""
    plans, steps = account.breakdowns["plans"], sorted(Counter(dict(account.breakdowns["plan_steps"])).elements())
    if not plans and not steps:
        return {}
    return {
        "plans": {
            **{name: plans[name] for name in ("in_force", "over", "failed")},
            "losses": dict(account.breakdowns["plan_losses"]),
            "ticks": len(steps),
            "steps": {"p50": steps[(len(steps) - 1) // 2], "max": steps[-1]} if steps else {"p50": None, "max": None},
            "plan_ms": account.times["plan_ms"].summary(),
        }
    }


def _crowd_counts(members: Mapping[str, Counter[str]]) -> dict[str, Any]:
    """Return the counts of a crowd, the members of one client: totals, and each member's counts (`by_member`) by
    descending miss rate. `misses` includes skipped releases."""
    counted = {name: dict(counts) for name, counts in list(members.items())}
    order = sorted(counted, key=lambda name: -counted[name]["misses"] / counted[name]["releases"])
    return {
        "members": len(counted),
        "rested": sum(counts["rested"] for counts in counted.values()),
        "without_a_miss": sum(not counts["misses"] for counts in counted.values()),
        "by_member": {name: counted[name] for name in order},
    }


# -- lines for people -------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A line of the report's text. `hint` explains the value, or names a page or command that explains it."""

    label: str
    value: str
    hint: str = ""


INSTRUCTION_COLUMNS = ("instruction", "ticks", "on time", "held back", "missed", "skipped", "called functions")


def instruction_rows(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the rows of the table of instructions, at most MAX_ROWS, as texts for INSTRUCTION_COLUMNS."""
    shown = report["instructions"][:MAX_ROWS]
    numbers = ("ticks", "on_time", "held", "misses", "skipped")
    rows = [(i["instruction"], *(str(i[name]) for name in numbers), _counts_text(i["called"])) for i in shown]
    if more := len(report["instructions"]) - len(rows):
        rows.append((f"{more} further instructions, which report.json lists", *("",) * 6))
    return rows


def report_lines(report: Mapping[str, Any]) -> list[Line]:
    """Return the lines of a report that have a value. Latencies have a separate table."""
    every = (*_run_lines(report), *_decision_lines(report), *_miss_lines(report), *_other_lines(report))
    return [line for line in every if line.value]


def _run_lines(r: Mapping[str, Any]) -> Iterator[Line]:
    yield Line(
        str(r["env"]),
        f"by {r['agent']} ({r['model']}, {r['engine']}) on host {r['host']}, {r['hz']:g} Hz, deadline "
        f"{r['deadline_ms']:g} ms, {r['clock']} clock, {r['duration_s']:.1f} s, ended by {r['ended_by']}",
    )
    share = f"{r['on_time']} of {r['releases']} releases ({100 * (1 - r['miss_rate']):.2f} %)"
    if r["held"] >= MANY_HELD * r["ticks"] > 0:
        share += f", BUT {r['held'] / r['ticks']:.0%} of the decisions were held back"
    yield Line("on time", share, ", ".join(f"{r[name]} {text}" for name, text in OTHER_KINDS.items() if r[name]))
    changes = [c for c in r["instruction_changes"] if c["instruction"] != r["instruction"] or c["t_s"] > 0]
    refused = {change.get("refused") for change in changes}
    shown = [change for change in changes if change["instruction"] not in refused][:MAX_SHOWN]
    later = "".join(
        f', at {c["t_s"]:.1f} s "{c["refused"]}" was refused'
        if "refused" in c
        else f', from {c["t_s"]:.1f} s on "{c["instruction"]}"'
        for c in shown
    )
    yield Line("instruction", f'"{r["instruction"]}"{later}')
    if words := [event for event in r.get("understood", ()) if event["by"] != "itself"]:
        goals = [f'"{event["said"]}" as "{event["understood"]}"' for event in words if event["understood"] is not None]
        value = f"{len(goals)} of {len(words)}: {'; '.join(goals[:MAX_SHOWN])}"
        yield Line("understood", value, _counts_text(Counter(filter(None, (e.get("not_understood") for e in words)))))


def _decision_lines(r: Mapping[str, Any]) -> Iterator[Line]:
    if r["held"]:
        mostly_withheld = 2 * r["held_by"].get("confidence", 0) >= r["ticks"]
        share = f"{r['held']} of {r['ticks']} decisions: {_counts_text(r['held_by'])}"
        yield Line("held back", share, "the instruction is NOT UNDERSTOOD" if mostly_withheld else "")
    if unfamiliar := r.get("unfamiliar"):
        yield Line("unlike training", _counts_text(unfamiliar), "the model was not trained on such observations")
    if r["backup"]:
        yield Line("decided", _counts_text(r["decided_by"]), f"backup: {r['backup']}")
        answers = f"{_counts_text(r['first_answers'])}{_duration_text(r['answer_ms'])}"
        yield Line("the first decider's answers", answers, _counts_text(r["first_losses"]))
    if plans := r.get("plans"):
        counts = _counts_text({name.replace("_", " "): plans[name] for name in ("in_force", "over", "failed")})
        steps = f"; their steps decided {plans['ticks']} ticks"
        yield Line("plans", f"{counts}{_duration_text(plans['plan_ms'])}{steps}", _counts_text(plans["losses"]))


def _miss_lines(r: Mapping[str, Any]) -> Iterator[Line]:
    if r["misses_by_cause"] or r["skipped_by_cause"]:
        yield Line("misses by cause", _causes_text(r, "misses"), "docs/deadlines.md has all causes")
        yield Line("skipped releases", _causes_text(r, "skipped"), "the loop itself was late")
        worst = r["worst_window"]
        window = f"{r['longest_miss_run']} misses in a row, {worst['m']} of {worst['k']} releases"
        yield Line("worst", window)
        for each in r["advice"][:MAX_SHOWN]:
            yield Line(f"{each['name']} {each['count']}", f"{each['meaning']}. Do this: {each['hint']}")
        late = f"used {r['late_used']}, dropped {r['late_dropped']}" if r["late_used"] or r["late_dropped"] else ""
        yield Line("late calls", late, "their decisions came after the deadline")
    for e in r["errors"][:MAX_SHOWN]:
        yield Line(f"{e['count']} x {e['cause']}", f"{e['error']} ({e['where']})" if e["where"] else e["error"])


def _other_lines(r: Mapping[str, Any]) -> Iterator[Line]:
    counted = {
        "safe calls": r["safe_calls"],
        "kept by hysteresis": r["steadiness"]["kept_by_hysteresis"],
        "calls cut": r["calls_cut"],
        "further errors, which report.json lists": max(0, len(r["errors"]) - MAX_SHOWN),
        "events that the record lacks (disk full)": r["record"]["lost_lines"],
        "first tick in the record, which reached record.max": r["record"].get("ticks_from"),
    }
    yield from (Line(label, str(count or "")) for label, count in counted.items())
    if crowd := r.get("crowd"):
        members = crowd["by_member"].items()
        worst = [f"{name} {counts['misses']}" for name, counts in members if counts["misses"]][:MAX_SHOWN]
        yield Line("crowd", f"{crowd['without_a_miss']} of {crowd['members']} without a miss", ", ".join(worst))
    yield Line("people", _counts_text(Counter(event["people"] for event in r["people"])))
    yield Line("calls at the client", _counts_text(r["acknowledged"]))
    yield Line("decoders", _counts_text(Counter(f"{decoder_name(e)} {e['event']}" for e in r["host_events"])))
    if episodes := r["outcome"]["episodes"]:
        yield Line("episodes", f"{len(episodes)}: {r['outcome']['successes']} of {r['outcome']['judged']} succeeded")


def decoder_name(event: Mapping[str, Any]) -> str:
    """Return the display name of the decoder that a host event (a restart or a loss) is about."""
    name: str = event.get("decider", "")
    return {"first": "first decider", "backup": "backup"}.get(name, name or "decoder")


def _causes_text(report: Mapping[str, Any], counted: str) -> str:
    """Return the `misses` or the `skipped` releases by cause, such as `decide 12 (decoder_slow 10, queued 2)`."""
    shown = []
    for cause, n in _by_count(report[f"{counted}_by_cause"]):
        named = report[f"{counted}_by_subcause"].items()
        parts = _counts_text({name.partition(".")[2]: m for name, m in named if name.startswith(f"{cause}.")})
        shown.append(f"{cause} {n}" + (f" ({parts})" if parts else ""))
    return ", ".join(shown)


def _duration_text(ms: Mapping[str, float | None]) -> str:
    return f" in {ms['p50']:.0f} ms (p50), {ms['p99']:.0f} (p99)" if ms["p50"] is not None else ""


def _counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in _by_count(counts))


def _by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda counted: -counted[1])


# -- report.json ------------------------------------------------------------------------------------------------------


def write_report(report: dict[str, Any], path: Path) -> str | None:
    """Write report.json atomically. Return the reason if it cannot be written, else None."""
    try:
        replace_file(path, json.dumps(report, indent=2, default=str, skipkeys=True) + "\n")
    except OSError as error:
        return error.strerror or str(error)
    return None


def is_complete(path: Path) -> bool:
    """Return whether `path` is a report that the run wrote at its end. Such a report may count more than the record."""
    try:
        with open_input(path, pipes=False) as file:
            return bool(json.load(file)["ended_by"] != "killed")
    except (OSError, ValueError, LookupError, TypeError):
        return False
