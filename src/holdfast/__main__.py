"""`python -m holdfast` is the command line."""

from holdfast_command import main

if __name__ == "__main__":
    main()
