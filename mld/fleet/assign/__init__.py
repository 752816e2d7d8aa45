"""The leader's part: which lease goes to which worker."""
