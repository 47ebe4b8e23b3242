"""`python -m rtcontrol` is the console script `rtcontrol`."""

from rtcontrol.cli.app import main

if __name__ == "__main__":
    main()
