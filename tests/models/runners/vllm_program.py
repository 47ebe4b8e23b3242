"""Run a job from a file in vLLM's environment, and print the result as JSON on the last line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtcontrol.bench.situations import Situation
from rtcontrol.models.decider import DeciderSpec, STDecider, decide_together

SOME = 12
SURE = 0.55  # two tied values have a half each


def compared(torch: STDecider, vllm: STDecider, situations: list[Situation]) -> dict[str, Any]:
    """Decide every situation with both engines; return the passes, and the calls that differ without a near-tie."""
    wrong, passes = [], [0, 0]
    for situation in situations:
        ours, theirs = (decider.decide(situation.observation, situation.instruction) for decider in (torch, vllm))
        passes = [passes[0] + ours.forward_passes, passes[1] + theirs.forward_passes]
        sure = min([*ours.confidence.values(), *theirs.confidence.values()])
        if ours.call != theirs.call and sure > SURE:
            wrong.append(situation.observation)
    return {"asked": len(situations), "differ": wrong, "passes": passes}


def others(spec: DeciderSpec, vllm: STDecider, torch: STDecider, situations: list[Situation]) -> dict[str, Any]:
    """Check the other promises of the runner protocol."""
    result: dict[str, Any] = {}
    two = [vllm, spec.build(), spec.build()]
    result["one engine"] = len({id(d.runner) for d in two}) == 1
    together = decide_together([(d, (s.observation, s.instruction, ())) for d, s in zip(two, situations, strict=False)])
    alone = [torch.decide(s.observation, s.instruction).call for s in situations[: len(two)]]
    result["together"] = [str(a) for a in together if isinstance(a, Exception)] or [a.call for a in together] == alone  # type: ignore[union-attr]
    many = vllm.decide_many([(s.observation, s.instruction) for s in situations[:SOME]])
    result["many"] = [d.call for d in many] == [
        torch.decide(s.observation, s.instruction).call for s in situations[:SOME]
    ]
    runner: Any = vllm.runner
    before = dict(runner.figures)
    for s in situations[:SOME]:
        vllm.decide(s.observation, s.instruction)
    result["figures"] = {k: v - before[k] for k, v in runner.figures.items()}
    result["prefix"] = len(vllm.template.prefix_ids(vllm.plan.tools))
    tap = next(iter(sys.modules["rtcontrol.models.runners.vllm_tap"].ScoreTap.by_engine.values()), None)
    result["kept"] = None if tap is None else len(tap.kept)
    slices = [*vllm.decide_in_steps(situations[0].observation * 20, situations[0].instruction)]
    call = vllm.decide(situations[0].observation * 20, situations[0].instruction).call
    result["sliced"] = len(slices), call == torch.decide(situations[0].observation * 20, situations[0].instruction).call
    result["info"] = vllm.info()
    return result


def main(job: dict[str, Any]) -> dict[str, Any]:
    spec = DeciderSpec("lander", tuple(job["tools"]), engine="vllm", dtype=job["dtype"], threads=1)
    situations = [Situation(instruction, observation) for instruction, observation in job["asked"]]
    torch, vllm = replace(spec, engine="torch").build(), spec.build()
    result = {"caps": vllm.runner.caps.to_dict()}
    if job["check"] == "calls":
        return result | compared(torch, vllm, situations)
    return result | others(spec, vllm, torch, situations)


if __name__ == "__main__":
    print("\n" + json.dumps(main(json.loads(Path(sys.argv[1]).read_text())), default=str))
