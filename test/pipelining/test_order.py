"""The order of all actions of all ranks."""

from distir.pipelining import build_schedule, dependencies, global_order


def test_order_of_1f1b() -> None:
    """By the time of the start, ties by rank."""
    order = global_order(build_schedule("1f1b", 2, 3))
    text = " ".join(map(str, order))
    assert text == "0F0 0F1 1F0 1B0 0B0 1F1 0F2 1B1 0B1 1F2 1B2 0B2"


def test_order_follows_edges() -> None:
    """
    Towers that do not know of each other begin together; in a chain stage 1 comes later.
    """
    schedule = build_schedule("forward", 3, 1)
    assert [str(a) for a in global_order(schedule)] == ["0F0", "1F0", "2F0"]
    backwards = [(2, 0), (1, 0)]
    order = global_order(schedule, backwards)
    assert [str(a) for a in order] == ["1F0", "2F0", "0F0"]


def test_order_keeps_ranks_and_dependencies() -> None:
    schedule = build_schedule("dualpipev", 4, 11)
    order = global_order(schedule)
    position = {action: n for n, action in enumerate(order)}
    assert len(position) == len(order) == sum(map(len, schedule.actions))
    for row in schedule.actions:
        assert [position[a] for a in row] == sorted(position[a] for a in row)
    for action, needs in dependencies(schedule).items():
        assert all(position[need] < position[action] for need in needs)
