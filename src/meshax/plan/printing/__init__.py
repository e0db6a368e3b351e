"""How quantities and tables are printed."""
