"""What operators see and do: views of a whole fleet made from its tables, and acts on them, without a daemon."""
