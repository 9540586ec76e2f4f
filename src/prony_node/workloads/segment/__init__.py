"""A class for every pixel of an image."""
