"""Tables of a data catalog over the files of a sink: what they look like, and how Glue learns of new partitions."""
