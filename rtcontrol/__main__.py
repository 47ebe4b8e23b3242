"""`python -m rtcontrol` is the console script `rtcontrol`."""

import sys

# `-m` makes the working directory the first on the path, where a file may have the name of a module that we import.
if not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from rtcontrol.cli import main

if __name__ == "__main__":
    main()
