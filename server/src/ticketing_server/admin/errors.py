"""What `ticketing-admin` says and exits with where it can't do what it was asked for."""

from __future__ import annotations

DONE, BUG, USAGE, NO_ANSWER, DIRECTORY, DISK, REFUSED = 0, 1, 2, 3, 4, 5, 6
"""Exit codes; 0 to 5 mean what they mean for `ticketing-server`."""
INTERRUPTED = 130


class AdminError(Exception):
    """Something that isn't done; the text is one line that says what to do instead."""

    def __init__(self, text: str, exit_code: int) -> None:
        """`exit_code` is one of the above."""
        super().__init__(text)
        self.exit_code = exit_code
