"""Print and draw what was measured, without testing anything.

    python report.py out/RUN [out/RUN ...] [--dataset=NAME] [--out=FILE]

The table of the runs is printed. Each run's extrapolation.png is drawn again, and several runs are
drawn in one figure too.
"""

if __name__ == "__main__":  # --help answers before torch is imported
    import sys

    from configurable import ReportSettings, answer_help

    answer_help(ReportSettings, sys.argv[1:], __doc__)

import sys

from configurable import ReportSettings, configure, run_program
from runs.figures import plot_run, show_runs
from runs.folder import named_folders
from runs.results import load_result


def main() -> None:
    """Print the table of the runs, and draw each and all."""
    settings, words = configure(ReportSettings, sys.argv[1:], __doc__)
    folders = named_folders(words, "report.py")
    results = [load_result(folder) for folder in folders]
    for folder, result in zip(folders, results, strict=True):
        plot_run(folder, result)
    show_runs(folders, results, settings.dataset, settings.out)


if __name__ == "__main__":
    run_program(main)
