"""``make demo``: a group of consumers lives through what happens to a cluster, and nothing is lost.

Without arguments it brings its own cluster of three brokers, all in this process. With ``--brokers``, ``--topic`` and
``--group`` it reads from a real one instead.
"""

from __future__ import annotations

import argparse
import sys

import real
import story


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--brokers", help="host:port[,host:port]: read from a real cluster")
    parser.add_argument("--topic", help="the topic to read there")
    parser.add_argument("--group", help="the group to read it as")
    parser.add_argument("--records", type=int, default=200_000, help="how many records the embedded topic gets")
    options = parser.parse_args()
    given = [options.brokers, options.topic, options.group]
    if all(given):
        return real.run(options.brokers, options.topic, options.group)
    if any(given):
        parser.error("a real cluster needs all of BROKERS=host:port TOPIC=name GROUP=name")
    return story.run(options.records)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
