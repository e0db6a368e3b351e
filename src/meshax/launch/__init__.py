"""Processes: how they are started, find each other, agree, notice that one is gone, and end together."""
