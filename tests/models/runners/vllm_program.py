"""Runs in vLLM's own environment: one job from a file, what it found on the last line, as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtcontrol.bench.situations import Situation
from rtcontrol.models.decider import DeciderSpec, STDecider, decide_together

SOME = 12
SURE = 0.55  # of the less probable of two that are tied it is a half


def compared(torch: STDecider, vllm: STDecider, asked: list[Situation]) -> dict[str, Any]:
    """Both decide of each: calls that differ where neither was as good as tied, and passes."""
    wrong, passes = [], [0, 0]
    for one in asked:
        ours, theirs = (decider.decide(one.observation, one.instruction) for decider in (torch, vllm))
        passes = [passes[0] + ours.forward_passes, passes[1] + theirs.forward_passes]
        sure = min([*ours.confidence.values(), *theirs.confidence.values()])
        if ours.call != theirs.call and sure > SURE:
            wrong.append(one.observation)
    return {"asked": len(asked), "differ": wrong, "passes": passes}


def others(spec: DeciderSpec, vllm: STDecider, torch: STDecider, asked: list[Situation]) -> dict[str, Any]:
    """What else the runner's protocol promises."""
    found: dict[str, Any] = {}
    two = [vllm, spec.build(), spec.build()]
    found["one engine"] = len({id(d.runner) for d in two}) == 1
    together = decide_together([(d, (s.observation, s.instruction, ())) for d, s in zip(two, asked, strict=False)])
    alone = [torch.decide(s.observation, s.instruction).call for s in asked[: len(two)]]
    found["together"] = [str(a) for a in together if isinstance(a, Exception)] or [a.call for a in together] == alone  # type: ignore[union-attr]
    many = vllm.decide_many([(s.observation, s.instruction) for s in asked[:SOME]])
    found["many"] = [d.call for d in many] == [torch.decide(s.observation, s.instruction).call for s in asked[:SOME]]
    runner: Any = vllm.runner
    before = dict(runner.figures)
    for s in asked[:SOME]:
        vllm.decide(s.observation, s.instruction)
    found["figures"] = {k: v - before[k] for k, v in runner.figures.items()}
    found["prefix"] = len(vllm.template.prefix_ids(vllm.plan.tools))
    tap = next(iter(sys.modules["rtcontrol.models.runners.vllm_tap"].ScoreTap.of.values()), None)
    found["kept"] = None if tap is None else len(tap.kept)
    slices = [*vllm.decide_in_steps(asked[0].observation * 20, asked[0].instruction)]
    own = vllm.decide(asked[0].observation * 20, asked[0].instruction).call
    found["sliced"] = len(slices), own == torch.decide(asked[0].observation * 20, asked[0].instruction).call
    found["info"] = vllm.info()
    return found


def main(job: dict[str, Any]) -> dict[str, Any]:
    spec = DeciderSpec("lander", tuple(job["tools"]), engine="vllm", dtype=job["dtype"], threads=1)
    asked = [Situation(told, seen) for told, seen in job["asked"]]
    torch, vllm = replace(spec, engine="torch").build(), spec.build()
    found = {"caps": vllm.runner.caps.to_dict()}
    if job["check"] == "calls":
        return found | compared(torch, vllm, asked)
    return found | others(spec, vllm, torch, asked)


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text())), default=str))
