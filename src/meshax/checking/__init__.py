"""What a traced program is checked for before it is compiled.

Inside a program JAX code may see what only we know how to read: one processor's slice, or a derivative by copies.
"""
