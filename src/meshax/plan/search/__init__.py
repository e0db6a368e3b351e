"""Choosing layouts: by name, or by their predicted cost."""
