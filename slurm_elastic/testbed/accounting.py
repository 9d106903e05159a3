"""slurmdbd with a MariaDB of its own: only with them does Slurm preempt by QOS."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.errors import TestbedError
from slurm_elastic.testbed import commands
from slurm_elastic.testbed.configuration import CLUSTER
from slurm_elastic.testbed.daemons import wait_started
from slurm_elastic.testbed.options import Options
from slurm_elastic.testbed.place import Place, port_is_free
from slurm_elastic.testbed.processes import Process, start

DATABASE_USER = "mysql"
DATABASE_DAEMON = "mariadbd"
INSTALL_S = 90


@dataclass(frozen=True, slots=True)
class Accounting:
    """The database and slurmdbd of one testbed. Order: `start_database`, `start_daemon`, `set_up`."""

    place: Place
    options: Options
    environ: Mapping[str, str]

    @property
    def _data(self) -> Path:
        return self.place.directory / "database" / "data"

    @property
    def _socket(self) -> Path:
        return self.place.directory / "database" / "socket"

    def start_database(self) -> None:
        """Make an empty database that only root can reach, and start its server on a socket."""
        owner = pwd.getpwnam(DATABASE_USER)
        for path in (self._data.parent, self._data):
            path.mkdir(mode=0o700)
            os.chown(path, owner.pw_uid, owner.pw_gid)
        commands.must(
            [
                "mariadb-install-db",
                "--no-defaults",
                f"--user={DATABASE_USER}",
                f"--datadir={self._data}",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
                "--innodb-log-file-size=16M",
            ],
            environ=self.environ,
            timeout_s=INSTALL_S,
        )
        server = start(
            [
                DATABASE_DAEMON,
                "--no-defaults",
                f"--user={DATABASE_USER}",
                f"--datadir={self._data}",
                "--skip-networking",
                f"--socket={self._socket}",
                "--innodb-buffer-pool-size=32M",
                "--innodb-log-file-size=16M",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-lock-wait-timeout=900",
            ],
            log=self.place.console(DATABASE_DAEMON),
            pidfile=self.place.pidfile(DATABASE_DAEMON),
            environ=self.environ,
        )
        ping = ["mariadb-admin", "--no-defaults", "-uroot", f"--socket={self._socket}", "ping"]
        self._wait(server, lambda: self._socket.exists() and self._answers(ping), DATABASE_DAEMON)

    def start_daemon(self) -> None:
        """Start slurmdbd and wait until it answers (it makes its tables first)."""
        # (its library takes the socket's path from here)
        environ = {**self.environ, "MYSQL_UNIX_PORT": str(self._socket)}
        daemon = start(
            ["slurmdbd", "-D"],
            log=self.place.console("slurmdbd"),
            pidfile=self.place.pidfile("slurmdbd"),
            environ=environ,
        )
        ask = ["sacctmgr", "-n", "show", "cluster"]
        self._wait(daemon, lambda: not port_is_free(self.place.database_port) and self._answers(ask), "slurmdbd")

    def set_up(self) -> None:
        """Cluster, account, users and the QOS elastic, base and urgent (which preempts elastic)."""
        # two sessions: one does not see a QOS that it has just added
        self.tell([f"add cluster {CLUSTER}", "add account main", *(f"add qos {name}" for name in _QOS)])
        users = dict.fromkeys(("root", *self.options.users))
        self.tell(
            [
                *self._qos_lines(),
                *(f"add user {user} account=main" for user in users),
                *(f"modify user {user} set qos=normal,elastic,base,urgent" for user in users),
            ]
        )
        shown = commands.must(["sacctmgr", "-nP", "show", "qos", "format=name"], environ=self.environ)
        if missing := set(_QOS) - set(shown.split()):
            raise TestbedError(f"slurmdbd did not take the QOS {', '.join(sorted(missing))}")

    def set_preemption(self) -> None:
        """Bring preemption mode and grace time of QOS elastic to what the options say."""
        self.tell(self._qos_lines()[:1])

    def _qos_lines(self) -> list[str]:
        # (PreemptMode and GraceTime are those of the QOS that is preempted)
        elastic = f"priority=10 preemptmode={self.options.preempt_mode} gracetime={self.options.real_grace_s}"
        return [
            f"modify qos elastic set {elastic}",
            "modify qos base set priority=100",
            "modify qos urgent set priority=1000 preempt=elastic",
        ]

    def tell(self, lines: Sequence[str]) -> None:
        """Give sacctmgr these lines in one session. It exits 0 also where it did nothing new."""
        commands.must(["sacctmgr", "-i"], environ=self.environ, text="\n".join(lines) + "\n")

    def _answers(self, argv: Sequence[str]) -> bool:
        return commands.run(argv, environ=self.environ).returncode == 0

    def _wait(self, process: Process, ready: Callable[[], bool], name: str) -> None:
        wait_started(self.place, name, process, ready)


_QOS = ("elastic", "base", "urgent")
