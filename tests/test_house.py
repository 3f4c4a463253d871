"""docs/house.py measures this project, and the project keeps what it promises there."""

from conftest import REPOSITORY, load_docs


def test_the_code_of_this_project_keeps_its_promises():
    house = load_docs("house")
    numbers, lines = house.measure(REPOSITORY)
    assert numbers["import circles; upward imports"] == "0; 0", lines
    for title in house.STOPS:
        assert numbers[f"stops {title}"].isdigit(), numbers[f"stops {title}"]
