"""Models: a folder for each kind, what all of them offer (`contract.py`), and which have names (`presets.py`)."""
