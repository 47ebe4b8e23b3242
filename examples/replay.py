"""Show what another model would have called, by deciding a recorded run again, tick by tick.

rtcontrol run --env lander --duration 10 --no-live --out runs/one
python examples/replay.py runs/one expert
"""

import sys
from collections import Counter
from pathlib import Path

from rtcontrol import UserError
from rtcontrol.run.replay import read_recording, replay


def main(run: str, model: str = "expert") -> None:
    recorded = read_recording(Path(run))
    found, decisions = replay(recorded, model)
    then, now = found["recorded"], found["replayed"]
    print(f"{then['model']} then, {now['model']} now: {found['agreed']} of {found['compared']} calls are the same")
    compared = [tick for tick in decisions if tick["recorded"] is not None]
    total = Counter(tick["instruction"] for tick in compared)
    same = Counter(tick["instruction"] for tick in compared if tick["replayed"] == tick["recorded"])
    for instruction, count in total.items():
        print(f"  instructed {instruction!r}: {same[instruction]} of {count}")
    others = Counter(f"{tick['recorded']} then, {tick['replayed'] or tick['error']} now" for tick in found["differing"])
    for change, count in others.most_common(3):
        print(f"  {count:4} times {change}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("Give a run's folder, or its record.mcap, and a model: see the first lines of this file.")
    try:
        main(*sys.argv[1:3])
    except UserError as error:  # no record, or unknown model: print the problem and the hint
        sys.exit(f"{error}")
