"""Reading programs without running them."""
