"""``python -m hpccomm``: the same as the command ``hpccomm``."""

import sys

from hpccomm.tools.main import main

sys.exit(main())
