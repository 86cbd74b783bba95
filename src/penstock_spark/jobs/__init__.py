"""The jobs, one file each: read, pure transforms of DataFrames, write. All go on where they were by a checkpoint."""
