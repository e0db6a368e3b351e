"""What a program costs on some hardware: seconds, and bytes of memory."""
