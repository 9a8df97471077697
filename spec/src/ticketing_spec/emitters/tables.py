"""Where the constants of each language go, and which emitter makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ticketing_spec.emitters import c, csharp, go, java, javascript, python, ruby, rust
from ticketing_spec.model import Spec

Emit = Callable[[Spec, str], str]


@dataclass(frozen=True)
class Target:
    """A file of version 4 constants: its language, its path from the repository's root."""

    language: str
    path: str
    emit: Emit


TARGETS = (
    Target("python", "server/src/ticketing_server/constants_gen.py", python.emit),
    Target("python", "clients/python/src/ticketing/_constants_gen.py", python.emit),
    Target("go", "clients/go/internal/wire/constants_gen.go", go.emit),
    Target("rust", "clients/rust/src/wire/constants_gen.rs", rust.emit),
    Target("javascript", "clients/js/src/constants_gen.ts", javascript.emit),
    Target(
        "java",
        "spec/dist/constants/java/io/github/ticketingproject/ConstantsGen.java",
        java.emit,
    ),
    Target("csharp", "spec/dist/constants/csharp/ConstantsGen.cs", csharp.emit),
    Target("ruby", "spec/dist/constants/ruby/constants_gen.rb", ruby.emit),
    Target("c", "spec/dist/constants/c/constants_gen.h", c.emit),
)
"""A language whose client is not there yet has its constants under spec/dist."""

VERSION3_TARGETS = (
    Target("python", "server/src/ticketing_server/constants_v3_gen.py", python.emit),
)
