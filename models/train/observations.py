"""Learn what the observations of a training set have in common, to recognise unfamiliar observations later.

How often a check would fail for new rows is estimated from the training rows: each row is compared with all other rows
(leave-one-out). The share of rows with a value that no other row has estimates how often new rows will have a new value
(I. J. Good: The Population Frequencies of Species and the Estimation of Population Parameters, 1953). Checks are left
out so that at most the share MAX_FALSE_ALARMS of new rows would count as unfamiliar.
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
    number_form,
    read_tokens,
    scaled_number,
    span_texts,
)

MAX_FALSE_ALARMS = 0.01  # maximum share of rows like the training rows that may wrongly count as unfamiliar
SAMPLE = 4_096  # number of the newest rows that are held back to measure false alarms of all checks
MAX_ENTRIES = 500_000  # maximum number of stored values and token pairs; further rows are not counted
NEIGHBOURS = 16  # the density of rows at a gap is estimated from 16 values on each side
MARGIN = 4.0  # a gap counts as random if chance produces one of its size with probability e^-4 or more
END_ROWS = 3.0  # beyond the last value, this number of expected rows may be missing by chance
MIN_GRID = 6  # minimum number of values from which a common step is computed
MAX_SPARSE = 50  # gaps are reported only for fields with at most 50 different values
MIN_FOLLOWERS, MAX_SINGLES = 20, 0.02  # a check needs 20 token pairs; at most 2 % of them may be in only one row
Pairs = dict[tuple[str, str], None]
Check = tuple[str, str]  # (kind of check, its field or token)


class NumberField:
    """The numbers of one observation field, with the number of rows for each value and each form.

    A gap between two values counts as known if rows as dense as those around it could leave it by chance."""

    def __init__(self, rows: Counter[str]) -> None:
        """`rows` has the number of rows by the number's text."""
        self.forms: Counter[str] = Counter()
        self.decimals = 0
        for number, count in rows.items():
            form = number_form(number)
            self.forms[form] += count
            if form.isdigit():
                self.decimals = max(self.decimals, int(form.lstrip("0") or 0))
        self._counts: Counter[int] = Counter()
        for number, count in rows.items():
            self._counts[scaled_number(number, self.decimals)] += count
        self._values = sorted(self._counts)
        steps = (value - self._values[0] for value in self._values)
        self._step = math.gcd(*steps) if len(self._values) >= MIN_GRID else 1
        self._chance = math.log(rows.total()) + MARGIN

    def is_unknown_without_row(self, number: str) -> bool:
        """Return whether a row's number would be unknown if the row were not in the training set."""
        if self.forms[number_form(number)] == 1:
            return True
        value = scaled_number(number, self.decimals)
        if self._counts[value] > 1:
            return False
        i, last = bisect_left(self._values, value), len(self._values) - 1
        if 0 < i < last:
            return not self._is_random_gap(i - 1, i + 1)
        other = 1 if i == 0 else last - 1
        return last == 0 or abs(value - self._values[other]) > self._distance_beyond(other, -1 if i == 0 else 1)

    def known(self) -> KnownNumbers:
        """Return the known numbers of the field: forms, spans, step and decimals."""
        spans = [(self._values[0], self._values[0])]
        for i, value in enumerate(self._values[1:]):
            if self._is_random_gap(i, i + 1):
                spans[-1] = spans[-1][0], value
            else:
                spans.append((value, value))
        low, high = spans[0][0], spans[-1][1]
        first, last = low - self._distance_beyond(0, -1), high + self._distance_beyond(len(self._values) - 1, 1)
        # Do not extend a range to a sign that no row has.
        first = max(first, low % self._step) if low >= 0 else first
        last = min(last, -(-high % self._step)) if high <= 0 else last
        spans[0] = first, spans[0][1]
        spans[-1] = spans[-1][0], last
        step = span_texts([(self._step, self._step)], self.decimals)
        return KnownNumbers(tuple(sorted(self.forms)), span_texts(spans, self.decimals), step, self.decimals)

    def _is_random_gap(self, left: int, right: int) -> bool:
        """Return whether the gap between the values with indices `left` and `right` could be random."""
        missing = (self._values[right] - self._values[left]) // self._step - 1
        return missing * min(self._density(left, -1), self._density(right, 1)) <= (self._chance if missing else 0)

    def _distance_beyond(self, end: int, direction: int) -> int:
        """Return how far known numbers extend beyond the first or last value; 0 if more than END_ROWS rows have it.
        Fewer rows may be from a single episode, in which the value did not change."""
        if self._counts[self._values[end]] > END_ROWS:
            return 0
        return int(END_ROWS / self._density(end, -direction)) * self._step

    def _density(self, start: int, direction: int) -> float:
        """Return the density of rows among the next values in a direction, as rows per step. If the values are few and
        frequent, return the rows per value instead."""
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
        """Return the known numbers of each field that has few different values, with gaps between them."""
        few = {name: rows for name, rows in self._numbers.items() if len(rows) <= MAX_SPARSE}
        known = {name: NumberField(rows).known() for name, rows in few.items()}
        return {name: numbers for name, numbers in known.items() if numbers.gaps(1)}

    def known(self) -> KnownObservations:
        """Return what the observations have in common, without the checks that too many new rows would fail."""
        fields = {name: NumberField(rows) for name, rows in self._numbers.items()}
        dropped = self._dropped_checks(fields)
        closed = {token: " ".join(sorted(after)) for token, after in self._followers.items() if _is_closed_set(after)}
        return KnownObservations(
            {name: known.known() for name, known in fields.items() if ("number", name) not in dropped},
            {token: span for token, span in self._count_spans() if ("count", token) not in dropped},
            {token: after for token, after in closed.items() if ("follower", token) not in dropped},
        )

    def _count_spans(self) -> Iterator[tuple[str, str]]:
        """Yield each token that all rows have, and its range of counts as text (`2`, `2 to 4` or `2+`)."""
        for token, rows in self._tokens.items():
            low, high = min(rows), max(rows)
            if rows.total() == self.rows:
                span = f"{low} to {high}" if token == LENGTH else f"{low}+"
                yield token, str(low) if low == high else span

    def _dropped_checks(self, fields: dict[str, NumberField]) -> set[Check]:
        """Return the checks to leave out, so that at most the share MAX_FALSE_ALARMS of the rows fails a kept check."""
        limited = {token: self._tokens[token] for token, _ in self._count_spans()}
        failures = [set(self._failed_checks(text, fields, limited)) for text in self._sample]
        counts = Counter(check for failed in failures for check in failed)
        order = {check: rank for rank, (check, _) in enumerate(counts.most_common())}
        last = sorted((max(map(order.__getitem__, failed)) for failed in failures if failed), reverse=True)
        allowed = int(MAX_FALSE_ALARMS * len(self._sample))
        kept_from = last[allowed] + 1 if allowed < len(last) else 0
        return {check for check, rank in order.items() if rank < kept_from}

    def _failed_checks(
        self, text: str, fields: dict[str, NumberField], limited: dict[str, Counter[int]]
    ) -> Iterator[Check]:
        """Yield the checks that a row's observation would fail if the row were not in the training set."""
        counts, pairs, numbers = _features(text)
        for token, rows in limited.items():
            count = counts[token]
            if rows[count] == 1 and (count == min(rows) or (token == LENGTH and count == max(rows))):
                yield "count", token
        for before, token in pairs:
            followers = self._followers[before]
            if followers[token] == 1 and _is_closed_set(followers):
                yield "follower", before
        yield from (("number", name) for name, number in numbers if fields[name].is_unknown_without_row(number))


def _is_closed_set(followers: Counter[str]) -> bool:
    """Return whether the tokens after a token are a small known set: few of these pairs occur in only one row."""
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
