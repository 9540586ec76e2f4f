"""From words on a command line, or a file, to trials and the plans of their runs."""
