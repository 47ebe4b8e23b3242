"""Random valid messages, for hypothesis."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from rtcontrol.bridges.wire.messages import (
    DTYPES,
    Array,
    Bye,
    CallMessage,
    ErrorMessage,
    Executed,
    FunctionCall,
    Hello,
    Instruct,
    Observe,
    Outcome,
    Ping,
    Pong,
    Program,
    Reset,
    Timing,
    Welcome,
)

# Surrogates have no UTF-8; every other character must pass.
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=64)
tokens = st.text("abcXYZ019_-", min_size=16, max_size=128)
counts = st.integers(0, (1 << 53) - 1)
instants = st.integers(0, (1 << 63) - 1)
milliseconds = st.floats(0, 1e9)
finite = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | finite | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
maps = st.dictionaries(texts, values, max_size=4)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


calls = st.builds(FunctionCall, name=names, arguments=maps)
safe_calls = maybe(st.lists(calls, min_size=1, max_size=3))
programs = st.builds(Program, name=names, version=texts, language=texts)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    dtype = draw(st.sampled_from(sorted(DTYPES)))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    size = math.prod(shape) * DTYPES[dtype]
    return Array.model_validate(
        {"name": draw(names), "dtype": dtype, "shape": shape, "data": draw(st.binary(min_size=size, max_size=size))}
    )


pacing = st.sampled_from(["server", "client"])
hertz = st.floats(0.001, 10_000)
hello = st.builds(
    Hello,
    protocol=st.tuples(st.just(1), counts).map(list),
    client=programs,
    t_client_ns=instants,
    capabilities=st.lists(names, max_size=3),
    agent=maybe(texts),
    tools=maybe(st.lists(maps, min_size=1, max_size=3)),
    instruction=maybe(texts),
    model=maybe(texts),
    safe_call=maybe(calls),
    safe_calls=safe_calls,
    pacing=pacing,
    hz=maybe(hertz),
    deadline_ms=maybe(milliseconds),
    ttl_ms=maybe(milliseconds),
    max_age_ms=maybe(milliseconds),
    on_miss=maybe(st.sampled_from(["hold", "safe"])),
    hold_ms=maybe(milliseconds),
    robot=maybe(names),
    resume=maybe(tokens),
)
welcome = st.builds(
    Welcome,
    protocol=st.just([1, 0]),
    server=programs,
    session=tokens,
    resumed=st.booleans(),
    epoch=counts,
    t_client_ns=instants,
    t_server_ns=instants,
    capabilities=st.lists(names, max_size=3),
    agent=maybe(texts),
    tools=st.lists(maps, max_size=3),
    instruction=texts,
    model=texts,
    model_trained_on_tools=st.booleans(),
    safe_call=maybe(calls),
    safe_calls=safe_calls,
    trained=maybe(st.booleans()),
    release_ns=maybe(instants),
    pacing=pacing,
    hz=hertz,
    period_ms=milliseconds,
    deadline_ms=milliseconds,
    ttl_ms=milliseconds,
    max_age_ms=milliseconds,
    on_miss=st.sampled_from(["hold", "safe"]),
    hold_ms=milliseconds,
    heartbeat_ms=milliseconds,
    session_grace_s=st.floats(0, 1e9),
    limits=st.dictionaries(names, counts, max_size=3),
    warnings=st.lists(texts, max_size=3),
)
head = {"session": tokens, "epoch": counts}
observe = st.builds(
    Observe, **head, seq=counts, t_ns=instants, text=texts, data=maybe(maps), arrays=st.lists(arrays(), max_size=3)
)
call = st.builds(
    CallMessage,
    **head,
    tick=counts,
    seq_obs=maybe(counts),
    t_obs_ns=maybe(instants),
    status=st.sampled_from(["fresh", "held", "safe"]),
    call=maybe(calls),
    calls=safe_calls,
    release_ns=maybe(instants),
    ttl_ms=milliseconds,
    deadline_ns=instants,
    t_server_ns=instants,
    confidence=maybe(st.floats(0, 1)),
    cause=maybe(texts),
    timing=st.builds(Timing, age_ms=maybe(milliseconds), decide_ms=maybe(milliseconds), late_ms=maybe(milliseconds)),
)
executed = st.builds(
    Executed,
    **head,
    tick=counts,
    outcome=st.sampled_from(["executed", "expired", "failed", "refused"]),
    t_ns=instants,
    result=maybe(texts),
    error=maybe(texts),
)
outcome = st.builds(
    Outcome,
    seed=st.integers(-(1 << 63), (1 << 63) - 1),
    ret=finite,
    success=maybe(st.booleans()),
    seconds=st.floats(0, 1e9),
)
error = st.builds(
    ErrorMessage,
    code=texts,
    message=texts,
    remedy=texts,
    field=maybe(texts),
    seq=maybe(counts),
    t_client_ns=maybe(instants),
    retryable=st.booleans(),
    fatal=st.booleans(),
    dropped=counts,
)
messages = st.one_of(
    hello,
    welcome,
    observe,
    call,
    executed,
    st.builds(Instruct, session=tokens, instruction=texts),
    st.builds(Reset, **head, ended=maybe(outcome)),
    st.builds(Ping, id=counts, t_ns=instants),
    st.builds(Pong, id=counts, t_ping_ns=instants, t_received_ns=instants, t_sent_ns=instants),
    error,
    st.builds(Bye, session=maybe(tokens), reason=texts),
)
