"""Summarise a run from its record, an MCAP file with JSON that the `mcap` package and Foxglove can read.

rtcontrol run --env lander --duration 10 --no-live --out runs/one
python examples/read_record.py runs/one/record.mcap
"""

import json
import sys
from collections import Counter
from pathlib import Path

from mcap.reader import make_reader


def main(record: str) -> None:
    ticks, calls, causes = 0, Counter(), Counter()
    with Path(record).open("rb") as file:
        for _, _, message in make_reader(file).iter_messages(topics=["/tick"]):
            tick = json.loads(message.data)
            ticks += 1
            calls[tick.get("call", tick["kind"])] += 1
            causes[tick.get("cause", "on time")] += 1
    print(f"{ticks} ticks: {dict(causes)}")
    for call, count in calls.most_common(5):
        print(f"{count:6} {call}")


if __name__ == "__main__":
    main(sys.argv[1])
