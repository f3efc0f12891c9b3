"""`python -m forebay` is the `forebay` command."""

from forebay.cli.app import main

if __name__ == "__main__":
    main()
