"""The call in force of a session of the Python API, for hysteresis: who asks executes what it is given."""

from __future__ import annotations

from rtcontrol.models.call import Call, Decision, Preferred, StandingCall


class GivenCall:
    """What a session gave last, by the instruction that it was decided by."""

    def __init__(self) -> None:
        self._instruction = ""
        self._call: Call | None = None
        self._preferred: Preferred = {}

    def standing(self, instruction: str) -> StandingCall | None:
        """For a decision by this instruction: by another one nothing is in force."""
        if instruction != self._instruction:
            self.forget()
            self._instruction = instruction
        return None if self._call is None else StandingCall(self._call, self._preferred)

    def given(self, decision: Decision | None, held: bool, safe_call: Call | None) -> None:
        """What was decided (None: nothing in time), and whether it was held: then the safe call is in force, where
        there is one."""
        if (decision is None or held) and safe_call is not None:
            self.forget()
            return
        if decision is None:
            return
        self._preferred = {} if decision.steadied is None else decision.steadied.preferred
        if not held and decision.call is not None:
            self._call = decision.call

    def forget(self) -> None:
        """Nothing is in force."""
        self._call, self._preferred = None, {}
