"""`python -m ecpp` is the command `ecpp`."""

from ecpp.cli import main

if __name__ == "__main__":
    main()
