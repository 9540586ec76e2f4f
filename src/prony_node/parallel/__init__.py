"""Where ranks run and what they are to each other: cores, launching, groups, replicas."""
