import re

import pytest

from slurm_elastic.slurm import parse_records
from slurm_elastic.slurm.states import Meaning, meaning

from .shared_samples import OUTPUTS, SAMPLES, answer_to, outputs, sample

NODE_STATES = {"ALLOCATED", "IDLE", "MIXED", "DOWN", "FUTURE"}


@pytest.mark.parametrize("path", [*outputs("job-*.txt"), *outputs("scontrol-show-job-gpu.txt")])
def test_every_recorded_job_is_read_whole(path):
    text = path.read_text()
    jobs = parse_records.jobs(text)

    assert [job.job_id for job in jobs] == [int(number) for number in re.findall(r"(?m)^ *JobId=(\d+)", text)]
    assert [job.state for job in jobs] == [
        "RUNNING" if state in ("SIGNALING", "RESIZING") else state for state in re.findall(r" JobState=(\w+)", text)
    ]
    for job in jobs:
        assert meaning(job.state) is not Meaning.UNKNOWN
        assert job.user in ("alice", "root")
        assert job.submit_time is not None
        assert job.state != "RUNNING" or (job.nodes and len(job.nodes) == job.num_nodes)


@pytest.mark.parametrize("path", outputs("node-*.txt"))
def test_every_recorded_node_is_read_whole(path):
    text = path.read_text()
    nodes = parse_records.nodes(text)

    assert [node.name for node in nodes] == re.findall(r"(?m)^ *NodeName=(\S+)", text)
    for node in nodes:
        assert node.state in NODE_STATES
        assert (node.cpus, node.partitions) == (4, ("main",))
        assert node.gres == "gpu:2"


def recorded(name):
    path = OUTPUTS / name
    if not path.exists():
        pytest.skip("no recorded outputs")
    return path.read_text()


def test_het_components_keep_their_leader_and_their_place():
    leader, component = parse_records.jobs(recorded("22.05/job-het.txt"))

    assert (leader.job_id, leader.het_job_id, leader.het_job_offset) == (86, 86, 0)
    assert (component.job_id, component.het_job_id, component.het_job_offset) == (87, 86, 1)
    assert component.nodes == ("n4", "n5")


def test_a_job_in_its_grace_time_shows_when_it_ends():
    (job,) = parse_records.jobs(recorded("24.11/job-gpu-in-grace.txt"))

    assert job.state == "RUNNING"
    assert job.preempt_time is not None
    assert job.end_time - job.preempt_time == 20
    assert job.time_limit_s == 1800


def test_flags_and_reasons_of_nodes_are_kept():
    (node,) = parse_records.nodes(recorded("22.05/node-rb-down-drain-reboot_issued.txt"))

    assert (node.state, node.flags) == ("DOWN", {"DRAIN", "REBOOT_ISSUED"})
    assert node.reason.startswith("kernel : reboot issued")


@pytest.mark.parametrize("path", [*outputs("*step*.txt")])
def test_every_recorded_step_list_is_read(path):
    steps = list(parse_records.records(path.read_text(), "StepId"))

    assert steps
    assert all(step["State"] == "RUNNING" and step["NodeList"] for step in steps)


@pytest.mark.parametrize("path", outputs("reservation-*.txt"))
def test_a_recorded_reservation_is_read(path):
    found = parse_records.by_name(path.read_text(), "ReservationName")

    assert found["fut"]["Nodes"] == "n7"
    assert "MAINT" in found["fut"]["Flags"]


def test_a_job_record_without_final_line_end():
    (job,) = parse_records.jobs(sample("scontrol_show_job__no_trailing_newline.txt"))

    assert (job.job_id, job.state, job.reason, job.nodes) == (1, "PENDING", "JobHeldAdmin", ())
    assert (job.time_limit_s, job.num_nodes, job.requeue) == (7 * 86400, 1, True)


def test_a_het_job_over_several_lines():
    jobs = parse_records.jobs(sample("scontrol_show_job__hetjob_SYNTHETIC_from_source_format.txt"))

    assert [(job.job_id, job.het_job_offset) for job in jobs] == [(204, 0), (205, 1)]
    assert jobs[0].nodes == ("slurm-compute-node-234",)


def test_node_records_over_several_lines_and_of_other_releases():
    nodes = parse_records.nodes(sample("scontrol_show_node__20.11_two_nodes.txt"))

    assert [(node.name, node.state, node.cpus) for node in nodes] == [
        ("test-node", "MIXED", 80),
        ("test-node-2", "MIXED", 80),
    ]
    assert nodes[0].gres == "gpu:rtx8000:8(S:0-1)"
    assert len(nodes[0].partitions) == 8


def test_reduced_records_of_cloud_nodes_with_words_like_key_value_in_their_reason():
    nodes = parse_records.nodes(sample("scontrol_show_node_awk__cloud_states.txt"))

    assert {node.state for node in nodes} <= NODE_STATES
    assert any(node.reason == "some reason containing key=value entries" for node in nodes)
    assert any("POWERED_DOWN" in node.flags for node in nodes)
    assert any(node.partitions == () for node in nodes)


def test_partitions_without_a_blank_line_between_them():
    found = parse_records.by_name(sample("scontrol_show_partition__unlimited.txt"), "PartitionName")

    assert {"mainqueue", "mainqueue2"} <= set(found)
    assert found["mainqueue"]["MaxTime"] == "UNLIMITED"
    assert found["mainqueue2"]["MaxTime"] == "10-00:00:00"


def test_a_partition_in_a_transcript_is_read_from_its_command_alone():
    text = recorded("24.11/node-maint.txt")

    assert list(parse_records.by_name(text, "ReservationName")) == ["mnt"]
    assert answer_to(text, "sinfo").split()[4] == "n6"


def test_settings_keep_their_keys_and_blanks():
    settings = parse_records.settings(
        "Configuration data as of 2026-11-30T22:47:32\n"
        "AccountingStorageTRES   = cpu,mem,energy,node\n"
        "KillWait                = 5 sec\n"
        "TaskEpilog              = \n"
        "\nSlurmctld(primary) at vm is UP\n"
    )

    assert settings == {"AccountingStorageTRES": "cpu,mem,energy,node", "KillWait": "5 sec", "TaskEpilog": ""}


def test_no_settings_at_all_is_not_an_answer():
    with pytest.raises(ValueError, match="no settings"):
        parse_records.settings("")


def test_text_in_a_name_cannot_forge_a_later_field_that_came_before_it():
    (job,) = parse_records.jobs("JobId=5 JobName=a UserId=u(1) JobState=RUNNING Comment=x JobState=FAILED JobId=9\n")

    assert (job.job_id, job.state) == (5, "RUNNING")


def test_a_record_without_its_state_is_garbled():
    with pytest.raises(KeyError):
        parse_records.jobs("JobId=5 JobName=a\n")


def test_no_jobs_is_no_jobs():
    assert parse_records.jobs("No jobs in the system\n") == ()


def test_the_samples_are_where_they_are_looked_for():
    if not SAMPLES.exists():
        pytest.skip("no recorded samples")
    assert len(list(OUTPUTS.glob("*/*.txt"))) > 100
