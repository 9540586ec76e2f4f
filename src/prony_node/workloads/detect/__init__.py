"""Detection: boxes around what is to be found in an image, and what it is."""
