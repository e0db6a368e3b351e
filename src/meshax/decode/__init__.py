"""Making text with a model."""
