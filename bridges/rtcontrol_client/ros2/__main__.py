"""`python -m rtcontrol_client.ros2`: the bridge alone."""

import sys

from rtcontrol_client.ros2.cli import main

if __name__ == "__main__":
    sys.exit(main())
