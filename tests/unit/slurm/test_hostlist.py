import shutil
import subprocess

import pytest

from slurm_elastic.slurm.hostlist import LARGEST, expand, fold

from .shared_samples import SAMPLES

# Slurm itself never prints these; each is refused or read in the plain sense instead of Slurm's accident.
NOT_PRINTED_BY_SLURM = (
    *(
        "a-[1,03-005,9]",
        "a-[01-4]-b",
        "a-[8-11]-b",
        "a-[1-3]-b-[4-5]-c-[9-10]-d",
        "b[2],a[]",
        "a[",
        "a,",
        ",",
        "]a,a[3",
    ),
    *("gpu-node-[01-03].cluster.example.org", "artcore[3-9]-ib0", "cluster[0001,0002,1555-1559]-ipmi", "0[3-9/2]abc"),
    *("[0]cluster", "[3-5]abc", "0123[000-003]L6", "node[1-3,5-]", "node[3-1]", "node[1-2][3-4]", "node[01-3]"),
    *("node[0-3]-rack[a-c]", "node[ 1 - 3 ]", "node1 node2", "tux1,tux2;tux3", "(null)", "None assigned"),
)


def golden() -> list[tuple[str, int, list[str]]]:
    path = SAMPLES / "hostlists.tsv"
    if not path.exists():
        return []
    rows = [line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#")][1:]
    printed = (row for row in rows if row[0] not in NOT_PRINTED_BY_SLURM)
    return [(row[0], int(row[3]), row[4].split(",") if row[4] else []) for row in printed]


@pytest.mark.parametrize(("text", "count", "names"), golden())
def test_every_list_that_slurm_prints_expands_as_slurm_expands_it(text, count, names):
    if names[-1:] == ["..."]:
        assert len(expand(text)) == count
    else:
        assert set(expand(text)) == set(names)


@pytest.mark.skipif(not shutil.which("scontrol"), reason="no scontrol")
@pytest.mark.parametrize("text", ["node[001-003,007],gpu-[1-2]-[03-05]", "n[8-11],m1", "nid0[0099,0156-0157]"])
def test_the_scontrol_of_this_machine_agrees(text, tmp_path):
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\n")
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text],
        env={"PATH": "/usr/bin:/bin", "SLURM_CONF": str(conf)},
        capture_output=True,
        text=True,
        timeout=20,
    )

    assert sorted(done.stdout.split()) == sorted(expand(text))


def test_the_order_of_the_list_is_kept_since_counts_per_node_follow_it():
    assert expand("n[8-10],m1") == ("n8", "n9", "n10", "m1")


@pytest.mark.parametrize("nothing", ["", "(null)", "None assigned", " "])
def test_words_for_no_hosts_are_no_hosts(nothing):
    assert expand(nothing) == ()


@pytest.mark.parametrize("text", ["n[1-99999999]", "a[1-1000]b[1-1000]c[1-1000]", "x" * (2**20 + 1)])
def test_a_list_too_large_is_refused_without_expanding_it(text):
    with pytest.raises(ValueError, match="host list of"):
        expand(text)


def test_the_largest_list_is_still_read():
    assert len(expand(f"n[1-{LARGEST}]")) == LARGEST


@pytest.mark.parametrize(
    "text", ["@all", "n[1-3]!n2", "n1&n2", "n^2", "n[3-1]", "n]1[", "*", "n1 n2", "$(id)", "n[1-2", "a,,b"]
)
def test_groups_operators_and_nonsense_are_refused(text):
    with pytest.raises(ValueError, match="not a host list"):
        expand(text)


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["n3", "n1", "n2", "n1"], "n[1-3]"),
        (["rack1-n1", "rack1-n2", "rack2-n1"], "rack1-n[1-2],rack2-n1"),
        (["n1-ib0", "n2-ib0"], "n1-ib0,n2-ib0"),
        (["gpu-1.example.org", "gpu-2.example.org"], "gpu-1.example.org,gpu-2.example.org"),
        (["n01", "n02", "n10"], "n[01-02,10]"),
        ([], ""),
    ],
)
def test_folding_gives_what_slurm_can_read_and_loses_nothing(names, folded):
    assert fold(names) == folded
    assert set(expand(folded)) == set(names)


@pytest.mark.parametrize("name", ["", "n 1", "n,1", "-w;", "n[1-2]"])
def test_a_name_that_is_no_host_name_is_not_folded(name):
    with pytest.raises(ValueError, match="not a host name"):
        fold([name])
