"""The collectives of a compiled program, as the communication tests compare them: elements of operands, and times."""

from meshax.plan.compile.hlo import by_operand, compiled_collectives
from meshax.plan.reading.communication import wire_bytes


def operands(compiled):
    """Returns {kind: {elements of the operand: times}}; merged operands are taken apart, scan bodies multiplied."""
    return by_operand(compiled_collectives(compiled.as_text()))


def wire(text):
    """The bytes one processor sends in a compiled program."""
    return sum(c.count * wire_bytes(c.kind, c.bytes, c.group or 2) for c in compiled_collectives(text))
