"""docs/house.py measures this project, and the project keeps what it promises there."""

import importlib.util
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("house", REPOSITORY / "docs" / "house.py")
house = importlib.util.module_from_spec(spec)
spec.loader.exec_module(house)


def test_the_code_of_this_project_keeps_its_promises():
    numbers, lines = house.measure(REPOSITORY)
    assert numbers["import circles; upward imports"] == "0; 0", lines
    for title in house.STOPS:
        assert numbers[f"stops {title}"].isdigit(), numbers[f"stops {title}"]
