"""Code that other packages share or that belongs to none of them, such as the clock, errors, positions, waits, and the
port to a stream. The header of each module says what it is for.
"""
