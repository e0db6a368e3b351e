"""Reading a traced program: its steps, what it communicates, what a compiler makes of it."""
