from __future__ import annotations

from slurm_elastic.machine.events import AgentJoined, AgentLost
from slurm_elastic.supervisor.agents import Agents
from slurm_elastic.wire import messages as m
from tests.unit.supervisor.links import FakeLink, agent_hello

PROBE = m.Probe(epoch=1, node="n1")


def joined(agents: Agents, hello: m.AgentHello, heard: float = 0.0) -> FakeLink:
    link = FakeLink(hello, heard)
    assert agents.joined(link, hello) == ""
    return link


def test_a_closed_connection_is_no_loss_but_silence_is() -> None:
    facts: list[object] = []
    agents = Agents(facts.append, timeout_s=10)
    link = joined(agents, agent_hello(), heard=100.0)
    agents.closed(link)

    agents.expire(now=109.0, amnesty=0.0)
    assert [type(fact) for fact in facts] == [AgentJoined]
    agents.expire(now=111.0, amnesty=0.0)
    agents.expire(now=112.0, amnesty=0.0)
    assert [type(fact) for fact in facts] == [AgentJoined, AgentLost]


def test_silence_before_the_amnesty_does_not_count() -> None:
    facts: list[object] = []
    agents = Agents(facts.append, timeout_s=10)
    joined(agents, agent_hello(), heard=100.0)

    agents.expire(now=500.0, amnesty=495.0)

    assert [type(fact) for fact in facts] == [AgentJoined]


def test_an_open_but_silent_link_is_closed_so_that_a_thawed_agent_introduces_itself_again() -> None:
    agents = Agents(lambda fact: None, timeout_s=10)
    link = joined(agents, agent_hello(), heard=100.0)

    agents.expire(now=111.0, amnesty=0.0)

    assert link.closed
    assert not agents.is_there(7)


def test_orders_for_an_agent_that_is_away_for_a_moment_are_delivered_when_it_is_back() -> None:
    agents = Agents(lambda fact: None, timeout_s=10)
    agents.closed(joined(agents, agent_hello(), heard=100.0))
    agents.send(7, PROBE, now=101.0)
    again = joined(agents, agent_hello(), heard=103.0)

    agents.deliver_held(again, now=103.0)

    assert again.sent == [PROBE]


def test_orders_that_are_too_old_are_not_delivered() -> None:
    agents = Agents(lambda fact: None, timeout_s=10)
    agents.send(7, PROBE, now=101.0)
    link = joined(agents, agent_hello(), heard=203.0)

    agents.deliver_held(link, now=203.0)

    assert link.sent == []


def test_the_later_start_of_a_job_wins_over_the_ghost_of_an_earlier_one() -> None:
    agents = Agents(lambda fact: None, timeout_s=10)
    joined(agents, agent_hello(restart_count=1))
    ghost = agent_hello(restart_count=0)

    assert "restart 1" in agents.joined(FakeLink(ghost), ghost)


def test_a_new_connection_replaces_the_old_one() -> None:
    agents = Agents(lambda fact: None, timeout_s=10)
    old = joined(agents, agent_hello())
    new = joined(agents, agent_hello())
    agents.closed(old)

    agents.send(7, PROBE, now=0.0)

    assert old.closed
    assert new.sent == [PROBE]


def test_a_released_job_may_be_silent() -> None:
    facts: list[object] = []
    agents = Agents(facts.append, timeout_s=10)
    joined(agents, agent_hello(), heard=100.0)
    agents.forget(7)

    agents.expire(now=200.0, amnesty=0.0)

    assert [type(fact) for fact in facts] == [AgentJoined]
