"""Jobs: runs on disk, sweeps, reports, plots, and the command line."""
