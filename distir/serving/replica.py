"""A replica of a model, which batches requests continuously, step by step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from distir.serving.requests import TokenRequest
from distir.serving.step_times import StepTimes, causal_pairs

Admission = Literal["preempt", "reserve"]


@dataclass(frozen=True)
class ReplicaLimits:
    """
    The limits of a replica.

    - `cache_tokens`: the largest number of tokens whose keys and values fit into the
      replica's cache;
    - `max_sequences`: the largest number of sequences in progress at a time;
    - `batched_tokens`: the largest number of tokens in a step; longer prompts are read
      in chunks;
    - `lanes`: the number of steps in progress at a time, one for each pipeline stage;
    - `window`, `window_share`: the share `window_share` of the layers attends to, and
      keeps, at most `window` tokens of a sequence. Further tokens take room only in the
      remaining layers;
    - `page`: the number of tokens in a page. In layers without a window, a sequence
      takes whole pages;
    - `admission`: `preempt` admits a request as soon as its prompt fits. If the cache
      is full later, the most recently admitted request is preempted and computed again.
      `reserve` admits a request only when all of its tokens will fit.
    """

    cache_tokens: int
    max_sequences: int
    batched_tokens: int
    lanes: int = 1
    admission: Admission = "preempt"
    window: int = 0
    window_share: float = 0.0
    page: int = 1

    def room(self, tokens: int) -> float:
        """
        Returns the room that a sequence of `tokens` tokens takes in the cache,
        including the rest of its last page. The unit is the room of one token in all
        layers.
        """
        whole = -(-tokens // self.page) * self.page
        if not self.window_share:
            return whole
        return whole - self.window_share * (whole - min(tokens, self.window))

    @property
    def is_even(self) -> bool:
        """Whether each token of a sequence takes as much room as any other."""
        return self.page == 1 and not self.window_share

    def pairs(self, start: int, count: int) -> float:
        """
        Returns the number of pairs of a token and a token that it attends to, averaged
        over the layers. Counts the pairs of `count` tokens that follow the first
        `start` tokens of a sequence.
        """
        every = causal_pairs(start, count)
        if not self.window_share:
            return every
        inside = min(max(self.window - start, 0), count)
        within = causal_pairs(start, inside) + (count - inside) * self.window
        return every - self.window_share * (every - within)


@dataclass
class Progress:
    """
    The state of a request in a replica.

    - `index`, `request`: the request and its index;
    - `length`: the number of the sequence's tokens for which the cache has room;
    - `to_read`: the number of these tokens that must be read before the request can
      generate;
    - `left`: the number of tokens to generate, as of the moment when the request began
      to decode;
    - `first_s`, `end_s`: the seconds at which the first token was generated and at which
      the request ended, or -1 before these events.
    """

    index: int
    request: TokenRequest
    length: int
    to_read: int
    left: int
    first_s: float = -1.0
    end_s: float = -1.0
    done_round: int = -1
    """
    The round of its lane in which it gets its last token, while it decodes; else -1.
    """


@dataclass
class Lane:
    """
    The sequences that go through the steps of a replica together. There is one lane for
    each stage of a pipeline. A round is one token for each decoding sequence.

    - `decoding`: the sequences that get a token in each round, in order of admission;
    - `context`: the total number of tokens in the caches of these sequences;
    - `ends`: the sequences that finish, by round;
    - `reading`: admitted sequences whose prompts have not been read completely;
    - `chunks`: the parts of prompts in the step in progress: each a sequence and a
      number of tokens.
    """

    decoding: dict[int, Progress] = field(default_factory=dict[int, Progress])
    reading: deque[Progress] = field(default_factory=deque[Progress])
    ends: dict[int, list[Progress]] = field(default_factory=dict[int, list[Progress]])
    chunks: list[tuple[Progress, int]] = field(
        default_factory=list[tuple[Progress, int]]
    )
    context: int = 0
    round: int = 0
    counted: int = 0
    """The number of sequences that get a token from each of the steps in progress."""
    rounds: int = 1
    """The number of steps in progress; above 1 if nothing can happen between them."""
    is_busy: bool = False

    @property
    def sequences(self) -> int:
        """The number of sequences in progress."""
        return len(self.decoding) + len(self.reading)


class Replica:
    """
    A replica that serves requests. The caller keeps the clock: it calls `push` to add a
    request, `begin` to begin a step of a lane, and `finish` to end the step and get the
    finished requests.
    """

    def __init__(self, times: StepTimes, limits: ReplicaLimits):
        self.times, self.limits = times, limits
        self.lanes = [Lane() for _ in range(limits.lanes)]
        self.waiting: deque[Progress] = deque()
        self.used: float = 0
        """
        The room of the tokens in the cache, including those that prompts being read will
        take.
        """
        self.promised: float = 0
        """
        The room that admitted requests will take in the cache at their end.
        """
        self.free_at = 0.0
        """The second at which the first pipeline stage becomes free."""
        self.outstanding = 0
        self.running = 0
        """The number of sequences in progress in all lanes."""
        self.preemptions = 0
        self.most_used: float = 0
        self.steps = 0
        self.largest_batch = 0

    def push(self, index: int, request: TokenRequest) -> None:
        """
        Adds the request with index `index`, which has arrived, to the waiting requests.
        """
        self.outstanding += 1
        to_read = request.prompt - request.cached
        self.waiting.append(
            Progress(index, request, request.prompt, to_read, request.generate)
        )

    def begin(self, lane: Lane, now: float, until: float) -> float | None:
        """
        Begins a step of `lane` at second `now`, or later if the first stage is not free
        at `now`. Returns the second at which the step ends, or None if the lane has no
        work. Several steps that only generate tokens are simulated as one, until a
        sequence finishes, the cache is full, or the next request arrives (at second
        `until`).
        """
        is_short = self._make_room(lane)
        lane.chunks = []
        room = self.limits.batched_tokens - len(lane.decoding)
        for progress in lane.reading:
            if room <= 0:
                break
            room -= self._read(lane, progress, room)
        while self.waiting and not is_short and self._may_admit(lane, room):
            progress = self.waiting.popleft()
            self.running += 1
            self.used += self.limits.room(progress.length)
            self.promised += self.limits.room(progress.length + progress.left)
            if progress.to_read:
                lane.reading.append(progress)
                room -= self._read(lane, progress, room)
            else:
                self._decode(lane, progress)
                room -= 1
        self.most_used = max(self.most_used, self.used)
        decoding, new = len(lane.decoding), sum(count for _, count in lane.chunks)
        if not decoding and not new:
            return None
        pairs = sum(
            self.limits.pairs(progress.length - progress.to_read, count)
            for progress, count in lane.chunks
        )
        step = self.times.step(decoding, lane.context, new, pairs)
        start = max(now, self.free_at)
        self.free_at = start + step.busy_s
        end = start + step.latency_s
        rounds = 1
        if not new and not is_short and len(self.lanes) == 1:
            # Who waits now waits until a sequence is finished: the cache only fills.
            page = self.limits.page
            most = int(self.limits.cache_tokens - self.used) // (decoding * page) * page
            most = max(min(most, min(lane.ends) - lane.round), 1)
            rounds, seconds = self._rounds(lane, most, until - start)
            end = start + seconds
            self.free_at = end
        lane.is_busy, lane.counted, lane.rounds = True, decoding, rounds
        self.steps += rounds
        self.largest_batch = max(self.largest_batch, decoding)
        return end

    def finish(self, lane: Lane, now: float) -> list[Progress]:
        """
        Ends the steps in progress of `lane` at second `now`, and returns the finished
        requests.
        """
        lane.is_busy = False
        done = list[Progress]()
        if lane.counted:
            # One token for each, which is in the cache when the next step reads it.
            self.used += self._growth(lane)
            lane.round += lane.rounds
            lane.context += lane.rounds * lane.counted
            for progress in lane.ends.pop(lane.round, ()):
                is_here = lane.decoding.get(progress.index) is progress
                if is_here and progress.done_round == lane.round:
                    progress.length += self._generated(lane, progress)
                    progress.left = 0
                    lane.context -= progress.length
                    del lane.decoding[progress.index]
                    done.append(progress)
        for progress, count in lane.chunks:
            progress.to_read -= count
            if not progress.to_read:
                lane.reading.remove(progress)
                if progress.first_s < 0:
                    progress.first_s = now
                progress.left -= 1
                before = self.limits.room(progress.length)
                progress.length += 1
                self.used += self.limits.room(progress.length) - before
                if progress.left:
                    self._decode(lane, progress)
                else:
                    done.append(progress)
        self.most_used = max(self.most_used, self.used)
        for progress in done:
            progress.end_s = now
            room = self.limits.room(progress.length)
            self.used -= room
            self.promised -= room
            self.outstanding -= 1
            self.running -= 1
        return done

    def _growth(self, lane: Lane) -> float:
        """
        Returns the room that the tokens generated by the steps in progress of `lane`
        will take in the cache.
        """
        if self.limits.is_even:
            return lane.rounds * lane.counted
        return self._growth_in(lane, lane.rounds)

    def _growth_in(self, lane: Lane, rounds: int) -> float:
        """Returns the room that the next `rounds` tokens of each decoding sequence take."""
        room = self.limits.room
        lengths = (p.length + self._generated(lane, p) for p in lane.decoding.values())
        return sum(room(length + rounds) - room(length) for length in lengths)

    def _next_room(self) -> float:
        """
        Returns the largest room that one more token of every running sequence can take.
        """
        if self.limits.page == 1:
            return self.running
        room, found = self.limits.room, 0.0
        for lane in self.lanes:
            found += self._growth_in(lane, 1)
            found += sum(room(p.length + 1) - room(p.length) for p in lane.reading)
        return found

    def _rounds(self, lane: Lane, most: int, room: float) -> tuple[int, float]:
        """
        Returns the number of consecutive steps, at most `most`, that begin within
        `room` seconds, and the seconds that these steps take together.
        """
        decoding, context = len(lane.decoding), lane.context

        def seconds(count: int) -> float:
            return self.times.rounds(decoding, context, count)

        whole = seconds(most)
        if most == 1 or whole <= room:
            return most, whole
        low, high = 0, most  # `low` steps end within the room, `high` do not.
        while high - low > 1:
            middle = (low + high) // 2
            if seconds(middle) <= room:
                low = middle
            else:
                high = middle
        return high, seconds(high)

    def _generated(self, lane: Lane, progress: Progress) -> int:
        """
        Returns the number of tokens that a sequence has received since the sequence
        began to decode in this replica.
        """
        return progress.left - (progress.done_round - lane.round)

    def _decode(self, lane: Lane, progress: Progress) -> None:
        """
        Moves a sequence whose prompt is in the cache to the decoding sequences, which
        get a token in each following round.
        """
        progress.done_round = lane.round + progress.left
        lane.decoding[progress.index] = progress
        lane.ends.setdefault(progress.done_round, []).append(progress)
        lane.context += progress.length

    def _read(self, lane: Lane, progress: Progress, room: int) -> int:
        """
        Adds the next chunk of a prompt, at most `room` tokens, to the step. Returns the
        number of tokens in the chunk.
        """
        count = min(progress.to_read, room)
        lane.chunks.append((progress, count))
        return count

    def _may_admit(self, lane: Lane, room: int) -> bool:
        """
        Whether the first waiting request may join `lane` in this step. `room` is the
        number of tokens that the step can still take.
        """
        limits, first, running = self.limits, self.waiting[0], self.running
        if room <= 0 or running >= limits.max_sequences:
            return False
        if limits.lanes > 1:
            share = -(-(running + len(self.waiting)) // limits.lanes)
            if lane.sequences >= share:
                return False
        if limits.admission == "reserve":
            whole = limits.room(first.length + first.left)
            return self.promised + whole <= limits.cache_tokens
        # Every sequence may get one more token in its step.
        own = limits.room(first.length)
        if self.used + own + (running + 1) * limits.page <= limits.cache_tokens:
            return True
        if limits.page == 1:
            return False
        own = limits.room(first.length + 1)
        return self.used + own + self._next_room() <= limits.cache_tokens

    def _make_room(self, lane: Lane) -> bool:
        """
        Preempts the most recently admitted sequences of `lane` until the cache has room
        for one more token of every sequence in all lanes. Returns whether a sequence
        was preempted.
        """
        is_short = False
        while lane.sequences:
            left = self.limits.cache_tokens - self.used
            # The exact room takes longer to count.
            is_near = self.running * self.limits.page > left
            is_full = is_near and self._next_room() > left
            if not is_full or self.running == 1:
                break
            self._preempt(lane)
            is_short = True
        return is_short

    def _preempt(self, lane: Lane) -> None:
        """
        Preempts the most recently admitted sequence of `lane`. The sequence goes to the
        front of the waiting requests, and all of its tokens must be read again.
        """
        if lane.reading:
            progress = lane.reading.pop()
        else:
            progress = lane.decoding.pop(next(reversed(lane.decoding)))
            got = self._generated(lane, progress)
            progress.length += got
            progress.left -= got
            lane.context -= progress.length
        self.preemptions += 1
        self.running -= 1
        self.used -= self.limits.room(progress.length)
        self.promised -= self.limits.room(progress.length + progress.left)
        progress.done_round = -1
        progress.to_read = progress.length
        self.waiting.appendleft(progress)
