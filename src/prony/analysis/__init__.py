"""From records to what they mean: pure functions, no files, no clock."""
