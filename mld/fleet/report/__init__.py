"""What each worker says of itself: its load, as a row."""
