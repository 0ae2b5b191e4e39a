"""``python -m hpccomm``."""

import sys

from hpccomm.cli.main import main

sys.exit(main())
