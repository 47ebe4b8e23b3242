"""Learn what the observations of a training set have in common, so that others can be recognised as unfamiliar.

How strict each check is follows from the rows themselves: a row is compared with all other rows (leave-one-out). The
share of rows with a value that no other row has estimates how often new rows will have a new value (I. J. Good: The
Population Frequencies of Species and the Estimation of Population Parameters, 1953). Checks that would hold more than
the share SPARED of such rows are left out.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator

from rtcontrol.models.checkpoint.observations import (
    END,
    LENGTH,
    START,
    KnownNumbers,
    KnownObservations,
    form_of,
    read_tokens,
    scaled,
    span_texts,
)

SPARED = 0.01  # maximum share of rows like those in training that may count as unfamiliar
SAMPLE = 4_096  # the newest rows, on which all checks together are tried
MAX_ENTRIES = 500_000  # different values and pairs of tokens; rows after that are not counted
NEIGHBOURS = 16  # values on each side of a hole that show how dense the rows are there
MARGIN = 4.0  # a hole may lack e^-4 as many rows as the largest hole that chance leaves
END_ROWS = 3.0  # rows that may be missing beyond the last value
MIN_GRID = 6  # values that show the step between values
MAX_SPARSE = 50  # maximum number of different values of a field whose gaps are named
MIN_FOLLOWERS, MAX_SINGLES = 20, 0.02  # pairs of tokens that a check needs, and the share that only one row has
Pairs = dict[tuple[str, str], None]
Check = tuple[str, str]  # a kind of check, and its field or token


class NumberField:
    """The numbers of a field: the number of rows of each value and each form.

    A hole between two values is closed if rows as dense as those around it could leave it by chance."""

    def __init__(self, rows: Counter[str]) -> None:
        """`rows` counts the rows of each number."""
        self.forms: Counter[str] = Counter()
        self.decimals = 0
        for number, count in rows.items():
            form = form_of(number)
            self.forms[form] += count
            if form.isdigit():
                self.decimals = max(self.decimals, int(form.lstrip("0") or 0))
        self._counts: Counter[int] = Counter()
        for number, count in rows.items():
            self._counts[scaled(number, self.decimals)] += count
        self._values = sorted(self._counts)
        steps = (value - self._values[0] for value in self._values)
        self._step = math.gcd(*steps) if len(self._values) >= MIN_GRID else 1
        self._chance = math.log(rows.total()) + MARGIN

    def is_unknown_elsewhere(self, number: str) -> bool:
        """Return whether a number of a row would be unknown without this row."""
        if self.forms[form_of(number)] == 1:
            return True
        value = scaled(number, self.decimals)
        if self._counts[value] > 1:
            return False
        i, last = bisect_left(self._values, value), len(self._values) - 1
        if 0 < i < last:
            return not self._is_closed(i - 1, i + 1)
        other = 1 if i == 0 else last - 1
        return last == 0 or abs(value - self._values[other]) > self._reach(other, -1 if i == 0 else 1)

    def known(self) -> KnownNumbers:
        """Return the known numbers."""
        spans = [(self._values[0], self._values[0])]
        for i, value in enumerate(self._values[1:]):
            if self._is_closed(i, i + 1):
                spans[-1] = spans[-1][0], value
            else:
                spans.append((value, value))
        low, high = spans[0][0], spans[-1][1]
        first, last = low - self._reach(0, -1), high + self._reach(len(self._values) - 1, 1)
        # A sign that no row has stays unknown.
        first = max(first, low % self._step) if low >= 0 else first
        last = min(last, -(-high % self._step)) if high <= 0 else last
        spans[0] = first, spans[0][1]
        spans[-1] = spans[-1][0], last
        step = span_texts([(self._step, self._step)], self.decimals)
        return KnownNumbers(tuple(sorted(self.forms)), span_texts(spans, self.decimals), step, self.decimals)

    def _is_closed(self, left: int, right: int) -> bool:
        """Return whether the hole between two values is closed."""
        missing = (self._values[right] - self._values[left]) // self._step - 1
        return missing * min(self._density(left, -1), self._density(right, 1)) <= (self._chance if missing else 0)

    def _reach(self, end: int, direction: int) -> int:
        """Return how far known numbers extend beyond the last value: not at all if many rows have that value. A few
        rows may be of one episode, in which the value stayed the same."""
        if self._counts[self._values[end]] > END_ROWS:
            return 0
        return int(END_ROWS / self._density(end, -direction)) * self._step

    def _density(self, start: int, direction: int) -> float:
        """Return the rows per step among the next values in a direction. If these are few values that many rows have,
        return the rows per value."""
        end = min(max(start + direction * (NEIGHBOURS - 1), 0), len(self._values) - 1)
        near = self._values[min(start, end) : max(start, end) + 1]
        rows = sum(self._counts[value] for value in near)
        density = rows * self._step / (near[-1] - near[0] + self._step)
        rows_per_value = rows / len(near)
        return rows_per_value if rows_per_value > -2 * density / math.expm1(-density) else density


class ObservationCounts:
    """Counts of numbers, words and their order in the observations of training rows."""

    def __init__(self) -> None:
        self.rows = 0
        self._numbers: dict[str, Counter[str]] = defaultdict(Counter)
        self._tokens: dict[str, Counter[int]] = defaultdict(Counter)
        self._followers: dict[str, Counter[str]] = defaultdict(Counter)
        self._sample: deque[str] = deque(maxlen=SAMPLE)
        self._entries = 0

    def add(self, text: str) -> None:
        """Count the observation of a row."""
        if self._entries > MAX_ENTRIES:
            return
        self.rows += 1
        self._sample.append(text)
        counts, pairs, numbers = _features(text)
        for token, count in counts.items():
            self._tokens[token][count] += 1
        for before, token in pairs:
            followers = self._followers[before]
            followers[token] += 1
            self._entries += followers[token] == 1
        for name, number in numbers:
            self._numbers[name][number] += 1
            self._entries += self._numbers[name][number] == 1

    def sparse_numbers(self) -> dict[str, KnownNumbers]:
        """Return the numbers of fields with few values, which leave out numbers between them."""
        few = {name: rows for name, rows in self._numbers.items() if len(rows) <= MAX_SPARSE}
        known = {name: NumberField(rows).known() for name, rows in few.items()}
        return {name: numbers for name, numbers in known.items() if numbers.gaps(1)}

    def known(self) -> KnownObservations:
        """Return what the observations have in common, without the checks that too many of them would fail."""
        fields = {name: NumberField(rows) for name, rows in self._numbers.items()}
        dropped = self._dropped_checks(fields)
        closed = {token: " ".join(sorted(after)) for token, after in self._followers.items() if _is_closed(after)}
        return KnownObservations(
            {name: known.known() for name, known in fields.items() if ("number", name) not in dropped},
            {token: span for token, span in self._count_spans() if ("count", token) not in dropped},
            {token: after for token, after in closed.items() if ("follower", token) not in dropped},
        )

    def _count_spans(self) -> Iterator[tuple[str, str]]:
        """Yield the tokens that all rows have, with their counts. Only a constant count and LENGTH have a maximum."""
        for token, rows in self._tokens.items():
            low, high = min(rows), max(rows)
            if rows.total() == self.rows:
                span = f"{low} to {high}" if token == LENGTH else f"{low}+"
                yield token, str(low) if low == high else span

    def _dropped_checks(self, fields: dict[str, NumberField]) -> set[Check]:
        """Return the checks to leave out, so that at most the share SPARED of the rows fails one of the others."""
        limited = {token: self._tokens[token] for token, _ in self._count_spans()}
        failures = [set(self._failed_checks(text, fields, limited)) for text in self._sample]
        counts = Counter(check for failed in failures for check in failed)
        order = {check: rank for rank, (check, _) in enumerate(counts.most_common())}
        last = sorted((max(map(order.__getitem__, failed)) for failed in failures if failed), reverse=True)
        allowed = int(SPARED * len(self._sample))
        kept_from = last[allowed] + 1 if allowed < len(last) else 0
        return {check for check, rank in order.items() if rank < kept_from}

    def _failed_checks(
        self, text: str, fields: dict[str, NumberField], limited: dict[str, Counter[int]]
    ) -> Iterator[Check]:
        """Yield the checks that a row would fail if it were not among the rows."""
        counts, pairs, numbers = _features(text)
        for token, rows in limited.items():
            count = counts[token]
            if rows[count] == 1 and (count == min(rows) or (token == LENGTH and count == max(rows))):
                yield "count", token
        for before, token in pairs:
            followers = self._followers[before]
            if followers[token] == 1 and _is_closed(followers):
                yield "follower", before
        yield from (("number", name) for name, number in numbers if fields[name].is_unknown_elsewhere(number))


def _is_closed(followers: Counter[str]) -> bool:
    """Return whether a token is always followed by one of a few tokens, each of which many rows have."""
    singles = sum(count == 1 for count in followers.values())
    return followers.total() >= MIN_FOLLOWERS and singles <= MAX_SINGLES * followers.total()


def _features(text: str) -> tuple[Counter[str], Pairs, Pairs]:
    """Return the counts of tokens, the pairs of neighbouring tokens, and the numbers with their fields."""
    tokens = [*read_tokens(text)]
    names = [START, *(token for token, _ in tokens), END]
    counts = Counter(names[1:-1])
    counts[LENGTH] = len(tokens)
    numbers = dict.fromkeys((token, match[0]) for token, match in tokens if match.lastindex == 1)
    return counts, dict.fromkeys(itertools.pairwise(names)), numbers
