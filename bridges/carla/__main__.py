"""`python -m rtcontrol.bridges.carla`: the same as `rtcontrol bridge carla`, without the rest of rtcontrol."""

import sys

from rtcontrol.bridges.carla.cli import main

if __name__ == "__main__":
    sys.exit(main())
