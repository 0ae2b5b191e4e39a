"""Files that users name, opened with care; and the form of results files' records.

- `regular` opens regular files only, and turns errors into hpccomm's, with advice.
- `records` opens results files by HDF5, and reads their JSON records with checksums.
"""
