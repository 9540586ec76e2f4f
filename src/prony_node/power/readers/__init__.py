"""One reader a file, with what some of them share: kernel files, programs, vendors' libraries, a driver's stamps."""
