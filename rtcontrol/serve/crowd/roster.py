"""Who is in a crowd: members come in, go, and see; what is wrong with one is that one's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rtcontrol.envs.remote_parts import RemoteData
from rtcontrol.loop.requests import echo
from rtcontrol.serve.crowd.member import CrowdDefaults, CrowdMember, MemberSight
from rtcontrol_client.wire import Code, WireError
from rtcontrol_client.wire.crowd import Join, Leave, Member, MemberLook, ObserveMany, PartFault

SHOWN = 64  # refused parts of a message are told


class Roster:
    """At most `limit` members. From the crowd's thread."""

    def __init__(self, defaults: CrowdDefaults, limit: int) -> None:
        self.defaults, self.limit = defaults, limit
        self.members: dict[str, CrowdMember] = {}
        self.looks = 0
        self._serials = itertools.count(1)

    def join(self, message: Join, faults: list[PartFault]) -> list[CrowdMember]:
        """Whose terms are new; `faults` takes what is refused."""
        joined = []
        for part in message.members:
            try:
                joined.append(self._join(part))
            except WireError as error:
                faults.append(PartFault(part.id, None, error))
        return joined

    def _join(self, part: Member) -> CrowdMember:
        terms, there = self.defaults.of(part), self.members.get(part.id)
        if there is not None and part.epoch < there.epoch:
            what = f"epoch {part.epoch} of {echo(part.id)!r} is over: it is in epoch {there.epoch}."
            raise WireError(Code.EPOCH, what, "Count the lives of a member up.", field="epoch")
        if there is not None and part.epoch == there.epoch:
            there.terms, there.stretch = terms, 1
            return there
        if there is None and len(self.members) >= self.limit:
            what = f"The crowd has {self.limit} members, as many as it may."
            raise WireError(Code.BUSY, what, "Let another one leave first.", field="id", retryable=True)
        made = CrowdMember(part.id, part.epoch, terms, next(self._serials), self.defaults.agent.history)
        self.members[part.id] = made
        return made

    def leave(self, message: Leave) -> Iterator[CrowdMember]:
        """Those that are gone now."""
        for name in message.ids:
            if (gone := self.members.pop(name, None)) is not None:
                yield gone

    def observe(self, message: ObserveMany, now_ns: int, faults: list[PartFault]) -> list[CrowdMember]:
        """Who saw something; `faults` takes what is refused."""
        seen = []
        for part in message.looks:
            try:
                seen.append(self._observe(part, now_ns))
            except WireError as error:
                faults.append(PartFault(part.id, part.seq, error))
        return seen

    def _observe(self, part: MemberLook, now_ns: int) -> CrowdMember:
        member = self.members.get(part.id)
        if member is None:
            what = f"There is no member {echo(part.id)!r}."
            raise WireError(Code.STATE, what, "Let it join first.", field="id", retryable=True)
        if part.seq <= member.seq:
            what = f"seq {part.seq} does not grow: the last was {member.seq}."
            raise WireError(Code.SEQUENCE, what, "Count up by one with every look of the member.", field="seq")
        if part.text is None and part.data is None:
            raise WireError(Code.INVALID, "The look shows nothing.", "Give text or data.", field="text")
        data = RemoteData.of(part.data, part.text)
        try:
            text = self.defaults.agent.observe(data)
        except Exception as error:
            what = f"The agent cannot read it ({type(error).__name__}: {error})."
            remedy = "Send the fields of `data` that the agent reads, or `text`."
            raise WireError(Code.INVALID, " ".join(what.split())[:300], remedy, field="data") from None
        self.looks += 1
        member.superseded += not member.taken
        member.seq, member.taken = part.seq, False
        member.look = MemberSight(part.seq, part.t_ns, now_ns, text, data)
        return member


def refusal_of_parts(message: Join | ObserveMany, faults: list[PartFault]) -> WireError | None:
    """The parts that came to nothing, as their sender is told."""
    every = [*message.faults, *faults]
    if not every:
        return None
    kinds = {fault.error.code for fault in every}
    what = f"{len(every)} part(s) of {message.type} were refused; the others were taken."
    more = "" if len(every) <= SHOWN else f" The first {SHOWN} of them."
    code = kinds.pop() if len(kinds) == 1 else Code.INVALID
    return WireError(
        code, what, f"`members` says why.{more}", members=[fault.message_part() for fault in every[:SHOWN]]
    )
