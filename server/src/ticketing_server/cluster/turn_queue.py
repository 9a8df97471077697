"""What clients sent and no entry has yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ticketing_server.cluster.entries import BYTES_MAX, REQUESTS_MAX, RUN_BYTES, TurnRun, cut


class TurnQueue:
    """Runs in the order in which they were read, taken an entry at a time."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._runs: deque[TurnRun] = deque()
        self.requests = 0
        self.size = 0

    def __len__(self) -> int:
        """Return how many runs there are."""
        return len(self._runs)

    def __iter__(self) -> Iterator[TurnRun]:
        """Go over the runs."""
        return iter(self._runs)

    @property
    def is_full(self) -> bool:
        """Whether this is an entry's worth, so that no more is read for now."""
        return self.requests >= REQUESTS_MAX or self.size >= BYTES_MAX

    def add(self, run: TurnRun) -> None:
        """Put a run at the end."""
        self._runs.append(run)
        self.requests += len(run.commands)
        self.size += RUN_BYTES + len(run.body)

    def clear(self) -> None:
        """Forget all of it."""
        self._runs.clear()
        self.requests = self.size = 0

    def take(self) -> list[TurnRun]:
        """Remove and return the runs of the next entry: one at least, then what fits."""
        taken: list[TurnRun] = []
        requests = size = 0
        while self._runs:
            run = self._runs[0]
            run_size = RUN_BYTES + len(run.body)
            if taken and size + run_size > BYTES_MAX:
                break
            room = REQUESTS_MAX - requests
            if len(run.commands) > room:
                if not room:
                    break
                run, rest = cut(run, room)
                self._runs[0] = rest
                self.size += RUN_BYTES
                run_size = RUN_BYTES + len(run.body)
            else:
                self._runs.popleft()
            taken.append(run)
            requests += len(run.commands)
            size += run_size
        self.requests -= requests
        self.size -= size
        return taken
