"""The operations: each works on whole arrays outside a program, and on local slices plus collectives inside."""
