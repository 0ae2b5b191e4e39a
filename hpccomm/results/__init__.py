"""Measurements on disk and on the screen: the HDF5 file, nccl-tests' table and JSON, CSV."""
