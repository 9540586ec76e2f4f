"""Where ranks run: cores now, several devices later."""
