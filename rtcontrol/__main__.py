"""`python -m rtcontrol` is the console script `rtcontrol`."""

import sys

# `-m` puts the working directory first on the module path, where a file could hide a module that is imported below.
if not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))

from rtcontrol.cli import main

if __name__ == "__main__":
    main()
