"""The Ticketing protocol as data: the model of `ticketing.toml` and what is generated from it.

`load_spec()` gives version 4, `load_spec("version3")` the version that older clients speak.
"""

from ticketing_spec.model import Field, Frame, Spec, SpecError, load_spec

__all__ = ["Field", "Frame", "Spec", "SpecError", "load_spec"]
