"""Models, each of which opens with its glossary of dim names."""
