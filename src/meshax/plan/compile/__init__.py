"""Programs compiled for machines that need not be there."""
