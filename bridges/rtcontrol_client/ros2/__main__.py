"""Run the bridge without the rest of rtcontrol: `python -m rtcontrol_client.ros2`."""

import sys

from rtcontrol_client.ros2.cli import main

if __name__ == "__main__":
    sys.exit(main())
