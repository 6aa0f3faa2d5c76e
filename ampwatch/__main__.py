"""`python -m ampwatch` is `ampwatch`."""

from ampwatch.cli import main

if __name__ == "__main__":
    main()
