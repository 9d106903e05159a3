import pytest

from slurm_elastic.slurm import parse_tables, parse_values
from slurm_elastic.slurm.hostlist import expand
from slurm_elastic.slurm.states import Meaning, job_state, meaning, node_state

from .shared_samples import OUTPUTS, answer_to, outputs, sample

U, R = "\x1f", "\x1e\n"
HEADER = "JOBID" + U + U.join(f"H{i}" for i in range(len(parse_tables.FIELDS) - 1)) + U + R
RUNNING = (
    *("1", "RUNNING", "None", "root", "main", "base", "root", "n[1-2]", "2", "n1", "1796078848", "1796078848"),
    *("1796079448", "10:00", "N/A", "0", "0", "N/A", "N/A", "1", "(null)", "slurm-elastic:ab:base-1", "my odd | name"),
)


def row(*cells, **changed):
    cells = [changed.get(name, cell) for name, cell in zip(parse_tables.FIELDS, cells, strict=True)]
    return U.join(cells) + U + R


def test_a_running_job_is_read_whole():
    (job,) = parse_tables.squeue_jobs(HEADER + row(*RUNNING))

    assert (job.job_id, job.state, job.user, job.qos, job.nodes) == (1, "RUNNING", "root", "base", ("n1", "n2"))
    assert (job.start_time, job.end_time, job.time_limit_s) == (1796078848.0, 1796079448.0, 600.0)
    assert (job.preempt_time, job.requeue, job.restarts, job.exit_code) == (None, True, 0, "0:0")
    assert (job.comment, job.name) == ("slurm-elastic:ab:base-1", "my odd | name")
    assert (job.het_job_id, job.het_job_offset, job.dependency) == (None, None, "")


def test_a_het_component_and_a_failed_job():
    (job,) = parse_tables.squeue_jobs(
        HEADER + row(*RUNNING, State="FAILED", exit_code="32512", HetJobID="1", HetJobOffset="0")
    )

    assert (job.het_job_id, job.het_job_offset, job.exit_code) == (1, 0, "127:0")


@pytest.mark.parametrize("name", ["a\x1fb", "line\nend", "x" * 200, "\ufffd", "", "1\x1e2"])
def test_whatever_is_in_a_name_shifts_nothing(name):
    first, second = parse_tables.squeue_jobs(HEADER + row(*RUNNING, Name=name) + row(*RUNNING, JobID="2"))

    assert (first.job_id, first.name, second.job_id) == (1, name.strip(), 2)


def test_a_header_alone_says_that_there_are_no_jobs():
    assert parse_tables.squeue_jobs(HEADER) == ()


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n",
        "slurm_load_jobs error\n",
        HEADER + row(*RUNNING)[:40],
        HEADER + "1" + U + R,
        HEADER[:50],
        row(*RUNNING),
    ],
)
def test_anything_else_is_not_an_answer(answer):
    with pytest.raises(ValueError):
        parse_tables.squeue_jobs(answer)


@pytest.mark.parametrize("path", outputs("squeue-poll-format.txt"))
def test_recorded_named_fields_have_the_values_we_read(path):
    names = ("id", "state", "reason", "nodes", "count", "preempt", "end", "start", "host", "restarts", "qos", "tres")
    (found,) = parse_tables.field_rows(path.read_text(), names)

    assert job_state(found["state"]) == "RUNNING"
    assert len(expand(found["nodes"])) == parse_values.number(found["count"]) == 2
    assert parse_values.moment(found["preempt"]) is None
    assert parse_values.moment(found["end"]) - parse_values.moment(found["start"]) == 300


@pytest.mark.parametrize("path", [*outputs("squeue-mixed.txt"), *outputs("squeue-[chs]*.txt")])
def test_recorded_queue_lists_have_known_states(path):
    if path.suffix != ".txt" or "json" in path.name:
        return
    text = answer_to(path.read_text(), "squeue -a -h -o")
    rows = [line.split("|")[1] if "|" in line else line.split()[4] for line in text.splitlines() if "JOBID" not in line]

    assert rows
    assert all(meaning(job_state(state)) is not Meaning.UNKNOWN for state in rows)


@pytest.mark.parametrize("path", outputs("sinfo-poll-format.txt"))
def test_recorded_node_fields_are_read(path):
    rows = parse_tables.field_rows(path.read_text(), ("name", "state", "complete", "reason", "gres", "time"))

    assert len(rows) == 8
    assert {node_state(row["complete"])[0] for row in rows} <= {"IDLE", "ALLOCATED", "MIXED"}


@pytest.mark.parametrize("path", [*outputs("sacct-*.txt")])
def test_every_recorded_account_is_read(path):
    text = path.read_text()
    if path.name == "sacct-default.txt":
        states = [line.split()[-2] for line in text.splitlines() if ":" in line]
    else:
        states = [row["State"] for row in parse_tables.bar_table(text)]

    assert states
    for printed in states:
        assert meaning(job_state(printed)) is not Meaning.UNKNOWN, printed


def test_a_lost_node_shows_as_a_resize_and_a_smaller_job():
    path = OUTPUTS / "22.05/sacct-nokill-node-lost.txt"
    if not path.exists():
        pytest.skip("no recorded outputs")
    jobs = [row for row in parse_tables.bar_table(path.read_text()) if "." not in row["JobID"]]

    assert [(row["State"], row["NodeList"]) for row in jobs] == [("RESIZING", "n[1-2]"), ("RUNNING", "n1")]


def test_array_tasks_and_truncated_steps_of_sacct_keep_their_states():
    first = sample("sacct_arrays__compressed_pending_range.txt").partition("# second")[0]
    states = {row["JobID"]: job_state(row["State"]) for row in parse_tables.bar_table(first)}

    assert states["5610980.0"] == "RUNNING"
    assert states["20956421_[2-4%25]"] == "PENDING"


def test_old_queues_with_zero_padded_lists_and_limits_that_are_not_set():
    rows = [line.split("^^^") for line in sample("squeue_caret_sep__zero_prefix_hostlist.txt").splitlines() if line]

    assert len(expand(rows[4][7])) == int(rows[4][5])
    assert {job_state(row[1]) for row in rows} == {"PENDING", "RUNNING"}
    assert parse_values.duration(rows[-1][9]) is None


@pytest.mark.parametrize(
    "name", ["18.08.bin", "non_utf8_job_name.bin", "null_submit_time.bin", "with_cluster_header.bin"]
)
def test_queues_of_other_formats_are_not_mistaken_for_an_answer_of_ours(name):
    prefix = "squeue_ood_x1f__"
    with pytest.raises(ValueError):
        parse_tables.squeue_jobs(sample(prefix + name))


def test_sinfo_lists_of_other_sites_have_readable_nodes_and_states():
    for line in sample("sinfo_gres_long_hostnames.txt").splitlines():
        name, *_, state = line.split()

        assert expand(name) == (name,)
        assert node_state(state)[0] in {"MIXED", "IDLE"}
    for record in sample("sinfo_nodes_by_count__owens_head.bin").split("\n")[:-1]:
        _, node, features = record.split(U)

        assert (expand(node), features != "") == ((node,), True)


def test_a_table_of_qos_is_read_by_its_header():
    (base,) = parse_tables.bar_table("Name|Priority|GraceTime|Preempt\nbase|100|00:00:00|elastic\n")

    assert base == {"Name": "base", "Priority": "100", "GraceTime": "00:00:00", "Preempt": "elastic"}


@pytest.mark.parametrize("garbled", ["", "nothing here", "A|B|C\n1|2\n"])
def test_a_garbled_table_is_refused(garbled):
    with pytest.raises(ValueError):
        parse_tables.bar_table(garbled)
