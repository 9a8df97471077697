"""What the constants of every language are made from: names, values and comments in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ticketing_spec.model import HEADER_BYTES, Spec


@dataclass(frozen=True)
class Named:
    """One constant: an int or bytes, its section and the sentence that stands beside it."""

    section: str
    name: str
    value: int | bytes
    about: str


def constants(spec: Spec) -> Iterator[Named]:
    """Every constant of a spec, UPPER_CASE, in the order of the file."""
    yield Named("Protocol", "PROTOCOL_VERSION", spec.version, "The version of this spec.")
    for direction, prefix in (("client", "OP"), ("server", "REPLY")):
        for frame in spec.frames_of(direction):
            assert frame.op is not None
            about = f"`{frame.op_char}` {frame.about}"
            yield Named(
                f"Frames of the {direction}", f"{prefix}_{upper(frame.name)}", frame.op, about
            )
    for error in spec.errors:
        yield Named("Error codes", f"ERROR_{upper(error.name)}", error.code, error.when)
    for enum in spec.enums:
        for value in enum.values:
            name = f"{upper(enum.name)}_{upper(value.name)}"
            yield Named(enum.about.rstrip("."), name, value.value, f"{value.about}.")
    for context in spec.contexts:
        yield Named(
            "Texts that are hashed or compared", upper(context.name), context.data, context.about
        )
    yield Named("Sizes", "HEADER_BYTES", HEADER_BYTES, "Bytes of a frame before its body.")
    for digest in spec.digests:
        name = f"{upper(digest.name)}_BYTES"
        yield Named("Sizes", name, digest.size, f"Bytes of {digest.name}.")
    for preamble in spec.preambles:
        name = f"{upper(preamble.name)}_BYTES"
        yield Named("Sizes", name, preamble.fixed_bytes, f"Bytes of the {preamble.name}.")
    titles = {"limit": "Limits of the wire", "default": "Defaults", "timer": "Timers"}
    for constant in spec.constants:
        yield Named(titles[constant.group], upper(constant.name), constant.value, constant.about)


def upper(name: str) -> str:
    return name.upper()


def words(name: str) -> list[str]:
    """The words of a name, in lower case."""
    return name.lower().split("_")


def camel(name: str) -> str:
    """UpperCamelCase, with Go's and C#'s usual capitals for units and ids left to readers."""
    return "".join(word.capitalize() for word in words(name))


def width(value: int) -> int:
    """Bits of the smallest usual unsigned type, 32 at least."""
    return 32 if value < 1 << 32 else 64


def is_op(item: Named) -> bool:
    """Whether a constant is an op, best written as a character."""
    return item.name.startswith(("OP_", "REPLY_"))
