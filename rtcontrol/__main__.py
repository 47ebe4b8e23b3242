"""`python -m rtcontrol` is the console script `rtcontrol`."""

from rtcontrol.cli import main

if __name__ == "__main__":
    main()
