"""The collectives of a compiled program, as the communication tests compare them: elements of operands, and times."""

from meshax.plan.compile.hlo import by_operand, compiled_collectives


def operands(compiled):
    """Returns {kind: {elements of the operand: times}}; merged operands are taken apart, scan bodies multiplied."""
    return by_operand(compiled_collectives(compiled.as_text()))
