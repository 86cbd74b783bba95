"""How many files and sockets this process may have open."""

import resource
import sys


def descriptor_limit() -> int:
    """Return the soft limit; a very large number if there is none."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
