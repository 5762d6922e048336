"""CPU backend."""
