"""Plans of several calls: how many were made, what became of them, and which of their steps decided ticks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from rtcontrol.telemetry.histogram import Series

OUTCOMES = ("in_force", "over", "failed")


class PlanCounts(Protocol):
    """What an account counts of plans; `plan_steps`: by step, the ticks that it decided."""

    plans: Counter[str]
    plan_losses: Counter[str]
    plan_steps: Counter[int]
    plan_ms: Series


def count_plan(account: PlanCounts, event: Mapping[str, Any]) -> None:
    """A plan that was made, or why there is none."""
    account.plans[event["outcome"]] += 1
    account.plan_ms.add(event["plan_ms"])
    if "loss" in event:
        account.plan_losses[event["loss"]] += 1


def plan_report(account: PlanCounts) -> dict[str, Any]:
    """What the report says of them; empty where there were none. `steps` are those that decided ticks, counted from 0:
    the first one of a plan is step 0."""
    steps = sorted(Counter(dict(account.plan_steps)).elements())  # of a copy: another thread may count meanwhile
    if not account.plans and not steps:
        return {}
    which = {"p50": steps[(len(steps) - 1) // 2], "max": steps[-1]} if steps else {"p50": None, "max": None}
    told: dict[str, Any] = {name: account.plans[name] for name in OUTCOMES}
    told |= {"losses": dict(account.plan_losses), "ticks": len(steps), "steps": which}
    return {"plans": {**told, "plan_ms": account.plan_ms.summary()}}


def plans_text(report: Mapping[str, Any]) -> str:
    """As people read it; empty where there were none."""
    if (plans := report.get("plans")) is None:
        return ""
    ms, steps = plans["plan_ms"], plans["steps"]
    took = f" in {ms['p50']:.0f} ms (p50), {ms['p99']:.0f} (p99)" if ms["p50"] is not None else ""
    losses = ", ".join(f"{loss} {n}" for loss, n in plans["losses"].items())
    failed = f"{plans['failed']}{f' ({losses})' if losses else ''}"
    which = f"; by their steps {plans['ticks']} ticks" if plans["ticks"] else "; no tick"
    which += f", step {steps['p50']} (p50), {steps['max']} at most" if plans["ticks"] else ""
    if plans["over"] > plans["in_force"]:
        which += "; most were over before they came: give longer plans, or a longer --max-age-ms (docs/plans.md)"
    return f"plans: {plans['in_force']} made{took}, over before they came {plans['over']}, failed {failed}{which}"
