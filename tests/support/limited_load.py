"""Call an endpoint within its limits until killed: `python -m limited_load REDIS_URL URL`."""

import sys

from benchmarks.parts.limiter import Load, work

if __name__ == "__main__":
    work(Load(redis_url=sys.argv[1], endpoint=sys.argv[2], tasks=15))
