"""Files that people name: opened with care, sealed against damage, and read apart where a library may crash."""
