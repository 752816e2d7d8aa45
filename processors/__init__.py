"""Record processors that ship with mld. They import `protocol`, never `mld`."""
