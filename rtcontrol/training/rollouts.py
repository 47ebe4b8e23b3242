"""Episodes of a world of one's own, played before anything is learnt there and after: what that shows, in words."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from rtcontrol.envs.evaluate import Case, Played, Seat, play
from rtcontrol.models.call import Call
from rtcontrol.models.errors import UserError
from rtcontrol.models.train.rows import Row
from rtcontrol.run.skills import UserSkill
from rtcontrol.training.dataset import HeldOut, Share

PLAYED_FROM = 3_000_000  # seeds
TRIED = 16  # episodes by the expert, before anything is learnt
TOGETHER = 16
NAMED = 8  # goals, and ways to say one, that a sentence lists
EPISODES = 48  # played for the card, told canonically, and told in ways that were held out
TOLD_S = 10.0  # between two lines of how far it is
DIFFERING = 4  # of the failed episodes' calls that the expert would not have made, told


def tried(skill: UserSkill, hz: float) -> tuple[str, ...]:
    """The expert and nobody play a little before anything is learnt: what that notices. Raises UserError for a world
    that does not end."""
    told = _cases(skill, TRIED)
    play(skill, lambda seats: [skill.still] * len(seats), told[: len(skill.kinds)], hz)
    done = [one for one in play(skill, partial(_expert, skill), told, hz) if one.episode.success is not None]
    share = Share(sum(bool(one.episode.success) for one in done), len(done))
    failed = next((one.case for one in done if not one.episode.success), None)
    if failed is None:
        return ()
    return (
        f"The expert itself succeeds in {share.right} of {share.count} episodes at {hz:g} Hz (not in seed "
        f'{failed.seed}, told "{failed.instruction}"): a model learns no better.',
    )


def played(
    skill: UserSkill, hz: float, seconds: float, answers: HeldOut, say: Callable[[str], object] = lambda told: None
) -> tuple[Mapping[str, Share], tuple[str, ...]]:
    """How many episodes succeed, of seeds that training never had: told canonically, in ways that training never had,
    and the expert beside it; at most EPISODES each, and about so many seconds in all; nothing of a world that judges
    nothing. What has a word that was never taught is left undone, as in a flight. Then, in sentences, which goals
    failed and where the model left the expert's way there, and the ways to say a goal that failed. `say` is told how
    far it is."""
    plain = _cases(skill, EPISODES)
    kept = [pair for kind in skill.kinds for pair in skill.phrasings["unseen"](kind)]
    unseen = [Case(*kept[i % len(kept)], PLAYED_FROM + i) for i in range(EPISODES if kept else 0)]
    history = skill.agent.history

    def model(seats: Sequence[Seat]) -> list[Call | None]:
        heard = [i for i, seat in enumerate(seats) if not skill.all_goals.unknown(seat.case.instruction)]
        asked = [(seats[i].case.instruction, seats[i].seen, seats[i].called) for i in heard]
        rows = [Row(told, seen, None, tuple(called[-history:]) if history else ()) for told, seen, called in asked]
        calls: list[Call | None] = [None] * len(seats)
        for i, answer in zip(heard, answers.answers(rows) if rows else (), strict=True):
            calls[i] = answer if isinstance(answer, Call) else None
        return calls

    def compared(seats: Sequence[Seat]) -> list[Call | None]:
        calls = model(seats)
        for seat, call in zip(seats, calls, strict=True):
            try:
                (right,) = _expert(skill, [seat])
            except UserError:  # where only the model comes to: what was learnt is not to be lost for that
                continue
            assert right is not None, "an expert without a call is an error"
            stays = call is None and seat.called[-1:] == [right.text()]
            if not stays and answers.key(call) != answers.key(right):
                seat.kept.setdefault("differing", []).append((seat.seen, call, right))
        return calls

    told = {"told canonically": (plain, compared), "told in ways kept from training": (unseen, model)}
    found, notes = {}, []
    began = told_s = time.monotonic()
    parts = told | {"by the expert": (plain, partial(_expert, skill))}
    flown, all_cases = 0, sum(len(cases) for cases, _ in parts.values())
    for name, (cases, decide) in parts.items():
        ended: list[Played] = []
        started = time.monotonic()
        while (left := cases[len(ended) :]) and (not ended or time.monotonic() - started < seconds / len(told)):
            ended += play(skill, decide, left[:TOGETHER], hz)
            now, flown = time.monotonic(), flown + len(left[:TOGETHER])
            if now - told_s >= TOLD_S:
                told_s = now
                most_s = (now - began) / flown * (all_cases - flown)
                say(f"{flown} of {all_cases} episodes in {now - began:.0f} s, at most about {most_s:.0f} s left.")
        ended = [one for one in ended if one.episode.success is not None]
        failed = [one for one in ended if not one.episode.success]
        if ended:
            found[name] = Share(len(ended) - len(failed), len(ended))
        if failed and decide is compared:
            notes.append(_left_the_way(failed, ended))
        if failed and cases is unseen:
            notes.append(_unheard_of(skill, list(dict.fromkeys(one.case.instruction for one in failed))))
    return found, tuple(notes)


def _left_the_way(failed: Sequence[Played], ended: Sequence[Played]) -> str:
    """Which goals failed, and the calls of those episodes that the expert would not have made."""
    goals = Counter(one.case.goal.kind for one in ended)  # type: ignore[attr-defined]
    lost = Counter(one.case.goal.kind for one in failed)  # type: ignore[attr-defined]
    kinds = ", ".join(f'"{kind}" {count} of {goals[kind]}' for kind, count in lost.most_common(NAMED))
    differing: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for one in failed:
        for seen, call, right in one.kept.get("differing", ()):
            key = (one.case.goal.kind, _text(call), _text(right))  # type: ignore[attr-defined]
            differing.setdefault(key, []).append((one.case.instruction, seen))
    calls = []
    for key in sorted(differing, key=lambda key: -len(differing[key]))[:DIFFERING]:
        (told, seen), count = differing[key][0], len(differing[key])
        calls.append(
            f'it calls {key[1]} where {key[2]} is right ({count} decisions, the first told "{told}", seeing "{seen}")'
        )
    also = "; ".join(calls) or "it always called what is right"
    return f"Episodes that failed, told canonically: {kinds}. In these {also}."


def _unheard_of(skill: UserSkill, missed: Sequence[str]) -> str:
    unknown = {said: ", ".join(skill.all_goals.unknown(said)) for said in missed}
    shown = sorted(missed, key=lambda said: not unknown[said])[:NAMED]
    listed = ", ".join(f'"{said}"' + (f" ({unknown[said]})" if unknown[said] else "") for said in shown)
    more = f", and {len(missed) - NAMED} more" if len(missed) > NAMED else ""
    told = f"Of the ways kept from training, these failed in an episode: {listed}{more}."
    if any(unknown.values()):
        told += (
            " The words in brackets stand in no way that is trained, and what has such a word is held: write more ways "
            "with them into the goals, and fit it anew."
        )
    if not all(unknown.values()):
        told += " What has known words alone wants more time, or more ways of its kind."
    return told


def _cases(skill: UserSkill, count: int) -> list[Case]:
    goals = [skill.goals[i % len(skill.goals)] for i in range(count)]
    return [Case(goal.text(), goal, PLAYED_FROM + i) for i, goal in enumerate(goals)]


def _expert(skill: UserSkill, seats: Sequence[Seat]) -> list[Call | None]:
    return [skill.expert(skill.read_back(seat.seen), seat.case.goal) for seat in seats]


def _text(call: Call | None) -> str:
    return "nothing" if call is None else call.text()
