"""The commands of operators: views of a whole fleet made from its tables, and changes of its tables. No daemon is
needed.
"""
