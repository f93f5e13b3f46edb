"""`python -m kvcore.stateful` is `kvcore`, where the script is not on the path."""

import sys

from .cli import main

sys.exit(main())
