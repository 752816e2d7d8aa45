"""Acts of an operator on a fleet: what would be written is planned first, and written only on demand."""
