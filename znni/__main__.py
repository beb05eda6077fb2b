"""``python -m znni``: the command line, also where no ``znni`` is on the path."""

from znni.cli import main

if __name__ == "__main__":
    main()
