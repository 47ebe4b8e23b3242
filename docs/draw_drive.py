"""Draws docs/standin_drive.png: where a drive went and how fast, coloured by what it was told.

    rtcontrol run --env carla-bridge --carla-standin --trace --duration 90 --stdin --out runs/drive < instructions
    PYTHONPATH=. python docs/draw_drive.py runs/drive

Run from the repository's root; needs the `carla` and `dev` extras.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import carla
from PIL import Image, ImageDraw, ImageFont

from rtcontrol_client.carla.lanes import TownRoad
from rtcontrol_client.carla.standin.town import opendrive

OUT = Path(__file__).with_name("standin_drive.png")
WIDTH, MAP_HEIGHT, CHART_HEIGHT, MARGIN = 900, 620, 200, 46
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
GREY, TEXT, PAPER = "#c8c8c8", "#202020", "#ffffff"


def main() -> None:
    folder = Path(sys.argv[1])
    steps = [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]
    report = json.loads((folder / "bridge.json").read_text())
    told = [(entry["t_s"], entry["text"]) for entry in report["instructions"]]
    began = steps[0]["t_s"]
    for step in steps:
        step["t_s"] -= began
        step["told"] = max((i for i, (t, _) in enumerate(told) if t <= step["t_s"] + 0.1), default=0)
    image = Image.new("RGB", (WIDTH, MAP_HEIGHT + CHART_HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=15)
    _map(draw, steps)
    _chart(draw, steps, font)
    draw.text((14, 10), f"{report['world']}, {report['hz']:g} Hz", fill=TEXT, font=font)
    for i, (t, text) in enumerate(told):
        draw.rectangle((14, 36 + 22 * i, 28, 48 + 22 * i), fill=COLOURS[i % len(COLOURS)])
        draw.text((36, 32 + 22 * i), f"{t:5.1f} s  {text}", fill=TEXT, font=font)
    image.quantize(64).save(OUT, optimize=True)
    print(f"{OUT.name}: {len(steps)} steps, {len(told)} instructions, {OUT.stat().st_size / 1024:.0f} KiB")


def _map(draw: ImageDraw.ImageDraw, steps: list[dict[str, Any]]) -> None:
    lanes = TownRoad(carla.Map("Standin", opendrive()))._lanes.values()
    xs = [x for lane in lanes for x in lane.xs]
    ys = [y for lane in lanes for y in lane.ys]
    scale = min((WIDTH - 2 * MARGIN) / (max(xs) - min(xs)), (MAP_HEIGHT - 2 * MARGIN) / (max(ys) - min(ys)))
    left = (WIDTH - scale * (max(xs) - min(xs))) / 2

    def at(x: float, y: float) -> tuple[float, float]:
        return left + scale * (x - min(xs)), MARGIN + scale * (y - min(ys))

    for lane in lanes:
        draw.line([at(x, y) for x, y in zip(lane.xs, lane.ys, strict=True)], fill=GREY, width=1)
    for a, b in pairwise(steps):
        # Another vehicle after a restart of the bridge stands elsewhere: no line between the two.
        if abs(a["x"] - b["x"]) + abs(a["y"] - b["y"]) < 20:
            draw.line([at(a["x"], a["y"]), at(b["x"], b["y"])], fill=COLOURS[b["told"] % len(COLOURS)], width=4)


def _chart(draw: ImageDraw.ImageDraw, steps: list[dict[str, Any]], font: Any) -> None:
    top, bottom, right = MAP_HEIGHT, MAP_HEIGHT + CHART_HEIGHT - 30, WIDTH - 14
    most = max(60.0, *(step["kmh"] for step in steps))

    def at(step: dict[str, Any]) -> tuple[float, float]:
        x = MARGIN + (right - MARGIN) * step["t_s"] / steps[-1]["t_s"]
        return x, bottom - (bottom - top - 20) * step["kmh"] / most

    for kmh in range(0, int(most) + 1, 20):
        y = bottom - (bottom - top - 20) * kmh / most
        draw.line((MARGIN, y, right, y), fill=GREY)
        draw.text((14, y - 9), f"{kmh}", fill=TEXT, font=font)
    for second in range(0, int(steps[-1]["t_s"]) + 1, 20):
        x = MARGIN + (right - MARGIN) * second / steps[-1]["t_s"]
        draw.text((x - 8, bottom + 6), f"{second} s", fill=TEXT, font=font)
    draw.text((MARGIN + 4, top - 4), "km/h", fill=TEXT, font=font)
    for a, b in pairwise(steps):
        draw.line([at(a), at(b)], fill=COLOURS[b["told"] % len(COLOURS)], width=2)


if __name__ == "__main__":
    main()
