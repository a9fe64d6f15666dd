"""``python -m discrete_grpo COMMAND``: the program ``discrete-grpo``, for launchers that start a module."""

from discrete_grpo.cli.working_folder import remove_working_folder

if __name__ == "__main__":
    remove_working_folder()  # before imports that a file in the working folder could shadow

    import sys

    from discrete_grpo.cli.__main__ import main

    sys.exit(main())
