"""A road with what the stand-in's town has not: lane sections, a lane that begins, a shoulder, a dead end."""

from __future__ import annotations

LENGTH_M = 300.0
SECOND_M = 150.0


def opendrive() -> str:
    """300 m to the east: two lanes, from 150 m on three, with a shoulder; one lane the other way; no way on."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<OpenDRIVE>
  <header revMajor="1" revMinor="4" name="country" version="1.00">
    <geoReference>+proj=tmerc +lat_0=0 +lon_0=0 +k=1 +x_0=0 +y_0=0 +datum=WGS84</geoReference>
  </header>
  <road name="country" length="{LENGTH_M}" id="7" junction="-1">
    <link/>
    <type s="0.0" type="rural"><speed max="60" unit="km/h"/></type>
    <planView><geometry s="0.0" x="0.0" y="0.0" hdg="0.0" length="{LENGTH_M}"><line/></geometry></planView>
    <elevationProfile><elevation s="0.0" a="0.0" b="0.0" c="0.0" d="0.0"/></elevationProfile>
    <lateralProfile/>
    <lanes>
      {_section(0.0, 2)}
      {_section(SECOND_M, 3)}
    </lanes>
  </road>
</OpenDRIVE>"""


def _section(s: float, lanes: int) -> str:
    other = "predecessor" if s else "successor"
    rights = "".join(_lane(-n, "driving", other if n <= 2 else None) for n in range(1, lanes + 1))
    return f"""<laneSection s="{s}">
        <left>{_lane(1, "driving", other)}</left>
        <center><lane id="0" type="none" level="false"/></center>
        <right>{rights}{_lane(-lanes - 1, "shoulder", None)}</right>
      </laneSection>"""


def _lane(number: int, kind: str, other: str | None) -> str:
    link = f'<{other} id="{number}"/>' if other else ""
    return (
        f'<lane id="{number}" type="{kind}" level="false"><link>{link}</link>'
        f'<width sOffset="0.0" a="3.5" b="0.0" c="0.0" d="0.0"/></lane>'
    )
