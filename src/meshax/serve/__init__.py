"""A model behind HTTP: one thread writes with the engine, another speaks to those who ask."""
