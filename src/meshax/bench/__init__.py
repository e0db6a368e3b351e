"""Measuring machines."""
