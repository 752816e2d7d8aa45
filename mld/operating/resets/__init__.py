"""Acts that move a whole application: start over, pass a record, save and restore its rows, take it down."""
