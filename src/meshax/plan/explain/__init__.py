"""The report of a program, as data, text and a page."""
