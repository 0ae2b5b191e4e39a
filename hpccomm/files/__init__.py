"""Files that people name: opened with care, and results files with their checksums."""
