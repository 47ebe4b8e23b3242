"""The paged runner decides like the contiguous runner and Hugging Face, and counts and frees its pages."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtcontrol.models.call import Decision
from rtcontrol.models.decider import STDecider, decide_together
from rtcontrol.models.errors import UserError
from rtcontrol.models.runners.paged import PAGE, SCRATCH, ZEROS, PagedCache, PagedModel, PagePool
from rtcontrol.models.runners.torch_runner import PagedRunner
from rtcontrol.models.runners.weights import ModelConfig
from tests.models.small import Oracle, build, law, over, shown, tool
from tests.models.test_in_flight import PROMPTS, SESSION, assert_same, decided_alone

TOOLS = [tool("go", v=["left", "red", "alpha beta go"]), tool("say", text={"type": "string", "maxLength": 8})]


def runner_of(folder: Path, tokens: int | None = None) -> PagedRunner:
    """Return an unshared runner with a pool of this many tokens."""
    runner = PagedRunner(folder, torch.float32, torch.device("cpu"), 1)
    if tokens is not None:
        runner.model.pool = PagePool(runner.model.config, tokens, torch.float32, runner.model.device)
    return runner


def on_pages(decider: STDecider, runner: PagedRunner) -> STDecider:
    """Return the decider on a paged runner that plans passes by the same costs."""
    runner._costs = decider.runner._costs  # type: ignore[attr-defined]
    return over(decider, runner, decider.decoding.core.walker.budget)


@contextmanager
def poisoned(model: PagedModel, deciders: list[STDecider]) -> Iterator[None]:
    """Before each pass, set everything that no sequence has computed to NaN, in the pool and the input buffers, except
    the slot of zeros."""
    forward = model.forward

    def poison(*arguments: Any) -> Any:
        keep = {ZEROS}
        for handle in (decider.decoding.handle for decider in deciders):
            keep |= set(handle.cache.pool_slots(0, handle.computed + len(handle.paths)))
        bad = [slot for slot in range(model.pool.tensors[0].shape[1]) if slot not in keep]
        for values in model.pool.tensors:
            values[:, bad] = math.nan
        with torch.inference_mode():
            for compiled in model.passes.values():
                compiled._device_input.fill_(255)
        return forward(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", poison)
        yield


@law(8)
@given(sessions=st.lists(SESSION, min_size=2, max_size=6), data=st.data(), poison=st.booleans())
def test_paged_sessions_decide_like_each_alone(
    checkpoint: tuple[Path, Oracle], sessions: list[dict[str, Any]], data: st.DataObject, poison: bool
) -> None:
    """This mixes free values, steps and lengths, and sessions with the same prefix; masked memory has only zeros."""
    folder, _ = checkpoint
    runner = runner_of(folder, 1 << 14)
    model = runner.model
    sessions = [*sessions, sessions[0]]
    alone = [build(folder, **session) for session in sessions]
    together = [on_pages(build(folder, **session), runner) for session in sessions]
    for _ in range(2):
        situations = data.draw(st.lists(PROMPTS, min_size=len(sessions), max_size=len(sessions)))
        expected, close = decided_alone(alone, situations)
        with poisoned(model, together) if poison else warnings.catch_warnings():
            decisions = decide_together(list(zip(together, situations, strict=True)))
        if close:
            break
        for before, other in zip(expected, decisions, strict=True):
            assert_same(before, other)
    assert not any(values[:, ZEROS].any() for values in model.pool.tensors)
    del together
    assert model.pool.used_pages == 0


def test_sessions_with_the_same_prefix_share_pages_until_closed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path))
    runner, plain = runner_of(folder), build(folder, TOOLS)
    monkeypatch.setenv("RTCONTROL_CACHE", str(tmp_path / "other"))
    opened = [runner.open(prompt := plain.decoding._prefix)]
    pages = -(-len(prompt) // PAGE)
    assert (opened[0][1].source, runner.model.pool.used_pages) == ("computed", pages + (len(prompt) % PAGE == 0))
    opened += [runner.open(prompt) for _ in range(9)]
    assert {info.source for _, info in opened[1:]} == {"memory"}
    assert runner.model.pool.used_pages == pages + (len(prompt) % PAGE == 0)
    del opened
    assert runner.model.pool.used_pages == 0
    deciders = [on_pages(build(folder, TOOLS), runner) for _ in range(3)]
    assert [decider.prefix.source for decider in deciders] == ["disk", "memory", "memory"]
    for text in ("x=1", "x=2"):
        for decider in deciders:
            assert shown(decider.decide(text, "go left")) == shown(plain.decide(text, "go left"))
    deciders[0].decoding.handle.invalidate()
    assert deciders[0].decide("x=2", "go left").reused_tokens == 0
    assert deciders[1].decide("x=2", "go left").reused_tokens > deciders[1].prefix.tokens
    del deciders, decider
    assert runner.model.pool.used_pages == 0


def test_full_pool_fails_only_the_requesting_session(folder: Path) -> None:
    room = len(build(folder, TOOLS).decoding._prefix) + 700
    runner = runner_of(folder, room)
    deciders = [on_pages(build(folder, TOOLS), runner) for _ in range(2)]
    plain = build(folder, TOOLS)
    situation = ("x=1", "go left")
    short, long = decide_together([(deciders[0], (*situation, ())), (deciders[1], (" go" * 900, "go", ()))])
    assert isinstance(long, UserError) and "memory for prompts is full" in str(long)
    assert isinstance(short, Decision)
    assert short.call == plain.decide(*situation).call
    with pytest.raises(UserError, match="Close sessions"):
        for n in range(99):
            deciders.append(over(build(folder, [tool("go", v=["left", f"red {n}"])]), runner))
    assert deciders[0].decide(*situation).call == short.call
    assert deciders[1].decide(*situation).call == short.call
    del deciders[2:]
    deciders.append(over(build(folder, [tool("stop", v=["left", "red"])]), runner))


def test_opening_a_session_prepares_all_passes_of_its_ticks(folder: Path) -> None:
    runner = runner_of(folder)
    closed = [tool("go", v=["left", "red", "alpha beta go"], w=[1, 2, 20])]
    deciders = [over(build(folder, closed), runner) for _ in range(5)]
    ready = set(runner.model.passes)
    for i in range(4):
        decide_together([(decider, (f"x={i}", "go left", ())) for decider in deciders[: i + 2]])
        decide_together([(decider, (f"x={i}", "go left", ())) for decider in deciders])
        deciders[0].decide(f"x={i}{i}", "go left")
        if i == 0:  # the first decision of a prompt takes longer
            runner.model.missed.clear()
    assert not runner.model.missed
    deciders[0].decide("x=1 " * 120, "go left")
    assert runner.model.missed and set(runner.model.passes) == ready
    deciders.append(over(build(folder, closed), runner))
    assert not runner.model.missed and set(runner.model.passes) > ready


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: graphs are not recorded, and not measured")
def test_gpu_graph_replay_equals_separate_kernels(folder: Path) -> None:
    runner = PagedRunner.load(folder, "fp32", "cuda", 1)
    assert isinstance(runner, PagedRunner)
    model = runner.model
    plain = [build(folder, TOOLS, device="cpu") for _ in range(3)]
    deciders = [over(build(folder, TOOLS, device="cpu"), runner) for _ in range(3)]
    assert model.passes and all(compiled.graph is not None for compiled in model.passes.values())
    for i in range(4):
        situations = [(f"x={i}{j}", "go left", ()) for j in range(3)]
        expected = decide_together(list(zip(plain, situations, strict=True)))
        for graphs in (True, False):
            kept = dict(model.passes)
            if not graphs:
                model.passes.clear()
                for decider in deciders:
                    decider.decoding.handle.invalidate()
            for before, other in zip(
                expected, decide_together(list(zip(deciders, situations, strict=True))), strict=True
            ):
                assert isinstance(before, Decision) and isinstance(other, Decision)
                assert before.call == other.call
                assert before.confidence == pytest.approx(other.confidence, rel=1e-2, abs=1e-3)
            model.passes.update(kept)
    handle = deciders[0].decoding.handle
    handle.start([1, 2, 3, 4], 1)
    runner.prefill(handle, 4)
    assert torch.cuda.current_stream().query()  # the stream is idle when the time is measured


def test_sessions_in_two_threads_do_not_overwrite_passes(checkpoint: tuple[Path, Oracle]) -> None:
    folder, _ = checkpoint
    runner = runner_of(folder)
    other = [tool("stop", v=["right", "green red"]), tool("open", v=["left", "alpha beta stop", "red"])]
    sessions = [on_pages(build(folder, tools), runner) for tools in (TOOLS[:1], other)]
    situations = [(f"x {i}", f"go {i * 7 % 13}") for i in range(6)]
    expected = [[shown(session.decide(*situation)) for situation in situations] for session in sessions]
    wrong: list[Any] = []

    def decide(session: STDecider, calls: list[Any]) -> None:
        for _ in range(8):
            wrong.extend(
                1
                for situation, call in zip(situations, calls, strict=True)
                if shown(session.decide(*situation)) != call
            )

    threads = [Thread(target=decide, args=pair) for pair in zip(sessions, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# Pages are counted and freed, and no sequence writes to another's pages.


CPU = torch.device("cpu")
STEP = st.tuples(
    st.sampled_from(("open", "share", "write", "write", "cut", "drop")),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 3 * PAGE),
    st.integers(0, 2 * PAGE),
)
BEGUN = [("open", 0, 0, 0, 0)] * 3 + [("write", 0, 0, 0, 2 * PAGE + 3), ("share", 1, 0, 2 * PAGE + 1, 0)]


class Sequences:
    """Caches of a small pool, with the numbers that each cache wrote."""

    def __init__(self, config: ModelConfig, tokens: int) -> None:
        self.pool = PagePool(config, tokens, torch.float32, CPU)
        self.caches: list[PagedCache] = []
        self.wrote: list[list[int]] = []
        self.next = 1

    def step(self, action: str, i: int, j: int, first: int, more: int) -> None:
        if action == "open" or not self.caches:
            self.caches.append(PagedCache(self.pool, 1000))
            self.wrote.append([])
            return
        i, j = i % len(self.caches), j % len(self.caches)
        if action == "drop":
            del self.caches[i], self.wrote[i]
        elif action == "share" and i != j:
            count = min(first, len(self.wrote[j]))
            self.caches[i].copy_from(self.caches[j], count)
            self.wrote[i] = self.wrote[j][:count]
        elif action == "write":
            first = min(first, len(self.wrote[i]))
            self.caches[i].reserve(first, first + more)
            at = self.caches[i].pool_slots(first, first + more)
            new = list(range(self.next, self.next + more))
            for sign, values in zip((1.0, -1.0), self.pool.tensors, strict=True):
                values[:, at] = sign * torch.tensor(new, dtype=torch.float32)[None, :, None, None]
            self.wrote[i], self.next = self.wrote[i][:first] + new, self.next + more
        elif action == "cut":
            first = min(first, len(self.wrote[i]))
            self.caches[i].reserve(first, first + more, release_rest=True)
            assert len(self.caches[i].pages) == -(-(first + more) // PAGE)
            self.wrote[i] = self.wrote[i][:first]

    def check(self) -> None:
        held = [page for cache in self.caches for page in cache.pages]
        assert self.pool.used_pages == len(set(held))
        assert [held.count(page) for page in range(len(self.pool.ref_counts))] == self.pool.ref_counts
        assert 0 not in held
        for cache, wrote in zip(self.caches, self.wrote, strict=True):
            keys, values = cache.first_slots(len(wrote))
            assert keys[-1, 0, -1, :, -1].tolist() == wrote
            assert torch.equal(values, -keys)


@pytest.fixture(scope="module")
def config(folder: Path) -> ModelConfig:
    return ModelConfig.load(folder)


@law(150)
@given(steps=st.lists(STEP, min_size=3, max_size=40), pages=st.integers(3, 12))
def test_sequence_keeps_its_values_when_pages_are_shared(config: ModelConfig, steps: list[Any], pages: int) -> None:
    sequences = Sequences(config, pages * PAGE)
    for step in [*BEGUN, *steps]:
        before = [list(cache.pages) for cache in sequences.caches]
        try:
            sequences.step(*step)
        except UserError as full:
            assert "memory for prompts is full" in str(full)
            assert [list(cache.pages) for cache in sequences.caches] == before
        sequences.check()
    sequences.caches.clear()
    assert sequences.pool.used_pages == 0
    assert sequences.pool.allocate(pages) != []
    assert not any(values[:, [ZEROS, SCRATCH]].any() for values in sequences.pool.tensors)
