"""Let a slow agent supervise a fast loop: hover lower, then land once the lander is steady. The agent is a few rules; a
language model would call the same tools.

    rtcontrol run --env lander --hz 16 --episodes 3 --instruct "hover at 0.9" --view --set view.port=8090
    python examples/supervise.py http://127.0.0.1:8090
"""

import asyncio
import json
import os
import re
import sys

from mcp import Client, StdioServerParameters


async def main(url: str = "http://127.0.0.1:8090") -> None:
    command = ["-m", "rtcontrol", "mcp", "--connect", url, "--instruct"]
    server = StdioServerParameters(command=sys.executable, args=command, env={**os.environ})
    async with Client(server) as client:
        before = ""

        async def tool(name: str, **arguments: object) -> str:
            nonlocal before
            result = await client.call_tool(name, arguments)
            text = result.content[0].text
            shown = text if name != "status" else brief(json.loads(text))
            line = f"{name}({', '.join(map(repr, arguments.values()))}) -> {shown}"
            if line != before:
                print(line, flush=True)
            before = line
            return text

        async with asyncio.timeout(60):
            while json.loads(await tool("status")).get("phase") != "running":
                await asyncio.sleep(2)
        await tool("instruct", text="hover at 0.5")
        steady = 0
        async with asyncio.timeout(60):
            while steady < 4:  # checks, half a second apart
                await asyncio.sleep(0.5)
                seen = json.loads(await tool("status")).get("text") or ""
                speeds = [int(n) for n in re.findall(r"\bv[xy] (-?\d+)", seen)]
                steady = steady + 1 if speeds and max(map(abs, speeds)) <= 8 else 0
        before_landing = json.loads(await tool("status"))
        await tool("instruct", text="land on the pad")
        async with asyncio.timeout(60):
            while json.loads(await tool("status"))["episodes"] == before_landing["episodes"]:
                await asyncio.sleep(0.5)
        report = json.loads(await tool("status"))
        print("landed" if report["successes"] > before_landing["successes"] else "not landed")
        await tool("stop")


def brief(status: dict) -> str:
    names = ("why", "instruction", "text", "call", "state", "counts", "causes", "episodes", "successes")
    return json.dumps({name: status[name] for name in names if name in status})


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:2]))
    except* TimeoutError:
        sys.exit("The lander did not get this far within a minute: see the last status.")
