"""The device's own ceilings."""
