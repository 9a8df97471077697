"""The marker that ties a test to the requirements of spec/ticketing.toml that it shows."""

from __future__ import annotations

import pytest


def requirement(*ids: str) -> pytest.MarkDecorator:
    """Marks a test with the ids (`REQ-…`) of the requirements it shows; the report counts them."""
    return pytest.mark.requirement(*ids)
