"""Where the executable begins."""

import sys

from penstock.__main__ import main

sys.exit(main())
