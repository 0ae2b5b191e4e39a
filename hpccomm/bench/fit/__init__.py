"""``hpccomm fit``: a cluster's description from the times of a stored run."""
