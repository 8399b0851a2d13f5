"""Whether a store, this machine and these credentials are fit for l0gc: one line for each thing that was tried."""
