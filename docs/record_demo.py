"""Records docs/lander.gif: the bundled model flies in lockstep and is told something else twice in flight.

Run from the repository's root: `python docs/record_demo.py` (needs pillow, part of the `dev` extra).
"""

from __future__ import annotations

import time
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from rtcontrol.agents.lander.tools import agent
from rtcontrol.envs.lander.world import Lander
from rtcontrol.envs.skill import StepAccumulator
from rtcontrol.models.decider import DeciderSpec

HZ = 16
SEED = 1003
TOLD = ((0.0, "hover at 0.7"), (4.5, "hover at 0.9 and x -0.3"), (9.0, "land on the right side of the pad"))
SECONDS = 18
OUT = Path(__file__).with_name("lander.gif")


def main() -> None:
    decider = DeciderSpec(agent.model, tuple(agent.tools.openai()), history=0).build()
    sim, carry = Lander(pictures=True), StepAccumulator(Lander().step_s)
    sim.reset(SEED)
    font = ImageFont.load_default(size=15)
    frames = []
    for tick in range(SECONDS * HZ):
        told = [text for second, text in TOLD if second * HZ <= tick][-1]
        sim.instruct(told)
        seen = agent.observe(sim.observe())
        began = time.perf_counter()
        call = decider.decide(seen, told).call
        ms = (time.perf_counter() - began) * 1e3
        assert call is not None
        sim.engines(**call.arguments)
        for _ in range(carry.steps(round(1e9 / HZ))):
            sim.step()
        if tick % 2 == 0:
            image = Image.fromarray(sim.picture()).resize((480, 320), Image.Resampling.BILINEAR)
            draw = ImageDraw.Draw(image)
            lines = [f"told: {told}", f"sees: {seen}", f"calls: {call.text()}   {ms:.1f} ms"]
            for i, line in enumerate(lines):
                draw.text((8, 6 + 18 * i), line, fill=(255, 255, 255), font=font)
            frames.append(image.quantize(32))
        if sim.outcome() is not None:
            frames += frames[-1:] * 8
            break
    frames[0].save(OUT, save_all=True, append_images=frames[1:], duration=2000 // HZ, loop=0, optimize=True)
    print(f"{OUT.name}: {len(frames)} frames, {OUT.stat().st_size / 2**20:.2f} MiB, {sim.outcome()}")


if __name__ == "__main__":
    main()
