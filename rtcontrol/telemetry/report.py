"""report.json: what an account comes to, in named fields."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rtcontrol.models.errors import UserError
from rtcontrol.models.files import no_link, replace_file
from rtcontrol.telemetry.account import ANSWERS, CAUSE, KINDS, MEMBER_COUNTS, Account
from rtcontrol.telemetry.record_reader import read_record

SCHEMA_VERSION = 3
WORST = 10  # members of a crowd that are shown
MOST_TOLD = 5  # changes of the instruction that a line shows
HELD = {"confidence": "too unsure, or not understood", "confirm": "waited for a yes"}


def of_record(record: Path) -> dict[str, Any]:
    """Return the report of a record, complete or cut short. Raises UserError where it is none of a run."""
    account = Account()
    for event in read_record(record):
        account.add(event)
    return of(account, record)


def of(account: Account, record: Path) -> dict[str, Any]:
    """The report of an account that took all of a record's events. UserError where that is none of a run."""
    if not account.header:
        raise UserError(
            f"{record} is no record of a run: it does not begin with the header of one.", "Give the folder of a run."
        )
    return build(account, record.name)


def build(
    account: Account, record: str, lost_lines: int = 0, ended_by: str | None = None, ticks_from: int | None = None
) -> dict[str, Any]:
    """The report of an account. `record` is the file's name, `lost_lines` what it lacks; `ended_by` is why it ended
    where the account does not know, by SIGKILL where nobody does; `ticks_from` is the first tick whose events are left
    in the record (the account's where it is not given). The invariants are the account's."""
    config, info, k = account.header, account.start.get("host_info", {}), max(2, round(account.header.get("hz", 16)))
    return {
        "schema_version": SCHEMA_VERSION,
        **{name: config.get(name) for name in ("env", "agent", "model", "backup", "engine", "host", "clock", "hz")},
        **({"engine": info["engine"]} if "engine" in info else {}),
        **{name: config.get(name) for name in ("period_ms", "deadline_ms", "max_age_ms", "pipeline", "seed")},
        **{name: config.get(name) for name in ("on_miss", "hold_ms", "instruction")},
        "instruction_changes": account.instructions,
        **({"interpreter": config["interpreter"]} if config.get("interpreter") else {}),
        **({"understood": account.understood} if account.understood else {}),
        "people": account.people,
        "started_at": config.get("started_at"),
        "duration_s": account.end.get("t_s", account.last_t_s),
        "ended_by": account.end.get("end") or ended_by or "killed",
        **{name: getattr(account, name) for name in ("releases", "ticks", "on_time", "misses", "skipped_releases")},
        **{name: getattr(account, name) for name in KINDS},
        "held_by": dict(account.held_by),
        "miss_rate": account.miss_rate,
        "misses_by_cause": dict(account.misses_by_cause),
        "misses_by_subcause": dict(account.misses_by_subcause),
        "skipped_by_cause": dict(account.skipped_by_cause),
        **{name: getattr(account, name) for name in ("late_used", "late_dropped", "safe_calls", "fallback_errors")},
        "acknowledged": dict(account.acknowledged),
        "errors": list(account.errors.values()),
        **({"crowd": crowd_report(account.members, account.steadiness.of_members())} if account.members else {}),
        "longest_miss_run": account.longest_miss_run,
        "worst_window": {"m": account.miss_runs.worst(k), "k": k},
        "superseded_observations": account.superseded,
        **{name: series.summary() for name, series in account.times.items()},
        "decided_by": {name: getattr(account, f"decided_by_{name}") for name in ("first", "backup")},
        "first_answers": {name: getattr(account, f"first_{name}") for name in ANSWERS},
        "first_losses": dict(account.first_losses),
        **_plans(account),
        "calls": account.calls.summary(),
        "calls_cut": account.calls_cut,
        "steadiness": account.steadiness.summary(),
        "forward_passes": account.passes.summary(),
        "tokens": account.tokens.summary(),
        "warmup": account.start.get("warmup", {}),
        "host_events": account.host_events,
        "host_info": info,
        "machine": config.get("machine"),
        "record": {
            "file": record,
            "lost_lines": lost_lines,
            "ticks_from": account.ticks_from if ticks_from is None else ticks_from,
        },
        "outcome": {"episodes": account.episodes, "successes": account.successes, "judged": account.judged},
    }


def _plans(account: Account) -> dict[str, Any]:
    """Return what became of plans; empty where there were none. `steps` are those that decided ticks, from 0."""
    steps = sorted(Counter(dict(account.plan_steps)).elements())  # of a copy: another thread may count meanwhile
    if not account.plans and not steps:
        return {}
    which = {"p50": steps[(len(steps) - 1) // 2], "max": steps[-1]} if steps else {"p50": None, "max": None}
    told: dict[str, Any] = {name: account.plans[name] for name in ("in_force", "over", "failed")}
    told |= {"losses": dict(account.plan_losses), "ticks": len(steps), "steps": which}
    return {"plans": {**told, "plan_ms": account.plan_ms.summary()}}


def crowd_report(
    members: Mapping[str, Mapping[str, Any]], steady: Mapping[str, Mapping[str, int]] = MappingProxyType({})
) -> dict[str, Any]:
    """What the report says of them: how many, and each by name, the worst first; `steady` are the calls of each."""
    listed = {name: {**_member(counted), **steady.get(name, {})} for name, counted in list(members.items())}
    order = sorted(listed, key=lambda name: (-listed[name]["missed_share"], -listed[name]["latency_ms"]["max"], name))
    return {
        "members": len(listed),
        "rested": sum(one["rested"] for one in listed.values()),
        "without_a_miss": sum(not one["misses"] + one["skipped_releases"] for one in listed.values()),
        "by_member": {name: listed[name] for name in order},
    }


def _member(counted: Mapping[str, Any]) -> dict[str, Any]:
    causes = {name.removeprefix(CAUSE): n for name, n in counted.items() if name.startswith(CAUSE)}
    missed = counted["misses"] + counted["skipped_releases"]
    mean = counted["latency_ms_total"] / counted["ticks"] if counted["ticks"] else 0.0
    return {
        **{name: counted[name] for name in MEMBER_COUNTS},
        "misses_by_cause": causes,
        "missed_share": round(missed / counted["releases"], 6) if counted["releases"] else 0.0,
        "latency_ms": {"mean": round(mean, 4), "max": round(counted["latency_ms_max"], 4)},
    }


def worst_members(crowd: Mapping[str, Any]) -> list[str]:
    """A line of each of the worst, as people read it; none where nobody missed anything."""
    shown = [(name, one) for name, one in crowd["by_member"].items() if one["missed_share"]][:WORST]
    return [
        f"{name}: missed {one['misses'] + one['skipped_releases']} of {one['releases']} "
        f"({', '.join(f'{cause} {n}' for cause, n in one['misses_by_cause'].items()) or 'skipped'}), "
        f"latency {one['latency_ms']['mean']:.1f} ms on average, {one['latency_ms']['max']:.1f} at most"
        for name, one in shown
    ]


def plans_text(report: Mapping[str, Any]) -> str:
    """Return a line on plans; empty where there were none."""
    if (plans := report.get("plans")) is None:
        return ""
    ms, steps = plans["plan_ms"], plans["steps"]
    took = f" in {ms['p50']:.0f} ms (p50), {ms['p99']:.0f} (p99)" if ms["p50"] is not None else ""
    losses = f" ({_listed(plans['losses'])})" if plans["losses"] else ""
    which = f"by their steps {plans['ticks']} ticks" if plans["ticks"] else "no tick"
    which += f", step {steps['p50']} (p50), {steps['max']} at most" if plans["ticks"] else ""
    if plans["over"] > plans["in_force"]:
        which += "; most were over before they came: give longer plans, or a longer --max-age-ms (docs/plans.md)"
    over, failed = plans["over"], f"{plans['failed']}{losses}"
    return f"plans: {plans['in_force']} made{took}, over before they came {over}, failed {failed}; {which}"


def on_time_share(report: Mapping[str, Any]) -> float:
    """Of all releases, the skipped ones too: what is left of `miss_rate`. 1 where there is none."""
    return float(report["on_time"] / report["releases"]) if report["releases"] else 1.0


def instructions_text(report: Mapping[str, Any]) -> str:
    """What it was told, in order, as people read it."""
    changes = [c for c in report["instruction_changes"] if c["instruction"] != report["instruction"] or c["t_s"] > 0]
    later = [f'from {change["t_s"]:.1f} s on "{change["instruction"]}"' for change in changes]
    more = f" and {len(later) - MOST_TOLD} more" if len(later) > MOST_TOLD else ""
    return f'told "{report["instruction"]}"' + "".join(f", {one}" for one in later[:MOST_TOLD]) + more


def understood(report: Mapping[str, Any]) -> str:
    """How what was said was understood, as people read it; empty where there is no interpreter."""
    told = [one for one in report.get("understood", ()) if one["by"] != "itself"]
    if not told:
        return ""
    found = [one for one in told if one["understood"] is not None]
    whys = Counter(one["not_understood"] for one in told if one["understood"] is None)
    asked = sorted(one["took_ms"] for one in told if one.get("not_understood") != "overtaken")
    not_found = f", not understood {whys.total()} ({_listed(whys)})" if whys else ""
    took = f", {asked[len(asked) // 2]:.0f} ms (p50)" if asked else ""
    shown = "; ".join(f'"{one["said"]}" as "{one["understood"]}"' for one in found[:MOST_TOLD])
    return f"understood {len(found)} of {len(told)} said{not_found}{took}{f': {shown}' if shown else ''}"


def held(report: Mapping[str, Any]) -> str:
    """That decisions were held back, how many and why, as people read it; empty where none was."""
    if not report["held"]:
        return ""
    by = report.get("held_by", {})
    whys = ", ".join(f"{HELD[why]} {n}" if why in HELD else f"{why} {n}" for why, n in _most(by))
    share = (
        f"held back {report['held']} of {report['ticks']} decisions ({100 * report['held'] / report['ticks']:.1f} %)"
    )
    understood = 2 * by.get("confidence", 0) < report["ticks"]
    return f"{share}{f': {whys}' if whys else ''}" + ("" if understood else "; what it was told is NOT UNDERSTOOD")


def deciders(report: Mapping[str, Any]) -> str:
    """Who decided, and what became of the first one's answers, as people read it; empty where there is no backup."""
    if not report.get("backup"):
        return ""
    by, answers, ms = report["decided_by"], report["first_answers"], report["answer_ms"]
    took = f"; it took {ms['p50']:.0f} ms (p50), {ms['p99']:.0f} (p99)" if ms["p50"] is not None else ""
    losses = _listed(report["first_losses"])
    failed = f"{answers['failed']} ({losses})" if losses else answers["failed"]
    told = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in {**answers, "failed": failed}.items())
    return (
        f"decided by the first one {by['first']}, by the backup ({report['backup']}) {by['backup']}; "
        f"the first one answered {sum(answers.values())}: {told}{took}"
    )


def decoder(event: Mapping[str, Any]) -> str:
    """Which decoder an event of a host is about."""
    which: str = event.get("decider", "")
    return {"first": "first decider", "backup": "backup"}.get(which, which or "decoder")


def causes(report: Mapping[str, Any], of: str = "misses") -> str:
    """Misses (or `skipped` releases) by cause, as people read it: `decide 12 (decoder_slow 10, queued 2), wake 1`."""
    subcauses = report["misses_by_subcause"] if of == "misses" else {}
    told = []
    for cause, n in _most(report[f"{of}_by_cause"]):
        parts = [(name.partition(".")[2], m) for name, m in _most(subcauses) if name.partition(".")[0] == cause]
        told.append(f"{cause} {n}" + (f" ({', '.join(f'{name} {m}' for name, m in parts)})" if parts else ""))
    return ", ".join(told) or "none"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in _most(counts))


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda counted: -counted[1])


def write(report: dict[str, Any], path: Path) -> str | None:
    """Write report.json, whole or not at all; the reason when the disk refused."""
    try:
        replace_file(no_link(path), json.dumps(report, indent=2, default=str, skipkeys=True) + "\n")
    except OSError as error:
        return error.strerror or str(error)
    return None


def richer(path: Path, made: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """The report that lies at `path`, and why it says more of the same run than `made`; None where it does not."""
    try:
        old = json.loads(path.read_text("utf-8"))
        if old["schema_version"] != made["schema_version"] or old["started_at"] != made["started_at"]:
            return None
        if old["releases"] > made["releases"]:
            return old, f"it counts {old['releases']} releases, and the record only {made['releases']}"
        if made["ended_by"] == "killed" != old["ended_by"]:
            return old, f"it says how the run ended ({old['ended_by']}), and the record does not"
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return None
