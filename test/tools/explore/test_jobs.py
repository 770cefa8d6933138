"""Jobs: one after another, the urgent ones first, and none that nobody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from distir.tools.explore.jobs import GivenUp, Job, Jobs, Steps


class Client:
    """Submits jobs and keeps what they put."""

    def __init__(self, jobs: Jobs):
        self.jobs = jobs
        self.events: list[tuple[str, Any]] = []

    def job(
        self, name: str, steps: Steps, urgent: bool = True, client: str = ""
    ) -> Job:
        def put(message: Any) -> None:
            self.events.append((name, message))

        job = Job(client or name, steps, put, urgent)
        self.jobs.submit(job)
        return job

    def until(self, condition: Callable[[], bool], press: Job | None = None) -> None:
        """Waits until a condition holds; fails after ten seconds."""
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            if press is not None:
                self.jobs.press(press)
            time.sleep(0.01)

    def ended(self, name: str) -> bool:
        return (name, None) in self.events


def work(*names: str) -> Steps:
    for name in names:
        yield {"name": name}


def busy(log: list[str], name: str = "busy") -> Steps:
    """Computes until it is given up."""
    log.append(name)
    try:
        while True:
            sum(range(1000))
    finally:
        log.append(f"end of {name}")
    yield {}


def run(script: Callable[[Client], None]) -> Client:
    """Runs jobs in this thread, the main one, while another thread submits them."""
    jobs = Jobs()
    client = Client(jobs)
    errors: list[BaseException] = []

    def act() -> None:
        try:
            script(client)
        except BaseException as error:  # is raised in the thread of the test
            errors.append(error)
        finally:
            for job in [jobs._running, *jobs._waiting]:  # pyright: ignore[reportPrivateUsage]
                if job is not None:
                    jobs.cancel(job)
            jobs.stop()

    thread = threading.Thread(target=act)
    thread.start()
    jobs.run()
    thread.join()
    assert not errors, errors
    return client


def test_parts_come_in_order_and_none_at_the_end():
    def script(client: Client) -> None:
        client.job("a", work("1", "2"))
        client.until(lambda: client.ended("a"))

    assert run(script).events == [
        ("a", {"name": "1"}),
        ("a", {"name": "2"}),
        ("a", None),
    ]


def test_the_latest_takes_the_place_of_what_computes():
    log: list[str] = []

    def script(client: Client) -> None:
        client.job("old", busy(log), client="page")
        client.until(lambda: "busy" in log)
        client.job("waiting", work("never"), client="page")
        new = client.job("new", work("1"), client="page")
        client.until(lambda: client.ended("new"), press=new)

    events = run(script).events
    assert log == ["busy", "end of busy"]
    assert ("new", {"name": "1"}) in events
    assert ("waiting", {"name": "never"}) not in events
    assert {("old", None), ("waiting", None)} <= {*map(_hashable, events)}


def _hashable(event: tuple[str, Any]) -> tuple[str, Any]:
    return event[0], None if event[1] is None else tuple(event[1])


def test_other_clients_are_left_alone():
    def slow() -> Steps:
        time.sleep(0.2)
        yield {"name": "slow"}

    def script(client: Client) -> None:
        client.job("a", slow(), client="one page")
        b = client.job("b", work("1"), client="another")
        client.until(lambda: client.ended("b"), press=b)

    events = run(script).events
    assert events.index(("a", {"name": "slow"})) < events.index(("b", {"name": "1"}))


def test_an_urgent_job_interrupts_a_search_that_goes_on_after_it():
    tries: list[str] = []

    def search() -> Steps:
        while True:
            try:
                tries.append("begun")
                if len(tries) == 1:
                    while True:
                        sum(range(1000))
                break
            except GivenUp:
                yield {}
        yield {"name": "found"}

    def script(client: Client) -> None:
        client.job("search", search(), urgent=False, client="page")
        client.until(lambda: bool(tries))
        answer = client.job("answer", work("1"), client="page")
        client.until(lambda: client.ended("answer"), press=answer)
        client.until(lambda: client.ended("search"))

    events = [event for event in run(script).events if event[1]]
    assert events == [("answer", {"name": "1"}), ("search", {"name": "found"})]
    assert len(tries) == 2


def test_a_job_that_is_cancelled_ends():
    log: list[str] = []

    def script(client: Client) -> None:
        job = client.job("gone", busy(log))
        client.until(lambda: "busy" in log)
        client.jobs.cancel(job)
        after = client.job("after", work("1"))
        client.until(lambda: client.ended("after"), press=after)

    assert ("gone", None) in run(script).events
    assert log[-1] == "end of busy"
