"""`python -m rtcontrol_client.carla`: the same as `rtcontrol bridge carla`, without the rest of rtcontrol."""

import sys

from rtcontrol_client.carla.cli import main

if __name__ == "__main__":
    sys.exit(main())
