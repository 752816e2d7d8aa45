"""What a running daemon tells those who ask it: over HTTP, and over a socket of this machine."""
